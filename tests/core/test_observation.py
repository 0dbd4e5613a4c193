import dataclasses
import math

import pytest
import torch

from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import AttackReport, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows


def observation(**changes):
    settings = {
        "released": {"weight": torch.ones(2, 3)},
        "forward": lambda inputs, labels: {"weight": inputs},
        "threat": HONEST_BUT_CURIOUS,
        "input_shape": (3,),
        "data_range": (0.0, 1.0),
    }
    return Observation(**{**settings, **changes})


def test_there_is_no_field_for_the_target():
    names = {field.name for field in dataclasses.fields(Observation)}
    always = {"released", "forward", "threat", "input_shape", "data_range", "batch_size"}
    if_known = {"labels", "record_norms", "batch_statistics", "noise_std", "kept", "noise_law"}
    assert names == always | if_known


@pytest.mark.parametrize(("values", "expected"), [([0.0, 0.0], True), ([0.0, 1e-30], False)])
def test_a_release_is_zero_where_all_its_values_are(values, expected):
    released = {"weight": torch.zeros(2, 3), "bias": torch.tensor(values)}
    assert observation(released=released).is_zero is expected


def test_labels_need_a_threat_that_knows_them():
    with pytest.raises(InvalidInput, match=r"Knows\.LABELS"):
        observation(labels=torch.tensor([1]))
    known = observation(labels=torch.tensor([1]), threat=HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS))
    assert int(known.labels) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"released": {}}, "at least one tensor"),
        ({"released": {"bias": torch.tensor([1.0, math.nan])}}, r"released\['bias'\].*index \(1,\)"),
        ({"data_range": (1.0, 1.0)}, "low < high"),
        ({"data_range": (math.nan, 1.0)}, "data_range"),
        ({"data_range": (0.0, math.inf)}, "data_range=inf to be finite"),
        ({"data_range": (0.0, 1.0, 2.0)}, "low < high"),
        ({"input_shape": (-2,)}, "input_shape=-2 >= 1"),
        ({"batch_size": 0}, "batch_size=0 >= 1"),
        (
            {"labels": torch.tensor([1, 2]), "threat": HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS)},
            "to equal batch_size=1",
        ),
    ],
)
def test_bad_observations_are_refused(changes, message):
    with pytest.raises(InvalidInput, match=message):
        observation(**changes)


SIDE_INFORMATION = {
    "labels": (Knows.LABELS, torch.tensor([1])),
    "record_norms": (Knows.RECORD_NORM, torch.tensor([2.0])),
    "batch_statistics": (Knows.BATCH_STATISTICS, {"norm.mean": torch.zeros(3), "norm.var": torch.ones(3)}),
    "noise_std": (Knows.DEFENSE, {"weight": torch.ones(2, 3)}),
    "kept": (Knows.DEFENSE, {"weight": torch.ones(2, 3) > 0}),
}


@pytest.mark.parametrize("name", SIDE_INFORMATION)
def test_side_information_needs_a_threat_that_knows_it(name):
    power, value = SIDE_INFORMATION[name]
    assert getattr(observation(), name) is None
    with pytest.raises(InvalidInput, match=rf"{name}.*add Knows\.{power.name} to the threat"):
        observation(**{name: value})
    assert getattr(observation(**{name: value}, threat=HONEST_BUT_CURIOUS.with_knowledge(power)), name) is value


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("labels", torch.tensor([]), "labels with at least one element"),
        ("record_norms", torch.tensor([1.0, 2.0]), "to equal batch_size=1"),
        ("record_norms", torch.tensor([-1.0]), r"min\(record_norms\)=.*>= 0"),
        ("record_norms", torch.tensor([math.nan]), r"min\(record_norms\)=.*>= 0"),
        ("batch_statistics", {"norm.mean": torch.tensor([math.nan])}, r"batch_statistics\['norm\.mean'\]"),
        ("noise_std", {"weight": torch.ones(3, 2)}, r"noise_std=.*\(3, 2\).*names and shapes.*\(2, 3\)"),
        ("noise_std", {"bias": torch.ones(2, 3)}, "noise_std=.*names and shapes"),
        ("noise_std", {"weight": torch.zeros(2, 3)}, r"min\(noise_std\['weight'\]\)=0\.0 > 0"),
        ("noise_std", {"weight": torch.full((2, 3), math.nan)}, r"noise_std\['weight'\]"),
        ("kept", {}, "kept=.*names and shapes"),
        ("kept", {"weight": torch.ones(2, 3)}, r"kept\['weight'\]\.dtype"),
    ],
)
def test_side_information_that_does_not_fit_is_refused(name, value, message):
    with pytest.raises(InvalidInput, match=message):
        observation(**{name: value}, threat=HONEST_BUT_CURIOUS.with_knowledge(SIDE_INFORMATION[name][0]))


def test_an_attack_with_more_powers_is_refused():
    observation().check_covers(HONEST_BUT_CURIOUS)
    with pytest.raises(InvalidInput, match="to cover what the attack needs"):
        observation().check_covers(HONEST_BUT_CURIOUS.with_knowledge(Knows.PRIOR))


def test_repr_shows_sizes_and_no_values():
    assert repr(observation()) == (
        "Observation(1 tensors, 6 values, 1 x (3,), ThreatModel(sees=one-update, knows=nothing, controls=nothing))"
    )


def test_a_reconstruction_speaks_of_its_status():
    account = AttackReport(
        "dlg()", Status(Ending.BUDGET_SPENT, "3 steps", "Raise steps"), (0.5, 0.25), Cost(1.0, 3), labels=(4, 2)
    )
    result = Reconstruction(torch.zeros(2, 1, 4, 4), account)
    assert result.status is account.status
    assert result.labels == (4, 2)
    assert repr(result) == "Reconstruction(2 x (1, 4, 4), dlg(), budget spent: 3 steps. Raise steps.)"
    with pytest.raises(InvalidInput, match="each of 3 estimates"):
        Reconstruction(torch.zeros(3, 1, 4, 4), account)


@pytest.mark.parametrize("ending", [Ending.DIVERGED, Ending.NOT_APPLICABLE, Ending.INTERRUPTED])
def test_failures_must_say_what_to_do(ending):
    assert Status(ending, "cause", "remedy").is_failure
    with pytest.raises(InvalidInput, match="remedy"):
        Status(ending, "cause")


@pytest.mark.parametrize("ending", [Ending.CONVERGED, Ending.EXACT, Ending.BUDGET_SPENT])
def test_other_endings_are_no_failures(ending):
    assert not Status(ending, "cause").is_failure

"""A plain function as an attack: accepted unchanged, or refused with advice."""

import dataclasses
import math
import threading
from functools import partial

import pytest
import torch

import reconrisk as rr
from reconrisk.attacks.plain_function import attack_from_function
from reconrisk.core.reconstruction import AttackReport, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import HONEST_BUT_CURIOUS, MALICIOUS_SERVER, Knows
from reconrisk.data.dataset import Dataset
from reconrisk.releases.release import ForwardRelease

SEEN = rr.Observation({"y": torch.ones(3)}, lambda inputs, labels: {}, HONEST_BUT_CURIOUS, (3,), (0.0, 1.0), 2)


def rng():
    return torch.Generator().manual_seed(0)


def guess(observation, *, rng):
    return torch.rand(observation.batch_size, *observation.input_shape, generator=rng)


def test_a_function_that_returns_a_tensor_is_an_attack():
    attack = attack_from_function(guess)
    found = attack(SEEN, rng=rng())
    assert attack.name == "guess"
    assert attack.needs == HONEST_BUT_CURIOUS
    assert torch.equal(found.estimates, guess(SEEN, rng=rng()))
    assert found.status.ending is Ending.CONVERGED
    assert found.account.objective == (math.inf, math.inf)
    assert found.account.attack == repr(attack)
    assert found.account.cost.seconds >= 0


def test_a_reconstruction_passes_as_it_is():
    made = Reconstruction(torch.zeros(1, 3), AttackReport("x()", Status(Ending.EXACT, "solved"), (0.5,), Cost(1.0, 2)))
    assert attack_from_function(lambda observation, rng: made)(SEEN, rng=rng()) is made


def test_the_function_states_its_needs_and_weaker_threats_are_refused():
    def plant(observation, *, rng):
        return guess(observation, rng=rng)

    plant.needs = MALICIOUS_SERVER
    attack = attack_from_function(plant)
    assert attack.needs is MALICIOUS_SERVER
    with pytest.raises(rr.InvalidInput, match="to cover what the attack needs"):
        attack(SEEN, rng=rng())
    assert len(attack(dataclasses.replace(SEEN, threat=MALICIOUS_SERVER), rng=rng()).estimates) == 2


def test_another_function_of_the_name_is_another_attack():
    def scaled(factor):
        def guess(observation, *, rng):
            return factor * torch.ones(1, 3)

        return attack_from_function(guess)

    assert repr(scaled(0.5)) == repr(scaled(0.5))
    assert repr(scaled(0.5)) != repr(scaled(0.25))
    assert repr(scaled(0.5)).startswith("guess(code=")


def test_names_of_functions_that_have_none():
    assert attack_from_function(lambda observation, rng: None).name == "function"
    assert attack_from_function(partial(guess)).name == "guess"

    class Guess:
        def __call__(self, observation, *, rng):
            return guess(observation, rng=rng)

    assert attack_from_function(Guess()).name == "Guess"


def test_an_attack_is_returned_as_it_is():
    attack = rr.attacks.constant_guess()
    assert attack_from_function(attack) is attack


def test_what_is_not_finite_is_a_failure_that_counts_its_values():
    found = attack_from_function(lambda observation, rng: torch.tensor([[0.0, math.nan, math.inf]]))(SEEN, rng=rng())
    assert found.status.ending is Ending.DIVERGED
    assert found.status.cause == "2 of 3 returned values are not finite"


def test_estimates_lose_their_graph_and_whole_numbers_become_real():
    weight = torch.ones(1, 3, requires_grad=True)
    assert not attack_from_function(lambda observation, rng: 2 * weight)(SEEN, rng=rng()).estimates.requires_grad
    whole = attack_from_function(lambda observation, rng: torch.ones(1, 3, dtype=torch.int64))
    assert whole(SEEN, rng=rng()).estimates.dtype == torch.get_default_dtype()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (3, "attack='int' to be callable. Pass a name, a configured attack or a function (observation, *, rng)."),
        (
            Reconstruction,
            "attack='the class Reconstruction' to be a configured attack. Pass an instance: Reconstruction(...).",
        ),
        (lambda observation: None, "attack='function(observation)' to take (observation, *, rng). Write def function("),
        (lambda: None, "If it configures an attack, call it: function(...)."),
        (rr.attacks.dlg, "If it configures an attack, call it: dlg(...)."),
        (lambda observation, rng, steps: None, "attack='function(observation, rng, steps)' to take"),
    ],
)
def test_what_cannot_be_called_so_is_refused_with_what_to_write(function, message):
    with pytest.raises(rr.InvalidInput) as refused:
        attack_from_function(function)
    assert message in str(refused.value)


def test_needs_that_are_no_threat_are_refused():
    def curious(observation, *, rng):
        return None

    curious.needs = {Knows.LABELS}
    with pytest.raises(rr.InvalidInput, match=r"needs of curious=.* to be a ThreatModel\. Set needs = "):
        attack_from_function(curious)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "the result of function='NoneType' to be a tensor of shape (n, 3) with n up to batch_size=2"),
        ([[0.0] * 3], "Return the estimates as a torch tensor, or a Reconstruction."),
        (torch.zeros(3), "shape of the result of function=(3,) to be a tensor of shape (n, 3)"),
        (torch.zeros(3), "Return estimates[None]."),
        (torch.zeros(()), "=() to be a tensor of shape (n, 3)"),
        (torch.zeros(1, 4), "=(1, 4) to be a tensor of shape (n, 3)"),
        (torch.zeros(3, 3), "=(3, 3) to be a tensor of shape (n, 3) with n up to batch_size=2"),
        (torch.zeros(0, 3), "=(0, 3) to be a tensor of shape (n, 3)"),
    ],
)
def test_what_is_no_estimate_is_refused_with_what_to_return(returned, message):
    attack = attack_from_function(lambda observation, rng: returned)
    with pytest.raises(rr.InvalidInput) as refused:
        attack(SEEN, rng=rng())
    assert message in str(refused.value)


INPUTS = torch.rand(12, 3, generator=torch.Generator().manual_seed(0))
DATA = Dataset("toy", INPUTS, torch.arange(12) % 2)
RELEASE = ForwardRelease(lambda inputs, labels: {"y": inputs.sum(0)}, INPUTS, DATA.labels)


def audit(attack, **settings):
    return rr.audit(RELEASE, DATA, attacks=[attack], trials=4, budget=None, goals="mse<=1e-6", **settings)


def test_an_audit_takes_a_plain_function():
    def read_off(observation, *, rng):
        return observation.released["y"][None]

    line = audit(read_off).lines[0]
    assert (line.best_attack, line.success.value) == ("read_off", 1.0)


def test_a_function_with_the_name_of_a_guess_is_no_guess():
    def constant_guess(observation, *, rng):
        return observation.released["y"][None]

    line = audit(constant_guess).lines[0]
    assert (line.best_attack, line.success.value) == ("constant_guess", 1.0)


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        (lambda observation: observation, r"Write def function\(observation, \*, rng\)"),
        (rr.attacks.analytic, r"call it: analytic\(\.\.\.\)"),
        (7, "attack='int' to be callable"),
        (lambda observation, rng: 3, "Return the estimates as a torch tensor"),
    ],
)
def test_an_audit_says_what_is_missing(attack, message):
    with pytest.raises(rr.InvalidInput, match=message):
        audit(attack)


def test_a_single_attack_is_to_be_in_a_list():
    with pytest.raises(
        rr.InvalidInput, match=r"type\(attacks\)='function' to be a portfolio or a list\. Write \[attack\]"
    ):
        rr.audit(RELEASE, DATA, attacks=guess)


def middle(observation, *, rng):
    return torch.full((observation.batch_size, *observation.input_shape), 0.5)


class Tensors:
    """An attack but for what it returns."""

    needs = HONEST_BUT_CURIOUS
    name = "constant_guess"

    def __call__(self, observation, *, rng):
        return middle(observation, rng=rng)


class Nothing(Tensors):
    def __call__(self, observation, *, rng):
        return Reconstruction(torch.zeros(0, 3), AttackReport("x()", Status(Ending.EXACT, "none"), (), Cost(0.0, 0)))


DATA = Dataset("toy", torch.rand(8, 3, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2)
STUDIES = {
    "audit": lambda attack: rr.audit(torch.nn.Linear(3, 2), DATA, attacks=[attack], trials=1),
    "rebuild": lambda attack: rr.rebuild(attack, torch.nn.Linear(3, 2), DATA, rng=rng()),
    "rebuild_captured": lambda attack: rr.rebuild_captured(
        attack,
        torch.nn.Linear(3, 2),
        input_shape=(3,),
        gradient={"weight": torch.ones(2, 3), "bias": torch.ones(2)},
        rng=rng(),
    ),
    "leakage_over_prior": lambda attack: rr.leakage_over_prior(
        attack, rr.priors.gaussian(torch.full((3,), 0.5), torch.eye(3)), torch.nn.Linear(3, 2), DATA, rng=rng()
    ),
}


@pytest.mark.parametrize("study", STUDIES)
def test_every_study_takes_a_plain_function_or_says_what_is_missing(study):
    assert "middle" in str(STUDIES[study](middle))
    for attack, message in [
        (lambda observation: None, r"to take \(observation, \*, rng\)"),
        (Tensors, "the class Tensors' to be a configured attack"),
        (5, "to be"),
        (Tensors(), "the type of the result of constant_guess='Tensor' to be Reconstruction"),
        (Nothing(), "Expected number of estimates of .*=0 >= 1"),
    ]:
        with pytest.raises(rr.InvalidInput, match=message):
            STUDIES[study](attack)


def test_an_object_with_the_name_of_a_guess_is_no_guess():
    class Attack(Tensors):
        def __call__(self, observation, *, rng):
            return attack_from_function(middle)(observation, rng=rng)

    summary = STUDIES["audit"](Attack()).attacks[0]
    assert (summary.label, summary.is_baseline) == ("constant_guess", False)


def test_a_function_that_holds_what_has_no_content_is_an_attack():
    lock = threading.Lock()

    def locked(observation, *, rng):
        with lock:
            return middle(observation, rng=rng)

    assert repr(attack_from_function(locked)).startswith("locked(code=")


@pytest.mark.parametrize("stated", [("dlg",), ("dlg", 5), ("dlg", {}, 1), (5, {})])
def test_a_pair_is_a_name_and_settings(stated):
    with pytest.raises(rr.InvalidInput, match="to be a name and its settings"):
        STUDIES["audit"](stated)

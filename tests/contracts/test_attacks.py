"""One row per attack: what every attack promises, whatever it does inside."""

import dataclasses
import re
import signal
from collections.abc import Callable

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.core.reconstruction import Ending
from reconrisk.core.threat import MALICIOUS_SERVER, STRONGEST
from reconrisk.data import load_dataset
from reconrisk.testing.attack_rules import RULES, AttackCase
from reconrisk.testing.contract import run_rules

ALL_KNOWN = dataclasses.replace(STRONGEST, controls=frozenset())


def digits(count):
    return load_dataset("mnist", split="test").subset(range(count))


def tanh_network(shape=(1, 28, 28)):
    return rr.models.lenet(shape, 10, activation=nn.Tanh, rng=torch.Generator().manual_seed(0))


def linear_network():
    return rr.models.logistic(784, 10, rng=torch.Generator().manual_seed(0))


@dataclasses.dataclass(frozen=True)
class Row:
    """An attack, a problem it must solve, and how near it must come (None for guesses)."""

    attack: Callable[[], object]
    records: int = 1
    network: Callable[[], nn.Module] = tanh_network
    decibels: float | None = 45.0
    planted: bool = False
    budgeted: Callable[..., object] | None = None


PUBLIC = load_dataset("mnist", split="train").subset(range(500))
MEANS = torch.stack([PUBLIC.inputs[PUBLIC.labels == label].mean(0) for label in range(10)])

ROWS = {
    "dlg": Row(lambda: rr.attacks.dlg(steps=150, restarts=2), budgeted=lambda **given: rr.attacks.dlg(**given)),
    "idlg": Row(lambda: rr.attacks.idlg(steps=150, restarts=2), budgeted=lambda **given: rr.attacks.idlg(**given)),
    "inverting_gradients": Row(
        lambda: rr.attacks.inverting_gradients(steps=200),
        budgeted=lambda **given: rr.attacks.inverting_gradients(**given),
    ),
    "grad_inversion": Row(
        lambda: rr.attacks.grad_inversion(steps=300, restarts=2),
        decibels=25.0,
        budgeted=lambda **given: rr.attacks.grad_inversion(**given),
    ),
    "span_inversion": Row(
        lambda: rr.attacks.span_inversion(steps=150, smooth=True),
        records=4,
        network=lambda: rr.models.mlp(784, (50,), 10, activation=nn.Tanh, rng=torch.Generator().manual_seed(0)),
        budgeted=lambda **given: rr.attacks.span_inversion(**given),
    ),
    "gauss_newton": Row(lambda: rr.attacks.gauss_newton(), budgeted=lambda **given: rr.attacks.gauss_newton(**given)),
    "analytic": Row(lambda: rr.attacks.analytic(), network=linear_network, decibels=90.0),
    "imprint": Row(
        lambda: rr.attacks.imprint(bins=64, public=PUBLIC.inputs),
        records=4,
        network=linear_network,
        decibels=60.0,
        planted=True,
    ),
    "trap_weights": Row(
        lambda: rr.attacks.trap_weights(neurons=400).calibrate(4, PUBLIC.inputs),
        records=4,
        network=linear_network,
        decibels=60.0,
        planted=True,
    ),
    "constant_guess": Row(lambda: rr.attacks.constant_guess(), records=2, decibels=None),
    "prior_mean": Row(lambda: rr.attacks.prior_mean(MEANS.mean(0)), records=2, decibels=None),
    "class_mean": Row(lambda: rr.attacks.class_mean(MEANS), records=2, decibels=None),
    "best_candidate": Row(lambda: rr.attacks.best_candidate(digits(8).inputs, labels=digits(8).labels), decibels=100.0),
    "low_bits": Row(lambda: rr.attacks.low_bits(digits(8).inputs, labels=digits(8).labels), decibels=100.0),
}


def observed(row, attack):
    records = digits(row.records)
    network = row.network()
    model = attack.plant(network, (1, 28, 28)) if row.planted else network
    release = rr.releases.GradientRelease(model, nn.functional.cross_entropy, records.inputs, records.labels)
    return rr.observe(release, threat=STRONGEST if row.planted else ALL_KNOWN), records.inputs


@pytest.fixture(scope="module", params=ROWS)
def solved(request):
    row = ROWS[request.param]
    attack = row.attack()
    observation, target = observed(row, attack)
    case = AttackCase(attack, observation, target)
    return row, case, target.clone(), case.reconstruction


def test_it_keeps_the_rules_for_attacks(solved):
    """The rules of reconrisk.testing.check_attack, on a problem of the attack's own."""
    _, case, *_ = solved
    report = run_rules("attack", case.attack, RULES, case)
    assert {"works_in_double_precision"} <= set(report.skipped) <= {
        "works_in_double_precision", "refuses_weaker_adversaries", "ends_when_interrupted"
    }  # fmt: skip


def test_estimates_have_the_shape_and_type_of_records(solved):
    _, _, target, found = solved
    assert found.estimates.shape == target.shape
    assert found.estimates.dtype == torch.get_default_dtype()


def test_a_problem_with_a_known_answer_is_solved(solved):
    row, _, target, found = solved
    if row.decibels is None:
        assert not found.status.is_failure
        return
    scores = rr.metrics.score(found, target, rr.metrics.psnr(data_range=1.0))["psnr"]
    solved_records = int((scores > row.decibels).sum())
    # records that share a bin or a neuron with another are lost to the attacks that plant a layer
    assert solved_records >= (1 if row.planted else row.records), scores


def test_the_account_has_an_objective_for_each_record(solved):
    _, case, _, found = solved
    assert len(found.account.objective) == case.observation.batch_size


def test_settings_show_and_do_not_change(solved):
    _, case, *_ = solved
    attack = case.attack
    assert re.match(r"\w+\(.*\)$", repr(attack), re.DOTALL)
    field = dataclasses.fields(attack)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(attack, field, None)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.budgeted])
def test_seconds_are_respected(name):
    row = ROWS[name]
    attack = row.budgeted(seconds=0.3)
    observation, _ = observed(row, attack)
    found = attack(observation, rng=torch.Generator().manual_seed(0))
    ended_in_time = found.account.cost.seconds < 0.3 + 5.0  # the margin is for a machine that does other things as well
    assert ended_in_time
    assert found.status.ending in (Ending.BUDGET_SPENT, Ending.CONVERGED, Ending.EXACT)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.budgeted])
def test_interrupted_it_returns_the_best_so_far(name, monkeypatch):
    row = ROWS[name]
    attack = row.attack()
    observation, target = observed(row, attack)
    calls = 0

    def forward(inputs, labels):
        nonlocal calls
        calls += 1
        if calls == 8:
            signal.raise_signal(signal.SIGINT)
        return observation.forward(inputs, labels)

    forward.model = observation.forward.model
    found = attack(dataclasses.replace(observation, forward=forward), rng=torch.Generator().manual_seed(0))
    assert found.status.ending is Ending.INTERRUPTED
    assert found.status.remedy
    assert found.estimates.shape == target.shape
    assert bool(found.estimates.isfinite().all())


@pytest.mark.parametrize("name", ["imprint", "trap_weights"])
def test_who_plants_a_layer_must_control_the_model(name):
    row = ROWS[name]
    attack = row.attack()
    observation, _ = observed(row, attack)
    weaker = dataclasses.replace(observation, threat=ALL_KNOWN)
    with pytest.raises(rr.InvalidInput, match="threat"):
        attack(weaker, rng=torch.Generator())
    assert MALICIOUS_SERVER.covers(attack.needs)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.budgeted])
def test_a_zero_release_is_not_called_a_success(name):
    row = ROWS[name]
    attack = row.attack()
    observation, _ = observed(row, attack)
    nothing = {key: torch.zeros_like(value) for key, value in observation.released.items()}
    found = attack(dataclasses.replace(observation, released=nothing), rng=torch.Generator().manual_seed(0))
    assert found.status.ending is Ending.NOT_APPLICABLE


def test_every_attack_has_a_row():
    parts = {
        "average_observations", "james_stein", "known_norm", "known_scale", "least_squares", "neurons_for_clipping",
        "posterior_mean", "ratio", "total_least_squares", "tabular", "adam", "attack_by_name",
    }  # fmt: skip
    planted_elsewhere = {
        "optimal_analytic"
    }  # needs a loss of its own: tests/attacks/malicious_server/test_optimal_analytic.py
    # of whoever sees a trained model: tests/contracts/test_informed.py
    informed = {
        "glm", "glm_attributes", "glm_candidates", "glm_observed", "informed_membership", "invert_training",
        "match_candidates", "reconstructor", "fine_tune_reconstructor", "load_reconstructor", "save_reconstructor",
        "balle2022_reconstructor", "linear_reconstructor", "residual_reconstructor",
    }  # fmt: skip
    # of whoever knows what records look like: tests/contracts/test_prior_attacks.py
    with_a_prior = {
        "finetuned_diffusion", "gaussian_posterior", "ggl", "ggss_r", "gias", "gifd", "jensen_gap", "plug_and_play",
        "prior_alone",
    }  # fmt: skip
    types = {name for name in rr.attacks.__all__ if name[0].isupper()}
    assert set(rr.attacks.__all__) - parts - planted_elsewhere - informed - with_a_prior - types == set(ROWS)

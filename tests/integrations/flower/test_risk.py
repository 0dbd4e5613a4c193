import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconrisk.accounting.renyi import replace_one_order_two
from reconrisk.accounting.subsampled import epsilon_of_training
from reconrisk.bounds.mse.renyi import mse_lower_bound_from_rdp
from reconrisk.bounds.success import success_upper_bound
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import Composed, Gaussian, dp_sgd
from reconrisk.integrations.flower.risk import HEURISTIC, FederatedRisk

RISK = FederatedRisk(prior_success=1e-3, delta=1e-5, data_range=(0.0, 1.0))
noises = st.lists(st.floats(0.3, 20), min_size=1, max_size=6)


@given(noises)
def test_rounds_add_up_as_the_composed_mechanism_does(multipliers):
    found, composed = RISK.after_rounds(multipliers), Composed(tuple(Gaussian(noise) for noise in multipliers))
    assert found["success-so-far"] == pytest.approx(success_upper_bound(composed, prior_success=1e-3).value, rel=1e-9)
    assert found["epsilon-so-far"] == pytest.approx(epsilon_of_training(composed, 1e-5), rel=1e-6)
    error = mse_lower_bound_from_rdp(replace_one_order_two(composed), low=0.0, high=1.0).value
    assert found["mse-so-far"] == pytest.approx(error, rel=1e-9)
    assert found["rounds"] == len(multipliers)
    assert found["heuristic"] == 0


@given(noises, st.floats(0.3, 20))
def test_another_round_never_lowers_the_risk(multipliers, another):
    before, after = RISK.after_rounds(multipliers), RISK.after_rounds([*multipliers, another])
    assert after["success-so-far"] >= before["success-so-far"]
    assert after["epsilon-so-far"] >= before["epsilon-so-far"]
    assert after["mse-so-far"] <= before["mse-so-far"]
    assert after["success-this-round"] <= after["success-so-far"] * (1 + 1e-12)


def test_equal_rounds_are_a_repeated_mechanism():
    wanted = success_upper_bound(dp_sgd(noise_multiplier=2.0, steps=9), prior_success=1e-3).value
    assert RISK.after_rounds([2.0] * 9)["success-so-far"] == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("rounds", [[HEURISTIC], [1.0, HEURISTIC], [HEURISTIC, 1.0]])
def test_a_round_without_mechanism_leaves_only_what_is_trivially_true(rounds):
    found = RISK.after_rounds(rounds)
    trivial = {"heuristic": 1, "success-so-far": 1.0, "epsilon-so-far": math.inf, "mse-so-far": 0.0}
    assert {name: found[name] for name in trivial} == trivial
    assert (found["success-this-round"] == 1.0) == (rounds[-1] == HEURISTIC)


def test_error_is_told_only_where_the_range_is_known():
    assert "mse-so-far" not in FederatedRisk(prior_success=0.1, delta=1e-5).after_rounds([1.0])


@pytest.mark.parametrize(
    "settings",
    [
        {"prior_success": 1.5},
        {"delta": 0.0},
        {"delta": 1.0},
        {"data_range": (1.0, 0.0)},
    ],
)
def test_what_makes_no_sense_is_refused_at_once(settings):
    with pytest.raises(InvalidInput):
        FederatedRisk(**{"prior_success": 0.1, "delta": 1e-5, **settings})


@pytest.mark.parametrize("rounds", [[], [-1.0], [math.nan]])
def test_rounds_that_cannot_be_are_refused(rounds):
    with pytest.raises(InvalidInput):
        RISK.after_rounds(rounds)

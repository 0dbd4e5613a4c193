import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from reconrisk.accounting.events import from_event
from reconrisk.bounds import prior_success
from reconrisk.bounds.success import dp_from_reconstruction_robustness, success_upper_bound
from reconrisk.core.errors import InvalidInput
from reconrisk.core.guarantee import Estimate, Guarantee, Quantity, Scope
from reconrisk.core.mechanism import (
    ApproximateDP,
    Composed,
    Gaussian,
    GaussianDP,
    Neighbouring,
    PureDP,
    RenyiDP,
    ZeroConcentratedDP,
    dp_sgd,
    output_perturbation,
)
from reconrisk.core.storage.serialization import from_json, to_json
from reconrisk.core.threat import INFORMED, STRONGEST

MECHANISMS = [
    Gaussian(1.0),
    dp_sgd(noise_multiplier=1.0, sampling_probability=0.1),
    dp_sgd(noise_multiplier=5.0, steps=10),
    dp_sgd(noise_multiplier=1.0, sampling_probability=0.01, steps=300),
    Composed((Gaussian(4.0), dp_sgd(noise_multiplier=1.0, sampling_probability=0.01, steps=100))),
    PureDP(1.0, Neighbouring.REPLACE_ONE),
    PureDP(1.0, Neighbouring.ADD_OR_REMOVE),
    ApproximateDP(1.0, 1e-5),
    RenyiDP((2.0, 4.0, 8.0), (0.5, 0.8, 1.5)),
    ZeroConcentratedDP(0.1),
    GaussianDP(0.5),
]


def named(mechanism):
    return type(mechanism).__name__


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=named)
@settings(max_examples=25, deadline=None)
@given(log_prior=st.floats(-1e4, 0))
def test_lies_between_the_prior_and_one_and_never_rounds_to_zero(mechanism, log_prior):
    bound = success_upper_bound(mechanism, log_prior_success=log_prior, accuracy=1e-3)
    assert log_prior <= bound.log_value <= 0
    assert 0 < bound.value <= 1
    assert bound.value == pytest.approx(math.exp(bound.log_value), rel=1e-9, abs=1e-323)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=named)
def test_grows_with_the_prior(mechanism):
    values = [success_upper_bound(mechanism, prior_success=prior).value for prior in (1e-9, 1e-3, 0.1, 0.5, 0.9, 1.0)]
    assert values == sorted(values)
    assert values[-1] == 1


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=named)
def test_holds_against_every_adversary_with_the_prior(mechanism):
    bound = success_upper_bound(mechanism, prior_success=0.1)
    assert isinstance(bound, Guarantee)
    assert bound.quantity is Quantity.SUCCESS_PROBABILITY
    assert bound.scope is Scope.ANY_ADVERSARY_WITH_PRIOR
    assert bound.covers(STRONGEST)
    assert bound.covers(INFORMED)
    assert bound.mechanism is mechanism
    assert any("prior_success" in assumption for assumption in bound.assumptions)
    assert from_json(to_json(bound)) == bound


def test_only_sampled_mechanisms_assume_secret_sampling():
    def assumes(mechanism):
        bound = success_upper_bound(mechanism, prior_success=0.1)
        return any("Poisson" in assumption for assumption in bound.assumptions)

    assert assumes(MECHANISMS[3])
    assert not assumes(Gaussian(1.0))


@pytest.mark.parametrize(
    ("mechanism", "expected"),
    [
        (PureDP(2.0, Neighbouring.REPLACE_ONE), 0.1 * math.exp(2) / (1 + 0.1 * math.expm1(2))),
        (PureDP(2.0, Neighbouring.ADD_OR_REMOVE), 0.1 * math.exp(2)),
        (PureDP(4.0, Neighbouring.ADD_OR_REMOVE), 1 - 0.9 * math.exp(-4)),
        (ApproximateDP(1.0, 0.05), 0.1 * math.e + 0.05),
        (ApproximateDP(5.0, 0.05), 1 - math.exp(-5) * 0.85),
        (GaussianDP(1.0), norm.cdf(norm.ppf(0.1) + 1)),
        (Gaussian(2.0, clip_norm=3.0), norm.cdf(norm.ppf(0.1) + 0.5)),
        (dp_sgd(noise_multiplier=10.0, steps=25), norm.cdf(norm.ppf(0.1) + 0.5)),
        (output_perturbation(noise_std=0.02, records=100, regularization=0.5), norm.cdf(norm.ppf(0.1) + 1)),
    ],
)
def test_each_row_of_the_table(mechanism, expected):
    assert success_upper_bound(mechanism, prior_success=0.1).value == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-3), (2.0, 1e-2), (0.1, 0.2)])
def test_approximate_dp_is_attained_by_its_own_worst_mechanism(epsilon, delta):
    # Kairouz, Oh, Viswanath (2015): outcomes "surely with", "surely without", and two of odds e^epsilon.
    plain = (1 - delta) / (1 + math.exp(epsilon))
    with_record = [delta, plain * math.exp(epsilon), plain, 0.0]
    without = [0.0, plain, plain * math.exp(epsilon), delta]
    for prior in (0.01, 0.3, 0.8):
        power, size = 0.0, prior
        for p, q in zip(with_record, without, strict=True):
            share = 1.0 if q == 0 else min(1.0, size / q)
            power, size = power + share * p, size - share * q
        bound = success_upper_bound(ApproximateDP(epsilon, delta), prior_success=prior).value
        assert bound == pytest.approx(power, rel=1e-9)


def test_a_full_batch_agrees_with_its_own_privacy_statements():
    exact = success_upper_bound(Gaussian(1.0), prior_success=0.1).value
    orders = tuple(1 + 0.05 * k for k in range(1, 200))
    stated = [GaussianDP(1.0), ZeroConcentratedDP(0.5), RenyiDP(orders, tuple(order / 2 for order in orders))]
    bounds = [success_upper_bound(mechanism, prior_success=0.1).value for mechanism in stated]
    assert bounds[0] == pytest.approx(exact, rel=1e-13)
    assert exact < bounds[1] <= bounds[2] + 1e-9
    assert bounds[2] == pytest.approx(0.484, abs=1e-3)


def test_a_prior_object_is_accepted():
    prior = prior_success.gaussian(dimension=3000, prior_std=1.0, mse=0.1)
    bound = success_upper_bound(Gaussian(1.0), prior_success=prior)
    assert prior.log_value < -700 < 0 < bound.value < 1e-300
    assert "exp(" in str(bound)


def test_an_event_of_dp_accounting_is_bounded_through_its_mechanism():
    from dp_accounting import dp_event

    event = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0)), 1000)
    bound = success_upper_bound(from_event(event), prior_success=0.1)
    assert bound.value == pytest.approx(0.19420, abs=3e-5)


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, math.inf, "0.1"])
def test_priors_outside_their_range_are_refused(value):
    with pytest.raises(InvalidInput, match="prior_success"):
        success_upper_bound(Gaussian(1.0), prior_success=value)


@pytest.mark.parametrize(
    "priors",
    [
        {},
        {"prior_success": 0.1, "log_prior_success": -1.0},
        {"log_prior_success": 0.1},
        {"log_prior_success": math.nan},
    ],
)
def test_exactly_one_prior_is_needed(priors):
    with pytest.raises(InvalidInput, match="log_prior_success"):
        success_upper_bound(Gaussian(1.0), **priors)


@pytest.mark.parametrize("mechanism", [None, 1.0, "dp-sgd", Estimate(0.1, 0.1, 0.1, 0.95, 1, "exact")])
def test_other_mechanisms_are_refused(mechanism):
    with pytest.raises(InvalidInput, match="mechanism"):
        success_upper_bound(mechanism, prior_success=0.1)


@pytest.mark.parametrize("accuracy", [0.0, -1e-5, math.nan])
def test_accuracy_must_be_positive(accuracy):
    with pytest.raises(InvalidInput, match="accuracy"):
        success_upper_bound(Gaussian(1.0), prior_success=0.1, accuracy=accuracy)


@given(st.floats(0, 6), st.floats(0, 1))
def test_the_converse_undoes_the_bound(epsilon, share):
    # A mechanism that is (epsilon, delta)-DP against replacement has ReRo at the prior p = 1/(e^eps + 1) on pairs with
    # success delta/(1 + e^eps) + e^eps/(1 + e^eps) at most; from there Theorem 5 leads back to the same delta.
    success = (share + math.exp(epsilon)) / (1 + math.exp(epsilon))
    stated = dp_from_reconstruction_robustness(min(success, 1.0), epsilon=epsilon)
    assert stated.neighbouring is Neighbouring.REPLACE_ONE
    assert stated.delta == pytest.approx(share, abs=1e-12 * math.exp(epsilon))


def test_the_converse_refuses_what_no_mechanism_has():
    with pytest.raises(InvalidInput, match="success"):
        dp_from_reconstruction_robustness(0.4, epsilon=0.0)


def test_the_converse_does_not_overflow():
    assert dp_from_reconstruction_robustness(1.0, epsilon=1e4).delta == 1.0


@pytest.mark.parametrize("group_size", [1, 2, 3])
def test_a_group_multiplies_the_shift_of_a_gaussian_and_the_epsilon(group_size):
    grouped = success_upper_bound(Gaussian(2.0), prior_success=0.1, group_size=group_size)
    assert grouped.value == pytest.approx(success_upper_bound(Gaussian(2.0 / group_size), prior_success=0.1).value)
    pure = success_upper_bound(PureDP(0.5, Neighbouring.REPLACE_ONE), prior_success=0.1, group_size=group_size)
    whole = success_upper_bound(PureDP(0.5 * group_size, Neighbouring.REPLACE_ONE), prior_success=0.1)
    assert pure.value == pytest.approx(whole.value)


def test_a_group_in_subsampled_training_is_bounded_by_iteration():
    run = dp_sgd(noise_multiplier=1.0, sampling_probability=0.01, steps=1000)
    values = [success_upper_bound(run, prior_success=0.1, group_size=size).value for size in (1, 2, 4)]
    assert values == pytest.approx([0.1942, 0.3269, 0.6424], abs=2e-4)  # the exact mixture is at most 0.3240 and 0.6267
    with pytest.raises(InvalidInput, match="group_size"):
        success_upper_bound(run, prior_success=0.1, group_size=0)

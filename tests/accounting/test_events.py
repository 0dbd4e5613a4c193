import math

import numpy as np
import pytest
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.rdp import RdpAccountant

from reconrisk.accounting.events import from_event
from reconrisk.accounting.renyi import renyi_curve
from reconrisk.bounds.success import success_upper_bound
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import (
    ApproximateDP,
    Composed,
    Gaussian,
    Neighbouring,
    PoissonSampled,
    PrivacyCurve,
    RenyiDP,
    Repeated,
    ZeroConcentratedDP,
    dp_sgd,
)
from reconrisk.core.storage.serialization import from_json, to_json

GAUSSIAN = dp_event.GaussianDpEvent(1.5)
SAMPLED = dp_event.PoissonSampledDpEvent(0.1, GAUSSIAN)


@pytest.mark.parametrize(
    ("event", "mechanism"),
    [
        (GAUSSIAN, Gaussian(1.5)),
        (SAMPLED, PoissonSampled(Gaussian(1.5), 0.1)),
        (dp_event.PoissonSampledDpEvent(1.0, GAUSSIAN), Gaussian(1.5)),
        (dp_event.SelfComposedDpEvent(SAMPLED, 7), Repeated(PoissonSampled(Gaussian(1.5), 0.1), 7)),
        (
            dp_event.ComposedDpEvent([GAUSSIAN, dp_event.NoOpDpEvent(), dp_event.SelfComposedDpEvent(SAMPLED, 3)]),
            Composed((Gaussian(1.5), Repeated(PoissonSampled(Gaussian(1.5), 0.1), 3))),
        ),
        (
            dp_event.SelfComposedDpEvent(dp_event.SelfComposedDpEvent(SAMPLED, 3), 4),
            Repeated(PoissonSampled(Gaussian(1.5), 0.1), 12),
        ),
        (dp_event.SelfComposedDpEvent(dp_event.ZCDpEvent(0.25), 2), ZeroConcentratedDP(0.5)),
    ],
)
def test_events_become_the_mechanism_they_describe(event, mechanism):
    assert from_event(event) == mechanism


def test_other_supported_events_become_both_curves_and_bounds_use_the_smaller():
    event = dp_event.ComposedDpEvent([SAMPLED, dp_event.LaplaceDpEvent(2.0)])
    mechanism = from_event(event)
    accountant = RdpAccountant(mechanism.renyi.orders)
    accountant.compose(event)
    assert isinstance(mechanism, PrivacyCurve)
    assert mechanism.renyi.epsilons == pytest.approx(accountant.rdp)
    alone = PrivacyCurve(mechanism.epsilons, mechanism.deltas)
    for prior in (0.5, 0.1, 1e-8, 1e-30):
        parts = [success_upper_bound(each, prior_success=prior).value for each in (alone, mechanism.renyi)]
        assert success_upper_bound(mechanism, prior_success=prior).value == min(parts)
    assert from_json(to_json(mechanism)) == mechanism


def test_events_with_a_renyi_curve_only_become_that():
    event = dp_event.ComposedDpEvent([SAMPLED, dp_event.ZCDpEvent(0.1, xi=0.2)])
    assert isinstance(from_event(event), RenyiDP)


def test_both_curves_of_a_mechanism_are_for_the_same_neighbours():
    renyi = RenyiDP((2.0,), (1.0,), Neighbouring.REPLACE_ONE)
    with pytest.raises(InvalidInput, match="one record added or removed"):
        PrivacyCurve((1.0,), (0.1,), renyi=renyi)


def test_fixed_batches_are_for_replaced_records_and_count_twice_the_norm():
    event = dp_event.SampledWithoutReplacementDpEvent(1000, 10, dp_event.GaussianDpEvent(4.0))
    mechanism = from_event(event, neighbouring=Neighbouring.REPLACE_ONE)
    accountant = RdpAccountant(mechanism.orders, NeighboringRelation.REPLACE_ONE)
    accountant.compose(event)
    assert mechanism.neighbouring is Neighbouring.REPLACE_ONE
    # the accountant takes the event's noise multiplier as if replacing a record moved the sum by one norm
    assert (np.array(mechanism.epsilons) > accountant.rdp).all()
    with pytest.raises(InvalidInput, match="SampledWithoutReplacementDpEvent"):
        from_event(event)


def test_a_replaced_record_in_a_full_batch_has_four_times_the_divergence():
    mechanism = from_event(GAUSSIAN, neighbouring=Neighbouring.REPLACE_ONE)
    alone = renyi_curve(Gaussian(1.5), np.array(mechanism.orders))
    assert np.array(mechanism.epsilons) == pytest.approx(4 * alone, rel=1e-9)


@pytest.mark.parametrize(
    "event",
    [
        dp_event.NonPrivateDpEvent(),
        dp_event.UnsupportedDpEvent(),
        dp_event.NoOpDpEvent(),
        dp_event.SelfComposedDpEvent(GAUSSIAN, 0),
        dp_event.SampledWithReplacementDpEvent(100, 10, GAUSSIAN),
        dp_event.ComposedDpEvent([GAUSSIAN, dp_event.NonPrivateDpEvent()]),
    ],
)
def test_events_without_a_guarantee_are_refused_by_name(event):
    with pytest.raises(InvalidInput, match="DpEvent"):
        from_event(event)


def test_poisson_sampling_of_replaced_records_is_refused():
    with pytest.raises(InvalidInput, match="PoissonSampledDpEvent"):
        from_event(SAMPLED, neighbouring=Neighbouring.REPLACE_ONE)


def test_no_noise_is_refused():
    with pytest.raises(InvalidInput, match="noise_multiplier"):
        from_event(dp_event.GaussianDpEvent(0.0))


def test_curves_hold_only_finite_numbers():
    mechanism = from_event(dp_event.ComposedDpEvent([SAMPLED, dp_event.ZCDpEvent(0.1, xi=0.2)]))
    assert all(math.isfinite(value) and value > 0 for value in mechanism.epsilons)


def test_what_only_the_loss_accountant_knows_becomes_a_curve_on_the_safe_side():
    mixture = dp_event.MixtureOfGaussiansDpEvent(1.0, [0, 1], [0.9, 0.1])  # one Poisson-subsampled Gaussian step
    curve = from_event(mixture)
    assert isinstance(curve, PrivacyCurve)
    exact = success_upper_bound(dp_sgd(noise_multiplier=1.0, sampling_probability=0.1), prior_success=0.1).value
    assert exact <= success_upper_bound(curve, prior_success=0.1).value <= exact + 1e-4


def test_a_discrete_laplace_event_is_never_below_the_best_test():
    curve = from_event(dp_event.DiscreteLaplaceDpEvent(0.5, 1))
    support = np.arange(-80, 81)
    without, shifted = np.exp(-0.5 * np.abs(support)), np.exp(-0.5 * np.abs(support - 1))
    without, shifted = without / without.sum(), shifted / shifted.sum()
    order = np.argsort(-shifted / without, kind="stable")  # Neyman-Pearson: the most telling outcomes first
    sizes, powers = np.cumsum(without[order]), np.cumsum(shifted[order])
    power = np.interp(0.1, np.append(0.0, sizes), np.append(0.0, powers))
    assert power <= success_upper_bound(curve, prior_success=0.1).value <= power * 1.05


@pytest.mark.parametrize(
    ("epsilons", "deltas", "message"),
    [
        ((), (), "one value for each"),
        ((1.0,), (0.1, 0.2), "one value"),
        ((-1.0,), (0.1,), "epsilons"),
        ((1.0,), (2.0,), "deltas"),
    ],
)
def test_curves_that_make_no_sense_are_refused(epsilons, deltas, message):
    with pytest.raises(InvalidInput, match=message):
        PrivacyCurve(epsilons, deltas)


def test_a_curve_is_as_good_as_its_best_point():
    points = [ApproximateDP(0.5, 0.2), ApproximateDP(2.0, 1e-3)]
    curve = PrivacyCurve(tuple(each.epsilon for each in points), tuple(each.delta for each in points))
    alone = [success_upper_bound(each, prior_success=0.05).value for each in points]
    assert success_upper_bound(curve, prior_success=0.05).value == min(alone)
    assert from_json(to_json(curve)) == curve

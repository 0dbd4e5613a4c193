import math

import numpy as np
import pytest
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.rdp import RdpAccountant

from reconrisk.accounting.events import mechanism_from_event
from reconrisk.accounting.renyi import renyi_curve
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import (
    Composed,
    Gaussian,
    Neighbouring,
    PoissonSampled,
    PureDP,
    RenyiDP,
    Repeated,
    ZeroConcentratedDP,
)

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
        (dp_event.LaplaceDpEvent(0.5), PureDP(2.0, Neighbouring.ADD_OR_REMOVE)),
        (dp_event.SelfComposedDpEvent(dp_event.ZCDpEvent(0.25), 2), ZeroConcentratedDP(0.5)),
    ],
)
def test_events_become_the_mechanism_they_describe(event, mechanism):
    assert mechanism_from_event(event) == mechanism


def test_other_supported_events_become_their_renyi_curve():
    event = dp_event.ComposedDpEvent([SAMPLED, dp_event.LaplaceDpEvent(2.0)])
    mechanism = mechanism_from_event(event)
    accountant = RdpAccountant(mechanism.orders)
    accountant.compose(event)
    assert isinstance(mechanism, RenyiDP)
    assert mechanism.epsilons == pytest.approx(accountant.rdp)


def test_fixed_batches_are_for_replaced_records_and_count_twice_the_norm():
    event = dp_event.SampledWithoutReplacementDpEvent(1000, 10, dp_event.GaussianDpEvent(4.0))
    mechanism = mechanism_from_event(event, neighbouring=Neighbouring.REPLACE_ONE)
    accountant = RdpAccountant(mechanism.orders, NeighboringRelation.REPLACE_ONE)
    accountant.compose(event)
    assert mechanism.neighbouring is Neighbouring.REPLACE_ONE
    # the accountant takes the event's noise multiplier as if replacing a record moved the sum by one norm
    assert (np.array(mechanism.epsilons) > accountant.rdp).all()
    with pytest.raises(InvalidInput, match="SampledWithoutReplacementDpEvent"):
        mechanism_from_event(event)


def test_a_replaced_record_in_a_full_batch_has_four_times_the_divergence():
    mechanism = mechanism_from_event(GAUSSIAN, neighbouring=Neighbouring.REPLACE_ONE)
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
        dp_event.DiscreteLaplaceDpEvent(1.0, 1),
    ],
)
def test_events_without_a_guarantee_are_refused_by_name(event):
    with pytest.raises(InvalidInput, match="DpEvent"):
        mechanism_from_event(event)


def test_poisson_sampling_of_replaced_records_is_refused():
    with pytest.raises(InvalidInput, match="PoissonSampledDpEvent"):
        mechanism_from_event(SAMPLED, neighbouring=Neighbouring.REPLACE_ONE)


def test_no_noise_is_refused():
    with pytest.raises(InvalidInput, match="noise_multiplier"):
        mechanism_from_event(dp_event.GaussianDpEvent(0.0))


def test_curves_hold_only_finite_numbers():
    mechanism = mechanism_from_event(dp_event.ComposedDpEvent([SAMPLED, dp_event.ZCDpEvent(0.1, xi=0.2)]))
    assert all(math.isfinite(value) and value > 0 for value in mechanism.epsilons)

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from reconrisk.accounting.loss import Cuts, Direction, step_loss
from reconrisk.accounting.phases import Phase

CUTS = Cuts(math.log(1e-18))


def lattice_divergence(loss, epsilon):
    return loss.infinite + float(np.sum(loss.mass * np.maximum(-np.expm1(epsilon - loss.losses), 0.0)))


def true_divergence(phase, epsilon, direction):
    """The likelihood ratio grows with x, so the best event is a half-line: solved for its end."""
    s, q = phase.noise_multiplier, phase.sampling_probability
    sign = 1.0 if direction is Direction.WITH_RECORD else -1.0
    odds = (math.exp(sign * epsilon) - (1 - q)) / q
    end = s * s * math.log(odds) + 0.5 if odds > 0 else -math.inf
    if direction is Direction.WITH_RECORD:
        null = ndtr(-end / s)
        return (1 - q) * null + q * ndtr((1 - end) / s) - math.exp(epsilon) * null
    null = ndtr(end / s)
    return null - math.exp(epsilon) * ((1 - q) * null + q * ndtr((end - 1) / s))


phases = st.builds(Phase, st.floats(0.2, 5.0), st.sampled_from([0.001, 0.01, 0.2, 0.9, 1.0]), st.just(1))


@settings(max_examples=60, deadline=None)
@given(phases, st.sampled_from([2.0**-9, 2.0**-6, 2.0**-3]), st.sampled_from(list(Direction)), st.floats(-3, 6))
def test_dominates_the_true_step_at_every_epsilon(phase, spacing, direction, epsilon):
    loss = step_loss(phase, spacing, CUTS, direction)
    assert lattice_divergence(loss, epsilon) >= true_divergence(phase, epsilon, direction) - 1e-16


@settings(max_examples=30, deadline=None)
@given(phases, st.sampled_from(list(Direction)))
def test_meets_the_true_step_at_its_own_lattice_points(phase, direction):
    loss = step_loss(phase, 2.0**-6, CUTS, direction)
    middle = float(loss.losses[np.argmax(loss.mass)])
    for epsilon in middle + 2.0**-6 * np.arange(-20, 21, 5):
        assert lattice_divergence(loss, epsilon) == pytest.approx(true_divergence(phase, epsilon, direction), abs=1e-10)


@settings(max_examples=30, deadline=None)
@given(phases, st.sampled_from(list(Direction)), st.floats(-2, 4))
def test_a_coarser_lattice_is_never_below_a_finer_one(phase, direction, epsilon):
    values = [lattice_divergence(step_loss(phase, 2.0**-k, CUTS, direction), epsilon) for k in (4, 6, 8)]
    # the finer lattice pays more round-off allowance: some thousand cells times 1e-15
    assert values[0] >= values[1] - 1e-11 >= values[2] - 2e-11


@settings(max_examples=30, deadline=None)
@given(phases, st.sampled_from(list(Direction)))
def test_no_mass_is_lost(phase, direction):
    loss = step_loss(phase, 2.0**-5, CUTS, direction)
    assert (loss.mass >= 0).all()
    assert 1 - 1e-16 <= loss.mass.sum() + loss.infinite <= 1 + 1e-12


def test_the_infimum_of_the_loss_is_a_lattice_point():
    loss = step_loss(Phase(0.3, 0.01, 1), 2.0**-7, CUTS, Direction.WITH_RECORD)
    assert loss.losses[0] == math.log1p(-0.01)
    assert loss.mass[0] > 0.85


def test_losses_above_the_cap_count_as_infinite():
    phase = Phase(0.2, 0.1, 1)
    capped = step_loss(phase, 2.0**-5, Cuts(CUTS.log_tail, largest=3.0), Direction.WITH_RECORD)
    full = step_loss(phase, 2.0**-5, CUTS, Direction.WITH_RECORD)
    assert capped.infinite > 0.05 > full.infinite
    for epsilon in (-0.1, 0.5, 2.0):
        assert lattice_divergence(capped, epsilon) >= lattice_divergence(full, epsilon)


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("rate", [0.9, 1.0])
def test_wide_cuts_move_mass_to_the_safe_side(direction, rate):
    phase, cuts = Phase(1.0, rate, 1), Cuts(math.log(0.01))
    loss = step_loss(phase, 2.0**-5, cuts, direction)
    assert loss.infinite > 1e-4
    assert loss.mass.sum() + loss.infinite == pytest.approx(1.0, abs=1e-12)
    for epsilon in (-2.0, 0.0, 0.7, 2.0, 5.0):
        assert lattice_divergence(loss, epsilon) >= true_divergence(phase, epsilon, direction) - 1e-16

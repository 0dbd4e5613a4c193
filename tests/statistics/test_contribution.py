"""Evidence that a record contributes more than claimed, against integrals by quadrature and simulated errors."""

import math

import numpy as np
import pytest
from scipy.integrate import quad

from reconrisk.core.errors import InvalidInput
from reconrisk.statistics.contribution import ShiftLikelihood, _log_integral


@pytest.mark.parametrize(("size", "slope"), [(8, -3.0), (8, 20.0), (12, -20.0), (738, 3.0), (738, -40.0)])
def test_the_integral_agrees_with_adaptive_quadrature(size, slope):
    found = float(_log_integral(np.array([slope]), size)[0])
    mode = (slope + math.sqrt(slope**2 + 4 * (size - 1))) / 2

    def scaled(w):
        return math.exp((size - 1) * math.log(w) - w * w / 2 + slope * w - found) if w > 0 else 0.0

    assert quad(scaled, max(0.0, mode - 15), mode + 15, points=[mode], limit=500)[0] == pytest.approx(1, abs=1e-7)


@pytest.mark.parametrize("shift", [0.5, 3.0])
def test_the_likelihood_ratio_has_mean_one_without_a_shift(shift):
    """Independent of the derivation: the cosine of isotropic noise has the density (1 - a^2)^((p-3)/2)."""
    size = 20

    def log_ratio(cosine):
        likelihood = ShiftLikelihood(size)
        likelihood.cosines.append(cosine)
        return likelihood._log_at(shift) - likelihood._log_at(1e-9)

    def density(cosine):
        return (1 - cosine**2) ** ((size - 3) / 2)

    total = quad(density, -1, 1)[0]
    mean = quad(lambda cosine: density(cosine) * math.exp(log_ratio(cosine)), -1, 1)[0] / total
    assert mean == pytest.approx(1, abs=1e-7)


def likelihood_of(rng, shift, pairs, size, *, scale=1.0, across=0.0):
    found = ShiftLikelihood(size)
    for _ in range(pairs):
        difference = rng.standard_normal(size)
        difference[:2] += shift, across
        difference *= scale
        found.add(float(difference[0] / np.linalg.norm(difference)))
    return found


@pytest.mark.parametrize("scale", [1.0, 7.0])
def test_limits_cover_and_do_not_depend_on_the_scale_of_the_noise(scale):
    rng = np.random.default_rng(0)
    found = [likelihood_of(rng, 2.0, 15, 40, scale=scale).limits(alpha=0.05) for _ in range(60)]
    assert sum(not low <= 2.0 <= high for low, high in found) <= 6
    assert np.median([high - low for low, high in found]) < 2.5


@pytest.mark.parametrize(("shift", "across"), [(1.0, 0.0), (0.3, 0.9), (0.0, 1.0), (-2.0, 0.0)])
def test_smaller_shifts_raise_no_alarm(shift, across):
    rng = np.random.default_rng(1)
    alarms = sum(
        likelihood_of(rng, shift, 20, 30, across=across).evidence_above(1.0) >= math.log(20) for _ in range(60)
    )
    assert alarms <= 6  # at level 0.05, mean at most 3


def test_a_larger_shift_is_found_and_excluded_above():
    found = likelihood_of(np.random.default_rng(2), 4.0, 10, 100)
    assert found.evidence_above(2.0) > math.log(1000)
    assert found.evidence_above(4.5) < 0
    assert found.excludes(8.0, alpha=0.01)
    assert not found.excludes(4.0, alpha=0.01)


def test_nothing_seen_is_nothing_known():
    found = ShiftLikelihood(10)
    assert found.evidence_above(1.0) == pytest.approx(0, abs=1e-12)
    assert found.limits() == (0.0, math.inf)
    assert not found.excludes(100.0, alpha=0.5)


@pytest.mark.parametrize("cosine", [1.1, math.nan])
def test_values_that_are_no_cosine_are_refused(cosine):
    with pytest.raises(InvalidInput, match="cosine"):
        ShiftLikelihood(10).add(cosine)


def test_few_values_are_refused():
    with pytest.raises(InvalidInput, match="size"):
        ShiftLikelihood(7)

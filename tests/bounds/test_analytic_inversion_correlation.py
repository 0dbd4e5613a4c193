import math

import numpy as np
import pytest

from reconrisk.bounds.analytic_inversion import analytic_inversion_ncc, ncc_exceedance
from reconrisk.core.errors import InvalidInput
from reconrisk.core.guarantee import Estimate
from reconrisk.core.mechanism import Gaussian

DRAWS = 50_000


def _correlations(rng, targets, noise_multiplier):
    norms = np.linalg.norm(targets, axis=1, keepdims=True)
    estimates = targets + noise_multiplier * norms * rng.standard_normal(targets.shape)
    a, b = targets - targets.mean(1, keepdims=True), estimates - estimates.mean(1, keepdims=True)
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


@pytest.mark.parametrize("dimension", [3, 4, 50])
def test_single_draws_have_the_exact_law(dimension):
    rng = np.random.default_rng(dimension)
    target = rng.random(dimension)
    draws = _correlations(rng, np.tile(target, (DRAWS, 1)), 0.3)
    setting = {"dimension": dimension, "norm": float(np.linalg.norm(target)), "variance": float(target.var())}
    for level in (-0.2, 0.0, 0.4, 0.8):
        exact = ncc_exceedance(level, Gaussian(0.3), **setting)
        assert (draws >= level).mean() == pytest.approx(exact, abs=5 * 0.5 / math.sqrt(DRAWS))
    estimate = analytic_inversion_ncc(Gaussian(0.3), **setting)
    inside = ((draws >= estimate.low) & (draws <= estimate.high)).mean()
    assert inside == pytest.approx(0.95, abs=5 * math.sqrt(0.05 * 0.95 / DRAWS))


def test_high_dimension_concentrates_at_the_population_value():
    estimate = analytic_inversion_ncc(Gaussian(0.01), dimension=150_528, norm=200.0)
    assert estimate.value == pytest.approx(math.sqrt(1 / (1 + 1e-4 * 150_528)))
    assert estimate.high - estimate.low < 0.02
    assert estimate.low < estimate.value < estimate.high


def test_averaging_observations_is_less_noise():
    four = analytic_inversion_ncc(Gaussian(1.0), dimension=10, norm=1.0, observations=4)
    assert four.value == pytest.approx(analytic_inversion_ncc(Gaussian(0.5), dimension=10, norm=1.0).value)


def test_it_is_an_estimate_and_says_that_it_is_no_bound():
    estimate = analytic_inversion_ncc(Gaussian(0.5), dimension=4, norm=1.0)
    assert isinstance(estimate, Estimate)
    assert "not a bound" in estimate.method
    assert analytic_inversion_ncc(Gaussian(0.5), dimension=2, norm=1.0).high == 1


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"dimension": 1}, "dimension=1 >= 2"),
        ({"norm": 0.0}, "norm=0.0 > 0"),
        ({"variance": 1.0}, "variance=1.0 <= 0.25"),
        ({"observations": 0}, "observations=0 >= 1"),
        ({"confidence": 1.0}, r"confidence=1.0 in \(0, 1\)"),
    ],
)
def test_bad_input_is_named(setting, message):
    with pytest.raises(InvalidInput, match=message):
        analytic_inversion_ncc(Gaussian(0.5), **({"dimension": 4, "norm": 1.0} | setting))


def test_levels_are_correlations():
    with pytest.raises(InvalidInput, match=r"level=1\.5"):
        ncc_exceedance(1.5, Gaussian(0.5), dimension=4, norm=1.0)

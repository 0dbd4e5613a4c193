import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import norm

from reconrisk.accounting.subsampled_fisher import guo2022_factor, subsampled_information
from reconrisk.core.errors import InvalidInput

RATES = st.floats(-12, -1e-3).map(lambda power: 10**power)
SHIFTS = st.floats(0, 60)


def by_quadrature(shift, rate, power):
    """scipy's adaptive rule, cut where the integrand bends."""
    logit = math.log(rate) - math.log1p(-rate)
    middle = -(logit / shift + shift / 2)
    cuts = sorted(
        {max(-12.0, min(12.0, cut)) for cut in (-12, -6, middle - 3 / shift, middle, middle + 3 / shift, 6, 12)}
    )
    total = 0.0
    for low, high in itertools.pairwise(cuts):
        total += quad(
            lambda z: z**power * norm.pdf(z) * expit(shift * z + shift**2 / 2 + logit),
            low,
            high,
            epsabs=1e-300,
            epsrel=1e-12,
            limit=500,
        )[0]
    return total


@pytest.mark.filterwarnings("ignore::scipy.integrate.IntegrationWarning")  # at 1e-12 the oracle doubts its last digit
@pytest.mark.parametrize("rate", [1e-9, 1e-4, 0.01, 0.1, 0.5, 0.75, 0.99])
@pytest.mark.parametrize("shift", [1e-3, 0.3, 1.0, 1.1153, 2.5, 6.0, 15.0, 40.0])
def test_it_agrees_with_adaptive_quadrature_and_is_never_below_it(shift, rate):
    across, along = subsampled_information(shift, rate)
    for value, exact in ((across, by_quadrature(shift, rate, 0)), (along, by_quadrature(shift, rate, 2))):
        assert float(value) == pytest.approx(exact, rel=2e-12)
        assert float(value) >= exact * (1 - 1e-15)


@pytest.mark.parametrize(
    ("q", "noise", "gradient"), [(0.1, 1.0, (0.8, 0.0)), (0.5, 0.7, (0.6, -0.8)), (0.9, 1.5, (0.3, 1.0))]
)
def test_it_is_the_information_of_a_mixture_in_two_dimensions(q, noise, gradient):
    """The score by central differences of the log density of the release, integrated on a grid."""
    jacobian = np.array([[1.0, 0.4], [-0.3, 2.0]])
    axis = np.linspace(-11 * noise, 11 * noise, 801)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)

    def density(record):
        mean = np.array(gradient) + jacobian @ record
        with_it = np.exp(-((grid - mean) ** 2).sum(-1) / (2 * noise**2))
        without = np.exp(-(grid**2).sum(-1) / (2 * noise**2))
        return (q * with_it + (1 - q) * without) / (2 * math.pi * noise**2)

    step, here = 1e-5, density(np.zeros(2))
    scores = [(density(step * e) - density(-step * e)) / (2 * step) for e in np.eye(2)]
    cell = (axis[1] - axis[0]) ** 2
    information = np.array([[(a * b / here).sum() * cell for a in scores] for b in scores])

    length = math.hypot(*gradient)
    across, along = subsampled_information(length / noise, q)
    pulled = jacobian.T @ np.array(gradient) / length
    formula = q / noise**2 * (across * jacobian.T @ jacobian + (along - across) * np.outer(pulled, pulled))
    np.testing.assert_allclose(information, formula, rtol=1e-7, atol=1e-9)  # differences: step^2 = 1e-10 and rounding


@given(SHIFTS, RATES)
@settings(deadline=None, max_examples=60)
def test_factors_lie_between_nothing_and_no_amplification(shift, rate):
    across, along = subsampled_information(shift, rate)
    assert rate * (1 - 1e-15) <= across <= 1
    assert 0 < along <= 1


@given(st.tuples(SHIFTS, SHIFTS).map(sorted), RATES)
@settings(deadline=None, max_examples=60)
def test_across_never_falls_with_the_shift(pair, rate):
    across, along = subsampled_information(pair, rate)
    assert across[1] >= across[0] * (1 - 2e-12)  # both carry margins of at most a relative 1e-12
    if rate < 0.6:
        assert along[1] >= along[0] * (1 - 2e-12)


def test_along_falls_with_the_shift_at_rates_above_two_thirds():
    """So the largest shift is not the worst case there: q + q(1-q)(2-3q)c^2 to second order."""
    for q in (0.6, 0.8, 0.99):
        along = subsampled_information(1e-2, q).along
        assert along - q == pytest.approx(q * (1 - q) * (2 - 3 * q) * 1e-4, rel=1e-3)
    assert subsampled_information(1.0, 0.99).along < 0.99


def test_limits():
    shifts = [0.0, 0.5, 5.0, 1e3, 1e300, math.inf]
    for factor in subsampled_information(shifts, 1.0):
        np.testing.assert_array_equal(factor, 1.0)
    for factor in subsampled_information(shifts, 0.0):
        np.testing.assert_array_equal(factor, 0.0)
    for factor in subsampled_information(shifts, 0.2):
        assert factor[0] == 0.2
        np.testing.assert_array_equal(factor[3:], 1.0)
    for factor in subsampled_information(1.0, 1 - 1e-9):
        assert float(factor) == pytest.approx(1, abs=2e-9)


def test_small_rates_tend_to_the_tilted_gaussian():
    """w -> q e^(cz + c^2/2) as q -> 0: the factors are q e^(c^2) and q e^(c^2) (1 + c^2)."""
    across, along = subsampled_information(1.3, 1e-12)
    assert float(across) == pytest.approx(1e-12 * math.exp(1.69), rel=1e-10)
    assert float(along) == pytest.approx(1e-12 * math.exp(1.69) * 2.69, rel=1e-10)


def test_shapes_are_kept_and_large_arrays_go_in_chunks():
    shifts = np.random.default_rng(0).uniform(0, 3, (70, 1000))
    across, along = subsampled_information(shifts, 0.01)
    assert across.shape == along.shape == shifts.shape
    single = subsampled_information(shifts[-1, -1], 0.01)
    np.testing.assert_allclose([across[-1, -1], along[-1, -1]], [single.across, single.along], rtol=1e-13)


def test_published_effect_of_sampling():
    """q = 0.1, sigma = 1: .19 across and .26 along, where guo2022 prints .9998."""
    assert subsampled_information(1.0, 0.1).across == pytest.approx(0.1935, abs=1e-4)
    assert guo2022_factor(noise_multiplier=1.0, sampling_probability=0.1, delta=1e-5) == pytest.approx(0.9998, abs=1e-4)


@pytest.mark.parametrize(("noise", "q", "delta"), [(0.2, 1e-12, 0.1), (0.4, 1e-4, 0.5), (0.5, 0.01, 0.9)])
def test_guo2022_factor_is_below_the_exact_information(noise, q, delta):
    """Along the gradient the information of the mixture is q h_par/s^2, more than the printed q kappa/s^2."""
    printed = guo2022_factor(noise_multiplier=noise, sampling_probability=q, delta=delta)
    assert printed < by_quadrature(1.115 / noise, q, 2)


def test_guo2022_factor_says_nothing_in_the_settings_of_the_paper():
    """MNIST: q = 0.01, sigma = 1 and total failure probability 1/60,000 over 6,000 steps."""
    printed = guo2022_factor(noise_multiplier=1.0, sampling_probability=0.01, delta=1 / (60_000 * 6_000))
    assert printed > 0.999
    assert max(subsampled_information(1.1153, 0.01)) < 0.08


def test_bad_input_is_refused():
    with pytest.raises(InvalidInput, match=r"Expected shift=-1.0 >= 0"):
        subsampled_information([0.5, -1.0], 0.1)
    with pytest.raises(InvalidInput, match="Expected shift=nan >= 0"):
        subsampled_information(math.nan, 0.1)
    with pytest.raises(InvalidInput, match="sampling_probability"):
        subsampled_information(1.0, 1.1)
    with pytest.raises(InvalidInput, match="delta"):
        guo2022_factor(noise_multiplier=1.0, sampling_probability=0.1, delta=0.0)

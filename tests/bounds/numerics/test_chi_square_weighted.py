import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconrisk.bounds.numerics.chi_square import log_gammainc, log_weighted_chi_square
from reconrisk.core.errors import InvalidInput


def _reference_mpmath_pairs(weights, threshold):
    """Closed form for weights that occur twice each: a sum of exponentials with means 2 w."""
    with mpmath.workdps(80):
        means = [2 * mpmath.mpf(weight) for weight in weights]
        tail = mpmath.mpf(0)
        for i, mean in enumerate(means):
            factor = mpmath.fprod(mean / (mean - other) for j, other in enumerate(means) if j != i)
            tail += factor * mpmath.exp(-mpmath.mpf(threshold) / mean)
        return float(mpmath.log(1 - tail))


@pytest.mark.parametrize("dimension", [1, 2, 3, 10, 100, 3072, 150_528])
@pytest.mark.parametrize("ratio", [1e-200, 1e-6, 0.3, 0.9, 1.0, 1.2, 3.0, 100.0])
def test_equal_weights_are_a_chi_square(dimension, ratio):
    expected = float(log_gammainc(dimension / 2, ratio * dimension / 2))
    value = log_weighted_chi_square(ratio * dimension, weights=np.ones(dimension))
    assert -1e-14 * abs(expected) <= value - expected <= 1e-9 + 1e-14 * abs(expected)


@given(
    exponents=st.lists(st.integers(-24, 0), min_size=2, max_size=5, unique=True),
    log_threshold=st.floats(-12.0, 3.0),
)
@settings(max_examples=100, deadline=None)
def test_closed_form_for_pairs_is_met_from_above(exponents, log_threshold):
    weights, threshold = np.exp2(exponents), math.exp(log_threshold)
    expected = _reference_mpmath_pairs(weights, threshold)
    value = log_weighted_chi_square(threshold, weights=np.repeat(weights, 2))
    assert expected - 1e-14 * (1 + abs(expected)) <= value <= expected + 1e-9


@pytest.mark.parametrize("shape", ["geometric", "one large", "two groups"])
def test_spectra_of_images_against_simulation(shape):
    rng = np.random.default_rng(0)
    weights = {
        "geometric": np.geomspace(1e-9, 1, 300),
        "one large": np.concatenate([[1.0], np.full(300, 1e-3)]),
        "two groups": np.repeat([1.0, 1e-4], [5, 295]),
    }[shape]
    draws = np.sort(rng.chisquare(1, (20_000, 300 if shape != "one large" else 301)) @ weights)
    for quantile in (0.02, 0.3, 0.7, 0.98):
        value = math.exp(log_weighted_chi_square(draws[int(quantile * 20_000)], weights=weights))
        assert value == pytest.approx(quantile, abs=5 * math.sqrt(0.25 / 20_000))  # five standard errors


def test_more_weight_is_less_likely_small_and_zero_weights_do_not_count():
    base = log_weighted_chi_square(1.0, weights=[1.0, 0.5])
    assert log_weighted_chi_square(1.0, weights=[1.0, 0.5, 0.0]) == base
    assert log_weighted_chi_square(1.0, weights=[1.0, 0.5, 0.1]) < base
    assert log_weighted_chi_square(1.0, weights=[0.0]) == 0
    assert log_weighted_chi_square(0.0, weights=[1.0]) == -math.inf
    assert -math.inf < log_weighted_chi_square(1e-320, weights=[1.0]) < -300


def test_bad_weights_are_named():
    with pytest.raises(InvalidInput, match=r"weights\[1\]=-1.0 >= 0"):
        log_weighted_chi_square(1.0, weights=[1.0, -1.0])
    with pytest.raises(InvalidInput, match=r"weights\[0\]=nan to be finite"):
        log_weighted_chi_square(1.0, weights=[math.nan])
    with pytest.raises(InvalidInput, match=r"threshold=-1\.0 >= 0"):
        log_weighted_chi_square(-1.0, weights=[1.0])

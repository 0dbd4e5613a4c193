"""Log-space incomplete gamma against mpmath at 60 digits, and the laws of a distribution function."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from reconrisk.bounds.numerics.chi_square import (
    log_gamma_density,
    log_gammainc,
    log_gammainc_inverse,
    stirling_remainder,
)


def _reference_mpmath_log_gammainc(shape: float, x: float) -> float:
    """The power series summed with 60 digits, independent of scipy and of the blocks of the implementation."""
    with mpmath.workdps(60):
        a, point = mpmath.mpf(shape), mpmath.mpf(x)
        total = term = mpmath.mpf(1)
        n = 1
        while term > total * mpmath.mpf(10) ** -30:
            term *= point / (a + n)
            total += term
            n += 1
        return float(a * mpmath.log(point) - point - mpmath.loggamma(a + 1) + mpmath.log(total))


@pytest.mark.parametrize("shape", [0.5, 1.0, 2.0, 10.0, 19.5, 20.5, 392.0, 1536.0, 75_264.0])
@pytest.mark.parametrize("ratio", [1e-6, 0.1, 0.3, 0.49, 0.51, 0.9, 0.98, 0.99, 1.0, 1.1])
def test_agrees_with_mpmath_on_both_sides_of_every_switch(shape, ratio):
    expected = _reference_mpmath_log_gammainc(shape, shape * ratio)
    # a * eps is what rounding of x alone does to the logarithm.
    tolerance = 1e-12 + 4 * np.finfo(float).eps * (shape + abs(expected))
    assert float(log_gammainc(shape, shape * ratio)) == pytest.approx(expected, abs=tolerance)


def test_tail_of_ten_to_the_minus_5000_at_the_dimension_of_imagenet():
    x = log_gammainc_inverse(75_264.0, -5000 * math.log(10))
    assert _reference_mpmath_log_gammainc(75_264.0, x) == pytest.approx(-5000 * math.log(10), rel=1e-12)


@given(
    shape=st.floats(0.5, 1e5),
    first=st.floats(1e-8, 3.0),
    second=st.floats(1e-8, 3.0),
)
@settings(max_examples=200, deadline=None)
def test_is_a_distribution_function(shape, first, second):
    low, high = sorted([first, second])
    below, above = log_gammainc(shape, np.array([low, high]) * shape)
    assert below <= above + 1e-10 * (1 + abs(below))
    assert above <= 0


@given(shape=st.floats(0.5, 1e5), log_probability=st.floats(-2e4, -1e-6))
@settings(max_examples=200, deadline=None)
def test_inverse_undoes_it(shape, log_probability):
    x = log_gammainc_inverse(shape, log_probability)
    if x < 1e-300:
        assert shape * math.log(1e-300) >= log_probability - 700 - shape  # only where the argument underflows
        return
    assert float(log_gammainc(shape, x)) == pytest.approx(log_probability, rel=1e-9, abs=1e-12)


def test_ends_of_the_scale():
    assert log_gammainc(2.0, 0.0) == -math.inf
    assert log_gammainc(0.0, 3.0) == 0
    assert log_gammainc_inverse(2.0, 0.0) == math.inf
    assert log_gammainc_inverse(2.0, -math.inf) == 0
    assert log_gammainc_inverse(0.5, -2000.0) == 0


def test_many_points_at_once_equal_one_by_one():
    points = np.array([[0.0, 1.0, 30.0], [392.0, 500.0, 100.0]])
    together = log_gammainc(392.0, points)
    assert together.shape == points.shape
    np.testing.assert_array_equal(together.ravel(), [float(log_gammainc(392.0, point)) for point in points.ravel()])


@pytest.mark.parametrize("shape", [0.5, 3.0, 19.99, 20.01, 1e3, 1e6])
def test_stirling_remainder_against_mpmath(shape):
    with mpmath.workdps(50):
        a = mpmath.mpf(shape)
        expected = mpmath.loggamma(a + 1) - a * mpmath.log(a) + a - mpmath.log(2 * mpmath.pi * a) / 2
        assert stirling_remainder(shape) == pytest.approx(float(expected), rel=1e-11)


def test_density_is_the_derivative():
    shape, x, h = 7.5, 5.0, 1e-5
    slope = (special.gammainc(shape, x + h) - special.gammainc(shape, x - h)) / (2 * h)
    assert shape / x * math.exp(log_gamma_density(shape, x)) == pytest.approx(slope, rel=1e-8)

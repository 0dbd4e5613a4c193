import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from reconrisk.bounds.numerics.chi_square import log_gammainc
from reconrisk.bounds.numerics.cone import log_cone_probability


def _reference_mpmath_cone(tangent: float, dimension: int, signal: float) -> float:
    """The same probability from the other end: integrate over the noise along the mean, with 30 digits."""
    with mpmath.workdps(30):
        shape = mpmath.mpf(dimension - 1) / 2

        def height(z):
            along = signal + z
            return mpmath.npdf(z) * mpmath.gammainc(shape, 0, along**2 * tangent**2 / 2, regularized=True)

        low = max(-signal, -14)
        return float(mpmath.quad(height, mpmath.linspace(low, 14, 15)))


@pytest.mark.parametrize(
    ("tangent", "dimension", "signal"),
    [(0.11, 4, 10.0), (0.5, 2, 2.0), (1e-3, 3, 1e3), (2.0, 10, 1.0), (0.3, 64, 5.0), (5.0, 40, 3.0)],
)
def test_agrees_with_mpmath_and_is_never_below(tangent, dimension, signal):
    value = math.exp(float(log_cone_probability(tangent, dimension=dimension, signals=[signal])[0]))
    expected = _reference_mpmath_cone(tangent, dimension, signal)
    assert expected * (1 - 1e-14) <= value <= expected * (1 + 1e-9)


def test_is_the_tail_of_the_noncentral_t():
    tangent, dimension, signal = 0.4, 12, 3.0
    expected = stats.nct.sf(math.sqrt(dimension - 1) / tangent, dimension - 1, signal)
    assert np.exp(log_cone_probability(tangent, dimension=dimension, signals=[signal])) == pytest.approx(
        expected, rel=1e-8
    )


@given(dimension=st.integers(2, 200), tangent=st.floats(1e-3, 100.0))
@settings(max_examples=60, deadline=None)
def test_without_signal_it_is_the_area_of_a_cap(dimension, tangent):
    area = 0.5 * special.betainc((dimension - 1) / 2, 0.5, tangent**2 / (1 + tangent**2))
    value = float(log_cone_probability(tangent, dimension=dimension, signals=[0.0])[0])
    assert value == pytest.approx(math.log(area), abs=1e-9) if area > 1e-300 else value < -650


@given(dimension=st.integers(1, 5000), tangent=st.floats(1e-4, 1e4), signal=st.floats(-10.0, 1e4))
@settings(max_examples=100, deadline=None)
def test_grows_with_signal_and_angle(dimension, tangent, signal):
    base, stronger = log_cone_probability(tangent, dimension=dimension, signals=[signal, signal + 0.5])
    wider = log_cone_probability(1.5 * tangent, dimension=dimension, signals=[signal])[0]
    slack = 1e-9 * (1 + abs(base))
    assert base <= stronger + slack
    assert base <= wider + slack
    assert max(base, stronger, wider) <= 0
    assert not np.isnan([base, stronger, wider]).any()


def test_one_dimension_and_no_angle():
    assert math.exp(log_cone_probability(0.1, dimension=1, signals=[1.0])[0]) == pytest.approx(
        special.ndtr(1.0), rel=1e-12
    )
    assert log_cone_probability(0.0, dimension=3, signals=[1.0])[0] == -math.inf


@pytest.mark.parametrize("tangent", [1e-300, 1e-60, 1e-3, 1.0, 1e6])
@pytest.mark.parametrize("signal", [-1e9, -31.0, -29.0, 0.0, 1e6, 0.9e12, 1.1e12, 1e250])
@pytest.mark.parametrize("dimension", [2, 13, 1_000_000])
def test_absurd_settings_give_a_number_on_the_safe_side(tangent, signal, dimension):
    value, stronger = log_cone_probability(
        tangent, dimension=dimension, signals=[signal, signal + 1 + abs(signal) / 10]
    )
    assert not math.isnan(value)
    assert value <= 0
    if signal >= 0:  # below -30 a simpler bound takes over, which is larger
        assert stronger >= value - 1e-6 * (1 + abs(value))
    if signal > 0:  # half of the noise along the mean only helps
        reached = min(0.5 * (tangent * signal) * (tangent * signal), 1e300)
        assert value >= math.log(0.5) + float(log_gammainc((dimension - 1) / 2, reached)) - 1e-6 * (1 + abs(value))


def test_three_dimensions_in_closed_form():
    # chi of two degrees has an exponential square: P = 1 - exp(-c^2 t^2 / (2 (1 + t^2))) / sqrt(1 + t^2), c far from 0.
    for tangent, signal in ((1e-3, 1e3), (1e-6, 1e6), (1e-9, 2e9), (0.5, 40.0)):
        slope = 1 + tangent**2
        exact = -math.expm1(-((signal * tangent) ** 2) / (2 * slope) - 0.5 * math.log1p(tangent**2))
        value = math.exp(float(log_cone_probability(tangent, dimension=3, signals=[signal])[0]))
        assert exact * (1 - 1e-13) <= value <= exact * (1 + 1e-9)

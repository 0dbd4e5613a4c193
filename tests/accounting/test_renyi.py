import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from reconrisk.accounting.renyi import ORDERS, renyi_curve, replace_one_order_two
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import Composed, dp_sgd


def step(noise, rate, steps=1):
    return dp_sgd(noise_multiplier=noise, sampling_probability=rate, steps=steps)


def by_quadrature(noise, rate, order):
    with mpmath.workdps(30):
        q, s, a = mpmath.mpf(rate), mpmath.mpf(noise), mpmath.mpf(order)

        def integrand(x):
            return (1 - q + q * mpmath.exp((x - 0.5) / s**2)) ** a * mpmath.npdf(x, 0, s)

        ends = sorted({-12 * s, -4 * s, mpmath.mpf(0), 1, a, a + 4 * s, a + 14 * s, (1 + a) / 2})
        return float(mpmath.log(mpmath.quad(integrand, ends)) / (a - 1))


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.01), (0.3, 0.05), (0.6, 0.3), (4.0, 0.2)])
@pytest.mark.parametrize("order", [1.05, 1.5, 2.0, 2.5, 4.5, 7.0])
def test_agrees_with_quadrature_and_is_not_below_it(noise, rate, order):
    truth = by_quadrature(noise, rate, order)
    # 1e-14 of round-off allowance over order - 1 >= 0.05
    assert truth * (1 - 1e-15) <= renyi_curve(step(noise, rate), np.array([order]))[0] <= truth * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.01), (0.3, 0.05), (4.0, 0.2)])
def test_agrees_with_dp_accounting_at_whole_orders(noise, rate):
    from dp_accounting import dp_event
    from dp_accounting.rdp import RdpAccountant

    orders = np.array([2.0, 3.0, 8.0, 32.0, 256.0])
    accountant = RdpAccountant(orders)
    accountant.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise)), 100)
    assert renyi_curve(step(noise, rate, 100), orders) == pytest.approx(accountant.rdp, rel=1e-7)


def test_orders_without_quadrature_fall_back_to_the_chord_above():
    # Noise so small that the trapezoidal rule would need too many nodes.
    low, between, high = renyi_curve(step(0.01, 0.01), np.array([2.0, 2.5, 3.0])) * np.array([1.0, 1.5, 2.0])
    assert between == pytest.approx((low + high) / 2, rel=1e-9)
    assert math.isfinite(high)


@settings(max_examples=25, deadline=None)
@given(st.floats(0.2, 10), st.floats(1e-5, 1.0))
def test_grows_with_the_order_and_falls_with_the_noise(noise, rate):
    curve = renyi_curve(step(noise, rate))
    assert (np.diff(curve) >= -1e-9 * curve[1:] - 1e-11).all()
    assert (renyi_curve(step(noise * 1.1, rate)) <= curve * (1 + 1e-9) + 1e-11).all()
    assert (curve <= ORDERS / 2 / noise**2 * (1 + 1e-9) + 1e-11).all()


def test_adds_up_over_phases():
    first, second = step(1.0, 0.01, 30), step(2.0, 0.5, 7)
    both = renyi_curve(Composed((first, second)))
    assert both == pytest.approx(renyi_curve(first) + renyi_curve(second), rel=1e-12)


@pytest.mark.parametrize("orders", [[1.0], [], [np.nan], [np.inf], [0.5]])
def test_orders_outside_their_range_are_refused(orders):
    with pytest.raises(InvalidInput, match="orders"):
        renyi_curve(step(1.0, 0.1), np.array(orders))


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.1), (0.7, 0.01), (2.0, 0.5), (1.5, 0.9), (3.0, 0.001)])
def test_replace_one_order_two_is_above_the_integral_and_near_it(noise, rate):
    def integrand(x):
        return (rate * (norm.pdf(x, 1, noise) - norm.pdf(x, -1, noise))) ** 2 / (
            (1 - rate) * norm.pdf(x, 0, noise) + rate * norm.pdf(x, -1, noise)
        )

    chi_square = quad(integrand, -12 * noise - 4, 12 * noise + 4, limit=500, epsabs=1e-15)[0]
    bound = replace_one_order_two(step(noise, rate, 5))
    assert 5 * math.log1p(chi_square) <= bound <= 5 * math.log1p(1.4 * chi_square)


def test_replace_one_order_two_exceeds_the_add_or_remove_value():
    # guo2022 runs its experiments with the smaller value, which its Theorem 1 does not allow.
    mechanism = step(1.0, 0.01, 1000)
    printed = 1000 * math.log1p(0.01**2 * math.expm1(1.0))
    assert replace_one_order_two(mechanism) > 2 * printed
    assert renyi_curve(mechanism, np.array([2.0]))[0] == pytest.approx(printed, rel=1e-9)


@pytest.mark.parametrize("noise", [0.05, 0.01, 1e-3])
def test_replace_one_order_two_does_not_overflow(noise):
    value = replace_one_order_two(step(noise, 0.01))
    assert math.isfinite(value)
    assert value <= 4 / noise**2

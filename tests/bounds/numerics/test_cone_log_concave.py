import math

import numpy as np
import pytest
from scipy import special

from reconrisk.bounds.numerics.cone import log_integral_upper_bound


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_gaussian_of_any_width(scale):
    start = np.zeros(1)
    value = log_integral_upper_bound(lambda x, _: -0.5 * (x / scale) ** 2, start - 1, start, start + 1)[0]
    assert 0 <= value - 0.5 * math.log(2 * math.pi) - math.log(scale) < 1e-10


def test_a_kink_and_heavy_sides_stay_on_the_safe_side():
    start = np.zeros(1)
    value = log_integral_upper_bound(lambda x, _: -np.abs(x) * np.where(x < 0, 1e-3, 1e3), start - 1, start, start + 1)
    assert 0 <= value[0] - math.log(1e3 + 1e-3) < 1e-10


def test_a_sharp_step_inside_a_wide_peak():
    start = np.full(1, -1.0)
    value = log_integral_upper_bound(
        lambda x, _: -0.5 * x * x + special.log_ndtr(-(x - 0.5) * 1e6), start - 1, start * 0, start * 0 + 1
    )
    # P(z <= 0.5) up to the width of the step.
    assert value[0] - 0.5 * math.log(2 * math.pi) == pytest.approx(special.log_ndtr(0.5), abs=1e-6)


def test_members_do_not_disturb_each_other():
    rates = np.array([0.1, 1.0, 1e4, 3.0])
    modes = np.array([5.0, -2.0, 0.0, 1e3])

    def family(x, which):
        return -rates[which] * (x - modes[which]) ** 2 - 1000.0 * which

    values = log_integral_upper_bound(family, modes - 1, modes, modes + 1)
    np.testing.assert_allclose(values, 0.5 * np.log(np.pi / rates) - 1000.0 * np.arange(4), atol=1e-10)

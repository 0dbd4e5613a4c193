import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from reconrisk.core.errors import InvalidInput
from reconrisk.releases import HardClip, SmoothClip
from reconrisk.releases.updates.clipping import SMOOTH_OVERSHOOT

CLIPS = [HardClip, SmoothClip]


@pytest.mark.parametrize("clip", CLIPS)
@given(norm=st.floats(1e-3, 1e3), length=st.floats(0, 1e6))
def test_nothing_is_longer_than_the_largest_norm(clip, norm, length):
    rule = clip(norm)
    clipped = float(rule.factor(torch.tensor(length, dtype=torch.float64))) * length
    assert clipped <= rule.largest_norm * (1 + 1e-12)


@pytest.mark.parametrize("clip", CLIPS)
@given(norm=st.floats(0.1, 10), length=st.floats(0.01, 100))
def test_the_slope_is_the_derivative_of_the_factor(clip, norm, length):
    rule = clip(norm)
    if abs(length - norm) < 1e-3:
        return  # the kink of hard clipping
    point = torch.tensor(length, dtype=torch.float64, requires_grad=True)
    (derivative,) = torch.autograd.grad(rule.factor(point), point)
    torch.testing.assert_close(rule.slope(point.detach()), derivative, rtol=1e-9, atol=1e-12)


def test_the_overshoot_is_the_maximum_rounded_up():
    def shorter(t):
        return -t / ((t - 1) * stats.norm.cdf(t - 1) + 1)

    largest = -optimize.minimize_scalar(shorter, bounds=(0.5, 5), method="bounded", options={"xatol": 1e-12}).fun
    assert largest <= SMOOTH_OVERSHOOT < largest + 1e-4


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("norm", [0.0, -1.0, np.nan, np.inf])
def test_norms_that_bound_nothing_are_refused(clip, norm):
    with pytest.raises(InvalidInput, match="norm="):
        clip(norm)

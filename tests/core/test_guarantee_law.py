import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import trapezoid

from reconrisk.bounds.analytic_inversion import analytic_inversion_law
from reconrisk.core.errors import InvalidInput
from reconrisk.core.guarantee import Estimate, Guarantee, Law, mse_from_psnr, mse_threshold, psnr_from_mse
from reconrisk.core.mechanism import Gaussian


def test_a_law_is_no_guarantee_and_cannot_be_made_bare():
    assert not issubclass(Law, (Guarantee, Estimate))
    with pytest.raises(TypeError, match="abstract"):
        Law()


@given(psnr=st.floats(-100, 300), data_range=st.floats(1e-3, 1e4))
def test_psnr_round_trip(psnr, data_range):
    assert psnr_from_mse(mse_from_psnr(psnr, data_range=data_range), data_range=data_range) == pytest.approx(
        psnr, abs=1e-9
    )


def test_the_range_matters():
    # riess2025's PSNR uses the record's own range, its bound that of the data set: half the range is 6 dB.
    assert mse_from_psnr(20.0, data_range=0.5) == pytest.approx(mse_from_psnr(20.0, data_range=1.0) / 4)
    assert mse_from_psnr(20.0, data_range=255.0) == pytest.approx(650.25)


def test_perfect_reconstruction_has_infinite_psnr():
    assert psnr_from_mse(0.0, data_range=1.0) == math.inf


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e6])
def test_psnr_outside_the_scale_is_refused(bad):
    with pytest.raises(InvalidInput, match="psnr="):
        mse_from_psnr(bad, data_range=1.0)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_data_range_must_be_a_width(bad):
    with pytest.raises(InvalidInput, match="data_range="):
        mse_threshold(mse=0.1, psnr=None, data_range=bad)


@pytest.mark.parametrize(("mse", "psnr"), [(None, None), (0.1, 20.0)])
def test_exactly_one_way_to_state_the_threshold(mse, psnr):
    with pytest.raises(InvalidInput, match="exactly one number"):
        mse_threshold(mse=mse, psnr=psnr, data_range=1.0)


@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf, "0.1", True])
def test_thresholds_are_numbers_at_or_above_zero(bad):
    with pytest.raises(InvalidInput, match="mse="):
        mse_threshold(mse=bad, psnr=None, data_range=1.0)


def test_peak_signal_to_noise_ratios_follow_the_errors():
    law = analytic_inversion_law(Gaussian(noise_multiplier=0.3), dimension=6, norm=2.0)
    draws = 0.36 / 6 * np.random.default_rng(0).chisquare(6, size=200_000)
    psnr = -10 * np.log10(draws)
    spread = psnr.std() / math.sqrt(len(psnr))
    assert law.expected_psnr() == pytest.approx(psnr.mean(), abs=5 * spread)
    assert (psnr >= law.psnr_quantile(0.2)).mean() == pytest.approx(0.2, abs=5 * math.sqrt(0.16 / len(psnr)))
    grid = np.linspace(-40, 80, 6001)
    density = [law.psnr_pdf(float(level)) for level in grid]
    assert trapezoid(density, grid) == pytest.approx(1.0, abs=1e-6)
    assert trapezoid(density * grid, grid) == pytest.approx(law.expected_psnr(), abs=1e-5)

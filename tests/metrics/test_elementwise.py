"""MSE, PSNR and NCC against NumPy, SciPy, scikit-image and torchmetrics, and at their edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
import skimage.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from torchmetrics.functional.image import peak_signal_noise_ratio

from reconrisk.core.errors import InvalidInput
from reconrisk.metrics import mse, ncc, psnr

law = settings(deadline=None, derandomize=True, max_examples=60)

seeds = st.integers(0, 2**32 - 1)
shapes = st.sampled_from([(1, 2), (3, 7), (4, 30), (2, 1, 5, 6), (3, 3, 8, 8)])


def random_pair(seed: int, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=rng), torch.rand(shape, generator=rng)


@law
@given(seeds, shapes)
def test_mse_agrees_with_scikit_image(seed: int, shape: tuple[int, ...]) -> None:
    estimates, targets = random_pair(seed, shape)
    expected = [
        skimage.metrics.mean_squared_error(t.numpy(), e.numpy()) for e, t in zip(estimates, targets, strict=True)
    ]
    np.testing.assert_allclose(mse()(estimates, targets), expected, rtol=1e-5)


@law
@given(seeds, shapes, st.sampled_from([(0.0, 1.0), (-0.5, 1.5), (0.0, 255.0)]))
def test_psnr_agrees_with_scikit_image_and_torchmetrics(
    seed: int, shape: tuple[int, ...], data_range: tuple[float, float]
) -> None:
    estimates, targets = random_pair(seed, shape)
    width = data_range[1] - data_range[0]
    scores = psnr(data_range=data_range)(estimates, targets)
    for measured, estimate, target in zip(scores, estimates.double(), targets.double(), strict=True):
        by_image = skimage.metrics.peak_signal_noise_ratio(target.numpy(), estimate.numpy(), data_range=width)
        assert float(measured) == pytest.approx(by_image, abs=1e-5)
        assert float(measured) == pytest.approx(
            float(peak_signal_noise_ratio(estimate, target, data_range=width)), abs=1e-5
        )


@law
@given(seeds, st.integers(2, 40))
def test_ncc_agrees_with_scipy(seed: int, width: int) -> None:
    estimates, targets = random_pair(seed, (3, width))
    expected = [
        stats.pearsonr(e.double().numpy(), t.double().numpy()).statistic
        for e, t in zip(estimates, targets, strict=True)
    ]
    np.testing.assert_allclose(ncc()(estimates, targets), expected, atol=1e-9)


@law
@given(seeds, st.floats(0.01, 100), st.floats(-100, 100))
def test_ncc_ignores_brightness_and_contrast(seed: int, factor: float, shift: float) -> None:
    estimates, targets = (each.double() for each in random_pair(seed, (4, 25)))
    expected = ncc()(estimates, targets)
    torch.testing.assert_close(ncc()(factor * estimates + shift, targets), expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(ncc()(-factor * estimates + shift, targets), -expected, rtol=0, atol=1e-9)


@law
@given(seeds, st.floats(0.01, 100), st.floats(-100, 100))
def test_psnr_moves_with_the_range(seed: int, factor: float, shift: float) -> None:
    estimates, targets = (each.double() for each in random_pair(seed, (4, 25)))
    moved = psnr(data_range=(shift, shift + factor))(factor * estimates + shift, factor * targets + shift)
    torch.testing.assert_close(moved, psnr(data_range=(0, 1))(estimates, targets), rtol=0, atol=1e-8)


def test_known_values() -> None:
    # By hand: an error of 0.1 in every value is an MSE of 0.01 and, at range 1, 20 decibel.
    targets = torch.full((1, 4), 0.5, dtype=torch.float64)
    assert float(mse()(targets + 0.1, targets)) == pytest.approx(0.01, rel=1e-12)
    assert float(psnr(data_range=(0, 1))(targets + 0.1, targets)) == pytest.approx(20, rel=1e-12)
    assert float(psnr(data_range=(0, 10))(targets + 0.1, targets)) == pytest.approx(40, rel=1e-12)


def test_identical_records_are_exactly_best() -> None:
    _, targets = random_pair(1, (5, 3, 9, 9))
    assert torch.equal(mse()(targets, targets), torch.zeros(5, dtype=torch.float64))
    assert torch.equal(psnr(data_range=(0, 1))(targets, targets), torch.full((5,), math.inf, dtype=torch.float64))
    assert torch.equal(ncc()(targets, targets), torch.ones(5, dtype=torch.float64))


def test_constant_records_have_no_correlation_unless_equal() -> None:
    # The mean of 25 values 0.1 is not 0.1 in floating point: a naive variance is not zero here.
    constant, ramp = torch.full((1, 25), 0.1, dtype=torch.float64), torch.linspace(0, 1, 25, dtype=torch.float64)[None]
    assert ncc()(constant, ramp).tolist() == [0.0]
    assert ncc()(ramp, constant).tolist() == [0.0]
    assert ncc()(constant, 2 * constant).tolist() == [0.0]
    assert ncc()(constant, constant).tolist() == [1.0]
    assert ncc()(0 * constant, 0 * constant).tolist() == [1.0]


def test_records_of_one_value() -> None:
    estimates, targets = torch.tensor([0.2, 0.5]), torch.tensor([0.2, 0.25])
    assert mse()(estimates, targets).tolist() == [0.0, 0.0625]
    assert ncc()(estimates, targets).tolist() == [1.0, 0.0]


def test_unsigned_bytes_do_not_wrap_around() -> None:
    estimates, targets = torch.tensor([[0, 255]], dtype=torch.uint8), torch.tensor([[255, 0]], dtype=torch.uint8)
    assert mse()(estimates, targets).tolist() == [255.0**2]
    assert psnr(data_range=(0, 255))(estimates, targets).tolist() == [0.0]
    assert ncc()(estimates, targets).tolist() == pytest.approx([-1.0])
    assert mse()(torch.tensor([[True, False]]), torch.tensor([[True, True]])).tolist() == [0.5]


def test_large_values_neither_overflow_nor_cancel() -> None:
    targets = torch.tensor([[1.0, 2.0, 4.0]])
    assert float(mse()(targets * 1e30, targets)) == pytest.approx(7e60, rel=1e-6)
    assert float(ncc()(targets * 1e30, targets)) == pytest.approx(1, abs=1e-12)
    assert float(ncc()(targets.double() * 1e300, targets.double())) == pytest.approx(1, abs=1e-12)
    shifted = targets.double() + 1e6
    assert float(mse()(shifted + 1e-3, shifted)) == pytest.approx(1e-6, rel=1e-6)


def test_an_overflow_is_the_worst_score_and_no_error() -> None:
    estimates, targets = torch.full((1, 2), 1e200, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64)
    assert mse()(estimates, targets).tolist() == [math.inf]
    assert psnr(data_range=(0, 1))(estimates, targets).tolist() == [-math.inf]


def test_direction_is_data() -> None:
    assert not mse().higher_is_better
    assert psnr(data_range=(0, 1)).higher_is_better
    assert ncc().higher_is_better


@pytest.mark.parametrize("data_range", [(1, 0), (0, 0), (0, math.inf), (0, math.nan), (0, 1, 2), "01", None])
def test_a_range_that_is_none_is_refused(data_range: object) -> None:
    with pytest.raises(InvalidInput, match=r"Expected data_range=.*Pass \(low, high\), such as \(0, 1\) or \(0, 255\)"):
        psnr(data_range=data_range)


def test_the_range_must_be_stated() -> None:
    with pytest.raises(TypeError, match="data_range"):
        psnr()


def test_targets_outside_the_stated_range_are_refused() -> None:
    targets = torch.tensor([[0.0, 200.0]])
    with pytest.raises(InvalidInput, match=r"targets within data_range=\(0.0, 1.0\), found 1 above of 2 values\. Pass"):
        psnr(data_range=(0, 1))(targets, targets)
    rounded = torch.tensor([[-1e-6, 1.0001]])
    assert psnr(data_range=(0, 1))(rounded, rounded).tolist() == [math.inf]

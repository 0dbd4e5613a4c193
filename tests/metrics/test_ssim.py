"""SSIM against scikit-image, against a window sum written out, and at its edges."""

from __future__ import annotations

import numpy as np
import pytest
import skimage.metrics
import torch
from scipy.ndimage import correlate1d
from torch import Tensor

from reconrisk.core.errors import InvalidInput
from reconrisk.metrics import ssim


def random_pair(shape: tuple[int, ...], seed: int = 0, noise: float = 0.2) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    targets = torch.rand(shape, generator=rng)
    return (targets + noise * torch.randn(shape, generator=rng)).clamp(0, 1), targets


@pytest.mark.parametrize("shape", [(3, 1, 11, 11), (3, 1, 28, 28), (2, 3, 32, 32), (2, 3, 17, 40)])
@pytest.mark.parametrize("width", [1.0, 255.0])
def test_agrees_with_scikit_image(shape: tuple[int, ...], width: float) -> None:
    estimates, targets = (each * width for each in random_pair(shape))
    # scikit-image averages over the pixels whose window lies inside; on mirrored images these are all pixels.
    one, other = (
        np.pad(each.double().numpy(), [(0, 0)] * 2 + [(5, 5)] * 2, mode="reflect") for each in (estimates, targets)
    )
    expected = [
        skimage.metrics.structural_similarity(
            a, b, data_range=width, channel_axis=0, gaussian_weights=True, sigma=1.5, use_sample_covariance=False
        )
        for a, b in zip(one, other, strict=True)
    ]
    np.testing.assert_allclose(ssim(data_range=(0, width))(estimates, targets), expected, atol=1e-5)


@pytest.mark.parametrize(("side", "window"), [(3, 3), (4, 3), (5, 5), (8, 7), (10, 9), (11, 11), (12, 11)])
def test_small_images_get_the_largest_window_that_fits(side: int, window: int) -> None:
    estimates, targets = random_pair((2, 1, side, side + 2))
    sigma = 1.5 * window / 11
    weights = np.exp(-((np.arange(window) - window // 2) ** 2) / (2 * sigma**2))
    weights /= weights.sum()

    def smooth(values: np.ndarray) -> np.ndarray:
        return correlate1d(correlate1d(values, weights, 0, mode="mirror"), weights, 1, mode="mirror")

    expected = []
    for a, b in zip(estimates.double().numpy()[:, 0], targets.double().numpy()[:, 0], strict=True):
        mean_a, mean_b = smooth(a), smooth(b)
        covariance = smooth(a * b) - mean_a * mean_b
        variances = smooth(a * a) - mean_a**2 + smooth(b * b) - mean_b**2
        index = (
            (2 * mean_a * mean_b + 1e-4)
            * (2 * covariance + 9e-4)
            / ((mean_a**2 + mean_b**2 + 1e-4) * (variances + 9e-4))
        )
        expected.append(index.mean())
    np.testing.assert_allclose(ssim(data_range=(0, 1))(estimates, targets), expected, atol=1e-9)


def test_constant_images_are_compared_by_brightness() -> None:
    # By hand: without structure the second factor is one and the first is (2ab + c1) / (a^2 + b^2 + c1).
    dark, bright = torch.full((1, 1, 16, 16), 0.2), torch.full((1, 1, 16, 16), 0.6)
    expected = (2 * 0.2 * 0.6 + 1e-4) / (0.2**2 + 0.6**2 + 1e-4)
    assert float(ssim(data_range=(0, 1))(dark, bright)) == pytest.approx(expected, abs=1e-6)
    assert float(ssim(data_range=(0, 1))(dark, dark)) == pytest.approx(1, abs=1e-9)


def test_a_negative_is_dissimilar() -> None:
    _, targets = random_pair((4, 1, 16, 16))
    assert (ssim(data_range=(0, 1))(1 - targets, targets) < 0).all()


def test_grey_images_may_leave_out_the_channel() -> None:
    estimates, targets = random_pair((3, 1, 16, 16))
    metric = ssim(data_range=(0, 1))
    assert torch.equal(metric(estimates[:, 0], targets[:, 0]), metric(estimates, targets))


def test_bytes_equal_their_floats() -> None:
    estimates, targets = ((each * 255).round() for each in random_pair((2, 3, 16, 16)))
    metric = ssim(data_range=(0, 255))
    assert torch.equal(metric(estimates.byte(), targets.byte()), metric(estimates, targets))


def test_a_diverged_estimate_is_scored_not_refused() -> None:
    estimates, targets = random_pair((2, 1, 16, 16))
    estimates, targets = estimates.double(), targets.double()
    estimates[0] *= 1e30
    estimates[1] *= 1e200
    scores = ssim(data_range=(0, 1))(estimates, targets)
    assert abs(scores[0]) < 1e-6
    assert scores[1] == -1


@pytest.mark.parametrize("shape", [(4, 30), (4,), (2, 1, 4, 8, 8)])
def test_records_that_are_no_images_are_refused(shape: tuple[int, ...]) -> None:
    estimates, targets = random_pair(shape)
    with pytest.raises(
        InvalidInput, match=r"to be \(records, channels, height, width\). Use mse\(\) or ncc\(\) for records that"
    ):
        ssim(data_range=(0, 1))(estimates, targets)


def test_images_without_a_neighbourhood_are_refused() -> None:
    estimates, targets = random_pair((2, 1, 2, 30))
    with pytest.raises(InvalidInput, match=r"targets.shape=\(2, 1, 2, 30\) to be images of at least 3 x 3 pixels"):
        ssim(data_range=(0, 1))(estimates, targets)


def test_targets_outside_the_stated_range_are_refused() -> None:
    _, targets = random_pair((2, 1, 16, 16))
    with pytest.raises(InvalidInput, match=r"targets within data_range=\(0.0, 1.0\)"):
        ssim(data_range=(0, 1))(255 * targets, 255 * targets)

"""Structural similarity of images."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from reconrisk.core.metric import Metric
from reconrisk.core.validation import invalid_input
from reconrisk.metrics.records import as_images, check_data_range, check_within

_KERNEL = 11  # window side in pixels, Wang et al. (2004)
_SIGMA = 1.5  # standard deviation of the window in pixels


def ssim(*, data_range: float | tuple[float, float]) -> Metric:
    r"""Structural similarity of each image: the mean of the local index over all pixels and channels.

    .. math:: \frac{(2 \mu_{\hat{x}} \mu_x + c_1)(2 \sigma_{\hat{x}x} + c_2)}
              {(\mu_{\hat{x}}^2 + \mu_x^2 + c_1)(\sigma_{\hat{x}}^2 + \sigma_x^2 + c_2)}

    Means and covariances are taken under a Gaussian window of 11 x 11 pixels and standard deviation 1.5, mirrored at
    the border, with :math:`c_1 = (0.01 (b - a))^2` and :math:`c_2 = (0.03 (b - a))^2`. torchmetrics computes them in
    float64.

    Args:
        data_range: Smallest and largest value of the data, :math:`(a, b)`; one number b means (0, b).

    Returns:
        The metric; 1 is best, -1 worst.

    Raises:
        InvalidInput: If the range is invalid; when called, if a target lies outside of it, or if images are smaller
            than 3 x 3 pixels.

    Assumes: images of shape (records, channels, height, width) or (records, height, width) in ``data_range``; estimates
    are not clipped.
    Guarantee: in [-1, 1], symmetric, 1 for an exact estimate.
    Edge cases: on images with a side below 11 pixels the window shrinks, in the same proportions, to the largest odd
    size that fits. An estimate whose fourth power exceeds the float64 range gets the worst score.
    Reference: `Wang et al. (2004) <https://doi.org/10.1109/TIP.2003.819861>`_, Section III-B.

    >>> import torch
    >>> target = torch.linspace(0, 1, 256).reshape(1, 1, 16, 16)
    >>> ssim(data_range=(0, 1))(target.square(), target)
    tensor([0.6576], dtype=torch.float64)
    """
    data_range = check_data_range(data_range)
    function = partial(_similarity, data_range=data_range)
    return Metric("ssim", function, best=1.0, worst=-1.0, settings=(("data_range", data_range),))


def _similarity(estimates: Tensor, targets: Tensor, *, data_range: tuple[float, float]) -> Tensor:
    # Imported here: torchmetrics takes seconds to load, which the other metrics need not wait for.
    from torchmetrics.functional.image.ssim import structural_similarity_index_measure

    check_within(targets, data_range)
    one, other = (as_images(each, "SSIM").double() for each in (estimates, targets))
    side = min(other.shape[-2:])
    if side < 3:
        raise invalid_input(
            "targets.shape",
            tuple(other.shape),
            "to be images of at least 3 x 3 pixels",
            "Use mse() or ncc() for smaller images.",
        )
    # torchmetrics derives the kernel from sigma; this one gives the largest odd kernel that fits.
    sigma = _SIGMA * min(_KERNEL, side - 1 + side % 2) / _KERNEL
    # The full map is averaged here, because releases of torchmetrics differ in cropping it before they average.
    _, pixels = structural_similarity_index_measure(
        one, other, sigma=sigma, data_range=data_range[1] - data_range[0], reduction="none", return_full_image=True
    )
    scores = pixels.flatten(1).mean(1).nan_to_num(nan=-1.0).clamp(-1, 1)
    exact = (one == other).flatten(1).all(1)
    return scores.masked_fill(exact, 1.0)  # rounding leaves constant images slightly below 1

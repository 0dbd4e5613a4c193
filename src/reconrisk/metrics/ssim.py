"""Structural similarity of images."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from reconrisk.core.metric import Metric
from reconrisk.core.validation import invalid_input
from reconrisk.metrics.records import check_data_range, check_within, images

_KERNEL = 11
_SIGMA = 1.5


def ssim(*, data_range: float | tuple[float, float]) -> Metric:
    r"""Structural similarity of each image: the mean over all pixels and channels of the local index.

    .. math:: \frac{(2 \mu_{\hat{x}} \mu_x + c_1)(2 \sigma_{\hat{x}x} + c_2)}
              {(\mu_{\hat{x}}^2 + \mu_x^2 + c_1)(\sigma_{\hat{x}}^2 + \sigma_x^2 + c_2)}

    with means and covariances under a Gaussian window of 11 x 11 pixels and standard deviation 1.5, mirrored at the
    border, :math:`c_1 = (0.01 (b - a))^2`, :math:`c_2 = (0.03 (b - a))^2`; computed by torchmetrics in float64.

    Assumes: images of shape (records, channels, height, width) or (records, height, width), stated in
    ``data_range`` = :math:`(a, b)`; targets outside of it are refused, estimates are not clipped.
    Guarantee: in [-1, 1], symmetric, 1 for an exact estimate.
    Edge cases: on images with a side below 11 pixels the window shrinks, in the same proportions, to the largest odd
    size that fits; below 3 pixels there is no window and the images are refused. An estimate so large that its
    fourth power leaves the float64 range gets the worst score.
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
    one, other = (images(each, "SSIM").double() for each in (estimates, targets))
    side = min(other.shape[-2:])
    if side < 3:
        raise invalid_input(
            "targets.shape",
            tuple(other.shape),
            "to be images of at least 3 x 3 pixels",
            "Structure needs a neighbourhood; use mse() or ncc().",
        )
    sigma = _SIGMA * min(_KERNEL, side - 1 + side % 2) / _KERNEL  # of the largest odd kernel that fits
    # The whole map, averaged here: releases of torchmetrics differ in whether they crop it before they average.
    _, pixels = structural_similarity_index_measure(
        one, other, sigma=sigma, data_range=data_range[1] - data_range[0], reduction="none", return_full_image=True
    )
    scores = pixels.flatten(1).mean(1).nan_to_num(nan=-1.0).clamp(-1, 1)
    exact = (one == other).flatten(1).all(1)
    return scores.masked_fill(exact, 1.0)  # rounding leaves constant images a little below

"""Learned perceptual similarity of images: LPIPS with the AlexNet backbone.

The convolutional part of AlexNet is read from a weight file or from torchvision; the linear heads come with
torchmetrics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from reconrisk.core.digest import content_digest
from reconrisk.core.errors import InvalidFile, MissingExtra
from reconrisk.core.metric import Metric
from reconrisk.core.validation import invalid_input
from reconrisk.metrics.records import as_images, check_data_range, check_within
from reconrisk.releases.tensor_files import read_tensors


class Convolution(NamedTuple):
    """Trained weight and bias of one convolution."""

    weight: Tensor
    bias: Tensor


class _Layer(NamedTuple):
    """Expected shape and geometry of one convolution; ``pooled`` if max-pooling precedes it."""

    key: str
    shape: tuple[int, int, int, int]
    stride: int
    padding: int
    pooled: bool


# The convolutions of torchvision's AlexNet, with their keys in its state dict.
_LAYERS = (
    _Layer("features.0", (64, 3, 11, 11), stride=4, padding=2, pooled=False),
    _Layer("features.3", (192, 64, 5, 5), stride=1, padding=2, pooled=True),
    _Layer("features.6", (384, 192, 3, 3), stride=1, padding=1, pooled=True),
    _Layer("features.8", (256, 384, 3, 3), stride=1, padding=1, pooled=False),
    _Layer("features.10", (256, 256, 3, 3), stride=1, padding=1, pooled=False),
)

CHANNELS = tuple(layer.shape[0] for layer in _LAYERS)
"""Number of feature maps after each of the five convolutions."""

_REMEDY = (
    "Pass the AlexNet weights of torchvision (alexnet-owt-7be5be79.pth), or an .npz or .safetensors file with the same "
    "keys."
)


def alexnet_features(convolutions: Sequence[Convolution], pictures: Tensor) -> list[Tensor]:
    """Compute the activations after each of the five rectified convolutions.

    Args:
        convolutions: Weights of the five convolutions.
        pictures: Normalised images, shape (records, 3, height, width).

    Returns:
        One tensor of activations for each convolution.

    Reference: `Krizhevsky (2014) <https://arxiv.org/abs/1404.5997>`_, the layout of torchvision.
    """
    activations = []
    current = pictures
    for layer, convolution in zip(_LAYERS, convolutions, strict=True):
        if layer.pooled:
            current = functional.max_pool2d(current, kernel_size=3, stride=2)
        weight, bias = (value.to(current.device) for value in convolution)
        current = functional.conv2d(current, weight, bias, layer.stride, layer.padding).relu()
        activations.append(current)
    return activations


def read_alexnet(path: str | Path) -> tuple[Convolution, ...]:
    """Read AlexNet weights from an .npz, .safetensors or PyTorch file with the key names of torchvision.

    Args:
        path: Weight file; other keys in it are ignored.

    Returns:
        The five convolutions.

    Raises:
        InvalidFile: If the file cannot be read, or if a key is missing or has another shape.
    """
    return _convolutions(read_tensors(path, _REMEDY), Path(path))


def torchvision_alexnet() -> tuple[Convolution, ...]:
    """Load AlexNet weights from torchvision, which may download them.

    No other function in this module uses the network.

    Returns:
        The five convolutions.

    Raises:
        MissingExtra: If torchvision is not installed.
    """
    try:
        from torchvision.models import AlexNet_Weights, alexnet
    except ImportError as error:
        raise MissingExtra("torchvision", "lpips", "LPIPS without a weight file (backbone=FILE)") from error
    return _convolutions(alexnet(weights=AlexNet_Weights.IMAGENET1K_V1).state_dict(), Path("torchvision"))


def _convolutions(tensors: Mapping[str, Tensor], path: Path) -> tuple[Convolution, ...]:
    return tuple(
        Convolution(
            _check_tensor(tensors, f"{layer.key}.weight", layer.shape, path, _REMEDY),
            _check_tensor(tensors, f"{layer.key}.bias", layer.shape[:1], path, _REMEDY),
        )
        for layer in _LAYERS
    )


def _check_tensor(tensors: Mapping[str, Tensor], key: str, shape: tuple[int, ...], path: Path, remedy: str) -> Tensor:
    """Return the float32 tensor of this key, after checking its shape and that it is finite."""
    tensor = tensors.get(key)
    if not isinstance(tensor, Tensor):
        raise InvalidFile(path, f"key {key}", "There is no such tensor.", remedy)
    if tuple(tensor.shape) != shape:
        raise InvalidFile(path, f"key {key}", f"Its shape is {tuple(tensor.shape)}, expected {shape}.", remedy)
    if not tensor.isfinite().all():
        raise InvalidFile(path, f"key {key}", "It holds NaN or infinities.", remedy)
    return tensor.detach().float()


_SMALLEST_SIDE = 64  # pixels; smaller images leave nothing after the strides and pooling of AlexNet
_IMAGES_AT_ONCE = 64  # limits the memory of the activations
_SHIFT = (-0.030, -0.088, -0.188)  # by colour channel, from the authors' code
_SCALE = (0.458, 0.448, 0.450)


def lpips(backbone: str | Path | None = None, *, data_range: float | tuple[float, float]) -> Metric:
    r"""Perceptual distance of each image by AlexNet features: LPIPS-alex, version 0.1.

    .. math:: \sum_{l=1}^{5} \frac{1}{H_l W_l} \sum_{h, w}
              \bigl\lVert \sqrt{w_l} \odot (\hat{y}^l_{hw} - y^l_{hw}) \bigr\rVert^2

    Here :math:`y^l` are the activations after the l-th convolution, scaled to unit length over channels, and
    :math:`w_l` the weights fitted to human judgements, which come with torchmetrics.

    Args:
        backbone: File with the convolutional weights of torchvision's AlexNet (keys ``features.0.weight`` to
            ``features.10.bias`` in .npz, .safetensors or .pth). By default they come from an installed torchvision,
            which may download them.
        data_range: Smallest and largest value of the data; one number b means (0, b).

    Returns:
        The metric; 0 is best, infinity worst.

    Raises:
        InvalidFile: If the file is missing, damaged or of another network; the error names the key.
        MissingExtra: If no file is given and torchvision is not installed.
        InvalidInput: If the range is invalid; when called, if records are not images or a target lies outside the
            range.

    Assumes: images of shape (records, 3 or 1, height, width) or (records, height, width) in ``data_range``. Estimates
    are clipped to it, as a screen would. Grey images are repeated to three channels. Images with a side below 64 pixels
    are first enlarged, bilinearly and in proportion, until it has 64.
    Guarantee: at least zero, symmetric, zero for an exact estimate, differentiable in the estimates.
    Reference: `Zhang et al. (2018) <https://arxiv.org/abs/1801.03924>`_, Equation (1); Section V-B b), balle2022.

    >>> from reconrisk.core.errors import InvalidFile
    >>> try:
    ...     lpips("absent.npz", data_range=(0, 1))
    ... except InvalidFile as error:
    ...     print(error.path, error.place)
    absent.npz file
    """
    data_range = check_data_range(data_range)
    convolutions = torchvision_alexnet() if backbone is None else read_alexnet(backbone)
    function = partial(_distance, convolutions=convolutions, heads=_heads(), data_range=data_range)
    source = "torchvision" if backbone is None else Path(backbone).name
    # The digest identifies the weights, which a file name does not.
    settings = (("backbone", f"{source}#{content_digest(convolutions)[:8]}"), ("data_range", data_range))
    return Metric("lpips", function, best=0.0, worst=math.inf, settings=settings)


def _heads() -> tuple[Tensor, ...]:
    """Read the weights of the five layers that were fitted to human judgements, from torchmetrics."""
    package = find_spec("torchmetrics")
    folder = Path(package.origin).parent if package and package.origin else Path("torchmetrics")
    path = folder / "functional" / "image" / "lpips_models" / "alex.pth"
    remedy = "Reinstall torchmetrics, which ships this file."
    tensors = read_tensors(path, remedy)
    return tuple(
        _check_tensor(tensors, f"lin{index}.model.1.weight", (1, channels, 1, 1), path, remedy)
        for index, channels in enumerate(CHANNELS)
    )


def _distance(
    estimates: Tensor,
    targets: Tensor,
    *,
    convolutions: Sequence[Convolution],
    heads: Sequence[Tensor],
    data_range: tuple[float, float],
) -> Tensor:
    check_within(targets, data_range)
    blocks = zip(torch.split(estimates, _IMAGES_AT_ONCE), torch.split(targets, _IMAGES_AT_ONCE), strict=True)
    return torch.cat([_block_distance(one, other, convolutions, heads, data_range) for one, other in blocks])


def _block_distance(
    estimates: Tensor,
    targets: Tensor,
    convolutions: Sequence[Convolution],
    heads: Sequence[Tensor],
    data_range: tuple[float, float],
) -> Tensor:
    of_estimates, of_targets = (
        alexnet_features(convolutions, _network_input(each, data_range)) for each in (estimates, targets)
    )
    total = torch.zeros(len(targets), dtype=torch.float64, device=targets.device)
    for one, other, head in zip(of_estimates, of_targets, heads, strict=True):
        difference = (_unit_length(one) - _unit_length(other)).square()
        # Each head is a 1 x 1 convolution: a weighted sum over channels, then the mean over pixels.
        total = total + (difference * head.to(difference.device)).double().sum(1).mean((1, 2))
    return total


def _network_input(records: Tensor, data_range: tuple[float, float]) -> Tensor:
    """Scale images as LPIPS does: to [-1, 1], by channel, and to at least 64 pixels."""
    pictures = as_images(records, "LPIPS")
    if pictures.shape[1] not in (1, 3):
        raise invalid_input(
            "targets.shape", tuple(records.shape), "to have 1 or 3 channels", "Pass grey or colour images."
        )
    low, high = data_range
    # LPIPS expects colours in [-1, 1]; the division is done in float64, the network runs in float32.
    signed = (2 * (pictures.double().clamp(low, high) - low) / (high - low) - 1).float().expand(-1, 3, -1, -1)
    shift, scale = (signed.new_tensor(values).view(1, 3, 1, 1) for values in (_SHIFT, _SCALE))
    scaled = (signed - shift) / scale
    height, width = scaled.shape[-2:]
    factor = _SMALLEST_SIDE / min(height, width)
    if factor <= 1:
        return scaled
    size = (round(height * factor), round(width * factor))
    return functional.interpolate(scaled, size, mode="bilinear", align_corners=False)


def _unit_length(features: Tensor) -> Tensor:
    # The constant is under the root, as in torchmetrics, so that the derivative exists if all features are zero.
    return features / (features.square().sum(1, keepdim=True) + 1e-8).sqrt()

"""Learned perceptual similarity of images: LPIPS with the AlexNet backbone.

The convolutional part of AlexNet comes from a file of weights or from torchvision; the linear heads from torchmetrics.
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
from reconrisk.metrics.records import check_data_range, check_within, images
from reconrisk.releases.tensor_files import read_tensors


class Convolution(NamedTuple):
    """One convolution of the network with its trained values."""

    weight: Tensor
    bias: Tensor


class _Layer(NamedTuple):
    key: str
    shape: tuple[int, int, int, int]
    stride: int
    padding: int
    pooled: bool


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
    """Activations after each of the five rectified convolutions.

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
    """Weights from an .npz, .safetensors or PyTorch file with the key names of torchvision; other keys are ignored."""
    return _convolutions(read_tensors(path, _REMEDY), Path(path))


def torchvision_alexnet() -> tuple[Convolution, ...]:
    """Weights that an installed torchvision has, or downloads: the only way here that may use the network."""
    try:
        from torchvision.models import AlexNet_Weights, alexnet
    except ImportError as error:
        raise MissingExtra("torchvision", "lpips", "LPIPS without a weight file (backbone=FILE)") from error
    return _convolutions(alexnet(weights=AlexNet_Weights.IMAGENET1K_V1).state_dict(), Path("torchvision"))


def _convolutions(tensors: Mapping[str, Tensor], path: Path) -> tuple[Convolution, ...]:
    return tuple(
        Convolution(
            _checked_tensor(tensors, f"{layer.key}.weight", layer.shape, path, _REMEDY),
            _checked_tensor(tensors, f"{layer.key}.bias", layer.shape[:1], path, _REMEDY),
        )
        for layer in _LAYERS
    )


def _checked_tensor(tensors: Mapping[str, Tensor], key: str, shape: tuple[int, ...], path: Path, remedy: str) -> Tensor:
    """The finite float32 tensor of this key and shape, or an error that names the key."""
    tensor = tensors.get(key)
    if not isinstance(tensor, Tensor):
        raise InvalidFile(path, f"key {key}", "There is no such tensor.", remedy)
    if tuple(tensor.shape) != shape:
        raise InvalidFile(path, f"key {key}", f"Its shape is {tuple(tensor.shape)}, expected {shape}.", remedy)
    if not tensor.isfinite().all():
        raise InvalidFile(path, f"key {key}", "It holds NaN or infinities.", remedy)
    return tensor.detach().float()


_SMALLEST_SIDE = 64
_IMAGES_AT_ONCE = 64
_SHIFT = (-0.030, -0.088, -0.188)
_SCALE = (0.458, 0.448, 0.450)


def lpips(backbone: str | Path | None = None, *, data_range: float | tuple[float, float]) -> Metric:
    r"""Perceptual distance of each image by AlexNet features: LPIPS-alex, version 0.1.

    .. math:: \sum_{l=1}^{5} \frac{1}{H_l W_l} \sum_{h, w}
              \bigl\lVert \sqrt{w_l} \odot (\hat{y}^l_{hw} - y^l_{hw}) \bigr\rVert^2

    with :math:`y^l` the activations after the l-th convolution, scaled to unit length over channels, and :math:`w_l`
    the weights fitted to human judgements.

    ``backbone`` is a file with the convolutional weights of torchvision's AlexNet (keys ``features.0.weight`` to
    ``features.10.bias`` in .npz, .safetensors or .pth); without it they come from an installed torchvision, which may
    download them. The weights :math:`w_l` come with torchmetrics.

    Assumes: images of shape (records, 3 or 1, height, width) or (records, height, width), stated in ``data_range``;
    targets outside are refused, estimates are clipped to it as a screen would. Grey images are repeated to three
    channels. Images with a side below 64 pixels are first enlarged, bilinearly and in proportion, until it has 64.
    Guarantee: at least zero, symmetric, zero for an exact estimate, differentiable in the estimates.
    Edge cases: a missing, broken or foreign file raises InvalidFile with the key; no file and no torchvision raises
    MissingExtra.
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
    # a file name does not say which weights gave a score
    settings = (("backbone", f"{source}#{content_digest(convolutions)[:8]}"), ("data_range", data_range))
    return Metric("lpips", function, best=0.0, worst=math.inf, settings=settings)


def _heads() -> tuple[Tensor, ...]:
    """The weights of the five layers that were fitted to human judgements, as torchmetrics ships them."""
    package = find_spec("torchmetrics")
    folder = Path(package.origin).parent if package and package.origin else Path("torchmetrics")
    path = folder / "functional" / "image" / "lpips_models" / "alex.pth"
    remedy = "Install torchmetrics afresh: the file is part of it."
    tensors = read_tensors(path, remedy)
    return tuple(
        _checked_tensor(tensors, f"lin{index}.model.1.weight", (1, channels, 1, 1), path, remedy)
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
        total = total + (difference * head.to(difference.device)).double().sum(1).mean((1, 2))
    return total


def _network_input(records: Tensor, data_range: tuple[float, float]) -> Tensor:
    pictures = images(records, "LPIPS")
    if pictures.shape[1] not in (1, 3):
        raise invalid_input(
            "targets.shape", tuple(records.shape), "to have 1 or 3 channels", "LPIPS was fitted to colour photographs."
        )
    low, high = data_range
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
    # The constant stands under the root, as in torchmetrics, so that the derivative exists where all features are zero.
    return features / (features.square().sum(1, keepdim=True) + 1e-8).sqrt()

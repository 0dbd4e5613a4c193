"""The convolutional part of AlexNet, from a file of weights or from torchvision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor
from torch.nn import functional

from reconrisk.core.errors import InvalidFile, MissingExtra
from reconrisk.releases.stored import read_tensors


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
            checked_tensor(tensors, f"{layer.key}.weight", layer.shape, path, _REMEDY),
            checked_tensor(tensors, f"{layer.key}.bias", layer.shape[:1], path, _REMEDY),
        )
        for layer in _LAYERS
    )


def checked_tensor(tensors: Mapping[str, Tensor], key: str, shape: tuple[int, ...], path: Path, remedy: str) -> Tensor:
    """The finite float32 tensor of this key and shape, or an error that names the key."""
    tensor = tensors.get(key)
    if not isinstance(tensor, Tensor):
        raise InvalidFile(path, f"key {key}", "There is no such tensor.", remedy)
    if tuple(tensor.shape) != shape:
        raise InvalidFile(path, f"key {key}", f"Its shape is {tuple(tensor.shape)}, expected {shape}.", remedy)
    if not tensor.isfinite().all():
        raise InvalidFile(path, f"key {key}", "It holds NaN or infinities.", remedy)
    return tensor.detach().float()

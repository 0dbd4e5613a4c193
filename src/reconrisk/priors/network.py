"""Checks of networks that become priors: mode, precision, device, and the units of their records.

Networks whose layers answer differently in training mode are refused at every use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.spectral_norm import SpectralNorm

from reconrisk.core.digest import network_digest, short_digest
from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import check_finite, invalid_input

_BY_MODE = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.dropout._DropoutNd,
    nn.RReLU,
    nn.utils.parametrizations._SpectralNorm,  # takes a step of its power iteration at every call
)
_MAY_DROP = (nn.MultiheadAttention, nn.RNNBase)
Network = TypeVar("Network", bound=nn.Module)


def check_network(name: str, function: object) -> None:
    """Refuse a network whose answers depend on other records or on chance, or whose weights are no single precision.

    Attacks vary weights and enter a network between its layers, where nothing could be converted.
    """
    check_mode(name, function)
    weights = function.parameters() if isinstance(function, nn.Module) else ()
    other = next((value.dtype for value in weights if value.is_floating_point() and value.dtype != torch.float32), None)
    if other is not None:
        found = str(other).removeprefix("torch.")
        remedy = "Pass it as .float(), or a function that converts what it is given and what it returns."
        raise InvalidInput(f"Expected the weights of {name} in single precision, some are {found}. {remedy}")


def check_mode(name: str, function: object) -> None:
    """Refuse a network in the mode of training that answers differently there, or changes by being asked.

    Guarantee: layers of torch are known. What a module of one's own does with ``training`` cannot be seen.
    """
    if not isinstance(function, nn.Module):
        return
    found = next((layer for layer in function.modules() if layer.training and _depends_on_mode(layer)), None)
    if found is not None:
        kind = type(found).__name__.removeprefix("_")
        remedy = f"Call .eval() on it: {kind} is still in the mode of training."
        raise invalid_input(name, type(function).__name__, "to be ready for use", remedy)


def function_digest(function: object) -> str:
    """Return a short digest of the function that a prior is: of a network's weights, else of its code."""
    return network_digest(function) if isinstance(function, nn.Module) else short_digest(function)


def precision_of(function: object, otherwise: torch.dtype) -> torch.dtype:
    """That of a network's weights; a function without any takes what it is given.

    >>> precision_of(nn.Linear(1, 1), torch.float64), precision_of(abs, torch.float64)
    (torch.float32, torch.float64)
    """
    return next((value.dtype for value in _values(function) if value.is_floating_point()), otherwise)


def device_of(function: object, otherwise: torch.device) -> torch.device:
    """Where a network has its weights; a function without any is as good anywhere.

    >>> device_of(nn.Linear(1, 1), torch.device("meta")), device_of(abs, torch.device("meta"))
    (device(type='cpu'), device(type='meta'))
    """
    return next((value.device for value in _values(function)), otherwise)


def put_on(network: Network, device: str | torch.device | None) -> Network:
    """The network on a device, where one is stated."""
    if device is None:
        return network
    try:
        return network.to(device)
    except (AssertionError, NotImplementedError, RuntimeError) as error:  # what torch raises depends on the device
        remedy = "Pass cpu, or one that torch finds, such as cuda where torch.cuda.is_available()."
        raise invalid_input("device", str(device), "to be one of this machine", remedy) from error


def _depends_on_mode(layer: nn.Module) -> bool:
    if isinstance(layer, _MAY_DROP):
        return layer.dropout > 0
    if isinstance(layer, nn.modules.instancenorm._InstanceNorm):
        return layer.track_running_stats
    hooks = layer._forward_pre_hooks.values()  # the older spectral norm is one
    return isinstance(layer, _BY_MODE) or any(isinstance(hook, SpectralNorm) for hook in hooks)


def _values(function: object) -> Iterator[Tensor]:
    return chain(function.parameters(), function.buffers()) if isinstance(function, nn.Module) else iter(())


SYMMETRIC = (-1.0, 1.0)
"""What the ends of the data range are to most networks."""


def moved(values: Tensor, one: tuple[float, float], other: tuple[float, float]) -> Tensor:
    """Values of the range ``one`` in that of ``other``."""
    scale = (other[1] - other[0]) / (one[1] - one[0])
    return other[0] + scale * (values - one[0])


def as_tensor(name: str, value: object) -> Tensor:
    """A tensor as it is, or an array of NumPy as one.

    >>> as_tensor("mean", np.zeros(2))
    tensor([0., 0.], dtype=torch.float64)
    """
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        return torch.from_numpy(np.ascontiguousarray(value))
    remedy = "Pass its .inputs." if isinstance(getattr(value, "inputs", None), Tensor) else "Pass torch.as_tensor(...)."
    raise invalid_input(name, type(value).__name__, "to be a tensor or a numerical array", remedy)


def check_range(name: str, ends: tuple[float, float]) -> None:
    """Refuse what is no range."""
    if not isinstance(ends, Sequence) or len(ends) != 2:
        raise invalid_input(name, ends, "to be (low, high)")
    low, high = (check_finite(name, end) for end in ends)
    if not low < high:
        raise invalid_input(name, ends, "to be (low, high) with low < high")

"""Checks of networks that become priors: mode, precision, device, and the units of their records.

Networks in training mode with layers that behave differently there are refused at every use.
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
    nn.utils.parametrizations._SpectralNorm,  # takes a power iteration step at every call
)
_MAY_DROP = (nn.MultiheadAttention, nn.RNNBase)  # have dropout as a number, 0 by default
Network = TypeVar("Network", bound=nn.Module)


def check_network(name: str, function: object) -> None:
    """Refuse a network whose output depends on other records or on chance, or that is not in single precision.

    Some attacks vary the weights, or optimise the input of an inner layer, where no conversion of types is possible.

    Args:
        name: Name of the argument in error messages.
        function: Network or function; functions pass.

    Raises:
        InvalidInput: If the network is in training mode or has weights of another precision.
    """
    check_mode(name, function)
    weights = function.parameters() if isinstance(function, nn.Module) else ()
    other = next((value.dtype for value in weights if value.is_floating_point() and value.dtype != torch.float32), None)
    if other is not None:
        found = str(other).removeprefix("torch.")
        remedy = "Pass network.float(), or a function that converts its input and output."
        raise InvalidInput(f"Expected the weights of {name} in single precision, some are {found}. {remedy}")


def check_mode(name: str, function: object) -> None:
    """Refuse a network in training mode if it has layers that behave differently there.

    Args:
        name: Name of the argument in error messages.
        function: Network or function; functions pass.

    Raises:
        InvalidInput: If such a layer is in training mode.

    Guarantee: layers of torch are known. The use of ``training`` in a custom module cannot be detected.
    """
    if not isinstance(function, nn.Module):
        return
    found = next((layer for layer in function.modules() if layer.training and _depends_on_mode(layer)), None)
    if found is not None:
        kind = type(found).__name__.removeprefix("_")
        remedy = f"Call .eval() on it: {kind} is still in training mode."
        raise invalid_input(name, type(function).__name__, "to be in evaluation mode", remedy)


def function_digest(function: object) -> str:
    """Return a short digest of a network's weights, or of a function's code.

    Args:
        function: Network or function.

    Returns:
        The digest.
    """
    return network_digest(function) if isinstance(function, nn.Module) else short_digest(function)


def precision_of(function: object, otherwise: torch.dtype) -> torch.dtype:
    """Return the precision of a network's weights.

    Args:
        function: Network or function.
        otherwise: Precision for a function without weights.

    Returns:
        The data type.

    >>> precision_of(nn.Linear(1, 1), torch.float64), precision_of(abs, torch.float64)
    (torch.float32, torch.float64)
    """
    return next((value.dtype for value in _values(function) if value.is_floating_point()), otherwise)


def device_of(function: object, otherwise: torch.device) -> torch.device:
    """Return the device of a network's weights.

    Args:
        function: Network or function.
        otherwise: Device for a function without weights.

    Returns:
        The device.

    >>> device_of(nn.Linear(1, 1), torch.device("meta")), device_of(abs, torch.device("meta"))
    (device(type='cpu'), device(type='meta'))
    """
    return next((value.device for value in _values(function)), otherwise)


def move_to_device(network: Network, device: str | torch.device | None) -> Network:
    """Move a network to a device.

    Args:
        network: The network.
        device: Device, None to leave it where it is.

    Returns:
        The network.

    Raises:
        InvalidInput: If the device does not exist on this machine.
    """
    if device is None:
        return network
    try:
        return network.to(device)
    except (AssertionError, NotImplementedError, RuntimeError) as error:  # the type of error depends on the device
        remedy = "Pass cpu, or a device that torch finds, such as cuda if torch.cuda.is_available()."
        raise invalid_input("device", str(device), "to be a device of this machine", remedy) from error


def _depends_on_mode(layer: nn.Module) -> bool:
    if isinstance(layer, _MAY_DROP):
        return layer.dropout > 0
    if isinstance(layer, nn.modules.instancenorm._InstanceNorm):
        return layer.track_running_stats
    hooks = layer._forward_pre_hooks.values()  # the older spectral norm of torch is a hook
    return isinstance(layer, _BY_MODE) or any(isinstance(hook, SpectralNorm) for hook in hooks)


def _values(function: object) -> Iterator[Tensor]:
    return chain(function.parameters(), function.buffers()) if isinstance(function, nn.Module) else iter(())


SYMMETRIC = (-1.0, 1.0)
"""Units of most networks: the values that correspond to the two ends of the data range."""


def rescale_range(values: Tensor, one: tuple[float, float], other: tuple[float, float]) -> Tensor:
    """Map values linearly from one range to another.

    Args:
        values: Values in the range ``one``.
        one: The ends of the first range.
        other: The ends of the second range.

    Returns:
        The values in the range ``other``.
    """
    scale = (other[1] - other[0]) / (one[1] - one[0])
    return other[0] + scale * (values - one[0])


def as_tensor(name: str, value: object) -> Tensor:
    """Convert a NumPy array to a tensor; tensors pass.

    Args:
        name: Name of the argument in error messages.
        value: Tensor or numerical array.

    Returns:
        The tensor.

    Raises:
        InvalidInput: If the value is neither.

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
    """Refuse a value that is not a range (low, high) with low < high.

    Args:
        name: Name of the argument in error messages.
        ends: The two ends.

    Raises:
        InvalidInput: If there are not two finite ends in ascending order.
    """
    if not isinstance(ends, Sequence) or len(ends) != 2:
        raise invalid_input(
            name, ends, "to be two numbers", "Pass the smallest and the largest value, such as (0.0, 1.0)."
        )
    low, high = (check_finite(name, end) for end in ends)
    if not low < high:
        raise invalid_input(name, ends, "to increase", "Pass the smallest value first, such as (0.0, 1.0).")

"""Networks of users as priors: the mode they are in, their precision, and where they are."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor, nn

from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import refuse

_BY_MODE = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
Network = TypeVar("Network", bound=nn.Module)


def check_network(name: str, function: object) -> None:
    """Refuse a network whose answers depend on other records or on chance, or whose weights are no single precision.

    Records and latent values are in single precision, and attacks enter a network where nothing could be converted.
    """
    layers = function.modules() if isinstance(function, nn.Module) else ()
    if any(layer.training and isinstance(layer, _BY_MODE) for layer in layers):
        remedy = "Call .eval() on it: batch norm and dropout are still in the mode of training."
        raise refuse(name, type(function).__name__, "to be ready for use", remedy)
    weights = function.parameters() if isinstance(function, nn.Module) else ()
    other = next((value.dtype for value in weights if value.is_floating_point() and value.dtype != torch.float32), None)
    if other is not None:
        found = str(other).removeprefix("torch.")
        remedy = "Pass it as .float(), or a function that converts what it is given and what it returns."
        raise InvalidInput(f"Expected the weights of {name} in single precision, some are {found}. {remedy}")


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
        raise refuse("device", str(device), "to be one of this machine", remedy) from error


def _values(function: object) -> Iterator[Tensor]:
    return chain(function.parameters(), function.buffers()) if isinstance(function, nn.Module) else iter(())

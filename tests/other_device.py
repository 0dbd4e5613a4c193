"""A stand-in for a graphics card: tensors that say they are elsewhere, and do not meet those that are here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

ELSEWHERE = torch.device("meta")
"""Any device but the CPU will do: values are kept here."""


class Elsewhere(torch.Tensor):
    """The tensor ``kept``, as if it were on another device."""

    @staticmethod
    def __new__(cls, kept: torch.Tensor) -> Elsewhere:
        return torch.Tensor._make_wrapper_subclass(
            cls, kept.shape, strides=kept.stride(), dtype=kept.dtype, device=ELSEWHERE
        )

    def __init__(self, kept: torch.Tensor) -> None:
        self.kept = kept

    def __repr__(self) -> str:
        return f"Elsewhere({self.kept})"

    @classmethod
    def __torch_dispatch__(cls, call, types, args=(), kwargs=None):
        return _called(call, args, kwargs or {})


class TwoDevices(TorchDispatchMode):
    """Within it tensors can be moved to ELSEWHERE, and what would fail on a card fails.

    So does a call on tensors of both devices, unless one is a single number or an index, and a draw on one device by
    the generator of another. It sees every operation below autograd and the transforms of functions.
    """

    def __torch_dispatch__(self, call, types, args=(), kwargs=None):
        return _called(call, args, kwargs or {})


def _called(call: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    away = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Elsewhere)]
    if away:
        _check_one_place(call, args, kwargs)
    device = kwargs.get("device")
    is_made_there = bool(away) if device is None else torch.device(device) == ELSEWHERE
    if is_made_there and kwargs.get("generator") is not None:
        raise RuntimeError(f"a generator of the CPU draws elsewhere in {call}")
    given = {**kwargs, "device": torch.device("cpu")} if device is not None else kwargs
    made = call(*tree_map(_kept, args), **tree_map(_kept, given))
    if not is_made_there:
        return made
    if call._schema.is_mutable and args and isinstance(args[0], Elsewhere):
        return args[0]
    return tree_map(lambda value: Elsewhere(value) if isinstance(value, torch.Tensor) else value, made)


def _check_one_place(call: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> None:
    if call.overloadpacket is torch.ops.aten.copy_:
        return
    if call.overloadpacket is torch.ops.aten.index and isinstance(args[0], Elsewhere):  # indices may be of the CPU
        return
    tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)]
    here = [value for value in tensors if not isinstance(value, Elsewhere) and value.ndim]  # numbers may come along
    if here:
        raise RuntimeError(f"two devices meet in {call}, here {[tuple(value.shape) for value in here]}")


def _kept(value: Any) -> Any:
    return value.kept if isinstance(value, Elsewhere) else value

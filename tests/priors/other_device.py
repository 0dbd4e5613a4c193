"""A device that this machine does not have: tensors on it are told apart, and none of them meets one of the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

ELSEWHERE = torch.device("cuda", 0)
_COMPARE = ("_has_compatible_shallow_copy_type", "__set__", "__deepcopy__")  # look at tensors, but not at their values
_THERE: dict[int, torch.UntypedStorage] = {}  # kept, so that their addresses are not used again


class OtherDevice(TorchFunctionMode):
    """Poses as a second device for what is made or moved there; values stay on the CPU.

    As with a graphics card, operations on tensors of both devices fail, unless one is a single number or an index, and
    so does a draw on one device by the generator of another.
    """

    def __exit__(self, *given: Any) -> None:
        super().__exit__(*given)
        _THERE.clear()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), dict(kwargs or {})
        if func == Tensor.device.__get__:
            return ELSEWHERE if is_there(args[0]) else func(*args)
        if name in ("to", "cpu"):
            return _moved(name, args, kwargs)
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        there = any(map(is_there, tensors))
        if "device" in kwargs:
            there = kwargs["device"] is not None and torch.device(kwargs["device"]) == ELSEWHERE
            if there and kwargs.get("generator") is not None:
                raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
            kwargs["device"] = "cpu"
        elif there and name not in _COMPARE:
            _check_one_place(name, args, tensors)
        found = func(*args, **kwargs)
        for each in tree_leaves(found) if there else ():
            if isinstance(each, Tensor):
                _put(each)
        return found


def is_there(tensor: Tensor) -> bool:
    with torch._C.DisableTorchFunction():
        return tensor.untyped_storage().data_ptr() in _THERE


def _put(tensor: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():
        storage = tensor.untyped_storage()
        if storage.data_ptr():
            _THERE[storage.data_ptr()] = storage
    return tensor


def _check_one_place(name: str, args: Any, tensors: list[Tensor]) -> None:
    mixed = any(each.ndim and not is_there(each) for each in tensors)
    if mixed and not (name == "__getitem__" and is_there(args[0])):
        raise RuntimeError(f"Expected all tensors of {name} to be on the same device")
    if name == "numpy":
        raise TypeError("can't convert cuda:0 device type tensor to numpy")


def _moved(name: str, args: Any, kwargs: Any) -> Tensor:
    """``to`` a device, a precision or the place of another tensor; ``cpu``."""
    tensor: Tensor = args[0]
    there, dtype = is_there(tensor) and name != "cpu", tensor.dtype
    for each in (*args[1:], *kwargs.values()):
        if isinstance(each, Tensor):
            there, dtype = is_there(each), each.dtype
        elif isinstance(each, torch.dtype):
            dtype = each
        elif isinstance(each, (torch.device, str)):
            there = torch.device(each) == ELSEWHERE
    if dtype == tensor.dtype and there == is_there(tensor):
        return tensor
    copied = tensor.to(dtype, copy=True)
    return _put(copied) if there else copied

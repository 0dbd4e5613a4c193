"""Digests of content: of settings, the same in every process, and of records, whatever their row.

Two functions of the same name with different code have different digests. :func:`rows_among` finds records that occur
twice.
"""

from __future__ import annotations

import dis
import hashlib
import re
import sys
from collections.abc import Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reconrisk.core.validation import refuse


def rows_among(records: Tensor, known: Tensor) -> tuple[int, ...]:
    """Rows of ``records`` whose content, in single precision, is that of one of ``known``.

    >>> import torch
    >>> rows_among(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[3.0, 4.0]]).double())
    (1,)
    """
    contents = {row.tobytes() for row in _rows(known)}
    return tuple(place for place, row in enumerate(_rows(records)) if row.tobytes() in contents)


def _rows(records: Tensor) -> np.ndarray:
    values = records.detach().float().flatten(1).numpy()
    return np.ascontiguousarray(values + 0.0)  # minus zero is zero


_PACKAGES = {"torch", "numpy", "scipy", "sklearn", "torchvision", "reconrisk"} | set(sys.stdlib_module_names)
_DEEPEST = 40
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,}")
_SPECIAL = {"__init__", "__post_init__", "__call__"}
_PLAIN = (bool, int, float, complex, str, bytes, PurePath, type(None), type(Ellipsis))
_FOLLOWED = (*_PLAIN, Tensor, np.ndarray, FunctionType, type, tuple, list, dict, frozenset, partial, nn.Module)


def described(value: Any) -> str:
    """The SHA-256 of a setting: numbers and tensors by value, functions by their code and all that it works with.

    That is constants, defaults, what a function closes over, and functions, classes and plain values that it names.

    Assumes: what comes with Python, PyTorch, NumPy, SciPy, scikit-learn and this package is known by its name.
    Guarantee: never an address, nor the name of a module, which depends on how it is run.
    Edge cases: code is that of the interpreter, so another version of Python may give another digest. What has nothing
    but an address to tell it by is refused.

    >>> def scaled(factor): return lambda values: factor * values
    >>> described(scaled(1.0)) == described(scaled(1.0)), described(scaled(1.0)) == described(scaled(2.0))
    (True, False)
    """
    digest = hashlib.sha256()
    for word in _words(value, ()):
        digest.update(word if isinstance(word, bytes) else word.encode())
        digest.update(b"\0")
    return digest.hexdigest()


def _words(value: Any, above: tuple[int, ...]) -> Iterator[str | bytes]:
    if id(value) in above and not isinstance(value, _PLAIN):
        yield f"again {above.index(id(value))}"  # a function that calls itself
    elif len(above) > _DEEPEST:
        raise refuse("settings", type(value).__name__, f"to be nested at most {_DEEPEST} deep")
    elif isinstance(value, _PLAIN):
        yield f"{type(value).__name__} {value!r}"
    elif isinstance(value, (Tensor, np.ndarray)):
        yield from _of_array(torch.as_tensor(value))
    elif isinstance(value, ModuleType):
        yield f"module {value.__name__.rpartition('.')[2]}"
    elif isinstance(value, BuiltinFunctionType) and isinstance(value.__self__, (ModuleType, type, type(None))):
        yield f"builtin {value.__qualname__}"
    else:
        yield f"{type(value).__qualname__}("
        for name, part in _content(value):
            yield name
            yield from _words(part, (*above, id(value)))
        yield ")"


def _of_array(tensor: Tensor) -> Iterator[str | bytes]:
    yield f"{tensor.dtype} {tuple(tensor.shape)}"
    yield tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()  # NumPy lacks bfloat16


def _content(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a value that make it what it is, by name."""
    if isinstance(value, CodeType):
        yield from (("code", value.co_code), ("names", value.co_names), ("constants", value.co_consts))
    elif isinstance(value, FunctionType):
        yield from _of_function(value)
    elif isinstance(value, type):
        yield from _of_class(value)
    elif isinstance(value, partial):
        yield from (("function", value.func), ("positional", value.args), ("named", value.keywords))
    elif isinstance(value, (MethodType, BuiltinFunctionType)):
        yield from (("method", value.__name__), ("of", value.__self__))
        yield "function", getattr(value, "__func__", None)
    elif isinstance(value, Mapping):
        yield from ((described(key), part) for key, part in value.items())
    elif isinstance(value, Set):
        yield from (("", text) for text in sorted(described(part) for part in value))  # their order is none
    elif isinstance(value, (list, tuple)):
        yield from (("", part) for part in value)
    else:
        yield from _of_object(value)


def _of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    yield "name", function.__qualname__
    yield "defaults", (function.__defaults__, function.__kwdefaults__)
    cells = function.__closure__ or ()
    yield from zip(function.__code__.co_freevars, (_inside(cell) for cell in cells), strict=True)
    if _is_packaged(function):
        return
    yield "code", function.__code__
    for name in sorted(set(_globals_named(function.__code__))):
        found = function.__globals__.get(name)
        if isinstance(found, _FOLLOWED):
            yield f"global {name}", found


def _inside(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is bound later
        return None


def _globals_named(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_named(constant)


def _of_class(kind: type) -> Iterator[tuple[str, Any]]:
    """A class by its name, and unless it is of a package by its methods and plain values, and those it inherits."""
    yield "name", kind.__qualname__
    if _is_packaged(kind):
        return
    for name, part in sorted(vars(kind).items()):
        plain = getattr(part, "fget", None) or getattr(part, "__func__", part)  # of a property, of a static method
        if isinstance(plain, (FunctionType, *_PLAIN, Tensor)) and (name in _SPECIAL or not name.startswith("__")):
            yield name, plain
    yield from (("base", base) for base in kind.__bases__)


def _of_object(value: Any) -> Iterator[tuple[str, Any]]:
    yield "class", type(value)
    if isinstance(value, nn.Module):
        yield "text", repr(value)
        yield from (
            *value.named_parameters(recurse=False),
            *value.named_buffers(recurse=False),
            *value.named_children(),
        )
        yield from ((name, part) for name, part in sorted(vars(value).items()) if not name.startswith("_"))
    elif isinstance(value, torch.Generator):
        yield "state", value.get_state()
    elif isinstance(value, np.random.Generator):
        yield "state", value.bit_generator.state
    elif is_dataclass(value):
        yield from ((each.name, getattr(value, each.name)) for each in fields(value))
    elif hasattr(value, "__dict__"):
        yield from sorted(vars(value).items())
    elif _ADDRESS.search(repr(value)):
        remedy = "Pass a function or a dataclass whose content says what it does."
        raise refuse("settings", type(value).__name__, "to be told from others of its kind", remedy)
    else:
        yield "text", repr(value)


def _is_packaged(part: Any) -> bool:
    return str(part.__module__).partition(".")[0] in _PACKAGES

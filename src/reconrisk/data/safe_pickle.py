"""A reader of pickled data that executes nothing: containers, text, numbers and numpy arrays of bytes.

The opcodes are walked with :mod:`pickletools`, which only takes them apart. A global is a name to be compared, never
imported; "calling" one of the few that describe an array builds a plain description of it. Whatever else a pickle may
ask for is refused by name.
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reconrisk.core.errors import InvalidFile

_REMEDY = "Do not open it with pickle unless you trust it; save arrays as npz."


class _Forbidden(Exception):
    """A global or an opcode that plain data does not need."""


@dataclass(frozen=True)
class _Global:
    name: str


@dataclass
class _Array:
    """What a pickle says about a numpy array: filled in by the opcode that sets its state."""

    state: tuple[Any, ...] = ()

    def to_numpy(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        _, shape, dtype, fortran, data = self.state
        raw = data.encode("latin-1") if isinstance(data, str) else bytes(data)
        if dtype != _Dtype("u1") or len(shape) > 4 or math.prod(shape) != len(raw):
            raise ValueError(f"an array of {dtype} with shape {shape} and {len(raw)} bytes")
        return np.frombuffer(raw, dtype=np.uint8).reshape(shape, order="F" if fortran else "C")


@dataclass(frozen=True)
class _Dtype:
    code: str


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _dtype(code: Any, *_: Any) -> _Dtype:
    text = code.decode("ascii") if isinstance(code, bytes) else str(code)
    return _Dtype(text.removeprefix("|"))


def _encode(text: str, encoding: str = "latin1") -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise _Forbidden(f"the encoding {encoding!r}")
    return text.encode("latin-1")


def _from_buffer(data: bytes, dtype: _Dtype, shape: tuple[int, ...], order: str = "C") -> _Array:
    return _Array((1, shape, dtype, order == "F", data))


# numpy renamed numpy.core to numpy._core in version 2; protocol 5 stores arrays by _frombuffer
_CALLABLE: dict[str, Callable[..., Any]] = {
    "numpy.core.multiarray _reconstruct": _reconstruct,
    "numpy._core.multiarray _reconstruct": _reconstruct,
    "numpy.core.numeric _frombuffer": _from_buffer,
    "numpy._core.numeric _frombuffer": _from_buffer,
    "numpy dtype": _dtype,
    "_codecs encode": _encode,
}
_NAMED_ONLY = {"numpy ndarray"}

_VALUES = frozenset(
    (
        *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
        *("BINSTRING", "SHORT_BINSTRING", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    )
)
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
}


class _Reader:
    """The stack machine of the pickle format, reduced to data."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def take(self, opcode: str, argument: Any) -> None:
        if opcode in _VALUES:
            self.stack.append(argument)
        elif opcode in _CONSTANTS:
            self.stack.append(_CONSTANTS[opcode]())
        elif opcode in _ACTIONS:
            _ACTIONS[opcode](self, argument)
        elif opcode not in ("PROTO", "FRAME", "STOP"):
            raise _Forbidden(f"the opcode {opcode}")

    def since_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def last(self, count: int) -> tuple[Any, ...]:
        items = tuple(self.stack[len(self.stack) - count :])
        if len(items) < count:
            raise IndexError("an empty stack")
        del self.stack[len(self.stack) - count :]
        return items

    def push_global(self, name: str) -> None:
        if name not in _CALLABLE and name not in _NAMED_ONLY:
            raise _Forbidden(f"the global {name.replace(' ', '.')}")
        self.stack.append(_Global(name))

    def set_items(self, items: list[Any]) -> None:
        if len(items) % 2:
            raise ValueError("a key without value")
        # text only: hashing deeply nested tuples can exhaust the C stack
        if not all(isinstance(key, (str, bytes)) for key in items[::2]):
            raise TypeError("a key that is not text")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def reduce(self) -> None:
        function, arguments = self.last(2)
        if not isinstance(function, _Global) or function.name not in _CALLABLE:
            raise _Forbidden(f"a call of {getattr(function, 'name', type(function).__name__)}")
        self.stack.append(_CALLABLE[function.name](*arguments))

    def build(self) -> None:
        (state,) = self.last(1)
        if isinstance(self.stack[-1], _Array):
            self.stack[-1].state = state
        elif not isinstance(self.stack[-1], _Dtype):
            raise _Forbidden(f"a state for {type(self.stack[-1]).__name__}")


def _put(reader: _Reader, index: Any) -> None:
    reader.memo[len(reader.memo) if index is None else index] = reader.stack[-1]


_ACTIONS: dict[str, Callable[[_Reader, Any], None]] = {
    "MARK": lambda reader, _: reader.marks.append(len(reader.stack)),
    "PUT": _put,
    "BINPUT": _put,
    "LONG_BINPUT": _put,
    "MEMOIZE": _put,
    "GET": lambda reader, index: reader.stack.append(reader.memo[index]),
    "BINGET": lambda reader, index: reader.stack.append(reader.memo[index]),
    "LONG_BINGET": lambda reader, index: reader.stack.append(reader.memo[index]),
    "LIST": lambda reader, _: reader.stack.append(reader.since_mark()),
    "TUPLE": lambda reader, _: reader.stack.append(tuple(reader.since_mark())),
    "TUPLE1": lambda reader, _: reader.stack.append(reader.last(1)),
    "TUPLE2": lambda reader, _: reader.stack.append(reader.last(2)),
    "TUPLE3": lambda reader, _: reader.stack.append(reader.last(3)),
    "APPEND": lambda reader, _: reader.stack[-2].append(reader.last(1)[0]),
    "APPENDS": lambda reader, _: reader.stack[reader.marks[-1] - 1].extend(reader.since_mark()),
    "SETITEM": lambda reader, _: reader.set_items(list(reader.last(2))),
    "SETITEMS": lambda reader, _: reader.set_items(reader.since_mark()),
    "GLOBAL": lambda reader, name: reader.push_global(name),
    "STACK_GLOBAL": lambda reader, _: reader.push_global(" ".join(map(str, reader.last(2)))),
    "REDUCE": lambda reader, _: reader.reduce(),
    "BUILD": lambda reader, _: reader.build(),
}


def pickled_entries(data: bytes, path: Path, keys: Sequence[str]) -> dict[str, Any]:
    """The entries under ``keys`` of a pickled dictionary, arrays of bytes as numpy arrays, nothing executed."""
    reader = _Reader()
    position = 0
    try:
        for opcode, argument, at in pickletools.genops(data):
            position = at or 0
            reader.take(opcode.name, argument)
        (found,) = reader.stack
        if not isinstance(found, dict):
            raise ValueError(f"a {type(found).__name__} instead of a dictionary")
        named = {key.decode("utf-8") if isinstance(key, bytes) else key: value for key, value in found.items()}
        present = {key: named[key] for key in keys if key in named}
        entries = {key: value.to_numpy() if isinstance(value, _Array) else value for key, value in present.items()}
    except _Forbidden as error:
        problem = f"Expected only containers, numbers, text and arrays of bytes, it asks for {error}."
        raise InvalidFile(path, f"byte {position}", problem, _REMEDY) from error
    except (ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError) as error:
        problem = f"Expected a complete pickled dictionary, found {error}."
        raise InvalidFile(path, f"byte {position}", problem, "It is damaged or foreign: fetch it again.") from error
    for key in keys:
        if key not in entries:
            problem = f"Expected it beside the keys found: {', '.join(sorted(named)) or 'none'}."
            raise InvalidFile(path, f"key {key!r}", problem, "Check that it is the right file.")
    return entries

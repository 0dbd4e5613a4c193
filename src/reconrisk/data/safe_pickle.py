"""Reader for pickled data that executes nothing: containers, text, numbers and numpy arrays of bytes.

:mod:`pickletools` splits the pickle into opcodes without running them. A global is only a name to compare, never an
import; "calling" one of the few that describe an array builds a plain description of it. All other requests of a pickle
are refused by name.
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
    """Global or opcode that plain data does not need."""


@dataclass(frozen=True)
class _Global:
    """Name of a global, never imported."""

    name: str


@dataclass
class _Array:
    """Description of a numpy array; the BUILD opcode sets its state."""

    state: tuple[Any, ...] = ()

    def to_numpy(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return the array, if it is of bytes and its size matches."""
        _, shape, dtype, fortran, data = self.state
        # Python 2 stored bytes as text, one character per byte
        raw = data.encode("latin-1") if isinstance(data, str) else bytes(data)
        # only bytes, and few axes: images; the size is checked before numpy sees the claimed shape
        if dtype != _Dtype("u1") or len(shape) > 4 or math.prod(shape) != len(raw):
            raise ValueError(f"an array of {dtype} with shape {shape} and {len(raw)} bytes")
        return np.frombuffer(raw, dtype=np.uint8).reshape(shape, order="F" if fortran else "C")


@dataclass(frozen=True)
class _Dtype:
    """Type code of an array, without the byte order mark of single bytes."""

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
_NAMED_ONLY = {"numpy ndarray"}  # an argument of _reconstruct, never called

# opcodes that push their argument: numbers, text, bytes
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
    """Stack machine of the pickle format, reduced to data."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def take(self, opcode: str, argument: Any) -> None:
        """Execute one opcode."""
        if opcode in _VALUES:
            self.stack.append(argument)
        elif opcode in _CONSTANTS:
            self.stack.append(_CONSTANTS[opcode]())
        elif opcode in _ACTIONS:
            _ACTIONS[opcode](self, argument)
        elif opcode not in ("PROTO", "FRAME", "STOP"):
            raise _Forbidden(f"the opcode {opcode}")

    def since_mark(self) -> list[Any]:
        """Pop everything above the last mark."""
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def last(self, count: int) -> tuple[Any, ...]:
        """Pop the last ``count`` items."""
        items = tuple(self.stack[len(self.stack) - count :])
        if len(items) < count:
            raise IndexError("an empty stack")
        del self.stack[len(self.stack) - count :]
        return items

    def push_global(self, name: str) -> None:
        """Push the name of a global if it is allowed."""
        if name not in _CALLABLE and name not in _NAMED_ONLY:
            raise _Forbidden(f"the global {name.replace(' ', '.')}")
        self.stack.append(_Global(name))

    def set_items(self, items: list[Any]) -> None:
        """Put alternating keys and values into the dictionary on top of the stack."""
        if len(items) % 2:
            raise ValueError("a key without value")
        # keys must be text: hashing deeply nested tuples can exhaust the C stack
        if not all(isinstance(key, (str, bytes)) for key in items[::2]):
            raise TypeError("a key that is not text")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def reduce(self) -> None:
        """Replace a global and its arguments by the description that they stand for."""
        function, arguments = self.last(2)
        if not isinstance(function, _Global) or function.name not in _CALLABLE:
            raise _Forbidden(f"a call of {getattr(function, 'name', type(function).__name__)}")
        self.stack.append(_CALLABLE[function.name](*arguments))

    def build(self) -> None:
        """Set the state of the array on top of the stack; a dtype needs none."""
        (state,) = self.last(1)
        if isinstance(self.stack[-1], _Array):
            self.stack[-1].state = state
        elif not isinstance(self.stack[-1], _Dtype):
            raise _Forbidden(f"a state for {type(self.stack[-1]).__name__}")


def _put(reader: _Reader, index: Any) -> None:
    """Remember the top of the stack; MEMOIZE has no index and counts up."""
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


def read_pickled_entries(data: bytes, path: Path, keys: Sequence[str]) -> dict[str, Any]:
    """Read entries of a pickled dictionary without executing anything.

    Args:
        data: Content of the file.
        path: Path for messages.
        keys: Keys to return; text and bytes keys count alike.

    Returns:
        The entries by key; arrays of bytes as numpy arrays.

    Raises:
        InvalidFile: If the pickle asks for anything but plain data, is damaged, or lacks a key.
    """
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
        problem = f"Expected only containers, numbers, text and arrays of bytes, found {error}."
        raise InvalidFile(path, f"byte {position}", problem, _REMEDY) from error
    except (ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError) as error:
        problem = f"Expected a complete pickled dictionary, found {error}."
        raise InvalidFile(
            path, f"byte {position}", problem, "It is damaged or of another format: download it again."
        ) from error
    for key in keys:
        if key not in entries:
            problem = f"Expected this key, found {', '.join(sorted(named)) or 'none'}."
            raise InvalidFile(path, f"key {key!r}", problem, "Check that it is the right file.")
    return entries

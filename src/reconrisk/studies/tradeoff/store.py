"""Finished cells of a frontier in a folder: one file each, found again only by the same settings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.core.storage.files import write_whole, wrong_version
from reconrisk.core.storage.serialization import from_json, to_json
from reconrisk.core.validation import refuse
from reconrisk.studies.common.identity import hash_of_model, hash_of_tensors, hash_of_text
from reconrisk.studies.tradeoff.result import TradeoffCell

VERSION = 2
"""Version of the files. 2: cells have the stable tags of :mod:`reconrisk.core.storage.serialization`."""

_DEEPEST = 12
_MARK = "store.json"


@dataclass(frozen=True)
class CellStore:
    """Cells in the files of a ``folder``, by the hash of all they depend on; nothing is kept without one.

    >>> CellStore(None).find("0" * 12) is None
    True
    """

    folder: Path | None

    def __post_init__(self) -> None:
        if self.folder is not None and self.folder.exists() and not self.folder.is_dir():
            raise refuse("store", str(self.folder), "to be a folder", "Choose another name.")
        found = self._version()
        if self.folder is not None and found not in (None, VERSION):
            raise wrong_version(self.folder, "version", "a store of a frontier", found=found, reads=VERSION)

    def find(self, fingerprint: str) -> TradeoffCell | None:
        """The cell of these settings, None if it was never finished."""
        path = self._path(fingerprint)
        if path is None or not path.exists():
            return None
        remedy = "Delete the file: the cell is then computed again."
        try:
            found = from_json(path.read_text(encoding="utf-8"))
        except (InvalidInput, UnicodeDecodeError) as error:
            raise InvalidFile(path, "cell", str(error), remedy) from error
        if not isinstance(found, TradeoffCell):
            raise InvalidFile(path, "cell", f"it holds a {type(found).__name__}, no TradeoffCell.", remedy)
        return found

    def add(self, fingerprint: str, cell: TradeoffCell) -> None:
        """Keep a finished cell: the file is there whole or not at all."""
        path = self._path(fingerprint)
        if path is None:
            return
        if self._version() is None:
            mark = json.dumps({"store": "tradeoff", "version": VERSION})
            write_whole(path.with_name(_MARK), lambda temporary: temporary.write_text(mark + "\n", encoding="utf-8"))
        write_whole(path, lambda temporary: temporary.write_text(to_json(cell) + "\n", encoding="utf-8"))

    def _version(self) -> object:
        """Return the version that a folder states, 1 where cells are in it without a mark, None where none are."""
        if self.folder is None:
            return None
        mark = self.folder / _MARK
        if not mark.is_file():
            return 1 if any(self.folder.glob("cell-*.json")) else None
        try:
            return json.loads(mark.read_text(encoding="utf-8"))["version"]
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidFile(mark, "version", "It states no version.", "Name another folder.") from error

    def _path(self, fingerprint: str) -> Path | None:
        return None if self.folder is None else self.folder / f"cell-{fingerprint}.json"


def fingerprint_of(parts: Mapping[str, object]) -> str:
    """The hash of everything that a cell depends on.

    >>> fingerprint_of({"steps": 1}) == fingerprint_of({"steps": 2})
    False
    """
    return hash_of_text(json.dumps({name: described(value) for name, value in parts.items()}, sort_keys=True))


def described(value: Any) -> str:
    """Settings in full as text that is the same in every process: tensors by their hash, functions by their code.

    Guarantee: objects are told apart by type and content, never by their address.
    Edge cases: of a function, what it closes over and the plain globals it names count too.

    >>> def noise(scale): return lambda moments: scale * moments
    >>> described(noise(1.0)) == described(noise(1.0)), described(noise(1.0)) == described(noise(2.0))
    (True, False)
    """
    return " ".join(_words(value, 0))


def _words(value: Any, depth: int) -> Iterator[str]:
    if depth > _DEEPEST:
        raise refuse("settings", type(value).__name__, f"to be nested at most {_DEEPEST} deep")
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, Path)):
        yield repr(value)
    elif isinstance(value, (Tensor, np.ndarray, torch.Generator)):
        tensor = value.get_state() if isinstance(value, torch.Generator) else torch.as_tensor(value)
        yield f"{type(value).__name__} {hash_of_tensors([('', tensor)])}"
    elif isinstance(value, nn.Module):
        yield f"{type(value).__qualname__} {hash_of_model(value)}"
    elif isinstance(value, (type, ModuleType)):
        yield f"{value.__module__ if isinstance(value, type) else ''}.{value.__name__}"
    elif isinstance(value, CodeType):
        yield value.co_code.hex()
        yield from _words((value.co_names, value.co_consts), depth + 1)
    else:
        yield f"{type(value).__qualname__}("
        for name, part in _content(value):
            yield f"{name}:"
            yield from _words(part, depth + 1)
        yield ")"


def _content(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a value that make it what it is, by name."""
    if isinstance(value, FunctionType):
        yield from _content_of_function(value)
    elif isinstance(value, partial):
        yield from (("func", value.func), ("args", value.args), ("keywords", value.keywords))
    elif isinstance(value, MethodType):
        yield from (("func", value.__func__), ("self", value.__self__))
    elif isinstance(value, Mapping):
        yield from ((described(key), part) for key, part in value.items())
    elif isinstance(value, Set):
        yield from (("", text) for text in sorted(described(part) for part in value))
    elif isinstance(value, (list, tuple)):
        yield from (("", part) for part in value)
    elif is_dataclass(value):
        yield from ((each.name, getattr(value, each.name)) for each in fields(value))
    elif hasattr(value, "__dict__"):
        yield from sorted(vars(value).items())
    else:
        yield "", repr(value)


def _content_of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    code = function.__code__
    yield "name", f"{function.__module__}.{function.__qualname__}"
    yield "code", code
    yield "defaults", (function.__defaults__, function.__kwdefaults__)
    cells = function.__closure__ or ()
    yield from zip(code.co_freevars, (cell.cell_contents for cell in cells), strict=True)
    for name in code.co_names:
        found = function.__globals__.get(name)
        if found is not None and isinstance(found, (bool, int, float, str, tuple, list, dict, Tensor)):
            yield f"global {name}", found

"""Shadow models in a folder: trained in parts, each saved as soon as it is done, so that a run can be resumed.

A store is one file of rows, written part by part, and an index with checksums that is replaced after each part. A part
that the index does not list is not done. The index holds a digest of each setting, so that an error can name the one
that differs.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reconrisk.core.digest import content_digest
from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.core.progress import track
from reconrisk.core.storage.files import write_atomically, wrong_version
from reconrisk.core.validation import check_whole, invalid_input
from reconrisk.releases.model_state import match_parameter_names
from reconrisk.releases.shadow.checks import RandomBatches
from reconrisk.releases.shadow.training import ShadowTraining

_PART = 128  # models per part: a few seconds for the network of balle2022, which is the loss after a kill
_COPIES = 4  # copies of a row in memory while its part is trained: start, result, and two in between
_FORMAT = 3  # version of the index; 3 since modules moved, because settings are identified by module names
_ROWS, _INDEX = "models.bin", "index.json"
_DTYPES: dict[torch.dtype, np.dtype[Any]] = {torch.float32: np.dtype("<f4"), torch.float64: np.dtype("<f8")}
_DIGESTED = ("model", "fixed_inputs", "fixed_labels", "optimizer", "loss_fn", "draw_start")
_REMEDY = "Delete the folder and train again, or name another folder."


@dataclass(frozen=True, eq=False)
class ShadowModels:
    """Trained shadow models, read from disk as needed if they are stored.

    Attributes:
        rows: Flat parameters, (n, p), one row per target.
        names: Names of the parameters, in the order of a row.
        shapes: Their shapes.
    """

    rows: Tensor = field(repr=False)
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.rows)

    def columns(self, parameters: Sequence[str]) -> Tensor:
        """Return the columns of some parameters, or of all of a layer ("layers.0"), in the order of a row.

        >>> models = ShadowModels(torch.zeros(2, 6), ("head.weight", "head.bias"), ((2, 2), (2,)))
        >>> models.columns(["head.bias"])
        tensor([4, 5])
        """
        wanted, found, begin = match_parameter_names(parameters, self.names), [], 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            end = begin + torch.Size(shape).numel()  # 1 for a scalar, whose shape is empty
            found += [torch.arange(begin, end)] if name in wanted else []
            begin = end
        return torch.cat(found)


def train_shadow_models(
    training: ShadowTraining,
    inputs: Tensor,
    labels: Tensor,
    *,
    store: str | Path | None = None,
    memory: int = 2**30,
    starts: Tensor | None = None,
    rng: torch.Generator | None = None,
) -> ShadowModels:
    """Train one shadow model per target, in parts that fit into memory.

    Args:
        training: Settings that all models share.
        inputs: Targets, one per model; their precision is that of the models.
        labels: Their labels.
        store: Folder in which finished models are saved; by default they are kept in memory.
        memory: Bytes that the models of one part may take; without ``store``, all models.
        starts: Initial parameters, one row for all or one per model; by default those of the training.
        rng: Generator of initial parameters, batches and noise; needed only if the training draws any.

    Returns:
        The trained models.

    Raises:
        InvalidInput: If targets or settings are invalid, do not fit into memory, or differ from those of the store.
        InvalidFile: If the folder holds something else, or its content has changed.

    Guarantee: after a kill or Ctrl-C the same call resumes the work. Finished parts are kept, each whole or not at all,
    and the result is the same to the last bit, with the same number of threads. A folder of other settings, or one
    whose content has changed, is refused. With a store, memory does not grow with the models.
    Edge cases: a model that diverges has values that are not finite. Functions among the settings are identified by
    their code and the values it uses, which another version of Python may compile differently.
    Reference: shadow models, section V-A, balle2022.

    >>> training = ShadowTraining(torch.nn.Linear(2, 2), torch.eye(2), torch.tensor([0, 1]), steps=3)
    >>> len(train_shadow_models(training, torch.rand(5, 2), torch.tensor([0, 1, 0, 1, 1])))
    5
    """
    training.check(inputs, labels, starts)
    seeds = training.seeds(len(inputs), rng)
    size = models_per_part(training, inputs, check_whole("memory", memory))
    book: _StoredRows | _RowsInMemory
    if store is None:
        needed = len(inputs) * training.size * inputs.element_size()
        if needed > memory:
            remedy = "Pass store=... with a folder for the models, or raise memory."
            raise invalid_input("memory", memory, f">= {needed} bytes, the size of the models", remedy)
        book = _RowsInMemory(torch.empty(len(inputs), training.size, dtype=inputs.dtype), size)
    else:
        book = _open_store(
            Path(store), _digest_settings(training, inputs, labels, starts, seeds), training, inputs, size
        )
    left = list(book.remaining_parts())
    for part in track(left, "shadow models"):
        own = starts if starts is None or starts.ndim == 1 or len(starts) == 1 else starts[part]
        some = None if seeds is None else seeds[part]
        book.keep(part, training.train_seeded(inputs[part], labels[part], seeds=some, starts=own))
    return ShadowModels(book.rows(), training.names, training.shapes)


def models_per_part(training: ShadowTraining, inputs: Tensor, memory: int) -> int:
    """Return the number of models that are trained and saved at a time.

    Args:
        training: Settings that all models share.
        inputs: Targets, for their precision.
        memory: Bytes that the models of one part may take.

    Returns:
        Number of models, at least 1.

    Raises:
        InvalidInput: If one model does not fit into ``memory``.
    """
    each = training.size * inputs.element_size() * _COPIES
    if each > memory:
        raise invalid_input("memory", memory, f">= {each} bytes, which training one model takes", "Raise memory.")
    return max(1, min(memory // each, max(_PART, training.models_per_tile(inputs.dtype))))


@dataclass(frozen=True, eq=False)
class _RowsInMemory:
    """Trained models that are kept in memory only."""

    found: Tensor
    size: int

    def remaining_parts(self) -> Iterator[slice]:
        return _split_models(len(self.found), self.size)

    def keep(self, part: slice, rows: Tensor) -> None:
        self.found[part] = rows

    def rows(self) -> Tensor:
        return self.found


@dataclass(frozen=True, eq=False)
class _StoredRows:
    """A folder with all rows in one file, and an index of the finished parts with their checksums."""

    folder: Path
    index: dict[str, Any]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return int(self.index["models"] * self.index["parameters"] * _DTYPES[self.dtype].itemsize)

    def remaining_parts(self) -> Iterator[slice]:
        parts = _split_models(self.index["models"], self.index["part"])
        return (part for part in parts if str(part.start) not in self.index["done"])

    def keep(self, part: slice, rows: Tensor) -> None:
        """Write the rows, then the index: a kill between the two leaves the part undone."""
        mapped = self._memory_map("r+")
        mapped[part] = rows.numpy()
        mapped.flush()
        self.index["done"][str(part.start)] = zlib.crc32(mapped[part].tobytes())
        _write_index(self.folder, self.index)

    def rows(self) -> Tensor:
        return torch.from_numpy(self._memory_map("c"))  # copy on write: changes do not reach the file

    def check(self) -> None:
        """Refuse a file whose finished parts do not match their checksums."""
        path = self.folder / _ROWS
        found = path.stat().st_size if path.is_file() else 0
        if found != self.bytes:
            problem = f"It has {found} bytes instead of {self.bytes}."
            raise InvalidFile(path, "whole file", problem, _REMEDY)
        mapped = self._memory_map("r")
        for part in _split_models(self.index["models"], self.index["part"]):
            kept = self.index["done"].get(str(part.start))
            if kept is not None and zlib.crc32(mapped[part].tobytes()) != kept:
                place = f"models {part.start} to {part.stop - 1}"
                raise InvalidFile(path, place, "They do not match their checksum.", _REMEDY)

    def _memory_map(self, mode: Any) -> np.memmap[Any, Any]:
        shape = (self.index["models"], self.index["parameters"])
        mapped: np.memmap[Any, Any] = np.memmap(self.folder / _ROWS, _DTYPES[self.dtype], mode, shape=shape)
        return mapped


def _open_store(
    folder: Path, settings: Mapping[str, str], training: ShadowTraining, inputs: Tensor, size: int
) -> _StoredRows:
    """Open or create the store; refuse one of other settings."""
    for leftover in (*folder.glob("tmp*.bin"), *folder.glob("tmp*.json")):  # of a kill inside write_atomically
        leftover.unlink(missing_ok=True)
    if not (folder / _INDEX).is_file():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InvalidFile(folder, "folder", "It holds other files than shadow models.", "Name an empty folder.")
        begun = {"format": _FORMAT, "settings": dict(settings), "models": len(inputs), "parameters": training.size}
        _write_index(folder, {**begun, "part": size, "done": {}})
    index = _read_index(folder)
    others = [name for name in settings if index["settings"].get(name) != settings[name]]
    if others:
        raise InvalidInput(
            f"Expected store={str(folder)!r} to have the same settings, but it differs in {', '.join(others)}. "
            "Pass another folder, or the settings that the store was created with."
        )
    book = _StoredRows(folder, index, inputs.dtype)
    if not index["done"]:  # created just now, or killed before the first part was done
        write_atomically(folder / _ROWS, lambda path: os.truncate(path, book.bytes))
    book.check()
    return book


def _digest_settings(
    training: ShadowTraining, inputs: Tensor, labels: Tensor, starts: Tensor | None, seeds: Tensor | None
) -> dict[str, str]:
    """Return a digest of every setting that determines the models, by name, so that an error can name a difference."""
    order = training.batches
    if order is not None and not isinstance(order, RandomBatches):
        order = [torch.as_tensor(rows) for rows in order]  # lists, arrays and tensors of the same rows are equal
    return {
        "precision": str(inputs.dtype),
        "steps": str(training.steps),
        "private": repr(training.private),
        **{name: content_digest(getattr(training, name)) for name in _DIGESTED},
        "batches": content_digest(order),
        "inputs": content_digest(inputs),
        "labels": content_digest(labels),
        "starts": content_digest(starts),
        "rng": content_digest(seeds),
    }


def _split_models(models: int, size: int) -> Iterator[slice]:
    return (slice(begin, min(begin + size, models)) for begin in range(0, models, size))


def _write_index(folder: Path, index: Mapping[str, Any]) -> None:
    write_atomically(folder / _INDEX, lambda path: path.write_text(json.dumps(index, indent=1), encoding="utf-8"))


def _read_index(folder: Path) -> dict[str, Any]:
    path = folder / _INDEX
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidFile(path, "whole file", "It is not JSON.", _REMEDY) from error
    kinds = {"format": int, "settings": dict, "models": int, "parameters": int, "part": int, "done": dict}
    for key, kind in kinds.items():
        if not isinstance(index, dict) or not isinstance(index.get(key), kind):
            raise InvalidFile(path, key, "It is missing or has a wrong type.", _REMEDY)
    if index["format"] != _FORMAT:
        raise wrong_version(path, "format", "a folder of shadow models", found=index["format"], reads=_FORMAT)
    if index["part"] < 1:
        raise InvalidFile(path, "part", "It is below 1.", _REMEDY)
    return dict(index)

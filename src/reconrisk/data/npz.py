"""Arrays in npz files, without pickle, also with the splits of MedMNIST (``train_images``) or Keras (``x_train``)."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reconrisk.core.errors import InvalidFile
from reconrisk.core.validation import invalid_input
from reconrisk.data.arrays import Array, inputs_from_array, labels_from_array
from reconrisk.data.dataset import Dataset
from reconrisk.data.file_bytes import stored_bytes

ZIP_MAGIC = b"PK"
NPY_MAGIC = b"\x93NUMPY"

SPLITS = ("train", "val", "test")
_INPUT_KEYS = ("images", "inputs", "x", "X", "data")
_LABEL_KEYS = ("labels", "y", "Y", "targets", "target")
_DEFLATE_RATIO = 1032  # the most that deflate can shrink: https://zlib.net/zlib_tech.html
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def read_npz(
    path: str | Path,
    *,
    split: str | None = None,
    inputs: str | None = None,
    labels: str | None = None,
    data_range: tuple[float, float] | None = None,
) -> Dataset:
    """Inputs and labels from an npz file.

    The inputs are under ``images``, ``inputs``, ``x`` or ``data``, the labels, if any, under ``labels``, ``y`` or
    ``targets``; with splits the key is ``train_images`` or ``x_train``, and so on. ``inputs`` and ``labels`` name other
    keys. ``split`` is ``"train"``, ``"val"``, ``"test"`` or None for all that is there. Images that are not bytes
    need ``data_range``.
    """
    path = Path(path)
    return dataset_from_npz(stored_bytes(path), path, split=split, inputs=inputs, labels=labels, data_range=data_range)


def dataset_from_npz(
    data: bytes,
    path: Path,
    *,
    split: str | None = None,
    inputs: str | None = None,
    labels: str | None = None,
    data_range: tuple[float, float] | None = None,
) -> Dataset:
    """The same from the bytes of an npz file; ``path`` is for messages."""
    if split is not None and split not in SPLITS:
        raise invalid_input("split", split, f"to be one of {', '.join(SPLITS)} or None")
    archive = _opened(data, path)
    members = {name.removesuffix(".npy"): archive.getinfo(name) for name in archive.namelist()}
    parts = _parts(members, path, inputs, labels)
    wanted = [part for part in parts if split in (None, part.split)]
    if not wanted:
        found = ", ".join(str(part.split) for part in parts if part.split) or "none"
        raise InvalidFile(
            path, "keys", f"Expected split={split!r}, found splits: {found}.", "Choose one of these, or None."
        )
    loaded = [_loaded(archive, members, part, path) for part in wanted]
    # ranges and class names must come from all splits, so that each is encoded alike
    coded = any(part.inputs.ndim == 2 or (part.labels is not None and part.labels.dtype.kind == "U") for part in loaded)
    if len(wanted) < len(parts) and coded:
        loaded = [_loaded(archive, members, part, path) for part in parts]
    described = _described(loaded, path, data_range)
    chosen = np.repeat([split in (None, part.split) for part in loaded], [len(part.inputs) for part in loaded])
    return described if chosen.all() else described.subset(np.flatnonzero(chosen))


@dataclass(frozen=True)
class _Part:
    """Where one split lies in the file."""

    split: str | None
    input_key: str
    label_key: str | None


@dataclass(frozen=True, eq=False)
class _Loaded:
    """One split as stored."""

    split: str | None
    input_key: str
    inputs: Array
    labels: Array | None


def _parts(members: Mapping[str, object], path: Path, inputs: str | None, labels: str | None) -> list[_Part]:
    keys = ", ".join(sorted(members)) or "none"
    for key in (inputs, labels):
        if key is not None and key not in members:
            raise InvalidFile(path, f"key {key!r}", f"Expected it among {keys}.", "Pass one of these.")
    plain = inputs or _first(members, _INPUT_KEYS)
    split_keys = {split: _first(members, _with_split(_INPUT_KEYS, split)) for split in SPLITS}
    parts = [
        _Part(split, key, _first(members, _with_split(_LABEL_KEYS, split)))
        for split, key in split_keys.items()
        if key is not None
    ]
    if inputs is not None or (plain is not None and not parts):
        return [_Part(None, str(plain), labels or _first(members, _LABEL_KEYS))]
    if plain is not None or labels is not None or not parts:
        raise InvalidFile(
            path,
            "keys",
            f"Expected inputs under one of {', '.join(_INPUT_KEYS)}, or of train_images, x_train and so on, found "
            f"{keys}.",
            "Name the key with inputs=, and that of the labels with labels=.",
        )
    return parts


def _first(members: Mapping[str, object], keys: Iterable[str]) -> str | None:
    return next((key for key in keys if key in members), None)


def _with_split(keys: Iterable[str], split: str) -> list[str]:
    return [name for key in keys for name in (f"{split}_{key}", f"{key}_{split}")]


def _loaded(archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], part: _Part, path: Path) -> _Loaded:
    inputs = _array(archive, members[part.input_key], path)
    if part.label_key is None:
        return _Loaded(part.split, part.input_key, inputs, None)
    labels = _array(archive, members[part.label_key], path)
    if inputs.ndim == 0 or labels.ndim == 0 or len(labels) != len(inputs):
        raise InvalidFile(
            path,
            f"key {part.label_key!r}",
            f"Expected one label for each record of {part.input_key!r} {inputs.shape}, found shape {labels.shape}.",
            "Use the labels that belong to these records.",
        )
    return _Loaded(part.split, part.input_key, inputs, labels)


def _described(parts: Sequence[_Loaded], path: Path, data_range: tuple[float, float] | None) -> Dataset:
    place = ", ".join(f"key {part.input_key!r}" for part in parts)
    inputs = inputs_from_array(_stacked([part.inputs for part in parts], path, place), path, place, data_range)
    arrays = [part.labels for part in parts if part.labels is not None]
    labels, classes = None, None
    if len(arrays) == len(parts):
        labels, classes = labels_from_array(
            _stacked(arrays, path, place), len(inputs.values), path, f"labels of {place}"
        )
    elif arrays:
        raise InvalidFile(path, place, "Expected labels for all splits or for none.", "Choose one with split=.")
    return Dataset(path.name, inputs.values, labels, inputs.data_range, classes, inputs.columns, str(path))


def _stacked(arrays: Sequence[Array], path: Path, place: str) -> Array:
    if len({(array.shape[1:], array.dtype.kind) for array in arrays}) > 1 or arrays[0].ndim == 0:
        shapes = ", ".join(f"{array.dtype} {array.shape}" for array in arrays)
        raise InvalidFile(
            path, place, f"Expected arrays of records of one shape, found {shapes}.", "Choose one by split=."
        )
    return np.concatenate(arrays) if len(arrays) > 1 else arrays[0]


def _opened(data: bytes, path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(io.BytesIO(data))
    # zipfile raises half a dozen types on damaged directories, none of them documented
    except Exception as error:
        raise InvalidFile(
            path, "byte 0", f"Expected an npz file, that is a zip archive, {error}.", "It is damaged: write it again."
        ) from error


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> Array:
    """The array in a member, made only after its claims agree with the bytes present."""
    place = f"key {member.filename.removesuffix('.npy')!r}"
    if member.compress_type not in _METHODS or member.file_size > _DEFLATE_RATIO * (member.compress_size + 1):
        raise InvalidFile(
            path,
            place,
            f"Expected {member.file_size} bytes stored or deflated, found {member.compress_size}, method "
            f"{member.compress_type}.",
            "It is damaged or hostile: write it again with numpy.savez.",
        )
    try:
        raw = archive.read(member)
        stream = io.BytesIO(raw)
        version = np.lib.format.read_magic(stream)
        read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[
            version
        ]
        shape, fortran, dtype = read_header(stream)
    # zipfile, zlib and numpy's header parser raise many types on damaged bytes, warnings turned errors among them
    except Exception as error:
        raise InvalidFile(
            path, place, f"Expected an npy array, {error}.", "It is damaged: write it again with numpy.savez."
        ) from error
    if dtype.hasobject:
        raise InvalidFile(
            path, place, "Expected numbers or text, found Python objects.", "Save it as an array of one plain type."
        )
    start = stream.tell()
    if min(shape, default=0) < 0 or len(raw) - start != math.prod(shape) * dtype.itemsize:
        raise InvalidFile(
            path,
            f"{place}, byte {start}",
            f"Expected {math.prod(shape) * dtype.itemsize} bytes for {dtype} {shape}, found {len(raw) - start}.",
            "It is damaged: write it again with numpy.savez.",
        )
    if len(raw) == start:
        raise InvalidFile(path, place, f"Expected values, found {dtype} {shape}.", "Write it again.")
    return np.frombuffer(raw, dtype=dtype, offset=start).reshape(shape, order="F" if fortran else "C")

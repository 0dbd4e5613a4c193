"""Reader for npz files, without pickle, also with splits as in MedMNIST (``train_images``) or Keras (``x_train``)."""

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
from reconrisk.data.file_bytes import read_file_bytes

ZIP_MAGIC = b"PK"
NPY_MAGIC = b"\x93NUMPY"

SPLITS = ("train", "val", "test")
_INPUT_KEYS = ("images", "inputs", "x", "X", "data")
_LABEL_KEYS = ("labels", "y", "Y", "targets", "target")
_DEFLATE_RATIO = 1032  # largest compression ratio of deflate: https://zlib.net/zlib_tech.html
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def read_npz(
    path: str | Path,
    *,
    split: str | None = None,
    inputs: str | None = None,
    labels: str | None = None,
    data_range: tuple[float, float] | None = None,
) -> Dataset:
    """Read inputs and labels from an npz file.

    Args:
        path: Path of the file.
        split: ``"train"``, ``"val"``, ``"test"`` or None for all splits present.
        inputs: Key of the inputs. By default ``images``, ``inputs``, ``x`` or ``data``; with splits ``train_images`` or
            ``x_train``, and so on.
        labels: Key of the labels. By default ``labels``, ``y`` or ``targets``; with splits as for the inputs.
        data_range: Ends of the scale of images that are not bytes; None for bytes and tables.

    Returns:
        The records. Tables and text labels are encoded alike for all splits.

    Raises:
        InvalidInput: If ``split`` is unknown, or ``data_range`` does not apply.
        InvalidFile: If the file cannot be read, is damaged, or lacks a key.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "toy.npz"
    ...     np.savez(path, images=np.zeros((3, 2, 2), np.uint8), labels=np.array([0, 1, 0]))
    ...     read_npz(path)
    Dataset(toy.npz, 3 x (1, 2, 2) in [0, 1], class labels, licence: not stated)
    """
    path = Path(path)
    return dataset_from_npz(
        read_file_bytes(path), path, split=split, inputs=inputs, labels=labels, data_range=data_range
    )


def dataset_from_npz(
    data: bytes,
    path: Path,
    *,
    split: str | None = None,
    inputs: str | None = None,
    labels: str | None = None,
    data_range: tuple[float, float] | None = None,
) -> Dataset:
    """Read inputs and labels from the bytes of an npz file.

    Args:
        data: Content of the file.
        path: Path for messages and for the name of the data set.
        split: As in :func:`read_npz`.
        inputs: As in :func:`read_npz`.
        labels: As in :func:`read_npz`.
        data_range: As in :func:`read_npz`.

    Returns:
        The records.

    Raises:
        InvalidInput: If ``split`` is unknown, or ``data_range`` does not apply.
        InvalidFile: If the content is damaged or lacks a key.
    """
    if split is not None and split not in SPLITS:
        raise invalid_input("split", split, f"to be one of {', '.join(SPLITS)} or None")
    archive = _open_archive(data, path)
    members = {name.removesuffix(".npy"): archive.getinfo(name) for name in archive.namelist()}
    parts = _find_parts(members, path, inputs, labels)
    wanted = [part for part in parts if split in (None, part.split)]
    if not wanted:
        found = ", ".join(str(part.split) for part in parts if part.split) or "none"
        raise InvalidFile(
            path, "keys", f"Expected split={split!r}, found splits: {found}.", "Choose one of these, or None."
        )
    loaded = [_load_part(archive, members, part, path) for part in wanted]
    # ranges and class names come from all splits, so that every split is encoded alike
    coded = any(part.inputs.ndim == 2 or (part.labels is not None and part.labels.dtype.kind == "U") for part in loaded)
    if len(wanted) < len(parts) and coded:
        loaded = [_load_part(archive, members, part, path) for part in parts]
    described = _build_dataset(loaded, path, data_range)
    # one flag per record: True if its split was asked for
    chosen = np.repeat([split in (None, part.split) for part in loaded], [len(part.inputs) for part in loaded])
    return described if chosen.all() else described.subset(np.flatnonzero(chosen))


@dataclass(frozen=True)
class _Part:
    """Keys of one split in the file."""

    split: str | None
    input_key: str
    label_key: str | None


@dataclass(frozen=True, eq=False)
class _LoadedPart:
    """Arrays of one split, as stored."""

    split: str | None
    input_key: str
    inputs: Array
    labels: Array | None


def _find_parts(members: Mapping[str, object], path: Path, inputs: str | None, labels: str | None) -> list[_Part]:
    """Return the splits in the file; one part without a name if there are none."""
    keys = ", ".join(sorted(members)) or "none"
    for key in (inputs, labels):
        if key is not None and key not in members:
            raise InvalidFile(path, f"key {key!r}", f"Expected one of the keys {keys}.", "Pass one of these.")
    plain = inputs or _first_key(members, _INPUT_KEYS)
    split_keys = {split: _first_key(members, _with_split(_INPUT_KEYS, split)) for split in SPLITS}
    parts = [
        _Part(split, key, _first_key(members, _with_split(_LABEL_KEYS, split)))
        for split, key in split_keys.items()
        if key is not None
    ]
    # keys named by the user win; plain keys next to split keys are ambiguous
    if inputs is not None or (plain is not None and not parts):
        return [_Part(None, str(plain), labels or _first_key(members, _LABEL_KEYS))]
    if plain is not None or labels is not None or not parts:
        raise InvalidFile(
            path,
            "keys",
            f"Expected inputs under one of {', '.join(_INPUT_KEYS)}, or of train_images, x_train and so on, found "
            f"{keys}.",
            "Pass the key of the inputs as inputs=, and that of the labels as labels=.",
        )
    return parts


def _first_key(members: Mapping[str, object], keys: Iterable[str]) -> str | None:
    return next((key for key in keys if key in members), None)


def _with_split(keys: Iterable[str], split: str) -> list[str]:
    return [name for key in keys for name in (f"{split}_{key}", f"{key}_{split}")]


def _load_part(
    archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], part: _Part, path: Path
) -> _LoadedPart:
    """Read the arrays of one split."""
    inputs = _read_array(archive, members[part.input_key], path)
    if part.label_key is None:
        return _LoadedPart(part.split, part.input_key, inputs, None)
    labels = _read_array(archive, members[part.label_key], path)
    if inputs.ndim == 0 or labels.ndim == 0 or len(labels) != len(inputs):
        raise InvalidFile(
            path,
            f"key {part.label_key!r}",
            f"Expected one label for each record of {part.input_key!r} {inputs.shape}, found shape {labels.shape}.",
            "Use the labels that belong to these records.",
        )
    return _LoadedPart(part.split, part.input_key, inputs, labels)


def _build_dataset(parts: Sequence[_LoadedPart], path: Path, data_range: tuple[float, float] | None) -> Dataset:
    """Convert the arrays of several splits together, so that they are encoded alike."""
    place = ", ".join(f"key {part.input_key!r}" for part in parts)
    inputs = inputs_from_array(_stack([part.inputs for part in parts], path, place), path, place, data_range)
    arrays = [part.labels for part in parts if part.labels is not None]
    labels, classes = None, None
    if len(arrays) == len(parts):
        labels, classes = labels_from_array(_stack(arrays, path, place), len(inputs.values), path, f"labels of {place}")
    elif arrays:
        raise InvalidFile(path, place, "Expected labels for all splits or for none.", "Choose one with split=.")
    return Dataset(path.name, inputs.values, labels, inputs.data_range, classes, inputs.columns, str(path))


def _stack(arrays: Sequence[Array], path: Path, place: str) -> Array:
    """Concatenate the arrays of several splits."""
    if len({(array.shape[1:], array.dtype.kind) for array in arrays}) > 1 or arrays[0].ndim == 0:
        shapes = ", ".join(f"{array.dtype} {array.shape}" for array in arrays)
        raise InvalidFile(
            path, place, f"Expected arrays of records of one shape, found {shapes}.", "Choose one with split=."
        )
    return np.concatenate(arrays) if len(arrays) > 1 else arrays[0]


def _open_archive(data: bytes, path: Path) -> zipfile.ZipFile:
    """Open the zip archive in the bytes."""
    try:
        return zipfile.ZipFile(io.BytesIO(data))
    # zipfile raises several undocumented types on damaged directories
    except Exception as error:
        raise InvalidFile(
            path, "byte 0", f"Expected an npz file, that is a zip archive: {error}.", "It is damaged: write it again."
        ) from error


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> Array:
    """Read one array, after its claimed sizes are checked against the bytes present."""
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
        # the header is read without numpy.load, which could unpickle objects
        version = np.lib.format.read_magic(stream)
        read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[
            version
        ]
        shape, fortran, dtype = read_header(stream)
    # zipfile, zlib and the header parser of numpy raise many types on damaged bytes, also warnings turned into errors
    except Exception as error:
        raise InvalidFile(
            path, place, f"Expected an npy array: {error}.", "It is damaged: write it again with numpy.savez."
        ) from error
    if dtype.hasobject:
        raise InvalidFile(
            path, place, "Expected numbers or text, found Python objects.", "Save it as an array of one plain type."
        )
    start = stream.tell()
    # a header can claim any shape: nothing is allocated before it agrees with the bytes present
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

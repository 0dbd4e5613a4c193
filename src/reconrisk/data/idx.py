"""IDX files, the format of MNIST: big-endian header with type and sizes, then the values."""

from __future__ import annotations

import math
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from reconrisk.core.errors import InvalidFile
from reconrisk.core.validation import invalid_input
from reconrisk.data.arrays import inputs_from_array, labels_from_array
from reconrisk.data.dataset import Dataset, joined
from reconrisk.data.file_bytes import stored_bytes

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_PARTS = {"train": "train", "test": "t10k"}
_IMAGES = re.compile(r"images[-.]idx\d")


def read_idx(
    path: str | Path, *, labels: str | Path | None = None, data_range: tuple[float, float] | None = None
) -> Dataset:
    """Images of an IDX file, gzip or not, with the labels of a second one.

    ``labels`` names the second file; by default it is the one beside it that is called ``labels-idx1`` where this one
    is called ``images-idx3``, and without such a file there are no labels. Bytes are scaled to [0, 1]; other types need
    ``data_range``.
    """
    path = Path(path)
    array = idx_array(path)
    if array.ndim == 1:
        raise InvalidFile(
            path, "byte 3", "Expected images, found one axis: labels.", "Pass the images file, this one as labels=."
        )
    inputs = inputs_from_array(array, path, "the values", data_range)
    label_path = _labels_beside(path) if labels is None else Path(labels)
    found = None
    if label_path is not None:
        found, _ = labels_from_array(idx_array(label_path), len(array), label_path, "byte 4")
    return Dataset(path.name, inputs.values, found, inputs.data_range, columns=inputs.columns, source=str(path))


def idx_array(path: Path) -> npt.NDArray[Any]:
    """The array in an IDX file.

    Guarantee: the sizes in the header are checked against the bytes present before anything of that size is made.
    """
    data = stored_bytes(path)
    if not is_idx(data):
        raise InvalidFile(
            path,
            "byte 0",
            f"Expected the IDX magic 00 00, a type (08, 09, 0b to 0e) and a number of axes, found {data[:4].hex(' ')}.",
            "Check that it is an IDX file, such as train-images-idx3-ubyte.",
        )
    axes = data[3]
    start = 4 + 4 * axes
    if len(data) < start:
        raise InvalidFile(
            path, f"byte {len(data)}", f"Expected {axes} sizes of four bytes in the header, it ends.", "Fetch it again."
        )
    shape, dtype = struct.unpack_from(f">{axes}I", data, 4), np.dtype(_TYPES[data[2]])
    size, present = math.prod(shape) * dtype.itemsize, len(data) - start
    if present != size:
        problem = "truncated" if present < size else "followed by foreign bytes"
        raise InvalidFile(
            path,
            f"byte {start + min(present, size)}",
            f"Expected {size} bytes of values for shape {shape}, found {present}.",
            f"It is {problem}: fetch it again.",
        )
    if size == 0:
        raise InvalidFile(path, "byte 4", f"Expected records, found shape {shape}.", "Write it again.")
    return np.frombuffer(data, dtype=dtype, offset=start).reshape(shape)


def is_idx(data: bytes) -> bool:
    """Whether the file begins as an IDX file does: two zero bytes, a known type, at least one axis."""
    return len(data) >= 4 and data[:2] == b"\0\0" and data[2] in _TYPES and data[3] > 0


def _labels_beside(path: Path) -> Path | None:
    if not _IMAGES.search(path.name):
        return None
    stem = re.sub(r"images([-.])idx\d", r"labels\1idx1", path.name.removesuffix(".gz"))
    beside = (path.with_name(stem), path.with_name(stem + ".gz"))
    return next((candidate for candidate in beside if candidate.is_file()), None)


def has_idx_files(folder: Path) -> bool:
    """Whether the folder holds a file that :func:`read_idx_folder` would read."""
    return any(_part_file(folder, part) is not None for part in _PARTS.values())


def read_idx_folder(folder: str | Path, *, split: str | None = None) -> Dataset:
    """MNIST and its kin: ``train-images-idx3-ubyte`` and ``t10k-images-idx3-ubyte`` with their labels, gzip or not.

    ``split`` is ``"train"``, ``"test"`` or None for all that is there, training records first.
    """
    folder = Path(folder)
    if split is not None and split not in _PARTS:
        raise invalid_input("split", split, f"to be one of {', '.join(_PARTS)} or None")
    parts = []
    for name in _PARTS if split is None else (split,):
        part = _part_file(folder, _PARTS[name])
        if part is not None:
            parts.append(read_idx(part))
        elif split is not None:
            wanted = f"{_PARTS[name]}-images-idx3-ubyte"
            raise InvalidFile(folder, wanted, f"Expected this file for split={split!r}.", "Put it there, gzip or not.")
    if not parts:
        raise InvalidFile(
            folder, "folder", "Expected train-images-idx3-ubyte or t10k-images-idx3-ubyte.", "Put it there."
        )
    return joined(parts, folder)


def _part_file(folder: Path, part: str) -> Path | None:
    names = [f"{part}-images{mark}idx3-ubyte{end}" for mark in "-." for end in ("", ".gz")]
    return next((folder / name for name in names if (folder / name).is_file()), None)

"""Reader for IDX files, the format of MNIST: big-endian header with type and sizes, then the values."""

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
from reconrisk.data.dataset import Dataset, concatenate
from reconrisk.data.file_bytes import read_file_bytes

# type code in the third byte of the header, as numpy type; values are big-endian
_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_PARTS = {"train": "train", "test": "t10k"}
_IMAGES = re.compile(r"images[-.]idx\d")


def read_idx(
    path: str | Path, *, labels: str | Path | None = None, data_range: tuple[float, float] | None = None
) -> Dataset:
    """Read images of an IDX file, gzip or not, with the labels of a second one.

    Args:
        path: Path of the images.
        labels: Path of the labels. By default the file next to the images with ``labels-idx1`` instead of
            ``images-idx3`` in its name; no labels if there is no such file.
        data_range: Ends of the scale of values that are not bytes; None for bytes, which are scaled to [0, 1].

    Returns:
        The images and their labels.

    Raises:
        InvalidInput: If ``data_range`` is given for bytes, or is not an interval.
        InvalidFile: If a file cannot be read, is malformed, or needs a ``data_range``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "images-idx3-ubyte"
    ...     _ = path.write_bytes(bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 255]))
    ...     read_idx(path).inputs
    tensor([[[[0., 1.]]]])
    """
    path = Path(path)
    array = read_idx_array(path)
    if array.ndim == 1:
        raise InvalidFile(
            path, "byte 3", "Expected images, found one axis: labels.", "Pass the images file, and this one as labels=."
        )
    inputs = inputs_from_array(array, path, "the values", data_range)
    label_path = _find_labels(path) if labels is None else Path(labels)
    label_values = None
    if label_path is not None:
        label_values, _ = labels_from_array(read_idx_array(label_path), len(array), label_path, "byte 4")
    return Dataset(path.name, inputs.values, label_values, inputs.data_range, columns=inputs.columns, source=str(path))


def read_idx_array(path: Path) -> npt.NDArray[Any]:
    """Read the array in an IDX file.

    Args:
        path: Path of the file, gzip or not.

    Returns:
        The array, in the type and shape of its header.

    Raises:
        InvalidFile: If the file cannot be read, is not IDX, or its length does not match its header.

    Guarantee: the sizes in the header are checked against the bytes present before memory of that size is allocated.
    """
    data = read_file_bytes(path)
    if not is_idx(data):
        raise InvalidFile(
            path,
            "byte 0",
            f"Expected the IDX magic 00 00, a type (08, 09, 0b to 0e) and a number of axes, found {data[:4].hex(' ')}.",
            "Check that it is an IDX file, such as train-images-idx3-ubyte.",
        )
    axes = data[3]
    start = 4 + 4 * axes  # magic, then four bytes per size
    if len(data) < start:
        raise InvalidFile(
            path,
            f"byte {len(data)}",
            f"Expected {axes} sizes of four bytes in the header, found its end.",
            "Download it again.",
        )
    shape, dtype = struct.unpack_from(f">{axes}I", data, 4), np.dtype(_TYPES[data[2]])
    # compared before anything of the claimed size is allocated
    size, present = math.prod(shape) * dtype.itemsize, len(data) - start
    if present != size:
        problem = "truncated" if present < size else "followed by foreign bytes"
        raise InvalidFile(
            path,
            f"byte {start + min(present, size)}",
            f"Expected {size} bytes of values for shape {shape}, found {present}.",
            f"It is {problem}: download it again.",
        )
    if size == 0:
        raise InvalidFile(path, "byte 4", f"Expected records, found shape {shape}.", "Write it again.")
    return np.frombuffer(data, dtype=dtype, offset=start).reshape(shape)


def is_idx(data: bytes) -> bool:
    """Return True if the bytes begin like an IDX file: two zero bytes, a known type, at least one axis.

    Args:
        data: Beginning of a file.

    Returns:
        False for any other beginning, and for fewer than four bytes.
    """
    return len(data) >= 4 and data[:2] == b"\0\0" and data[2] in _TYPES and data[3] > 0


def _find_labels(path: Path) -> Path | None:
    """Return the labels file next to an images file, by name; None if there is none."""
    if not _IMAGES.search(path.name):
        return None
    stem = re.sub(r"images([-.])idx\d", r"labels\1idx1", path.name.removesuffix(".gz"))
    candidates = (path.with_name(stem), path.with_name(stem + ".gz"))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def has_idx_files(folder: Path) -> bool:
    """Return True if the folder holds a file that :func:`read_idx_folder` would read.

    Args:
        folder: Folder to look at; it need not exist.

    Returns:
        True if the images of the training or the test split exist.
    """
    return any(_find_part(folder, part) is not None for part in _PARTS.values())


def read_idx_folder(folder: str | Path, *, split: str | None = None) -> Dataset:
    """Read MNIST or a data set in the same layout from a folder.

    Args:
        folder: Folder with ``train-images-idx3-ubyte`` or ``t10k-images-idx3-ubyte`` and their labels, gzip or not.
        split: ``"train"``, ``"test"`` or None for all files present, training records first.

    Returns:
        The images and their labels.

    Raises:
        InvalidInput: If ``split`` is unknown.
        InvalidFile: If the images are missing or a file is malformed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "train-images-idx3-ubyte"
    ...     _ = path.write_bytes(bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 255]))
    ...     read_idx_folder(folder, split="train").shape
    (1, 1, 2)
    """
    folder = Path(folder)
    if split is not None and split not in _PARTS:
        raise invalid_input("split", split, f"to be one of {', '.join(_PARTS)} or None")
    parts = []
    for name in _PARTS if split is None else (split,):
        part = _find_part(folder, _PARTS[name])
        if part is not None:
            parts.append(read_idx(part))
        elif split is not None:
            wanted = f"{_PARTS[name]}-images-idx3-ubyte"
            raise InvalidFile(
                folder, wanted, f"Expected this file for split={split!r}.", "Put it into the folder, gzip or not."
            )
    if not parts:
        raise InvalidFile(
            folder, "folder", "Expected train-images-idx3-ubyte or t10k-images-idx3-ubyte.", "Put it into the folder."
        )
    return concatenate(parts, folder)


def _find_part(folder: Path, part: str) -> Path | None:
    """Return the images file of ``train`` or ``t10k``; None if it is not there."""
    # official names have a dash before idx3; some copies have a dot
    names = [f"{part}-images{mark}idx3-ubyte{end}" for mark in "-." for end in ("", ".gz")]
    return next((folder / name for name in names if (folder / name).is_file()), None)

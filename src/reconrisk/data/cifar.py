"""Readers for the two official layouts of CIFAR-10: binary batches, and python batches read without unpickling."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from reconrisk.core.errors import InvalidFile
from reconrisk.core.validation import invalid_input
from reconrisk.data.dataset import Dataset, concatenate
from reconrisk.data.file_bytes import read_file_bytes
from reconrisk.data.safe_pickle import read_pickled_entries

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_PIXELS = 3 * 32 * 32
CIFAR10_RECORD = 1 + _PIXELS  # bytes of a class and its image
_FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py")
# file names of the batches; binary ones end with .bin
_SPLITS = {"train": r"data_batch_\d+(\.bin)?", "test": r"test_batch(\.bin)?"}


def read_cifar_binary(path: str | Path) -> Dataset:
    """Read one binary batch: for each image one byte for its class, then 3 x 32 x 32 bytes.

    Args:
        path: Path of a batch such as ``data_batch_1.bin``, gzip or not.

    Returns:
        Images of 3 x 32 x 32 in [0, 1] with ten classes.

    Raises:
        InvalidFile: If the file cannot be read, is truncated, or a class is not from 0 to 9.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "data_batch_1.bin"
    ...     _ = path.write_bytes(bytes([3] + 3072 * [128]))
    ...     read_cifar_binary(path)
    Dataset(data_batch_1.bin, 1 x (3, 32, 32) in [0, 1], 10 classes, licence: not stated)
    """
    path = Path(path)
    data = read_file_bytes(path)
    if len(data) % CIFAR10_RECORD:
        raise InvalidFile(
            path,
            f"byte {len(data) - len(data) % CIFAR10_RECORD}",
            f"Expected records of {CIFAR10_RECORD} bytes, the last one has {len(data) % CIFAR10_RECORD}.",
            "It is truncated or not CIFAR-10: download it again.",
        )
    records = np.frombuffer(data, dtype=np.uint8).reshape(-1, CIFAR10_RECORD)
    _check_classes(records[:, 0], path, lambda row: f"byte {row * CIFAR10_RECORD}")
    return _make_batch(records[:, 1:], records[:, 0], path)


def read_cifar_python(path: str | Path) -> Dataset:
    """Read one python batch: a pickled dictionary with ``data`` and ``labels``. Nothing in it is executed.

    Args:
        path: Path of a batch such as ``data_batch_1``, gzip or not.

    Returns:
        Images of 3 x 32 x 32 in [0, 1] with ten classes.

    Raises:
        InvalidFile: If the file cannot be read, holds anything but plain data, or lacks valid images or labels.

    >>> import pickle, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "data_batch_1"
    ...     _ = path.write_bytes(pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0, 9]}))
    ...     read_cifar_python(path).labels
    tensor([0, 9])
    """
    path = Path(path)
    content = read_pickled_entries(read_file_bytes(path), path, ("data", "labels"))
    pixels, labels = content["data"], content["labels"]
    if not isinstance(pixels, np.ndarray) or pixels.shape[1:] != (_PIXELS,) or len(pixels) == 0:
        found = f"shape {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
        raise InvalidFile(
            path, "key 'data'", f"Expected bytes of shape N x {_PIXELS}, found {found}.", "Download it again."
        )
    # exact type: a bool is an int too; the bound keeps numpy from making an array of objects
    whole = isinstance(labels, list) and all(type(label) is int and abs(label) < 2**31 for label in labels)
    if not whole or len(labels) != len(pixels):
        raise InvalidFile(
            path, "key 'labels'", f"Expected a list of {len(pixels)} whole numbers.", "Download it again."
        )
    _check_classes(np.array(labels), path, lambda row: f"key 'labels', entry {row}")
    return _make_batch(pixels, np.array(labels), path)


def _check_classes(labels: npt.NDArray[Any], path: Path, place: Callable[[int], str]) -> None:
    """Raise InvalidFile at the first label that is not a class of CIFAR-10."""
    outside = np.flatnonzero((labels < 0) | (labels >= len(CIFAR10_CLASSES)))
    if len(outside):
        row = int(outside[0])
        raise InvalidFile(
            path, place(row), f"Expected a class from 0 to 9, found {labels[row]}.", "Check that it is CIFAR-10."
        )


def _make_batch(pixels: npt.NDArray[np.uint8], labels: npt.NDArray[Any], path: Path) -> Dataset:
    """Return pixels and labels of one batch as a data set."""
    inputs = torch.from_numpy(pixels.astype(np.float32)).div_(255).view(-1, 3, 32, 32)
    classes = torch.from_numpy(labels.astype(np.int64))
    return Dataset(path.name, inputs, classes, classes=CIFAR10_CLASSES, source=str(path))


def has_cifar_files(folder: Path) -> bool:
    """Return True if the folder holds a batch that :func:`read_cifar_folder` would read.

    Args:
        folder: Folder to look at; it need not exist.

    Returns:
        True if a batch file of the training or the test split exists.
    """
    return any(_batch_files(folder, split) for split in _SPLITS)


def read_cifar_folder(folder: str | Path, *, split: str | None = None) -> Dataset:
    """Read all CIFAR-10 batches in a folder.

    Args:
        folder: ``cifar-10-batches-bin`` or ``cifar-10-batches-py``, or a folder that contains one of them.
        split: ``"train"``, ``"test"`` or None for all batches present, training records first.

    Returns:
        The images. ``source`` names the batches, so that an incomplete folder is visible.

    Raises:
        InvalidInput: If ``split`` is unknown.
        InvalidFile: If there is no batch, or one is malformed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "test_batch.bin").write_bytes(bytes([3] + 3072 * [128]))
    ...     read_cifar_folder(folder, split="test").labels
    tensor([3])
    """
    folder = Path(folder)
    if split is not None and split not in _SPLITS:
        raise invalid_input("split", split, f"to be one of {', '.join(_SPLITS)} or None")
    files = [file for name in (_SPLITS if split is None else (split,)) for file in _batch_files(folder, name)]
    if not files:
        wanted = "data_batch_1 or test_batch" if split is None else _SPLITS[split].replace("\\d+", "1").split("(")[0]
        raise InvalidFile(
            folder, wanted, "Expected a batch of this name, with or without .bin.", "Put the batches into the folder."
        )
    read = [read_cifar_binary(file) if file.suffix == ".bin" else read_cifar_python(file) for file in files]
    batches = concatenate(read, folder)
    return replace(batches, source=f"{folder}: {', '.join(file.name for file in files)}")


def _batch_files(folder: Path, split: str) -> list[Path]:
    """Return the batches of a split in the folder, or else in the first sub-folder that has some."""
    for place in (folder, *(folder / name for name in _FOLDERS)):
        files = sorted(place.iterdir()) if place.is_dir() else []
        batches = [file for file in files if re.fullmatch(_SPLITS[split], file.name)]
        if batches:
            return batches
    return []

"""Data sets that need no file of the user: those in the package and those of scikit-learn."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from reconrisk.core.validation import invalid_input
from reconrisk.data.columns import encode, numeric_columns
from reconrisk.data.dataset import Dataset
from reconrisk.data.npz import dataset_from_npz

DIGITS = tuple("0123456789")
CROP_NAMES = (
    "shutters",
    "door latch",
    "caps",
    "woman in hat",
    "motorcycles",
    "fishing boat",
    "hibiscus",
    "timber houses",
    "sails",
    "barn",
    "rafters",
    "face paint",
    "gilded statue",
    "lighthouse",
    "propeller aircraft",
    "parrot",
)
"""Content of each natural crop, in order."""

MNIST_SOURCE = "LeCun, Cortes and Burges, The MNIST database of handwritten digits"
MNIST_LICENCE = "CC BY-SA 3.0"
_UCI = "CC BY 4.0"


def read_bundled_file(name: str) -> bytes:
    """Read a file of the folder ``bundled``.

    Args:
        name: Name of the file.

    Returns:
        Its bytes.
    """
    return (resources.files("reconrisk.data") / "bundled" / name).read_bytes()


def _load_mnist(*, split: str | None = None) -> Dataset:
    """Return 4,000 training and 1,000 test digits of MNIST, 1 x 28 x 28, balanced over classes."""
    if split not in (None, "train", "test"):
        raise invalid_input("split", split, "to be 'train', 'test' or None")
    digits = dataset_from_npz(read_bundled_file("mnist.npz"), Path("mnist.npz"), split=split)
    source = f"{MNIST_SOURCE} (400 training and 100 test images a class)"
    return replace(digits, name="mnist", classes=DIGITS, source=source, licence=MNIST_LICENCE)


def _load_crops() -> Dataset:
    """Return sixteen natural colour crops, 3 x 64 x 64, each its own class."""
    with Image.open(io.BytesIO(read_bundled_file("crops.png"))) as sheet:
        column = np.asarray(sheet, dtype=np.float32)
    # one column of square crops, 64 pixels wide
    inputs = torch.from_numpy(column.reshape(-1, 64, 64, 3)).permute(0, 3, 1, 2).contiguous().div_(255)
    return Dataset(
        "crops",
        inputs,
        torch.arange(len(inputs)),
        classes=CROP_NAMES,
        source="Kodak Lossless True Color Image Suite (square crops, averaged down to 64 x 64)",
        licence="released by the Eastman Kodak Company for unrestricted use",
    )


def load_digits() -> Dataset:
    """Load the 1,797 digits of scikit-learn, 1 x 8 x 8.

    Returns:
        The data set with ten classes.
    """
    from sklearn import datasets

    bunch = datasets.load_digits()
    inputs = torch.from_numpy(bunch.images.astype(np.float32) / 16)[:, None]  # grey levels 0 to 16
    source = "Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI; by scikit-learn"
    return Dataset("digits", inputs, torch.from_numpy(bunch.target), classes=DIGITS, source=source, licence=_UCI)


def load_breast_cancer() -> Dataset:
    """Load the breast cancer table of scikit-learn: 569 records, 30 numeric columns, malignant or benign.

    Returns:
        The data set with two classes.
    """
    from sklearn import datasets

    bunch = datasets.load_breast_cancer()
    return replace(
        _make_table("breast_cancer", bunch, torch.from_numpy(bunch.target.astype(np.int64))),
        classes=tuple(str(name) for name in bunch.target_names),
        source="Wolberg, Mangasarian, Street and Street, Breast Cancer Wisconsin (Diagnostic), UCI; by scikit-learn",
        licence=_UCI,
    )


def load_diabetes() -> Dataset:
    """Load the diabetes table of scikit-learn: 442 records, 10 numeric columns.

    Returns:
        The data set. Its real label is the progression after one year.
    """
    from sklearn import datasets

    bunch = datasets.load_diabetes(scaled=False)
    return replace(
        _make_table("diabetes", bunch, torch.from_numpy(bunch.target.astype(np.float32))),
        source="Efron, Hastie, Johnstone and Tibshirani (2004), Least Angle Regression; by scikit-learn",
        licence="as distributed with scikit-learn, BSD 3-Clause",
    )


def _make_table(name: str, bunch: Any, labels: torch.Tensor) -> Dataset:
    """Return a table of scikit-learn as a data set, scaled to [0, 1]."""
    columns = numeric_columns([str(feature) for feature in bunch.feature_names], bunch.data)
    return Dataset(name, torch.from_numpy(encode(columns, list(bunch.data.T))), labels, columns=columns)


SHIPPED: dict[str, Callable[..., Dataset]] = {
    "mnist": _load_mnist,
    "crops": _load_crops,
    "digits": load_digits,
    "breast_cancer": load_breast_cancer,
    "diabetes": load_diabetes,
}
"""Loaders of the data sets that need no file, by name."""


def is_bundled(dataset: Dataset) -> bool:
    """Return True if every record is in a public data set of the package, so that showing it reveals nothing.

    Args:
        dataset: Data set to compare, by name, shape and exact values.

    Returns:
        False if the name or shape differs, or if a single record is not in the shipped set.
    """
    if dataset.name not in SHIPPED:
        return False
    shape, known = _bundled_records(dataset.name)
    return shape == dataset.shape and {row.tobytes() for row in dataset.inputs.flatten(1).numpy()} <= known


@cache  # loading a data set takes longer than a small audit
def _bundled_records(name: str) -> tuple[tuple[int, ...], frozenset[bytes]]:
    """Return the shape and the set of records of a bundled data set."""
    public = SHIPPED[name]()
    return public.shape, frozenset(row.tobytes() for row in public.inputs.flatten(1).numpy())

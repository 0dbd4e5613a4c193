"""Full data sets in folders of the user, named by the environment variable ``RECONRISK_DATA``."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from reconrisk.core.validation import invalid_input
from reconrisk.data.adult import has_adult_files, read_adult_folder
from reconrisk.data.bundled_sets import DIGITS, MNIST_LICENCE, MNIST_SOURCE
from reconrisk.data.cifar import has_cifar_files, read_cifar_folder
from reconrisk.data.dataset import Dataset
from reconrisk.data.idx import has_idx_files, read_idx_folder
from reconrisk.data.npz import read_npz

VARIABLE = "RECONRISK_DATA"
"""Environment variable that lists the data folders."""


@dataclass(frozen=True)
class FullSet:
    """Well-known data set that can be in a data folder.

    Attributes:
        places: Relative paths to try in a data folder.
        is_present: Test for the data set at a path.
        read: Reader of the data set at a path.
        source: Citation of the publication.
        licence: Licence of the data.
        classes: Names of the classes; None to take them from the reader.
    """

    places: tuple[str, ...]
    is_present: Callable[[Path], bool]
    read: Callable[..., Dataset]
    source: str
    licence: str
    classes: tuple[str, ...] | None = None

    def find_in(self, folder: Path) -> Path | None:
        """Return the path of the data set in ``folder``; None if it is not there."""
        return next((folder / place for place in self.places if self.is_present(folder / place)), None)


FULL_SETS = {
    "mnist-full": FullSet(
        ("mnist", "MNIST/raw", "MNIST"), has_idx_files, read_idx_folder, MNIST_SOURCE, MNIST_LICENCE, DIGITS
    ),
    "fashion-mnist": FullSet(
        ("fashion-mnist", "FashionMNIST/raw"),
        has_idx_files,
        read_idx_folder,
        "Xiao, Rasul and Vollgraf (2017), Fashion-MNIST",
        "MIT",
        (
            "T-shirt/top",
            "trouser",
            "pullover",
            "dress",
            "coat",
            "sandal",
            "shirt",
            "sneaker",
            "bag",
            "ankle boot",
        ),
    ),
    "cifar-10": FullSet(
        ("cifar-10-batches-bin", "cifar-10-batches-py"),
        has_cifar_files,
        read_cifar_folder,
        "Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images",
        "none stated",
    ),
    "adult": FullSet(
        ("adult", "tabular", ""),
        has_adult_files,
        read_adult_folder,
        "Becker and Kohavi (1996), Adult, UCI",
        "CC BY 4.0",
    ),
    "pneumoniamnist": FullSet(
        ("pneumoniamnist.npz", "medical/pneumoniamnist.npz", "medmnist/pneumoniamnist.npz"),
        Path.is_file,
        read_npz,
        "Yang et al. (2023), MedMNIST v2",
        "CC BY 4.0",
        ("normal", "pneumonia"),
    ),
}
"""Data sets that are searched for in data folders, by name."""


@dataclass(frozen=True)
class DataFolder:
    """Folder of ``RECONRISK_DATA`` and the full data sets in it.

    Attributes:
        path: The folder.
        exists: True if it exists.
        found: Names of the full data sets in it.

    >>> print(DataFolder(Path("data"), exists=True, found=("adult",)))
    data: adult
    """

    path: Path
    exists: bool
    found: tuple[str, ...]

    def __str__(self) -> str:
        """Return path and content in one line."""
        if not self.exists:
            return f"{self.path}: no such folder"
        return f"{self.path}: {', '.join(self.found) or 'no known data set'}"


def data_folders() -> tuple[DataFolder, ...]:
    """List the folders in ``RECONRISK_DATA``, separated as in ``PATH``, with the data sets found in each.

    Returns:
        One entry per folder, in the order of the variable.

    Edge cases: none if the variable is unset or empty; a folder that does not exist is listed as such.

    >>> from unittest import mock
    >>> with mock.patch.dict(os.environ, {VARIABLE: "absent"}):
    ...     print(*data_folders())
    absent: no such folder
    """
    folders = [Path(part).expanduser() for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part]
    return tuple(
        DataFolder(folder, folder.is_dir(), tuple(name for name, full in FULL_SETS.items() if full.find_in(folder)))
        for folder in folders
    )


def find_full_set(name: str) -> Path:
    """Return the path of a full data set, in the first data folder that has it.

    Args:
        name: A name in :data:`FULL_SETS`.

    Returns:
        Path of the file or folder.

    Raises:
        InvalidInput: If no data folder has it; the message lists the folders.
    """
    folders = data_folders()
    for folder in folders:
        place = FULL_SETS[name].find_in(folder.path)
        if place is not None:
            return place
    searched = "; ".join(str(folder) for folder in folders) or f"{VARIABLE} is not set"
    raise invalid_input(
        "name",
        name,
        f"to be in a data folder ({searched})",
        f"Set {VARIABLE} to the folder that holds {FULL_SETS[name].places[0]}, or pass its path.",
    )

"""Full data sets in folders of the user, which the environment variable ``RECONRISK_DATA`` names."""

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


@dataclass(frozen=True)
class FullSet:
    """A well-known data set: the places in a data folder where it may lie, and how to read and cite it."""

    places: tuple[str, ...]
    is_there: Callable[[Path], bool]
    read: Callable[..., Dataset]
    source: str
    licence: str
    classes: tuple[str, ...] | None = None

    def found_in(self, folder: Path) -> Path | None:
        """Where it lies in ``folder``, if it does."""
        return next((folder / place for place in self.places if self.is_there(folder / place)), None)


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
"""The data sets that are looked for in data folders, by name."""


@dataclass(frozen=True)
class DataFolder:
    """A folder that is looked at, whether it exists, and the full data sets found there."""

    path: Path
    exists: bool
    found: tuple[str, ...]

    def __str__(self) -> str:
        """Path and content in one line."""
        if not self.exists:
            return f"{self.path}: no such folder"
        return f"{self.path}: {', '.join(self.found) or 'no known data set'}"


def data_folders() -> tuple[DataFolder, ...]:
    """The folders in ``RECONRISK_DATA``, separated as in ``PATH``, and what is found in each.

    Edge cases: none if the variable is unset or empty; a folder that does not exist is listed as such.
    """
    folders = [Path(part).expanduser() for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part]
    return tuple(
        DataFolder(folder, folder.is_dir(), tuple(name for name, full in FULL_SETS.items() if full.found_in(folder)))
        for folder in folders
    )


def full_set_path(name: str) -> Path:
    """Where the full data set ``name`` lies, in the first data folder that has it."""
    folders = data_folders()
    for folder in folders:
        place = FULL_SETS[name].found_in(folder.path)
        if place is not None:
            return place
    looked = "; ".join(str(folder) for folder in folders) or f"{VARIABLE} is not set"
    raise invalid_input(
        "name",
        name,
        f"to lie in a data folder ({looked})",
        f"Set {VARIABLE} to the folder that holds {FULL_SETS[name].places[0]}, or pass its path.",
    )

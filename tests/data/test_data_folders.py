import os
from pathlib import Path

import numpy as np
import pytest

from reconrisk.core.errors import InvalidInput
from reconrisk.data import data_folders, load_dataset


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "medical").mkdir()
    np.savez(
        tmp_path / "medical/pneumoniamnist.npz",
        train_images=np.zeros((3, 28, 28), np.uint8),
        train_labels=np.array([[0], [1], [1]]),
    )
    (tmp_path / "cifar-10-batches-bin").mkdir()
    (tmp_path / "cifar-10-batches-bin/test_batch.bin").write_bytes(bytes(3073))
    return tmp_path


def test_without_the_variable_no_folder_is_looked_at(monkeypatch) -> None:
    monkeypatch.delenv("RECONRISK_DATA", raising=False)
    assert data_folders() == ()
    monkeypatch.setenv("RECONRISK_DATA", "")
    assert data_folders() == ()


def test_folders_tell_what_is_found(folder: Path, monkeypatch) -> None:
    monkeypatch.setenv("RECONRISK_DATA", os.pathsep.join([str(folder / "absent"), str(folder)]))
    absent, present = data_folders()
    assert not absent.exists
    assert str(absent) == f"{folder / 'absent'}: no such folder"
    assert present.found == ("cifar-10", "pneumoniamnist")
    assert str(present) == f"{folder}: cifar-10, pneumoniamnist"


def test_an_empty_folder_says_so(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("RECONRISK_DATA", str(tmp_path))
    assert str(data_folders()[0]) == f"{tmp_path}: no known data set"


def test_full_sets_are_loaded_with_source_and_licence(folder: Path, monkeypatch) -> None:
    monkeypatch.setenv("RECONRISK_DATA", str(folder))
    dataset = load_dataset("pneumoniamnist", split="train")
    assert (dataset.name, len(dataset), dataset.classes) == ("pneumoniamnist", 3, ("normal", "pneumonia"))
    assert (dataset.licence, "MedMNIST" in dataset.source) == ("CC BY 4.0", True)
    assert load_dataset("cifar-10").source.endswith("test_batch.bin)")


def test_an_absent_full_set_says_where_it_was_looked_for(folder: Path, monkeypatch) -> None:
    monkeypatch.setenv("RECONRISK_DATA", str(folder))
    with pytest.raises(
        InvalidInput, match=r"'adult' to be in a data folder \(.*: cifar-10, pneumoniamnist\).*Set RECON"
    ):
        load_dataset("adult")
    monkeypatch.delenv("RECONRISK_DATA")
    with pytest.raises(InvalidInput, match=r"RECONRISK_DATA is not set.*the folder that holds mnist"):
        load_dataset("mnist-full")

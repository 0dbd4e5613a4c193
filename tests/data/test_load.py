from pathlib import Path

import numpy as np
import pytest

from reconrisk.core.errors import InvalidInput
from reconrisk.data import load_dataset


@pytest.fixture
def images(tmp_path: Path) -> Path:
    path = tmp_path / "mnist"
    with path.open("wb") as stream:
        np.savez(stream, images=np.zeros((2, 3, 3), np.uint8))
    return path


def test_paths_are_read_by_content(images: Path) -> None:
    assert load_dataset(images).shape == load_dataset(str(images)).shape == (1, 3, 3)


def test_a_name_wins_over_a_file_of_that_name_but_not_over_a_path(images: Path, monkeypatch) -> None:
    monkeypatch.chdir(images.parent)
    assert len(load_dataset("mnist")) == 5000
    assert len(load_dataset(Path("mnist"))) == len(load_dataset("./mnist")) == 2


def test_home_is_expanded(images: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(images.parent))
    monkeypatch.setenv("USERPROFILE", str(images.parent))
    assert len(load_dataset("~/mnist")) == 2


def test_options_reach_the_reader(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,2\n3,4\n")
    assert load_dataset(tmp_path / "a.csv", label=1).classes == ("2", "4")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "mnits",
            {},
            r"'mnits' to be a file, a folder or one of mnist, crops, .*pneumoniamnist.* Did you mean mnist\?",
        ),
        ("cifar10", {}, r"Did you mean cifar-10\?"),
        ("no/such/file.csv", {}, "name_or_path='no/such/file.csv' to be a file, a folder or one of"),
        (3, {}, r"type\(name_or_path\)='int' to be str or Path"),
        ("digits", {"split": "train"}, "split='train' to be left out for digits. Remove it: there are no options"),
        (
            "mnist",
            {"splt": "train"},
            r"splt='train' to be left out for mnist. Pass only split. Did you mean split\?",
        ),
        ("mnist", {"split": "val"}, "val"),
    ],
)
def test_wrong_requests_are_refused(name, options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_dataset(name, **options)


def test_an_option_of_another_format_is_refused(images: Path) -> None:
    with pytest.raises(InvalidInput, match=r"size=8 to be left out for npz file\. Pass only split, inputs, labels"):
        load_dataset(images, size=8)

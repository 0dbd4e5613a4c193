import hashlib
import re
from importlib import resources

import numpy as np
import pytest
import torch
from sklearn import datasets

from reconrisk.data import decode, load_dataset
from reconrisk.data.bundled_sets import SHIPPED, is_bundled, read_bundled_file
from reconrisk.data.dataset import Dataset

FILES = resources.files("reconrisk.data") / "bundled"
LISTED = {
    name: (int(size), checksum)
    for name, size, checksum in re.findall(
        r"^\| (\S+) \| (\d+) \| ([0-9a-f]{64}) \|$", (FILES / "LICENSES.md").read_text(encoding="utf-8"), re.MULTILINE
    )
}


def test_the_wheel_stays_small() -> None:
    assert sum(len(file.read_bytes()) for file in FILES.iterdir()) <= 2_000_000


def test_every_file_is_listed_with_licence_size_and_checksum() -> None:
    text = (FILES / "LICENSES.md").read_text(encoding="utf-8")
    assert {file.name for file in FILES.iterdir()} == {*LISTED, "LICENSES.md"}
    for name, (size, checksum) in LISTED.items():
        assert len(read_bundled_file(name)) == size
        assert hashlib.sha256(read_bundled_file(name)).hexdigest() == checksum
        assert re.search(rf"## {re.escape(name)}\n.*?Licence: \S", text, re.DOTALL)


@pytest.mark.parametrize(("split", "count"), [("train", 400), ("test", 100), (None, 500)])
def test_mnist_is_balanced(split: str | None, count: int) -> None:
    dataset = load_dataset("mnist", split=split)
    assert dataset.labels.bincount().tolist() == [count] * 10
    assert dataset.shape == (1, 28, 28)
    assert dataset.classes == tuple("0123456789")


def test_mnist_has_the_statistics_of_the_whole() -> None:
    inputs = load_dataset("mnist", split="train").inputs
    # mean .1307 and deviation .3081 of all 60,000; image means deviate by .043, so that of 4,000 images by .0007
    assert float(inputs.mean()) == pytest.approx(0.1307, abs=0.003)
    assert float(inputs.std()) == pytest.approx(0.3081, abs=0.004)


def test_mnist_has_no_image_twice() -> None:
    assert len(load_dataset("mnist").inputs.flatten(1).unique(dim=0)) == 5000


def test_crops_are_sixteen_different_colour_images() -> None:
    crops = load_dataset("crops")
    assert (len(crops), crops.shape, len(crops.classes)) == (16, (3, 64, 64), 16)
    assert crops.labels.tolist() == list(range(16))
    assert len(crops.inputs.flatten(1).unique(dim=0)) == 16
    assert (crops.inputs.flatten(1).std(dim=1) > 0.08).all(), "each has contrast"
    assert (crops.inputs.std(dim=1).mean(dim=(1, 2)) > 0.01).all(), "each has colour"


def test_digits_are_those_of_scikit_learn() -> None:
    bunch = datasets.load_digits()
    dataset = load_dataset("digits")
    assert np.array_equal(dataset.inputs[:, 0].numpy() * 16, bunch.images)
    assert np.array_equal(dataset.labels.numpy(), bunch.target)


@pytest.mark.parametrize(
    ("name", "bunch"),
    [("breast_cancer", datasets.load_breast_cancer()), ("diabetes", datasets.load_diabetes(scaled=False))],
)
def test_tables_are_those_of_scikit_learn(name: str, bunch) -> None:
    dataset = load_dataset(name)
    assert dataset.inputs.shape == bunch.data.shape
    for i, values in enumerate(decode(dataset.columns, dataset.inputs).values()):
        # float32 keeps 2^-24 of the scaled number, hence of the range
        assert np.allclose(values, bunch.data[:, i], rtol=0, atol=2**-23 * np.ptp(bunch.data[:, i]))
    assert [column.name for column in dataset.columns] == list(bunch.feature_names)
    assert np.allclose(dataset.labels.numpy(), bunch.target)


def test_labels_have_the_type_of_the_task() -> None:
    assert load_dataset("diabetes").labels.dtype == torch.float32
    cancer = load_dataset("breast_cancer")
    assert cancer.labels.dtype == torch.int64
    assert cancer.classes == ("malignant", "benign")


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_each_states_source_and_licence(name: str) -> None:
    dataset = load_dataset(name)
    assert dataset.name == name
    assert dataset.source != "not stated"
    assert dataset.licence != "not stated"
    assert dataset.data_range == (0.0, 1.0)


def test_only_records_of_the_package_are_bundled():
    digits = load_dataset("digits")
    changed = digits.inputs.clone()
    changed[0, 0, 0, 0] += 0.5
    assert is_bundled(digits.subset(range(5)))
    assert not is_bundled(Dataset("digits", changed.clamp(0, 1), digits.labels))
    assert not is_bundled(Dataset("mine", digits.inputs, digits.labels))
    assert not is_bundled(Dataset("digits", torch.zeros(2, 3)))

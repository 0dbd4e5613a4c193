"""The published files themselves, where the folder RECONRISK_DATA has them."""

import hashlib
import time

import numpy as np
import pytest
import torch

from reconrisk.data import data_folders, decode, load_dataset
from reconrisk.data.data_folders import find_full_set


def real(name: str, **options):
    if not any(name in folder.found for folder in data_folders()):
        pytest.skip(f"{name} is not in a folder of RECONRISK_DATA")
    return load_dataset(name, **options)


@pytest.mark.parametrize(("split", "records"), [("train", 60_000), ("test", 10_000), (None, 70_000)])
def test_mnist_has_all_records(split: str | None, records: int) -> None:
    assert len(real("mnist-full", split=split)) == records


def test_mnist_has_the_known_statistics() -> None:
    dataset = real("mnist-full", split="train")
    # the constants of every MNIST normalisation, four decimals
    assert float(dataset.inputs.double().mean()) == pytest.approx(0.1307, abs=5e-5)
    assert float(dataset.inputs.double().std()) == pytest.approx(0.3081, abs=5e-5)
    # counts as in LeCun's table
    assert dataset.labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


def test_mnist_has_the_known_checksum() -> None:
    real("mnist-full", split="test")
    path = find_full_set("mnist-full") / "train-images-idx3-ubyte.gz"
    if not path.is_file():
        pytest.skip("the original gzip file is not there")
    # as torchvision states it
    assert hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() == "f68b3c2dcbeaaa9fbdd348bbdeb94873"


def test_the_bundled_digits_are_of_mnist_split_by_split() -> None:
    for split in ("train", "test"):
        whole, part = real("mnist-full", split=split), load_dataset("mnist", split=split)
        index = {bytes(row): i for i, row in enumerate((whole.inputs.flatten(1) * 255).round().byte().numpy())}
        found = [index[bytes(row)] for row in (part.inputs.flatten(1) * 255).round().byte().numpy()]
        assert torch.equal(whole.labels[found], part.labels)


def test_cifar_has_ten_thousand_images_a_batch_and_balanced_test_classes() -> None:
    train, test = real("cifar-10", split="train"), real("cifar-10", split="test")
    assert len(train) == 10_000 * (train.source.count("data_batch_"))
    assert test.labels.bincount().tolist() == [1000] * 10
    # channel means of the training set; image means deviate by about .13, so that of 10,000 images by .0013
    means = torch.tensor([0.4914, 0.4822, 0.4465])
    assert torch.allclose(train.inputs.mean(dim=(0, 2, 3)), means, atol=0.006)


@pytest.mark.parametrize(
    ("options", "records", "width"),
    [
        ({"split": "train"}, 32_561, 108),
        ({"split": "test"}, 16_281, 108),
        ({}, 48_842, 108),
        ({"split": "train", "missing": "drop"}, 30_162, 104),
    ],
)
def test_adult_has_the_published_sizes(options, records: int, width: int) -> None:
    dataset = real("adult", **options)
    assert len(dataset) == records
    assert dataset.shape == (width,)
    assert len(dataset.columns) == 14
    # 24.08 % and 23.62 % of the training and test records earn more, says adult.names (23.93 % of all)
    share = {"train": 0.2408, "test": 0.2362}.get(options.get("split"), 0.2393)
    if "missing" not in options:
        assert float(dataset.labels.float().mean()) == pytest.approx(share, abs=1e-4)


def test_adult_decodes_to_its_first_line() -> None:
    dataset = real("adult", split="train").subset([0])
    values = decode(dataset.columns, dataset.inputs)
    assert values["age"].round(4).tolist() == [39]
    assert values["workclass"].tolist() == ["State-gov"]
    # the range is 1.48 million wide, of which float32 keeps 2^-24
    assert np.abs(values["fnlwgt"] - 77516) < 0.1
    assert values["native-country"].tolist() == ["United-States"]


@pytest.mark.parametrize(("split", "records"), [("train", 3_882), ("val", 524), ("test", 624), (None, 5_030)])
def test_pneumoniamnist_has_its_splits(split: str | None, records: int) -> None:
    dataset = real("pneumoniamnist", split=split)
    assert (len(dataset), dataset.shape) == (records, (1, 28, 28))
    assert set(dataset.labels.tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("name", "seconds"), [("mnist-full", 1.5), ("cifar-10", 1.0), ("adult", 2.5), ("pneumoniamnist", 0.5)]
)
def test_loading_takes_seconds_at_most(name: str, seconds: float) -> None:
    real(name, split="test")
    start = time.process_time()
    real(name, split="train")
    assert time.process_time() - start < seconds

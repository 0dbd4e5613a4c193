from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest
import torch

from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.data.columns import NumericColumn
from reconrisk.data.dataset import Dataset, concatenate


def toy(records: int = 4, **changes) -> Dataset:
    fields = {
        "name": "toy",
        "inputs": torch.linspace(0, 1, records * 4).view(records, 1, 2, 2),
        "labels": torch.arange(records) % 2,
        "classes": ("cat", "dog"),
        **changes,
    }
    return Dataset(**fields)


def test_length_and_shape_are_those_of_the_records() -> None:
    assert len(toy(5)) == 5
    assert toy(5).shape == (1, 2, 2)


def test_it_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        toy().name = "other"  # type: ignore[misc]  # what the test is about


@pytest.mark.parametrize(
    "indices", [[3, 1], (3, 1), np.array([3, 1]), torch.tensor([3, 1]), torch.tensor([3, 1], dtype=torch.uint8)]
)
def test_a_subset_has_the_chosen_records_in_order(indices) -> None:
    whole = toy()
    part = whole.subset(indices)
    assert torch.equal(part.inputs, whole.inputs[[3, 1]])
    assert torch.equal(part.labels, whole.labels[[3, 1]])
    assert (part.name, part.classes, part.data_range) == (whole.name, whole.classes, whole.data_range)


def test_a_subset_by_slice_is_the_same_slice() -> None:
    assert torch.equal(toy(5).subset(slice(1, 5, 2)).inputs, toy(5).inputs[1:5:2])


def test_indices_may_repeat_and_labels_may_be_absent() -> None:
    part = toy(labels=None, classes=None).subset([2, 2])
    assert torch.equal(part.inputs[0], part.inputs[1])
    assert part.labels is None


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([], "at least one"),
        ([4], r"max\(indices\)=4 to be from 0 to 3"),
        ([-1], r"min\(indices\)=-1 to be from 0 to 3"),
        ([0.5], "whole numbers"),
        (torch.ones(4, dtype=torch.bool), "whole numbers"),
        ([[0]], "in one dimension"),
    ],
)
def test_subset_refuses_what_is_no_choice_of_records(indices, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        toy().subset(indices)


@pytest.mark.parametrize(
    ("labels", "classes", "words"),
    [
        (torch.tensor([0, 1, 0, 1]), ("cat", "dog"), "2 classes"),
        (torch.tensor([0, 1, 0, 1]), None, "class labels"),
        (torch.tensor([0.5, 1.0, 0.0, 1.0]), None, "real labels"),
        (None, None, "no labels"),
    ],
)
def test_repr_tells_sizes_range_labels_and_licence(labels, classes, words: str) -> None:
    text = repr(toy(labels=labels, classes=classes, licence="MIT"))
    assert text == f"Dataset(toy, 4 x (1, 2, 2) in [0, 1], {words}, licence: MIT)"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": torch.zeros(4, 2, dtype=torch.float64)}, "float32"),
        ({"inputs": torch.zeros(4)}, "records first"),
        ({"inputs": torch.zeros(0, 2), "labels": None}, "inputs with at least one element"),
        ({"inputs": torch.full((4, 2), 1.5)}, r"^Expected inputs within data_range=\(0.0, 1.0\), found 8 above of"),
        (
            {"inputs": torch.tensor([[-2.5], [3.5], [0.0], [-1.0]])},
            "found 2 below and 1 above of 4 values. Pass the range",
        ),
        ({"inputs": torch.tensor([[0.0], [torch.nan], [0.0], [1.0]])}, "found 1 not a number of 4 values"),
        ({"data_range": (1.0, 1.0)}, "low < high"),
        ({"data_range": (0.0, float("inf"))}, "data_range=inf to be finite"),
        ({"labels": torch.zeros(4, dtype=torch.int32)}, "labels.dtype"),
        ({"labels": torch.zeros(3, dtype=torch.int64)}, "one label for each of 4 records"),
        ({"labels": torch.tensor([0, 1, 2, 0])}, r"max\(labels\)\)=\(0, 2\) to be indices from 0 to 1 of the classes"),
        ({"columns": (NumericColumn("a", 0, 1, 0),)}, r"inputs.shape=\(4, 1, 2, 2\) to be \(records, 1\)"),
    ],
)
def test_contradictions_are_refused(changes, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        toy(**changes)


def test_the_range_is_compared_at_the_precision_of_the_inputs() -> None:
    inputs = torch.full((1, 1), 0.1)
    assert float(inputs) > 0.1, "float32 rounds 0.1 up"
    Dataset("edge", inputs, data_range=(0.0, 0.1))


def test_joined_parts_follow_each_other() -> None:
    whole = concatenate([toy(2), toy(3)], Path("folder"))
    assert torch.equal(whole.inputs, torch.cat([toy(2).inputs, toy(3).inputs]))
    assert torch.equal(whole.labels, torch.cat([toy(2).labels, toy(3).labels]))
    assert (whole.name, whole.source) == ("folder", "folder")


@pytest.mark.parametrize(
    "other", [{"labels": None, "classes": None}, {"inputs": torch.zeros(4, 2)}, {"classes": ("dog", "cat")}]
)
def test_parts_of_two_layouts_are_not_joined(other) -> None:
    with pytest.raises(InvalidFile, match=r"folder, toy: Expected the layout of Dataset"):
        concatenate([toy(), toy(**other)], Path("folder"))


def test_class_labels_are_classes_or_refused():
    inputs = torch.zeros(2, 1)
    assert Dataset("toy", inputs, torch.tensor([1, 0])).class_labels.tolist() == [1, 0]
    for labels in (None, torch.tensor([0.5, 1.0])):
        with pytest.raises(InvalidInput, match="dataset='toy' to have class labels"):
            _ = Dataset("toy", inputs, labels).class_labels


def test_records_labels_and_range_tell_data_apart():
    inputs, labels = torch.rand(4, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 1])
    digests = [
        dataset.fingerprint
        for dataset in (
            Dataset("a", inputs, labels),
            Dataset("a", inputs.flip(0), labels),
            Dataset("a", inputs, 1 - labels),
            Dataset("a", inputs),
            Dataset("a", inputs, labels, data_range=(0.0, 2.0)),
        )
    ]
    assert len(set(digests)) == len(digests)
    assert Dataset("another name", inputs, labels).fingerprint == digests[0]

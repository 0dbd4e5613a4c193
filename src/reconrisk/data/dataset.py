"""Data set type: records with labels, range, meaning of the coordinates, source and licence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reconrisk.core.digest import short_digest
from reconrisk.core.errors import InvalidFile
from reconrisk.core.validation import check_all_within, check_finite, check_not_empty, invalid_input
from reconrisk.data.columns import Column, total_width


@dataclass(frozen=True, eq=False)
class Dataset:
    """Records and their labels, ready to train on and to attack.

    Attributes:
        name: Short name for reports.
        inputs: Records in float32: images as N x C x H x W, tables as N x D.
        labels: int64 for classes, float32 for regression, or None.
        data_range: Smallest and largest possible value; every value of ``inputs`` lies between them.
        classes: Names of the classes, or None.
        columns: Meaning of the coordinates of a table, or None.
        source: Citation or path.
        licence: Licence of the data.

    >>> Dataset("toy", torch.zeros(3, 1, 2, 2), torch.tensor([0, 1, 0]), classes=("cat", "dog"))
    Dataset(toy, 3 x (1, 2, 2) in [0, 1], 2 classes, licence: not stated)
    """

    name: str
    inputs: Tensor
    labels: Tensor | None = None
    data_range: tuple[float, float] = (0.0, 1.0)
    classes: tuple[str, ...] | None = None
    columns: tuple[Column, ...] | None = None
    source: str = "not stated"
    licence: str = "not stated"

    def __post_init__(self) -> None:
        if self.inputs.dtype != torch.float32 or self.inputs.ndim < 2:
            raise invalid_input(
                "(inputs.dtype, inputs.shape)",
                (self.inputs.dtype, tuple(self.inputs.shape)),
                "to be torch.float32 and (records, ...)",
                "Pass inputs.float(), records first.",
            )
        check_not_empty("inputs", self.inputs.flatten())
        ends = [check_finite("data_range", end) for end in self.data_range]
        if len(ends) != 2 or not ends[0] < ends[1]:
            raise invalid_input(
                "data_range",
                self.data_range,
                "to be (low, high) with low < high",
                "Pass data_range=(0.0, 1.0), for instance.",
            )
        check_all_within("inputs", self.inputs, (ends[0], ends[1]), "Pass the range of the values as data_range=.")
        if self.columns is not None and self.inputs.shape[1:] != (total_width(self.columns),):
            raise invalid_input(
                "inputs.shape",
                tuple(self.inputs.shape),
                f"to be (records, {total_width(self.columns)}), the width of the columns",
            )
        labels = self.labels
        if labels is None:
            return
        if labels.dtype not in (torch.int64, torch.float32):
            raise invalid_input(
                "labels.dtype",
                labels.dtype,
                "to be int64 for classes or float32 for regression",
                "Pass labels.long() or labels.float().",
            )
        if labels.ndim < 1 or len(labels) != len(self.inputs):
            raise invalid_input(
                "labels.shape", tuple(labels.shape), f"to have one label for each of {len(self)} records"
            )
        if self.classes is not None and not 0 <= int(labels.min()) <= int(labels.max()) < len(self.classes):
            raise invalid_input(
                "(min(labels), max(labels))",
                (int(labels.min()), int(labels.max())),
                f"to be indices from 0 to {len(self.classes) - 1} of the classes",
            )

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.inputs)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        return tuple(self.inputs.shape[1:])

    @property
    def fingerprint(self) -> str:
        """Short digest of records, labels and range; it does not depend on the name."""
        return short_digest((self.inputs, self.labels, str(self.data_range)))

    @property
    def class_count(self) -> int | None:
        """Number of ``classes``, or without them the largest class index plus one; None if the labels are not classes.

        >>> Dataset("toy", torch.zeros(2, 1), torch.tensor([4, 2])).class_count
        5
        """
        if self.classes is not None:
            return len(self.classes)
        # without names, classes are 0 to the largest label
        return None if self.labels is None or self.labels.is_floating_point() else int(self.labels.max()) + 1

    @property
    def class_labels(self) -> Tensor:
        """Labels as class indices; raises InvalidInput if there are no labels or they are real numbers.

        >>> Dataset("toy", torch.zeros(2, 1), torch.tensor([4, 2])).class_labels
        tensor([4, 2])
        """
        if self.labels is None or self.labels.is_floating_point():
            raise invalid_input("dataset", self.name, "to have class labels", "Pass labels= when loading it.")
        return self.labels

    def subset(self, indices: Sequence[int] | npt.NDArray[np.integer[Any]] | Tensor | slice) -> Dataset:
        """Return the data set reduced to the records at ``indices``, in that order.

        Edge cases: indices may repeat; an empty choice and indices outside 0 to ``len - 1`` are refused.

        >>> toy = Dataset("toy", torch.tensor([[0.0], [0.5], [1.0]]), torch.tensor([7, 8, 9]))
        >>> toy.subset([2, 0]).labels
        tensor([9, 7])
        """
        if isinstance(indices, slice):
            indices = range(len(self))[indices]  # resolves negative ends and steps
        chosen = torch.as_tensor(indices)
        check_not_empty("indices", chosen.flatten(), "Choose at least one record.")
        if chosen.ndim != 1 or chosen.dtype == torch.bool or chosen.is_floating_point() or chosen.is_complex():
            raise invalid_input(
                "(indices.dtype, indices.shape)",
                (chosen.dtype, tuple(chosen.shape)),
                "to be whole numbers in one dimension",
                "Pass [0, 3, 8], for instance.",
            )
        outside = chosen[(chosen < 0) | (chosen >= len(self))]
        if len(outside):
            raise invalid_input(
                f"{'min' if outside[0] < 0 else 'max'}(indices)",
                int(chosen.min() if outside[0] < 0 else chosen.max()),
                f"to be from 0 to {len(self) - 1}",
            )
        chosen = chosen.long()
        return replace(self, inputs=self.inputs[chosen], labels=None if self.labels is None else self.labels[chosen])

    def __repr__(self) -> str:
        """Show sizes and origin instead of values."""
        low, high = self.data_range
        if self.labels is None:
            labels = "no labels"
        elif self.labels.is_floating_point():
            labels = "real labels"
        else:
            labels = "class labels" if self.classes is None else f"{len(self.classes)} classes"
        parts = [self.name, f"{len(self)} x {self.shape} in [{low:g}, {high:g}]", labels]
        if self.columns is not None:
            parts.append(f"{len(self.columns)} columns")
        return f"Dataset({', '.join(parts)}, licence: {self.licence})"


def concatenate(parts: Sequence[Dataset], path: Path) -> Dataset:
    """Concatenate the parts of one data set.

    Args:
        parts: At least one part; all have the same layout.
        path: File or folder of the data set, which becomes its name and source.

    Returns:
        The records of all parts, in order.

    Raises:
        InvalidFile: If the parts differ in shape, range, classes, columns or presence of labels.
    """
    first = parts[0]
    layouts = [(part.shape, part.data_range, part.classes, part.columns, part.labels is None) for part in parts]
    for part, layout in zip(parts, layouts, strict=True):
        if layout != layouts[0]:
            raise InvalidFile(
                path,
                part.name,
                f"Expected the layout of {first!r}, found {part!r}.",
                "Load the parts one by one.",
            )
    labels = [part.labels for part in parts if part.labels is not None]
    return replace(
        first,
        name=path.name,
        inputs=torch.cat([part.inputs for part in parts]) if len(parts) > 1 else first.inputs,
        labels=torch.cat(labels) if labels else None,
        source=str(path),
    )

"""The records of one training step of many models: those they share once, the target of each beside them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_ALIGNED = 8  # float32 values of a vector register: rows of that length start aligned


@dataclass(frozen=True, eq=False)
class Targets:
    """The record that each model alone was trained on: ``inputs`` (n, 1, features), ``answers`` (n, outputs)."""

    inputs: Tensor
    answers: Tensor

    def chosen(self, models: slice) -> Targets:
        """The targets of some of the models."""
        return Targets(self.inputs[models], self.answers[models])


@dataclass(frozen=True, eq=False)
class SharedRecords:
    r"""A batch that all models share but for their target, one record in a column.

    ``inputs`` (columns, features) is zero in the target's column and in those that only fill up; ``weights`` are what
    each record counts in the mean loss, zero for the latter; ``answers`` (outputs, columns) are what the loss compares
    with.
    """

    inputs: Tensor
    answers: Tensor
    weights: Tensor
    squares: Tensor
    target: int
    count: int

    def forward(self, weight: Tensor, targets: Tensor, out: Tensor) -> None:
        """The first linear map of all records under all models: one product, and the targets apart."""
        torch.mm(weight.flatten(0, 1), self.inputs.T, out=out.view(-1, out.shape[2]))
        out[:, :, self.target : self.target + 1] = torch.bmm(weight, targets.mT)

    def backward(self, delta: Tensor, targets: Tensor, out: Tensor) -> None:
        """The gradient of the first weights from that of the first units."""
        torch.mm(delta.view(-1, delta.shape[2]), self.inputs, out=out.view(-1, out.shape[2]))
        out.baddbmm_(delta[:, :, self.target : self.target + 1], targets)

    def compare(self, outputs: Tensor, targets: Tensor) -> None:
        """Subtract from ``outputs`` what they should be."""
        outputs.sub_(self.answers)
        outputs[:, :, self.target].sub_(targets)

    def input_squares(self, targets: Tensor) -> Tensor:
        """Squared norms of the inputs, (n, columns)."""
        squares = self.squares.repeat(len(targets), 1)
        squares[:, self.target] = targets.square().sum(2)[:, 0]
        return squares


def shared_records(inputs: Tensor, answers: Tensor, rows: Tensor | None = None) -> SharedRecords:
    """The fixed records ``inputs`` and their ``answers``, or of them and the target (numbered last) the ``rows``."""
    times, count = 1, len(inputs) + 1
    if rows is not None:
        fixed = rows[rows < len(inputs)]
        times, count = len(rows) - len(fixed), len(rows)
        inputs, answers = inputs[fixed], answers[fixed]
    used = len(inputs)
    columns = -(-(used + 1) // _ALIGNED) * _ALIGNED
    padded = torch.zeros(columns, inputs.shape[1], dtype=inputs.dtype)
    padded[:used] = inputs
    wanted = torch.zeros(answers.shape[1], columns, dtype=inputs.dtype)
    wanted[:, :used] = answers.T
    weights = torch.zeros(columns, dtype=inputs.dtype)
    weights[:used], weights[used] = 1 / count, times / count
    return SharedRecords(padded, wanted, weights, padded.square().sum(1), used, count)

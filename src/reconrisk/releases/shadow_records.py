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
    """A batch that all models share but for their target, one record in a column.

    ``inputs`` (columns, used) are the features in use: the first ones, the others are zero in all shared records.
    They are zero also in the target's column and in those that only fill up. ``answers`` (outputs, columns) is what
    the loss compares with, ``weights`` what each record counts in the mean loss, ``count`` the size of the batch.
    """

    inputs: Tensor
    answers: Tensor
    weights: Tensor
    target: int
    count: int

    def forward(self, weight: Tensor, targets: Targets, out: Tensor) -> None:
        """The first linear map of all records under all models: one product, and the targets apart."""
        used = weight.flatten(0, 1)[:, : self.inputs.shape[1]]
        torch.mm(used, self.inputs.T, out=out.view(-1, out.shape[2]))
        out[:, :, self.target : self.target + 1] = torch.bmm(weight, targets.inputs.mT)

    def backward(self, delta: Tensor, targets: Targets, out: Tensor) -> None:
        """The gradient of the first weights from that of the first units."""
        used = self.inputs.shape[1]
        torch.mm(delta.view(-1, delta.shape[2]), self.inputs, out=out.view(-1, out.shape[2])[:, :used])
        out[:, :, used:].zero_()
        out.baddbmm_(delta[:, :, self.target : self.target + 1], targets.inputs)

    def compare(self, outputs: Tensor, targets: Targets) -> None:
        """Subtract from ``outputs`` what they should be."""
        outputs.sub_(self.answers)
        outputs[:, :, self.target].sub_(targets.answers)

    def input_squares(self, targets: Targets) -> Tensor:
        """Squared norms of the inputs, (n, columns)."""
        squares = self.inputs.square().sum(1).repeat(len(targets.inputs), 1)
        squares[:, self.target] = targets.inputs.square().sum(2)[:, 0]
        return squares


@dataclass(frozen=True, eq=False)
class OwnRecords:
    """A batch of each model's own: ``inputs`` (n, columns, features) and ``answers`` (n, outputs, columns)."""

    inputs: Tensor
    answers: Tensor
    weights: Tensor
    count: int

    def forward(self, weight: Tensor, targets: Targets, out: Tensor) -> None:
        """The first linear map of each model's records."""
        del targets  # they are among the inputs
        torch.bmm(weight, self.inputs.mT, out=out)

    def backward(self, delta: Tensor, targets: Targets, out: Tensor) -> None:
        """The gradient of the first weights from that of the first units."""
        del targets
        torch.bmm(delta, self.inputs, out=out)

    def compare(self, outputs: Tensor, targets: Targets) -> None:
        """Subtract from ``outputs`` what they should be."""
        del targets
        outputs.sub_(self.answers)

    def input_squares(self, targets: Targets) -> Tensor:
        """Squared norms of the inputs, (n, columns)."""
        del targets
        return self.inputs.square().sum(2)


Records = SharedRecords | OwnRecords


def shared_records(inputs: Tensor, answers: Tensor, used: int, rows: Tensor | None = None) -> SharedRecords:
    """The fixed ``inputs`` and ``answers``, or of them and the target (numbered last) the ``rows``."""
    times, count = 1, len(inputs) + 1
    if rows is not None:
        fixed = rows[rows < len(inputs)]
        times, count = len(rows) - len(fixed), len(rows)
        inputs, answers = inputs[fixed], answers[fixed]
    target = len(inputs)
    columns = -(-(target + 1) // _ALIGNED) * _ALIGNED
    padded = inputs.new_zeros(columns, used)
    padded[:target] = inputs[:, :used]
    wanted = inputs.new_zeros(answers.shape[1], columns)
    wanted[:, :target] = answers.T
    weights = inputs.new_zeros(columns)
    weights[:target], weights[target] = 1 / count, times / count
    return SharedRecords(padded, wanted, weights, target, count)


def own_records(inputs: Tensor, answers: Tensor, targets: Targets, rows: Tensor) -> OwnRecords:
    """For each model its ``rows`` (n, count) of the fixed records and its target, numbered last."""
    is_target = rows == len(inputs)
    model = is_target.nonzero()[:, 0]
    everyone = torch.cat([inputs, inputs.new_zeros(1, inputs.shape[1])])
    chosen, wanted = everyone[rows], torch.cat([answers, answers.new_zeros(1, answers.shape[1])])[rows]
    chosen[is_target], wanted[is_target] = targets.inputs[model, 0], targets.answers[model]
    count = rows.shape[1]
    return OwnRecords(chosen, wanted.mT.contiguous(), inputs.new_full((count,), 1 / count), count)

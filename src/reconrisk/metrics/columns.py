"""Scores of rebuilt table rows, column by column: categories by being right, numbers by their error."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reconrisk.core.columns import CategoricalColumn, Column, check_layout
from reconrisk.core.reconstruction import Reconstruction
from reconrisk.core.validation import check_probability, check_same_shape, invalid_input
from reconrisk.metrics.records import (
    check_finite_records,
    check_records,
    check_same_records,
    finite_rows,
    match_indices,
    reordered,
)
from reconrisk.metrics.scoring import Exposed

_ALL = "all columns"
_HEADINGS = f"  {'right':>6}  {'error':>10}"
_BESIDE = " " * len("  by guess")


@dataclass(frozen=True, eq=False)
class ColumnScore:
    """How well one column was rebuilt: ``right`` per record, and for numbers the absolute ``error`` in their unit.

    A number is right if it is within the tolerance. ``guess`` is the score of who saw nothing, if it was asked for.
    """

    column: Column
    right: Tensor
    error: Tensor | None = None
    guess: ColumnScore | None = None

    @property
    def accuracy(self) -> float:
        """Share of the records whose category is right or whose number is within the tolerance."""
        return float(self.right.double().mean())

    @property
    def mean_error(self) -> float | None:
        """Mean absolute error of numbers in the unit of the column; None for categories."""
        return None if self.error is None else float(self.error.mean())


@dataclass(frozen=True, eq=False)
class ColumnScores(Mapping[str, ColumnScore]):
    """Scores of a table: a mapping from the names of the columns, in their order, that prints as a table.

    ``matched`` says which estimate was scored against each target, -1 for none.
    """

    by_column: Mapping[str, ColumnScore]
    tolerance: float
    matched: Tensor

    def __getitem__(self, name: str) -> ColumnScore:
        """The score of the column of this name."""
        if name not in self.by_column:
            raise KeyError(f"Expected column={name!r} to be one of {', '.join(self.by_column)}.")
        return self.by_column[name]

    def __iter__(self) -> Iterator[str]:
        """Names of the columns."""
        return iter(self.by_column)

    def __len__(self) -> int:
        """Number of columns."""
        return len(self.by_column)

    def __eq__(self, other: object) -> bool:
        """Identity: tensors have no single truth value."""
        return self is other

    def __hash__(self) -> int:
        return id(self)

    @property
    def per_record(self) -> Tensor:
        """For each record the share of its columns that are right."""
        return torch.stack([score.right for score in self.by_column.values()]).double().mean(0)

    @property
    def accuracy(self) -> float:
        """Share of all values that are right."""
        return float(self.per_record.mean())

    @property
    def guess_accuracy(self) -> float | None:
        """Share of all values that are right for who saw nothing, if ``reference`` was given."""
        guesses = [score.guess.right for score in self.by_column.values() if score.guess is not None]
        return float(torch.stack(guesses).double().mean()) if guesses else None

    @property
    def most_exposed(self) -> Exposed:
        """The record of which most columns are right: what an audit must look at first."""
        record = int(self.per_record.argmax())
        return Exposed(record, float(self.per_record[record]))

    def __repr__(self) -> str:
        """A line for each column, and one for all."""
        missing = int((self.matched < 0).sum())
        head = f"Columns of {len(self.matched)} records" + (f", {missing} without an estimate" if missing else "")
        head += f"; numbers are right within {self.tolerance:.3g} of their range"
        width = max(len(name) for name in (_ALL, *self.by_column))
        lines = [f"  {'':<{width}}{_HEADINGS}" + ("" if self.guess_accuracy is None else "  by guess" + _HEADINGS)]
        for name, score in self.by_column.items():
            lines.append(
                f"  {name:<{width}}{_cells(score)}" + ("" if score.guess is None else _BESIDE + _cells(score.guess))
            )
        last = "" if self.guess_accuracy is None else f"{'':12}{_BESIDE}  {self.guess_accuracy:>6.1%}"
        lines.append(f"  {_ALL:<{width}}  {self.accuracy:>6.1%}{last}")
        exposed = self.most_exposed
        lines.append(f"  best rebuilt record {exposed.record}: {exposed.score:.1%}")
        return "\n".join(line.rstrip() for line in [head, *lines])


def score_columns(
    estimates: Reconstruction | Tensor,
    targets: Tensor,
    columns: Sequence[Column],
    *,
    tolerance: float = 0.05,
    reference: Tensor | None = None,
    in_order: bool = False,
) -> ColumnScores:
    r"""Scores of rebuilt rows of a table for each column: right categories, errors of numbers in their unit.

    .. math:: \text{right} = 1[\arg\max \hat x_{\text{block}} = \arg\max x_{\text{block}}] \quad\text{or}\quad
              1[|\hat x_j - x_j| \le \text{tolerance}], \qquad
              \text{error} = |\hat x_j - x_j| \, (\text{high}_j - \text{low}_j)

    Estimates are matched to targets first (:func:`match_indices`) by the root mean square over columns of the
    difference: 0 or 1 of a category, share of the range of a number. ``tolerance`` is a share of the range too. With
    ``reference``, other records of the same table, every column is also scored for who guesses its most common
    category or its median. ``in_order`` is that of :func:`score`, and so is the warning: matching flatters.

    Guarantee: an exact estimate is matched to its target; without ``in_order``, unchanged if estimates are permuted.
    Edge cases: a target without an estimate, or with NaN in it, has nothing right and infinite errors; a constant
    column has no error.
    Reference: the distance of Gower (1971), A General Coefficient of Similarity, in its squared form.

    >>> from reconrisk.core.columns import NumericColumn
    >>> age, sex = NumericColumn("age", 20, 40, start=0), CategoricalColumn("sex", ("F", "M"), start=1)
    >>> targets = torch.tensor([[0.5, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> scores = score_columns(torch.tensor([[0.2, 0.1, 0.9], [0.5, 0.8, 0.2]]), targets, [age, sex])
    >>> scores
    Columns of 2 records; numbers are right within 0.05 of their range
                    right       error
      age           50.0%           2
      sex          100.0%
      all columns   75.0%
      best rebuilt record 0: 100.0%
    >>> scores["age"].error
    tensor([0.0000, 4.0000], dtype=torch.float64)
    """
    values = estimates.estimates if isinstance(estimates, Reconstruction) else estimates
    check_probability("tolerance", tolerance)
    _check_rows("targets", targets, columns)
    if not isinstance(values, Tensor) or values.ndim == 0 or len(values):  # none at all are scored, as missing
        check_same_records("estimates", check_records("estimates", values), "targets", targets)
    if in_order:
        check_same_shape("estimates", values, "targets", targets)
        matched = torch.arange(len(targets))
    else:
        matched = match_indices(_points(values, columns) if len(values) else values, _points(targets, columns))
    arranged = reordered(values, matched, targets)
    guess = None if reference is None else _typical(reference, columns).expand(len(targets), -1)
    scores = {
        column.name: _score(column, arranged, targets, tolerance, guess)
        for column in sorted(columns, key=lambda column: column.start)
    }
    return ColumnScores(scores, tolerance, matched)


def _check_rows(name: str, records: Tensor, columns: Sequence[Column]) -> None:
    check_finite_records(name, records)
    check_layout(columns, tuple(records.shape[1:]), f"{name}.shape[1:]")
    for column in columns:
        block = records[:, column.coordinates]
        if isinstance(column, CategoricalColumn):
            bad = (block.sum(1) != 1) | (block.amax(1) != 1)
            condition = "to be one-hot"
        else:
            bad = ((block < 0) | (block > 1)).any(1)
            condition = "in [0, 1]"
        if bool(bad.any()):
            place = int(bad.nonzero()[0])
            remedy = "Pass records encoded as load_dataset does."
            raise invalid_input(f"{name}[{place}] of column {column.name!r}", block[place].tolist(), condition, remedy)


def _points(records: Tensor, columns: Sequence[Column]) -> Tensor:
    """Records as points whose squared distance is the sum over columns: 1 for another category, else by numbers."""
    parts = []
    for column in columns:
        block = records[:, column.coordinates].double()
        if isinstance(column, CategoricalColumn):
            block = torch.nn.functional.one_hot(block.argmax(1), len(column.categories)) * math.sqrt(0.5)
        parts.append(block)
    return torch.cat(parts, dim=1).where(finite_rows(records)[:, None], math.nan)


def _typical(reference: Tensor, columns: Sequence[Column]) -> Tensor:
    """The most common category and the median number: the best constant guesses for accuracy and absolute error."""
    _check_rows("reference", reference, columns)
    record = reference.double().quantile(0.5, dim=0, interpolation="lower")
    for column in columns:
        if isinstance(column, CategoricalColumn):
            record[column.coordinates] = reference[:, column.coordinates].double().mean(0)
    return record


def _score(
    column: Column, estimates: Tensor, targets: Tensor, tolerance: float, guess: Tensor | None = None
) -> ColumnScore:
    block, truth = (records[:, column.coordinates].double() for records in (estimates, targets))
    usable = finite_rows(estimates)
    guessed = None if guess is None else _score(column, guess, targets, tolerance)
    if isinstance(column, CategoricalColumn):
        return ColumnScore(column, usable & (block.argmax(1) == truth.argmax(1)), guess=guessed)
    difference = (block - truth).abs().squeeze(1)
    half = column.high / 2 - column.low / 2  # the whole range may be above the largest float
    error = (2 * (difference * half)).where(usable, math.inf)
    near = difference <= tolerance + torch.finfo(torch.float32).eps  # of the encoding
    return ColumnScore(column, usable & (near | (half == 0)), error, guessed)


def _cells(score: ColumnScore) -> str:
    error = "" if score.mean_error is None else f"{score.mean_error:.4g}"
    return f"  {score.accuracy:>6.1%}  {error:>10}"

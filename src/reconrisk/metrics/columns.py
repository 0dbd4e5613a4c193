"""Scores of reconstructed table rows by column: categories as right or wrong, numbers by their error."""

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
    reorder_estimates,
)
from reconrisk.metrics.scoring import ExposedScore

_ALL = "all columns"
_HEADINGS = f"  {'right':>6}  {'error':>10}"
_GAP = " " * len("  by guess")  # keeps the cells of the guess under its headings


@dataclass(frozen=True, eq=False)
class ColumnScore:
    """Scores of one column of a table, one for each record.

    Attributes:
        column: The column.
        right: True for each record whose category is right, or whose number is within the tolerance.
        error: Absolute error of numbers, in the unit of the column; None for categories.
        guess: Score of a constant guess, if reference records were given.
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
    """Scores of a table: a mapping from column names to scores, in column order, that prints as a table.

    Attributes:
        by_column: Score of each column.
        tolerance: Error of a number that still counts as right, as a share of its range.
        matched: Index of the estimate that was scored against each target, -1 for none.
    """

    by_column: Mapping[str, ColumnScore]
    tolerance: float
    matched: Tensor

    def __getitem__(self, name: str) -> ColumnScore:
        """Return the score of the column of this name."""
        if name not in self.by_column:
            raise KeyError(f"Expected column={name!r} to be one of {', '.join(self.by_column)}.")
        return self.by_column[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the columns."""
        return iter(self.by_column)

    def __len__(self) -> int:
        """Return the number of columns."""
        return len(self.by_column)

    def __eq__(self, other: object) -> bool:
        """Return True for the same object only, because tensors have no single truth value."""
        return self is other

    def __hash__(self) -> int:
        return id(self)  # consistent with identity as equality

    @property
    def per_record(self) -> Tensor:
        """Share of the columns of each record that are right."""
        return torch.stack([score.right for score in self.by_column.values()]).double().mean(0)

    @property
    def accuracy(self) -> float:
        """Share of all values that are right."""
        return float(self.per_record.mean())

    @property
    def guess_accuracy(self) -> float | None:
        """Share of all values that a constant guess has right; None without ``reference``."""
        guesses = [score.guess.right for score in self.by_column.values() if score.guess is not None]
        return float(torch.stack(guesses).double().mean()) if guesses else None

    @property
    def most_exposed(self) -> ExposedScore:
        """Record with the largest share of right columns, and that share."""
        record = int(self.per_record.argmax())
        return ExposedScore(record, float(self.per_record[record]))

    def __repr__(self) -> str:
        """Return a line for each column, and one for all."""
        missing = int((self.matched < 0).sum())
        head = f"Columns of {len(self.matched)} records" + (f", {missing} without an estimate" if missing else "")
        head += f"; numbers are right within {self.tolerance:.3g} of their range"
        width = max(len(name) for name in (_ALL, *self.by_column))
        lines = [f"  {'':<{width}}{_HEADINGS}" + ("" if self.guess_accuracy is None else "  by guess" + _HEADINGS)]
        for name, score in self.by_column.items():
            lines.append(
                f"  {name:<{width}}{_cells(score)}" + ("" if score.guess is None else _GAP + _cells(score.guess))
            )
        last = "" if self.guess_accuracy is None else f"{'':12}{_GAP}  {self.guess_accuracy:>6.1%}"
        lines.append(f"  {_ALL:<{width}}  {self.accuracy:>6.1%}{last}")
        exposed = self.most_exposed
        lines.append(f"  best reconstructed record {exposed.record}: {exposed.score:.1%}")
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
    r"""Score reconstructed rows of a table by column: right categories, errors of numbers in their unit.

    .. math:: \text{right} = 1[\arg\max \hat x_{\text{block}} = \arg\max x_{\text{block}}] \quad\text{or}\quad
              1[|\hat x_j - x_j| \le \text{tolerance}], \qquad
              \text{error} = |\hat x_j - x_j| \, (\text{high}_j - \text{low}_j)

    Estimates are first matched to targets (:func:`match_indices`). The distance is the root mean square difference over
    columns: 0 or 1 for a category, the share of the range for a number. Matching improves the
    scores of every estimate, so match a baseline as well before comparing.

    Args:
        estimates: Reconstruction, or reconstructed rows.
        targets: True rows, encoded as :func:`reconrisk.data.load_dataset` does.
        columns: Layout of the table.
        tolerance: Error of a number that still counts as right, as a share of its range.
        reference: Other records of the same table. With them, every column is also scored for the constant guess of its
            most common category or its median.
        in_order: True if row i of the estimates belongs to row i of the targets; by default estimates are matched.

    Returns:
        The scores, by column name.

    Raises:
        InvalidInput: If rows do not fit the layout, if values are not encoded, or if shapes differ.

    Guarantee: an exact estimate is matched to its target. Without ``in_order``, scores do not change if estimates are
    permuted.
    Edge cases: a target without an estimate, or whose estimate contains NaN, has no right value and infinite errors. A
    constant column has no error.
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
      best reconstructed record 0: 100.0%
    >>> scores["age"].error
    tensor([0.0000, 4.0000], dtype=torch.float64)
    """
    values = estimates.estimates if isinstance(estimates, Reconstruction) else estimates
    check_probability("tolerance", tolerance)
    _check_rows("targets", targets, columns)
    if not isinstance(values, Tensor) or values.ndim == 0 or len(values):  # an empty batch is scored as all missing
        check_same_records("estimates", check_records("estimates", values), "targets", targets)
    if in_order:
        check_same_shape("estimates", values, "targets", targets)
        matched = torch.arange(len(targets))
    else:
        matched = match_indices(
            _embed_records(values, columns) if len(values) else values, _embed_records(targets, columns)
        )
    arranged = reorder_estimates(values, matched, targets)
    guess = None if reference is None else _constant_guess(reference, columns).expand(len(targets), -1)
    scores = {
        column.name: _score_column(column, arranged, targets, tolerance, guess)
        for column in sorted(columns, key=lambda column: column.start)
    }
    return ColumnScores(scores, tolerance, matched)


def _check_rows(name: str, records: Tensor, columns: Sequence[Column]) -> None:
    """Raise if rows do not fit the layout: one-hot categories and numbers in [0, 1]."""
    check_finite_records(name, records)
    check_layout(columns, tuple(records.shape[1:]), f"{name}.shape[1:]")
    for column in columns:
        block = records[:, column.coordinates]
        if isinstance(column, CategoricalColumn):
            bad = ((block != 0) & (block != 1)).any(1) | (block.sum(1) != 1)
            condition = "to be one-hot"
        else:
            bad = ((block < 0) | (block > 1)).any(1)
            condition = "in [0, 1]"
        if bool(bad.any()):
            place = int(bad.nonzero()[0])
            remedy = "Pass records in the encoding of load_dataset."
            raise invalid_input(f"{name}[{place}] of column {column.name!r}", block[place].tolist(), condition, remedy)


def _embed_records(records: Tensor, columns: Sequence[Column]) -> Tensor:
    """Map records to points whose squared distance is the sum over columns, with 1 for another category."""
    parts = []
    for column in columns:
        block = records[:, column.coordinates].double()
        if isinstance(column, CategoricalColumn):
            # Two different one-hot vectors are sqrt(2) apart; the factor makes the squared distance 1.
            block = torch.nn.functional.one_hot(block.argmax(1), len(column.categories)) * math.sqrt(0.5)
        parts.append(block)
    # argmax hides NaN in categories, so the whole row is marked.
    return torch.cat(parts, dim=1).where(finite_rows(records)[:, None], math.nan)


def _constant_guess(reference: Tensor, columns: Sequence[Column]) -> Tensor:
    """Return the most common category and the median number of each column.

    They are the best constant guesses for accuracy and absolute error.
    """
    _check_rows("reference", reference, columns)
    # The lower median is a value that occurs, unlike the mean of the two middle ones.
    record = reference.double().quantile(0.5, dim=0, interpolation="lower")
    for column in columns:
        if isinstance(column, CategoricalColumn):
            record[column.coordinates] = reference[:, column.coordinates].double().mean(0)
    return record


def _score_column(
    column: Column, estimates: Tensor, targets: Tensor, tolerance: float, guess: Tensor | None = None
) -> ColumnScore:
    block, truth = (records[:, column.coordinates].double() for records in (estimates, targets))
    usable = finite_rows(estimates)
    guessed = None if guess is None else _score_column(column, guess, targets, tolerance)
    if isinstance(column, CategoricalColumn):
        return ColumnScore(column, usable & (block.argmax(1) == truth.argmax(1)), guess=guessed)
    difference = (block - truth).abs().squeeze(1)
    half = column.high / 2 - column.low / 2  # half the range, because the whole may exceed the largest float
    error = (2 * (difference * half)).where(usable, math.inf)
    near = difference <= tolerance + torch.finfo(torch.float32).eps  # records are encoded in float32
    # A constant column has only one possible value, which every estimate has right.
    return ColumnScore(column, usable & (near | (half == 0)), error, guessed)


def _cells(score: ColumnScore) -> str:
    error = "" if score.mean_error is None else f"{score.mean_error:.4g}"
    return f"  {score.accuracy:>6.1%}  {error:>10}"

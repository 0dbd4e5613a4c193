"""What the coordinates of a tabular record mean: numbers with their range, and categories one-hot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from reconrisk.core.storage.serialization import serializable
from reconrisk.core.validation import check_finite, check_not_empty, check_whole, invalid_input


@serializable("numeric-column")
@dataclass(frozen=True)
class NumericColumn:
    """A number between ``low`` and ``high``, scaled to [0, 1] at the coordinate ``start``.

    Edge cases: a constant column, ``low = high``, is 0 in every record.

    >>> NumericColumn("age", low=17, high=90, start=0)
    NumericColumn(name='age', low=17, high=90, start=0)
    """

    name: str
    low: float
    high: float
    start: int

    def __post_init__(self) -> None:
        check_whole("start", self.start, minimum=0)
        if check_finite("low", self.low) > check_finite("high", self.high):
            raise invalid_input("low", self.low, f"<= high={self.high!r}")

    @property
    def coordinates(self) -> slice:
        """Where in a record it stands."""
        return slice(self.start, self.start + 1)


@serializable("categorical-column")
@dataclass(frozen=True)
class CategoricalColumn:
    """One of several categories, one-hot from the coordinate ``start`` on.

    >>> CategoricalColumn("sex", categories=("Female", "Male"), start=3).coordinates
    slice(3, 5, None)
    """

    name: str
    categories: tuple[str, ...]
    start: int

    def __post_init__(self) -> None:
        check_whole("start", self.start, minimum=0)
        if not self.categories or len(set(self.categories)) != len(self.categories):
            raise invalid_input("categories", self.categories, "to be at least one, each once")

    @property
    def coordinates(self) -> slice:
        """Where in a record it stands."""
        return slice(self.start, self.start + len(self.categories))


Column: TypeAlias = NumericColumn | CategoricalColumn


def width_of(columns: Sequence[Column]) -> int:
    """How many coordinates the columns occupy together."""
    return max(int(column.coordinates.stop) for column in columns)


def check_columns(columns: Sequence[Column]) -> int:
    """Columns that follow on each other without gaps, each under a name of its own; how wide they are together."""
    check_not_empty("columns", columns, "Pass the columns of the data set.")
    names = [column.name for column in columns]
    for name in names:
        if names.count(name) > 1:
            raise invalid_input("columns", names, f"to hold {name!r} once")
    end = 0
    for column in sorted(columns, key=lambda column: column.start):
        if column.start != end:
            raise invalid_input(
                f"start of column {column.name!r}", column.start, f"to be {end}, where the one before it ends"
            )
        end = int(column.coordinates.stop)
    return end


def check_layout(columns: Sequence[Column], shape: Sequence[int], name: str = "input_shape") -> None:
    """Columns that together mean every coordinate of a record of ``shape`` once.

    >>> check_layout([NumericColumn("age", 17, 90, 0)], (2,))
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidInput: Expected input_shape=(2,) to be (1,), as the columns. Pass those of this table.
    """
    width = check_columns(columns)
    if tuple(shape) != (width,):
        raise invalid_input(name, tuple(shape), f"to be ({width},), as the columns", "Pass those of this table.")

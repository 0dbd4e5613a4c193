"""Columns of tabular records: numbers with their range, and one-hot categories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from reconrisk.core.storage.serialization import serializable
from reconrisk.core.validation import check_finite, check_not_empty, check_whole, invalid_input


@serializable("numeric-column")
@dataclass(frozen=True)
class NumericColumn:
    """A number that is scaled from [``low``, ``high``] to [0, 1] and occupies one coordinate.

    Attributes:
        name: Name of the column.
        low: Smallest value, before scaling.
        high: Largest value, before scaling.
        start: Index of its coordinate in a record.

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
            raise invalid_input("low", self.low, f"<= high={self.high!r}", "Pass the smaller end as low.")

    @property
    def coordinates(self) -> slice:
        """Slice of a record that the column occupies."""
        return slice(self.start, self.start + 1)


@serializable("categorical-column")
@dataclass(frozen=True)
class CategoricalColumn:
    """A category that is encoded one-hot in as many coordinates as there are categories.

    Attributes:
        name: Name of the column.
        categories: Names of the categories, in the order of their coordinates.
        start: Index of its first coordinate in a record.

    >>> CategoricalColumn("sex", categories=("Female", "Male"), start=3).coordinates
    slice(3, 5, None)
    """

    name: str
    categories: tuple[str, ...]
    start: int

    def __post_init__(self) -> None:
        check_whole("start", self.start, minimum=0)
        if not self.categories or len(set(self.categories)) != len(self.categories):
            raise invalid_input("categories", self.categories, "to be a non-empty tuple without duplicates")

    @property
    def coordinates(self) -> slice:
        """Slice of a record that the column occupies."""
        return slice(self.start, self.start + len(self.categories))


Column: TypeAlias = NumericColumn | CategoricalColumn


def total_width(columns: Sequence[Column]) -> int:
    """Return the number of coordinates that the columns occupy together.

    Args:
        columns: Columns of one table; at least one.

    Returns:
        The end of the last column.

    >>> total_width([NumericColumn("age", 17, 90, 0), CategoricalColumn("sex", ("Female", "Male"), 1)])
    3
    """
    return max(int(column.coordinates.stop) for column in columns)


def check_columns(columns: Sequence[Column]) -> int:
    """Check that columns have distinct names and follow each other without gaps.

    Args:
        columns: Columns of one table, in any order.

    Returns:
        The number of coordinates that they occupy together.

    Raises:
        InvalidInput: If there is no column, a name occurs twice, or a coordinate belongs to no column or to two.

    >>> check_columns([NumericColumn("age", 17, 90, 0), NumericColumn("hours", 1, 99, 1)])
    2
    """
    check_not_empty("columns", columns, "Pass the columns of the data set.")
    names = [column.name for column in columns]
    for name in names:
        if names.count(name) > 1:
            raise invalid_input("columns", names, f"to contain {name!r} once", "Rename one of the columns.")
    end = 0
    for column in sorted(columns, key=lambda column: column.start):
        if column.start != end:
            raise invalid_input(
                f"start of column {column.name!r}",
                column.start,
                f"to be {end}, the end of the preceding column",
                "Pass columns that cover every coordinate once.",
            )
        end = int(column.coordinates.stop)
    return end


def check_layout(columns: Sequence[Column], shape: Sequence[int], name: str = "input_shape") -> None:
    """Check that the columns describe every coordinate of a record exactly once.

    Args:
        columns: Columns of one table, in any order.
        shape: Shape of one record, without the batch dimension.
        name: Name of the argument that holds ``shape``, for the error message.

    Raises:
        InvalidInput: If the columns do not fit together, or their total width is not the size of a record.

    >>> check_layout([NumericColumn("age", 17, 90, 0)], (2,))
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidInput: Expected input_shape=(2,) to be (1,), the width of the columns. Pass the \
columns of this table.
    """
    width = check_columns(columns)
    if tuple(shape) != (width,):
        condition = f"to be ({width},), the width of the columns"
        raise invalid_input(name, tuple(shape), condition, "Pass the columns of this table.")

"""Conversion of text cells to a data set: types of the columns, encoding, labels."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reconrisk.core.errors import InvalidFile
from reconrisk.core.validation import invalid_input
from reconrisk.data.columns import CategoricalColumn, Column, NumericColumn, encode
from reconrisk.data.dataset import Dataset

MISSING = "?"
"""Category of missing values."""
MOST_CATEGORIES = 1000
"""A column with more distinct texts holds names or identifiers, not categories."""

_MISSING_TEXTS = frozenset({"", "?", "NA", "N/A", "NaN", "nan", "null", "NULL"})


@dataclass(frozen=True)
class TextTable:
    """Text cells of a table.

    Attributes:
        path: File of the table.
        names: Names of the columns.
        lines: Line of the file on which each record ends.
        cells: Cells by column.
    """

    path: Path
    names: tuple[str, ...]
    lines: tuple[int, ...]
    cells: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Encoding:
    """Encoding to use for a table; None for a part that is inferred.

    Attributes:
        columns: Columns with their ranges and categories.
        classes: Names of the classes.
    """

    columns: tuple[Column, ...] | None = None
    classes: tuple[str, ...] | None = None


_INFERRED = Encoding()


def is_number(text: str) -> bool:
    """Return True if the text is one number; ``nan`` is not.

    Args:
        text: A cell.

    Returns:
        True for every text that ``float`` accepts, except ``nan`` and numbers with underscores.
    """
    return not math.isnan(_number(text))


def _number(text: str) -> float:
    """Return the number in a text, or NaN. ``float`` would accept ``1_000`` too."""
    try:
        return math.nan if "_" in text else float(text)
    except ValueError:
        return math.nan


@dataclass(frozen=True, eq=False)
class _TextColumn:
    """One column, each distinct text stored once: ``codes`` are the indices into ``texts`` by record."""

    name: str
    path: Path
    lines: npt.NDArray[np.int64]
    codes: npt.NDArray[np.int64]
    texts: tuple[str, ...]
    numbers: npt.NDArray[np.float64]
    missing: npt.NDArray[np.bool_]

    def invalid_file(self, texts: npt.NDArray[np.bool_], expected: str, remedy: str) -> InvalidFile:
        """Return the error for the first record whose text is marked True in ``texts``."""
        record = int(np.flatnonzero(texts[self.codes])[0])
        found = self.texts[self.codes[record]]
        place = f"line {self.lines[record]}, column {self.name!r}"
        return InvalidFile(self.path, place, f"Expected {expected}, found {found!r}.", remedy)

    @property
    def is_numeric(self) -> bool:
        """True if all texts that are not missing are numbers, and there is one."""
        return not self.missing.all() and not np.isnan(self.numbers[~self.missing]).any()

    def select(self, records: npt.NDArray[np.bool_]) -> _TextColumn:
        """Return the column for the records marked True."""
        codes = self.codes[records]
        used = np.unique(codes)
        # texts that no selected record has are dropped: they would become empty categories
        renumbered = np.zeros(len(self.texts), dtype=np.int64)
        renumbered[used] = np.arange(len(used))
        texts = tuple(self.texts[code] for code in used)
        return _TextColumn(
            self.name,
            self.path,
            self.lines[records],
            renumbered[codes],
            texts,
            self.numbers[used],
            self.missing[used],
        )


def _text_column(table: TextTable, index: int) -> _TextColumn:
    """Build a column; each distinct cell is stripped and parsed once."""
    stripped = {cell: cell.strip() for cell in dict.fromkeys(table.cells[index])}
    code_of = {text: code for code, text in enumerate(dict.fromkeys(stripped.values()))}
    code_of_cell = {cell: code_of[text] for cell, text in stripped.items()}
    texts = tuple(code_of)
    return _TextColumn(
        table.names[index],
        table.path,
        np.array(table.lines),
        np.array([code_of_cell[cell] for cell in table.cells[index]]),
        texts,
        np.array([_number(text) for text in texts]),
        np.array([text in _MISSING_TEXTS for text in texts]),
    )


@dataclass(frozen=True, eq=False)
class TypedTable:
    """Table whose columns and types are known, ready to be described and encoded.

    Attributes:
        path: File of the table.
        inputs: Input columns.
        as_codes: True for each input column whose numbers are codes of categories.
        label: Column of the labels, or None.
    """

    path: Path
    inputs: tuple[_TextColumn, ...]
    as_codes: tuple[bool, ...]
    label: _TextColumn | None

    def columns(self) -> tuple[Column, ...]:
        """Return the columns with the ranges and categories of this table."""
        columns: list[Column] = []
        for one, codes in zip(self.inputs, self.as_codes, strict=True):
            start = columns[-1].coordinates.stop if columns else 0
            if one.is_numeric and not codes:
                _check_finite(one)
                columns.append(NumericColumn(one.name, float(one.numbers.min()), float(one.numbers.max()), start))
            else:
                columns.append(_make_categorical(one, start, codes))
        return tuple(columns)

    def dataset(self, *, regression: bool = False, encoding: Encoding = _INFERRED) -> Dataset:
        """Return the records, encoded as given or as this table suggests.

        Args:
            regression: True to read whole numbers as real labels.
            encoding: Columns and classes to use.

        Returns:
            Data set with one row per record. It has labels if the table has a column of labels.
        """
        columns = self.columns() if encoding.columns is None else encoding.columns
        names = tuple(one.name for one in self.inputs)
        if tuple(column.name for column in columns) != names:
            raise invalid_input(
                "columns of like",
                tuple(column.name for column in columns),
                f"to be {', '.join(names)}, the columns of the file",
                "Pass like= the data set of a file with the same columns.",
            )
        inputs = encode(
            columns, [_encode_values(one, column) for one, column in zip(self.inputs, columns, strict=True)]
        )
        labels, classes = (
            (None, None) if self.label is None else _encode_labels(self.label, regression, encoding.classes)
        )
        return Dataset(
            self.path.name,
            torch.from_numpy(inputs),
            labels,
            classes=classes,
            columns=columns,
            source=str(self.path),
        )


def infer_types(
    table: TextTable,
    *,
    label: str | int | None = None,
    missing: str = "refuse",
    ignore: Sequence[str | int] = (),
    categorical: Sequence[str | int] = (),
) -> TypedTable:
    """Choose input columns and label, and leave out incomplete records on demand.

    Args:
        table: Text cells.
        label: Name or index of the column with the labels; None for no labels.
        missing: ``"drop"`` leaves out every record with a missing value; ``"refuse"`` keeps them all.
        ignore: Columns to leave out, by name or index.
        categorical: Columns whose numbers are codes, by name or index.

    Returns:
        The table with its types.

    Raises:
        InvalidInput: If an option is unknown, names a column that does not exist, or leaves no input column.
        InvalidFile: If ``missing="drop"`` leaves no record.
    """
    if missing not in ("refuse", "drop"):
        raise invalid_input("missing", missing, "to be 'refuse' or 'drop'")
    label_index = None if label is None else _column_index("label", label, table.names)
    left_out = {_column_index("ignore", column, table.names) for column in ignore}
    as_codes = {_column_index("categorical", column, table.names) for column in categorical}
    indices = [i for i in range(len(table.names)) if i != label_index and i not in left_out]
    if not indices or label_index in left_out:
        raise invalid_input(
            "ignore", tuple(ignore), "to leave at least one input column, and the label", "Remove names from ignore."
        )
    series = {i: _text_column(table, i) for i in [*indices, *([] if label_index is None else [label_index])]}
    if missing == "drop":
        present = np.all([~one.missing[one.codes] for one in series.values()], axis=0)
        if not present.any():
            line = f"line {table.lines[0]}"
            problem = "Expected a complete record, found a missing value in every one."
            raise InvalidFile(table.path, line, problem, "Leave out missing='drop', or ignore= the sparse columns.")
        series = {index: one.select(present) for index, one in series.items()}
    return TypedTable(
        table.path,
        tuple(series[i] for i in indices),
        tuple(i in as_codes for i in indices),
        None if label_index is None else series[label_index],
    )


def _column_index(option: str, column: str | int, names: Sequence[str]) -> int:
    """Return the index of a column given by name or index."""
    if isinstance(column, int):
        if -len(names) <= column < len(names):
            return column % len(names)
        raise invalid_input(
            option, column, f"to be the index of one of {len(names)} columns, from 0 to {len(names) - 1}"
        )
    if column in names:
        return list(names).index(column)
    close = difflib.get_close_matches(column, names, n=1)
    raise invalid_input(
        option, column, f"to be one of the columns {', '.join(names)}", f"Did you mean {close[0]}?" if close else ""
    )


def _check_finite(series: _TextColumn) -> None:
    """Raise InvalidFile at the first value that is missing or infinite."""
    if series.missing.any():
        raise series.invalid_file(series.missing, "a number", "Fill it in, or pass missing='drop'.")
    if not np.isfinite(series.numbers).all():
        raise series.invalid_file(~np.isfinite(series.numbers), "a finite number", "Correct or remove the record.")


def _make_categorical(series: _TextColumn, start: int, codes: bool) -> CategoricalColumn:
    """Return the column of categories, unless it looks like numbers with a typo or like identifiers."""
    # above half, text is more likely a typo in a column of numbers than a category
    mostly_numbers = (~np.isnan(series.numbers))[series.codes].mean() > 0.5
    if mostly_numbers and not codes:
        remedy = f"Correct it, or pass categorical=[{series.name!r}] if its numbers are codes."
        raise series.invalid_file(np.isnan(series.numbers) & ~series.missing, "a number as in most lines", remedy)
    categories = sorted(set(_category_names(series)))
    if len(categories) > MOST_CATEGORIES:
        raise InvalidFile(
            series.path,
            f"column {series.name!r}",
            f"Expected at most {MOST_CATEGORIES} categories, found {len(categories)}.",
            f"If these are names or identifiers, pass ignore=[{series.name!r}].",
        )
    return CategoricalColumn(series.name, tuple(categories), start)


def _category_names(series: _TextColumn) -> list[str]:
    return [MISSING if missing else text for text, missing in zip(series.texts, series.missing, strict=True)]


def _encode_values(series: _TextColumn, column: Column) -> npt.NDArray[Any]:
    """Return the numbers of a numeric column, or the indices of categories."""
    if isinstance(column, CategoricalColumn):
        index = {category: i for i, category in enumerate(column.categories)}
        indices = np.array([index.get(name, -1) for name in _category_names(series)])
        if (indices < 0).any():
            listed = ", ".join(column.categories)
            raise series.invalid_file(
                indices < 0, f"one of the categories {listed}", "Correct it, or read both files as one."
            )
        return indices[series.codes]
    if not series.is_numeric:
        raise series.invalid_file(np.isnan(series.numbers), "a number", "Correct it, or pass missing='drop'.")
    _check_finite(series)
    outside = (series.numbers < column.low) | (series.numbers > column.high)
    if outside.any():
        expected = f"a number from {column.low:g} to {column.high:g}"
        raise series.invalid_file(outside, expected, "Widen the range of this column in like=, or remove the record.")
    return series.numbers[series.codes]


def _encode_labels(
    series: _TextColumn, regression: bool, given: tuple[str, ...] | None
) -> tuple[Tensor, tuple[str, ...] | None]:
    """Return labels and, for classes, their names."""
    if series.missing.any():
        raise series.invalid_file(series.missing, "a label", "Fill it in, or pass missing='drop'.")
    # a label with fractions cannot be a class
    fractions = series.is_numeric and not np.all(series.numbers == np.round(series.numbers))
    if given is None and (regression or fractions):
        if not series.is_numeric:
            raise series.invalid_file(np.isnan(series.numbers), "a number", "Correct it, or pass regression=False.")
        _check_finite(series)
        return torch.from_numpy(series.numbers[series.codes].astype(np.float32)), None
    names: Sequence[str] = series.texts
    if series.is_numeric:
        _check_finite(series)
        # 1, 1.0 and 1e0 are the same class
        names = [str(int(number)) if number == int(number) else str(number) for number in series.numbers]
    classes = _sorted_classes(series, names) if given is None else given
    index = {name: i for i, name in enumerate(classes)}
    indices = np.array([index.get(name, -1) for name in names])
    if (indices < 0).any():
        raise series.invalid_file(indices < 0, f"one of the classes {', '.join(classes)}", "Correct it.")
    return torch.from_numpy(indices[series.codes].astype(np.int64)), classes


def _sorted_classes(series: _TextColumn, names: Sequence[str]) -> tuple[str, ...]:
    """Return the distinct classes, numbers in numeric order."""
    distinct = sorted(set(names), key=int if series.is_numeric else None)
    if len(distinct) > MOST_CATEGORIES:
        raise InvalidFile(
            series.path,
            f"column {series.name!r}",
            f"Expected at most {MOST_CATEGORIES} classes, found {len(distinct)}.",
            "If the label is a quantity, pass regression=True.",
        )
    return tuple(distinct)

"""From the cells of a text table to a data set: which columns are numbers, which categories, which the label."""

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
"""The category of values that are missing."""
MOST_CATEGORIES = 1000
"""More distinct texts than this in a column are names or identifiers, not categories."""

_MISSING_TEXTS = frozenset({"", "?", "NA", "N/A", "NaN", "nan", "null", "NULL"})


@dataclass(frozen=True)
class TextTable:
    """Cells by column, the names of the columns, and the line of the file on which each record ends."""

    path: Path
    names: tuple[str, ...]
    lines: tuple[int, ...]
    cells: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Encoding:
    """Columns and classes that are given; what is None is inferred."""

    columns: tuple[Column, ...] | None = None
    classes: tuple[str, ...] | None = None


_INFERRED = Encoding()


def is_number(text: str) -> bool:
    """Whether the text is one number; ``nan``, which says that it is none, is not."""
    return not math.isnan(_number(text))


def _number(text: str) -> float:
    try:
        return math.nan if "_" in text else float(text)
    except ValueError:
        return math.nan


@dataclass(frozen=True, eq=False)
class _Series:
    """One column, each distinct text once: ``codes`` says which of ``texts`` each record has."""

    name: str
    path: Path
    lines: npt.NDArray[np.int64]
    codes: npt.NDArray[np.int64]
    texts: tuple[str, ...]
    numbers: npt.NDArray[np.float64]
    missing: npt.NDArray[np.bool_]

    def invalid(self, texts: npt.NDArray[np.bool_], expected: str, remedy: str) -> InvalidFile:
        """The error for the first record whose text is among ``texts``."""
        record = int(np.flatnonzero(texts[self.codes])[0])
        found = self.texts[self.codes[record]]
        place = f"line {self.lines[record]}, column {self.name!r}"
        return InvalidFile(self.path, place, f"Expected {expected}, found {found!r}.", remedy)

    @property
    def is_numeric(self) -> bool:
        return not self.missing.all() and not np.isnan(self.numbers[~self.missing]).any()

    def kept(self, records: npt.NDArray[np.bool_]) -> _Series:
        codes = self.codes[records]
        used = np.unique(codes)
        renumbered = np.zeros(len(self.texts), dtype=np.int64)
        renumbered[used] = np.arange(len(used))
        texts = tuple(self.texts[code] for code in used)
        return _Series(
            self.name,
            self.path,
            self.lines[records],
            renumbered[codes],
            texts,
            self.numbers[used],
            self.missing[used],
        )


def _series(table: TextTable, index: int) -> _Series:
    stripped = {cell: cell.strip() for cell in dict.fromkeys(table.cells[index])}
    code_of = {text: code for code, text in enumerate(dict.fromkeys(stripped.values()))}
    code_of_cell = {cell: code_of[text] for cell, text in stripped.items()}
    texts = tuple(code_of)
    return _Series(
        table.names[index],
        table.path,
        np.array(table.lines),
        np.array([code_of_cell[cell] for cell in table.cells[index]]),
        texts,
        np.array([_number(text) for text in texts]),
        np.array([text in _MISSING_TEXTS for text in texts]),
    )


@dataclass(frozen=True, eq=False)
class Typed:
    """A table whose columns are chosen and whose texts are told apart, so that it can be described and encoded."""

    path: Path
    inputs: tuple[_Series, ...]
    as_codes: tuple[bool, ...]
    label: _Series | None

    def columns(self) -> tuple[Column, ...]:
        """The columns with the ranges and categories they have here."""
        columns: list[Column] = []
        for one, codes in zip(self.inputs, self.as_codes, strict=True):
            start = columns[-1].coordinates.stop if columns else 0
            if one.is_numeric and not codes:
                _check_finite(one)
                columns.append(NumericColumn(one.name, float(one.numbers.min()), float(one.numbers.max()), start))
            else:
                columns.append(_categorical(one, start, codes))
        return tuple(columns)

    def dataset(self, *, regression: bool = False, encoding: Encoding = _INFERRED) -> Dataset:
        """The records, encoded as given or as the columns are here."""
        columns = self.columns() if encoding.columns is None else encoding.columns
        names = tuple(one.name for one in self.inputs)
        if tuple(column.name for column in columns) != names:
            raise invalid_input(
                "like", tuple(column.name for column in columns), f"to have the columns {', '.join(names)}"
            )
        inputs = encode(columns, [_values(one, column) for one, column in zip(self.inputs, columns, strict=True)])
        labels, classes = (None, None) if self.label is None else _labels(self.label, regression, encoding.classes)
        return Dataset(
            self.path.name,
            torch.from_numpy(inputs),
            labels,
            classes=classes,
            columns=columns,
            source=str(self.path),
        )


def typed(
    table: TextTable,
    *,
    label: str | int | None = None,
    missing: str = "refuse",
    ignore: Sequence[str | int] = (),
    categorical: Sequence[str | int] = (),
) -> Typed:
    """The columns of inputs and the label, with incomplete records left out on demand; options as of ``read_csv``."""
    if missing not in ("refuse", "drop"):
        raise invalid_input("missing", missing, "to be 'refuse' or 'drop'")
    label_index = None if label is None else _index("label", label, table.names)
    left_out = {_index("ignore", column, table.names) for column in ignore}
    as_codes = {_index("categorical", column, table.names) for column in categorical}
    indices = [i for i in range(len(table.names)) if i != label_index and i not in left_out]
    if not indices or label_index in left_out:
        raise invalid_input("ignore", tuple(ignore), "to leave a column of inputs, and the label")
    series = {i: _series(table, i) for i in [*indices, *([] if label_index is None else [label_index])]}
    if missing == "drop":
        present = np.all([~one.missing[one.codes] for one in series.values()], axis=0)
        if not present.any():
            line = f"line {table.lines[0]}"
            raise InvalidFile(table.path, line, "Expected a complete record, every one lacks a value.", "Do not drop.")
        series = {index: one.kept(present) for index, one in series.items()}
    return Typed(
        table.path,
        tuple(series[i] for i in indices),
        tuple(i in as_codes for i in indices),
        None if label_index is None else series[label_index],
    )


def _index(option: str, column: str | int, names: Sequence[str]) -> int:
    if isinstance(column, int):
        if -len(names) <= column < len(names):
            return column % len(names)
        raise invalid_input(option, column, f"to be the index of one of {len(names)} columns")
    if column in names:
        return list(names).index(column)
    close = difflib.get_close_matches(column, names, n=1)
    raise invalid_input(
        option, column, f"to be one of the columns {', '.join(names)}", f"Did you mean {close[0]}?" if close else ""
    )


def _check_finite(series: _Series) -> None:
    if series.missing.any():
        raise series.invalid(series.missing, "a number", "Fill it in, or pass missing='drop'.")
    if not np.isfinite(series.numbers).all():
        raise series.invalid(~np.isfinite(series.numbers), "a finite number", "Correct or remove the record.")


def _categorical(series: _Series, start: int, codes: bool) -> CategoricalColumn:
    mostly_numbers = (~np.isnan(series.numbers))[series.codes].mean() > 0.5
    if mostly_numbers and not codes:
        remedy = f"Correct it, or pass categorical=[{series.name!r}] if its numbers are codes."
        raise series.invalid(np.isnan(series.numbers) & ~series.missing, "a number as in most lines", remedy)
    categories = sorted(set(_category_names(series)))
    if len(categories) > MOST_CATEGORIES:
        raise InvalidFile(
            series.path,
            f"column {series.name!r}",
            f"Expected at most {MOST_CATEGORIES} categories, found {len(categories)}.",
            f"If these are names or identifiers, pass ignore=[{series.name!r}].",
        )
    return CategoricalColumn(series.name, tuple(categories), start)


def _category_names(series: _Series) -> list[str]:
    return [MISSING if missing else text for text, missing in zip(series.texts, series.missing, strict=True)]


def _values(series: _Series, column: Column) -> npt.NDArray[Any]:
    """The numbers of a numeric column, or the indices of categories."""
    if isinstance(column, CategoricalColumn):
        index = {category: i for i, category in enumerate(column.categories)}
        indices = np.array([index.get(name, -1) for name in _category_names(series)])
        if (indices < 0).any():
            listed = ", ".join(column.categories)
            raise series.invalid(
                indices < 0, f"one of the categories {listed}", "Read both files as one, or correct it."
            )
        return indices[series.codes]
    if not series.is_numeric:
        raise series.invalid(np.isnan(series.numbers), "a number", "Correct it, or pass missing='drop'.")
    _check_finite(series)
    outside = (series.numbers < column.low) | (series.numbers > column.high)
    if outside.any():
        expected = f"a number from {column.low:g} to {column.high:g}"
        raise series.invalid(outside, expected, "Widen the range of that column in like=, or remove the record.")
    return series.numbers[series.codes]


def _labels(series: _Series, regression: bool, given: tuple[str, ...] | None) -> tuple[Tensor, tuple[str, ...] | None]:
    if series.missing.any():
        raise series.invalid(series.missing, "a label", "Fill it in, or pass missing='drop'.")
    fractions = series.is_numeric and not np.all(series.numbers == np.round(series.numbers))
    if given is None and (regression or fractions):
        if not series.is_numeric:
            raise series.invalid(np.isnan(series.numbers), "a number", "Correct it, or pass regression=False.")
        _check_finite(series)
        return torch.from_numpy(series.numbers[series.codes].astype(np.float32)), None
    names: Sequence[str] = series.texts
    if series.is_numeric:
        _check_finite(series)
        names = [str(int(number)) if number == int(number) else str(number) for number in series.numbers]
    classes = _sorted_classes(series, names) if given is None else given
    index = {name: i for i, name in enumerate(classes)}
    indices = np.array([index.get(name, -1) for name in names])
    if (indices < 0).any():
        raise series.invalid(indices < 0, f"one of the classes {', '.join(classes)}", "Correct it.")
    return torch.from_numpy(indices[series.codes].astype(np.int64)), classes


def _sorted_classes(series: _Series, names: Sequence[str]) -> tuple[str, ...]:
    distinct = sorted(set(names), key=int if series.is_numeric else None)
    if len(distinct) > MOST_CATEGORIES:
        raise InvalidFile(
            series.path,
            f"column {series.name!r}",
            f"Expected at most {MOST_CATEGORIES} classes, found {len(distinct)}.",
            "If the label is a quantity, pass regression=True.",
        )
    return tuple(distinct)

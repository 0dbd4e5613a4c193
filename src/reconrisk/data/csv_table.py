"""Text tables: csv files as columns of cells, with the line each record stands on."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from reconrisk.core.errors import InvalidFile
from reconrisk.core.validation import invalid_input
from reconrisk.data.dataset import Dataset
from reconrisk.data.file_bytes import stored_bytes
from reconrisk.data.table import Encoding, TextTable, is_number, typed

_DELIMITERS = ",;\t"


def read_csv(
    path: str | Path,
    *,
    label: str | int | None = None,
    header: bool | None = None,
    delimiter: str | None = None,
    missing: str = "refuse",
    ignore: Sequence[str | int] = (),
    categorical: Sequence[str | int] = (),
    regression: bool = False,
    like: Dataset | None = None,
) -> Dataset:
    """A csv file, gzip or not, as a table with numeric and one-hot encoded categorical columns.

    ``label`` is the name or index of the column with the labels, ``ignore`` lists columns to leave out, ``categorical``
    such whose numbers are codes. Without ``header`` the first line is a header if it holds no number and another line
    does. ``missing="drop"`` leaves out every record with a missing value; else a missing category is a category of
    its own (``?``), and a missing number is refused. ``regression`` reads whole numbers as real labels instead of
    classes. ``like`` encodes as an earlier data set was, so that a test file matches its training file.
    """
    path = Path(path)
    if like is not None and like.columns is None:
        raise invalid_input("like", like, "to be a table", "Pass the data set of the training file.")
    table = text_table(path, text_of(path), header=header, delimiter=delimiter)
    real_labels = like is not None and like.labels is not None and like.labels.is_floating_point()
    chosen = typed(table, label=label, missing=missing, ignore=ignore, categorical=categorical)
    encoding = Encoding() if like is None else Encoding(like.columns, like.classes)
    return chosen.dataset(regression=regression or real_labels, encoding=encoding)


def text_of(path: Path) -> str:
    """The text in a file, UTF-8 with or without mark, gzip or not."""
    data = stored_bytes(path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidFile(
            path,
            f"byte {error.start}",
            f"Expected UTF-8 text, found the byte {data[error.start]:02x}.",
            "Save the table as UTF-8.",
        ) from error


def text_table(
    path: Path, text: str, *, header: bool | None, delimiter: str | None = None, names: Sequence[str] | None = None
) -> TextTable:
    """The cells of a text table by column; empty lines are passed over, every other has as many fields as the first."""
    rows = _rows(path, text, delimiter)
    first_line, first = rows[0]
    for line, row in rows:
        if len(row) != len(first):
            raise InvalidFile(
                path,
                f"line {line}",
                f"Expected {len(first)} fields as in line {first_line}, found {len(row)}.",
                "Complete the line, quote text that holds the delimiter, or state delimiter=.",
            )
    if names is None:
        names = [f"column {i}" for i in range(len(first))]
        if header if header is not None else _has_header(path, rows):
            names = [cell.strip() or name for cell, name in zip(first, names, strict=True)]
            rows = rows[1:]
    if len(set(names)) != len(names) or len(names) != len(first):
        raise InvalidFile(
            path,
            f"line {first_line}",
            f"Expected {len(first)} different column names.",
            "Rename, or pass header=False.",
        )
    if not rows:
        raise InvalidFile(path, f"line {first_line}", "Expected records after the header, found none.", "Add records.")
    cells = tuple(zip(*(row for _, row in rows), strict=True))
    return TextTable(path, tuple(names), tuple(line for line, _ in rows), cells)


def _rows(path: Path, text: str, delimiter: str | None) -> list[tuple[int, list[str]]]:
    """Line number and fields of each line that is not empty; the first one tells the delimiter if none is given."""
    if delimiter is None:
        first = next((line for line in io.StringIO(text) if line.strip()), "")
        delimiter = max(_DELIMITERS, key=first.count)
    if len(delimiter) != 1 or delimiter in '"\r\n ':
        raise invalid_input("delimiter", delimiter, "to be one character, neither quote, blank nor line end")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True)
    rows: list[tuple[int, list[str]]] = []
    try:
        for row in reader:
            if len(row) > 1 or (row and row[0].strip()):
                rows.append((reader.line_num, row))
    except csv.Error as error:
        raise InvalidFile(
            path, f"line {reader.line_num}", f"Expected a line of csv, {error}.", "Correct the quotes in this line."
        ) from error
    if not rows:
        raise InvalidFile(path, "line 1", "Expected records, found only empty lines.", "Check the file.")
    return rows


def _has_header(path: Path, rows: Sequence[tuple[int, Sequence[str]]]) -> bool:
    first = [cell.strip() for cell in rows[0][1]]
    named = [cell for cell in first if cell]
    if any(is_number(cell) for cell in first) or not named or len(set(named)) < len(named):
        return False
    if any(is_number(cell) for _, row in rows[1:] for cell in row):
        return True
    raise InvalidFile(
        path,
        f"line {rows[0][0]}",
        "Expected numbers somewhere, to tell a header from a record, found none.",
        "Say whether the first line is a header: header=True or header=False.",
    )

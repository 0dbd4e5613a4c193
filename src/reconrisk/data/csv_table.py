"""Reader for text tables: csv files as columns of cells, with the line number of each record."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from reconrisk.core.errors import InvalidFile
from reconrisk.core.validation import invalid_input
from reconrisk.data.dataset import Dataset
from reconrisk.data.file_bytes import read_file_bytes
from reconrisk.data.table import Encoding, TextTable, infer_types, is_number

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
    r"""Read a csv file, gzip or not, as a table with numeric and one-hot encoded categorical columns.

    Args:
        path: Path of a UTF-8 text file.
        label: Name or index of the column with the labels; None for no labels.
        header: True if the first line is a header. By default it is one if it holds no number and another line does.
        delimiter: One character; by default the most frequent of comma, semicolon and tab in the first line.
        missing: ``"drop"`` leaves out every record with a missing value. ``"refuse"`` makes a missing category a
            category of its own (``?``) and refuses a missing number.
        ignore: Columns to leave out, by name or index.
        categorical: Columns whose numbers are codes, by name or index.
        regression: True to read whole numbers as real labels instead of classes.
        like: Earlier data set whose encoding to use, so that a test file matches its training file.

    Returns:
        The records, encoded to [0, 1].

    Raises:
        InvalidInput: If an option is unknown or names a column that does not exist.
        InvalidFile: If the file cannot be read or a line is malformed; the message names the line.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "people.csv"
    ...     _ = path.write_text("age,city,sick\n20,Rome,0\n40,Oslo,1\n")
    ...     read_csv(path, label="sick").inputs
    tensor([[0., 0., 1.],
            [1., 1., 0.]])
    """
    path = Path(path)
    if like is not None and like.columns is None:
        raise invalid_input("like", like, "to be a table", "Pass like= the data set of the training file.")
    table = parse_table(path, read_text(path), header=header, delimiter=delimiter)
    real_labels = like is not None and like.labels is not None and like.labels.is_floating_point()
    chosen = infer_types(table, label=label, missing=missing, ignore=ignore, categorical=categorical)
    encoding = Encoding() if like is None else Encoding(like.columns, like.classes)
    return chosen.dataset(regression=regression or real_labels, encoding=encoding)


def read_text(path: Path) -> str:
    """Read a UTF-8 text file, with or without byte order mark, gzip or not.

    Args:
        path: Path of the file.

    Returns:
        Its text.

    Raises:
        InvalidFile: If the file cannot be read or is not UTF-8.
    """
    data = read_file_bytes(path)
    try:
        return data.decode("utf-8-sig")  # spreadsheet programs write a byte order mark
    except UnicodeDecodeError as error:
        raise InvalidFile(
            path,
            f"byte {error.start}",
            f"Expected UTF-8 text, found the byte {data[error.start]:02x}.",
            "Save the table as UTF-8.",
        ) from error


def parse_table(
    path: Path, text: str, *, header: bool | None, delimiter: str | None = None, names: Sequence[str] | None = None
) -> TextTable:
    """Parse a text table into cells by column. Empty lines are skipped.

    Args:
        path: File of the text, for messages.
        text: The table.
        header: True if the first line is a header; None to detect it.
        delimiter: One character; None to detect it.
        names: Names of the columns; None to take them from the header, or number them without one.

    Returns:
        Cells, column names and line numbers.

    Raises:
        InvalidInput: If ``delimiter`` is not one usable character.
        InvalidFile: If lines differ in their number of fields, names repeat, there is no record, or the header is
            unclear.
    """
    rows = _parse_rows(path, text, delimiter)
    first_line, first = rows[0]
    for line, row in rows:
        if len(row) != len(first):
            raise InvalidFile(
                path,
                f"line {line}",
                f"Expected {len(first)} fields as in line {first_line}, found {len(row)}.",
                "Complete the line, quote text that holds the delimiter, or pass delimiter=.",
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
            "Rename the columns, or pass header=False.",
        )
    if not rows:
        raise InvalidFile(path, f"line {first_line}", "Expected records after the header, found none.", "Add records.")
    cells = tuple(zip(*(row for _, row in rows), strict=True))
    return TextTable(path, tuple(names), tuple(line for line, _ in rows), cells)


def _parse_rows(path: Path, text: str, delimiter: str | None) -> list[tuple[int, list[str]]]:
    """Return line number and fields of each non-empty line; detect the delimiter from the first one if it is None."""
    if delimiter is None:
        first = next((line for line in io.StringIO(text) if line.strip()), "")
        delimiter = max(_DELIMITERS, key=first.count)
    if len(delimiter) != 1 or delimiter in '"\r\n ':
        raise invalid_input(
            "delimiter",
            delimiter,
            "to be one character, not a quote, a space or a line end",
            "Pass ',' or ';', for instance.",
        )
    # newline="": quoted fields may contain line ends; strict: unbalanced quotes are errors
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True)
    rows: list[tuple[int, list[str]]] = []
    try:
        for row in reader:
            if len(row) > 1 or (row and row[0].strip()):
                rows.append((reader.line_num, row))
    except csv.Error as error:
        raise InvalidFile(
            path, f"line {reader.line_num}", f"Expected a line of csv: {error}.", "Correct the quotes in this line."
        ) from error
    if not rows:
        raise InvalidFile(path, "line 1", "Expected records, found only empty lines.", "Check the file.")
    return rows


def _has_header(path: Path, rows: Sequence[tuple[int, Sequence[str]]]) -> bool:
    """Return True if the first line is a header: it holds no number and another line does."""
    first = [cell.strip() for cell in rows[0][1]]
    named = [cell for cell in first if cell]  # an index column often has no name
    if any(is_number(cell) for cell in first) or not named or len(set(named)) < len(named):
        return False
    if any(is_number(cell) for _, row in rows[1:] for cell in row):
        return True
    raise InvalidFile(
        path,
        f"line {rows[0][0]}",
        "Expected a number in some line, to distinguish header and records, found none.",
        "Pass header=True if the first line is a header, else header=False.",
    )

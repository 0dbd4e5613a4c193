"""Reader for UCI Adult, the census table in its original layout.

The files have no header, mark missing values by ``?``, and ``adult.test`` ends its labels with a dot.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from reconrisk.core.errors import InvalidFile
from reconrisk.core.validation import invalid_input
from reconrisk.data.columns import merge_columns
from reconrisk.data.csv_table import parse_table, read_text
from reconrisk.data.dataset import Dataset, concatenate
from reconrisk.data.table import Encoding, TextTable, infer_types

COLUMN_NAMES = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    "income",
)

_INCOMES = Encoding(classes=("<=50K", ">50K"))
_FILES = {"train": "adult.data", "test": "adult.test"}
# age, thirteen further fields, income with or without the dot of adult.test
_RECORD = re.compile(r"^\d+,(?:[^,\n]*,){13} ?[<>]=?50K\.?\s*$", re.MULTILINE)


def is_adult(text: str) -> bool:
    """Return True if the text begins like one of the Adult files.

    Args:
        text: Beginning of a text file; the first three lines are examined.

    Returns:
        True if one of these lines is a record with 15 fields, an age first and an income class last.
    """
    # adult.test begins with a remark, so the first record may be on the second or third line
    return any(_RECORD.match(line) for line in text.splitlines()[:3])


def read_adult(path: str | Path, *, missing: str = "refuse") -> Dataset:
    """Read one file of UCI Adult, gzip or not: fourteen columns, and the label ``income``.

    Ranges and categories are those of this file; read the folder to encode both files alike.

    Args:
        path: Path of ``adult.data`` or ``adult.test``.
        missing: ``"drop"`` leaves out every record with a missing value. ``"refuse"`` keeps a missing category as ``?``
            and refuses a missing number.

    Returns:
        The records, encoded to [0, 1].

    Raises:
        InvalidInput: If ``missing`` is neither of the two.
        InvalidFile: If the file cannot be read or a line is malformed.

    >>> import tempfile
    >>> line = "39, Private, 77516, Bachelors, 13, Divorced, Sales, Husband, White, Male, 0, 0, 40, Cuba, <=50K"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "adult.data"
    ...     _ = path.write_text(line)
    ...     read_adult(path)
    Dataset(adult.data, 1 x (14,) in [0, 1], 2 classes, 14 columns, licence: not stated)
    """
    return infer_types(_read_table(Path(path)), label="income", missing=missing).dataset(encoding=_INCOMES)


def read_adult_folder(folder: str | Path, *, split: str | None = None, missing: str = "refuse") -> Dataset:
    """Read ``adult.data`` and ``adult.test`` of one folder, gzip or not, encoded alike.

    Args:
        folder: Folder that holds both files.
        split: ``"train"``, ``"test"`` or None for all, training records first.
        missing: ``"drop"`` leaves out every record with a missing value. ``"refuse"`` keeps a missing category as ``?``
            and refuses a missing number.

    Returns:
        The records. Ranges and categories are those of both files, also for one split.

    Raises:
        InvalidInput: If ``split`` or ``missing`` is unknown.
        InvalidFile: If a file is missing or malformed.

    >>> import tempfile
    >>> line = "39, Private, 77516, Bachelors, 13, Divorced, Sales, Husband, White, Male, 0, 0, 40, Cuba, <=50K"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "adult.data").write_text(line)
    ...     _ = (Path(folder) / "adult.test").write_text(line.replace("39", "20") + ".")
    ...     read_adult_folder(folder, split="test").columns[0]
    NumericColumn(name='age', low=20.0, high=39.0, start=0)
    """
    folder = Path(folder)
    if split is not None and split not in _FILES:
        raise invalid_input("split", split, f"to be one of {', '.join(_FILES)} or None")
    tables = {}
    for name, file in _FILES.items():
        path = _find_file(folder, name)
        if path is None:
            raise InvalidFile(folder, file, "Expected this file, gzip or not.", "Download it from the UCI archive.")
        tables[name] = infer_types(_read_table(path), label="income", missing=missing)
    columns = merge_columns(*(table.columns() for table in tables.values()))
    encoding = replace(_INCOMES, columns=columns)
    parts = [table.dataset(encoding=encoding) for name, table in tables.items() if split in (None, name)]
    return concatenate(parts, folder)


def has_adult_files(folder: Path) -> bool:
    """Return True if the folder holds both files of UCI Adult.

    Args:
        folder: Folder to look at; it need not exist.

    Returns:
        True if the training file and the test file both exist.
    """
    return folder.is_dir() and all(_find_file(folder, name) is not None for name in _FILES)


def _find_file(folder: Path, split: str) -> Path | None:
    """Return the path of a split's file, gzip or not; None if it is not there."""
    names = (_FILES[split], f"{_FILES[split]}.gz")
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _read_table(path: Path) -> TextTable:
    """Read one file as text cells, with the dots of ``adult.test`` removed from the labels."""
    # adult.test begins with a remark, "|1x3 Cross validator"
    text = re.sub(r"\A\|[^\n]*", "", read_text(path))
    table = parse_table(path, text, header=False, delimiter=",", names=COLUMN_NAMES)
    incomes = tuple(cell.strip().removesuffix(".") for cell in table.cells[-1])
    return replace(table, cells=(*table.cells[:-1], incomes))

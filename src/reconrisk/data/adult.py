"""UCI Adult: the census table in its original layout, without header, with ``?`` and the dots of ``adult.test``."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from reconrisk.core.errors import InvalidFile
from reconrisk.core.validation import invalid_input
from reconrisk.data.columns import covering
from reconrisk.data.csv_table import text_of, text_table
from reconrisk.data.dataset import Dataset, joined
from reconrisk.data.table import Encoding, TextTable, typed

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
_RECORD = re.compile(r"^\d+,(?:[^,\n]*,){13} ?[<>]=?50K\.?\s*$", re.MULTILINE)


def is_adult(text: str) -> bool:
    """Whether the text begins as one of the Adult files does."""
    return any(_RECORD.match(line) for line in text.splitlines()[:3])


def read_adult(path: str | Path, *, missing: str = "refuse") -> Dataset:
    """One file of UCI Adult, gzip or not: fourteen columns, and the label ``income``.

    ``missing="drop"`` leaves out every record with a missing value. Ranges and categories are those of this file; load
    the folder to have both files encoded alike.
    """
    return typed(_table(Path(path)), label="income", missing=missing).dataset(encoding=_INCOMES)


def read_adult_folder(folder: str | Path, *, split: str | None = None, missing: str = "refuse") -> Dataset:
    """``adult.data`` and ``adult.test`` of one folder, gzip or not, encoded alike: ranges and categories are of both.

    ``split`` is ``"train"``, ``"test"`` or None for all, training records first.
    """
    folder = Path(folder)
    if split is not None and split not in _FILES:
        raise invalid_input("split", split, f"to be one of {', '.join(_FILES)} or None")
    tables = {}
    for name, file in _FILES.items():
        path = _found(folder, name)
        if path is None:
            raise InvalidFile(folder, file, "Expected this file, gzip or not.", "Fetch it from UCI's archive.")
        tables[name] = typed(_table(path), label="income", missing=missing)
    columns = covering(*(table.columns() for table in tables.values()))
    encoding = replace(_INCOMES, columns=columns)
    parts = [table.dataset(encoding=encoding) for name, table in tables.items() if split in (None, name)]
    return joined(parts, folder)


def has_adult_files(folder: Path) -> bool:
    """Whether both files lie in the folder."""
    return folder.is_dir() and all(_found(folder, name) is not None for name in _FILES)


def _found(folder: Path, split: str) -> Path | None:
    names = (_FILES[split], f"{_FILES[split]}.gz")
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _table(path: Path) -> TextTable:
    # adult.test begins with a remark, "|1x3 Cross validator"
    text = re.sub(r"\A\|[^\n]*", "", text_of(path))
    table = text_table(path, text, header=False, delimiter=",", names=COLUMN_NAMES)
    incomes = tuple(cell.strip().removesuffix(".") for cell in table.cells[-1])
    return replace(table, cells=(*table.cells[:-1], incomes))

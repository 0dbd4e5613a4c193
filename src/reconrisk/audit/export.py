"""Trials as a table for other programs: csv, json, parquet."""

from __future__ import annotations

import csv
import importlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from reconrisk.audit.trial import Trial
from reconrisk.core.errors import MissingExtra
from reconrisk.core.files import write_whole
from reconrisk.core.serialization import to_plain
from reconrisk.core.validation import refuse

Columns = Mapping[str, list[Any]]


def columns_of(run: str, trials: Iterable[Trial]) -> Columns:
    """One row for each record of each trial, by column.

    ``seconds``, ``evaluations`` and ``seed`` are those of the trial, which has as many rows as its update has records.

    Edge cases: a metric that some trials lack is None there.
    """
    found = tuple(trials)
    metrics = tuple(dict.fromkeys(scores.metric for trial in found for scores in trial.scores))
    names = ("run", "defense", "attack", "draw", "record", *metrics, "status", "seconds", "evaluations", "seed")
    rows = [row for trial in found for row in _rows(run, trial, metrics)]
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def write_columns(path: str | Path, columns: Columns, *, form: str | None = None) -> Path:
    """Write a table in a form of :data:`FORMS`, by default that of the name of the file, for its owner's eyes alone."""
    path = Path(path)
    form = path.suffix.removeprefix(".").lower() if form is None else form
    if form not in FORMS:
        raise refuse("format", form, f"to be one of {', '.join(FORMS)}", "State it, or end the name of the file so.")
    write = FORMS[form]
    return write_whole(path, lambda temporary: write(temporary, columns), secret=True)


def _rows(run: str, trial: Trial, metrics: tuple[str, ...]) -> Iterable[tuple[Any, ...]]:
    key, account = trial.key, trial.account
    known = {scores.metric: scores.values for scores in trial.scores}
    values = [known.get(metric, (None,) * len(trial.records)) for metric in metrics]
    cost = (account.status.ending.value, account.cost.seconds, account.cost.evaluations, trial.seed)
    for place, record in enumerate(trial.records):
        yield (run, key.defense, key.attack, key.draw, record, *(each[place] for each in values), *cost)


def _write_csv(path: Path, columns: Columns) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def _write_json(path: Path, columns: Columns) -> None:
    rows = [dict(zip(columns, map(to_plain, row), strict=True)) for row in zip(*columns.values(), strict=True)]
    path.write_text(json.dumps(rows, allow_nan=False) + "\n", encoding="utf-8")


def _write_parquet(path: Path, columns: Columns) -> None:
    try:
        pyarrow, parquet = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet"))
    except ImportError as error:
        raise MissingExtra("pyarrow", "parquet", "Writing parquet") from error
    parquet.write_table(pyarrow.table(dict(columns)), path)


FORMS: Mapping[str, Callable[[Path, Columns], None]] = {
    "csv": _write_csv,
    "json": _write_json,
    "parquet": _write_parquet,
}
"""How tables are written. JSON has infinite scores as strings, which ``float`` reads."""

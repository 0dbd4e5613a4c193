"""Trials in a SQLite file, written one by one as they finish; estimates beside it as safetensors."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from reconrisk.audit.audit_result import AuditResult
from reconrisk.audit.run_info import RunInfo, hash_of_text
from reconrisk.audit.trial import Trial, TrialKey
from reconrisk.core.errors import InvalidFile
from reconrisk.core.files import write_whole
from reconrisk.core.serialization import from_json, to_json
from reconrisk.core.validation import refuse

VERSION = 1
_BUSY_SECONDS = 30.0
_REMEDY = "Pass a store that an audit has written, or a path where there is no file."
_TABLES = """
CREATE TABLE IF NOT EXISTS runs (run TEXT PRIMARY KEY, created TEXT NOT NULL, info TEXT NOT NULL, result TEXT);
CREATE TABLE IF NOT EXISTS trials (
    run TEXT NOT NULL, defense TEXT NOT NULL, attack TEXT NOT NULL, draw INTEGER NOT NULL, trial TEXT NOT NULL,
    PRIMARY KEY (run, defense, attack, draw)
) WITHOUT ROWID;
"""


class Store:
    """A file of runs and their trials.

    Guarantee: a trial is in it whole or not at all, whenever the process ends; estimates are written first. Several
    processes may write to one file.
    """

    def __init__(self, connection: sqlite3.Connection, folder: Path | None) -> None:
        self._connection, self._folder = connection, folder
        self._held: dict[tuple[str, TrialKey], Tensor] = {}

    @staticmethod
    @contextmanager
    def open(path: str | Path | None) -> Iterator[Store]:
        """The store in a file, made if it is not there; in memory for None."""
        file = None if path is None else Path(path)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
        try:
            connection = sqlite3.connect(":memory:" if file is None else file, timeout=_BUSY_SECONDS)
        except sqlite3.Error as error:
            raise InvalidFile(str(path), "store", str(error), _REMEDY) from error
        try:
            _prepare(connection, path)
            yield Store(connection, None if file is None else file.with_name(f"{file.name}.arrays"))
        finally:
            connection.close()

    def begin(self, info: RunInfo) -> None:
        """Make a run known, if it is not."""
        with self._connection:
            self._connection.execute(
                "INSERT OR IGNORE INTO runs (run, created, info) VALUES (?, ?, ?)",
                (info.run, info.created, to_json(info)),
            )

    def add(self, run: str, trial: Trial, estimates: Tensor) -> None:
        """Keep a trial; one of the same key is replaced."""
        key = trial.key
        if self._folder is None:
            self._held[run, key] = estimates
        else:
            tensors = {"estimates": estimates.contiguous()}
            write_whole(self._file(run, key), lambda path: save_file(tensors, path), secret=True)
        with self._connection:
            self._connection.execute(
                "INSERT OR REPLACE INTO trials VALUES (?, ?, ?, ?, ?)",
                (run, key.defense, key.attack, key.draw, to_json(trial)),
            )

    def trials(self, run: str) -> tuple[Trial, ...]:
        """Every trial of a run."""
        rows = self._connection.execute("SELECT trial FROM trials WHERE run = ?", (run,))
        return tuple(from_json(text) for (text,) in rows)

    def estimates(self, run: str, key: TrialKey) -> Tensor | None:
        """The estimates of a trial, None if they are gone."""
        if self._folder is None:
            return self._held.get((run, key))
        try:
            return load_file(self._file(run, key))["estimates"]
        except (OSError, SafetensorError, KeyError):
            return None

    def finish(self, run: str, result: AuditResult) -> None:
        """Keep the result of a run as it is now."""
        with self._connection:
            self._connection.execute("UPDATE runs SET result = ? WHERE run = ?", (to_json(result), run))

    def _file(self, run: str, key: TrialKey) -> Path:
        if self._folder is None:
            raise refuse("store", None, "to be a file")
        return self._folder / run / f"{hash_of_text(repr(key))}.safetensors"


def _prepare(connection: sqlite3.Connection, path: object) -> None:
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, VERSION):
            raise InvalidFile(str(path), "store", f"it is of version {version}, not {VERSION}", _REMEDY)
        connection.executescript(_TABLES)
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.commit()
    except sqlite3.DatabaseError as error:
        raise InvalidFile(str(path), "store", str(error), _REMEDY) from error

"""Trials in a SQLite file, written one by one as they finish; estimates beside it as safetensors."""

from __future__ import annotations

import difflib
import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from reconrisk.audit.run_info import RunInfo, hash_of_text
from reconrisk.audit.store_file import connected, connected_for_reading, explained, transaction
from reconrisk.audit.trial import Trial, TrialKey
from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.core.files import write_whole
from reconrisk.core.serialization import from_json, serializable, to_json
from reconrisk.core.validation import refuse

if TYPE_CHECKING:
    from torch import Tensor

    from reconrisk.audit.audit_result import AuditResult

T = TypeVar("T")

_NAMED = 8
_ABANDONED_SECONDS = 3600.0
_DAMAGED = "It is damaged, of a later version, or another file. Take it from a backup, or name another one."
_GO_ON = "Run the same audit again: it goes on where it was."
_TRIALS = "SELECT trial FROM trials WHERE run = ? ORDER BY draw, defense, attack"
_SUMMARIES = """
    SELECT runs.run, created, subject, data, COALESCE(done.trials, 0), planned, COALESCE(done.seconds, 0.0), standing,
        sentence
    FROM runs LEFT JOIN (SELECT run, COUNT(*) AS trials, SUM(seconds) AS seconds FROM trials GROUP BY run) AS done
    ON done.run = runs.run ORDER BY created, runs.rowid
"""


@serializable
@dataclass(frozen=True)
class RunSummary:
    """A run in a line: how many ``trials`` are in the store, and the ``seconds`` that their attacks took.

    ``data`` is a name once the run has a result, a hash before. ``planned`` trials, ``sentence``, and ``standing`` to
    the limits, if any were stated, are those of its result, None before there is one.
    """

    run: str
    created: str
    subject: str
    data: str
    trials: int
    planned: int | None
    seconds: float
    standing: str | None
    sentence: str | None


class Store:
    """A file of runs and their trials.

    Guarantee: a trial is in it whole or not at all, whenever the process ends; estimates are written first. Several
    processes may write to one file. File and estimates are readable by their owner alone. A file that is no store is
    not touched. On a full disk a trial is refused with InvalidFile, and those before it stay.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path | None) -> None:
        self._connection, self._path = connection, path
        self._held: dict[tuple[str, TrialKey], Tensor] = {}

    @staticmethod
    @contextmanager
    def open(path: str | Path | None) -> Iterator[Store]:
        """The store in a file, made if it is not there; in memory for None.

        >>> with Store.open(None) as store:
        ...     store.runs()
        ()
        """
        file = None if path is None else Path(path)
        with closing(connected(file)) as connection:
            yield Store(connection, file)

    @staticmethod
    @contextmanager
    def read(path: str | Path) -> Iterator[Store]:
        """The store in a file that is there; refuses to write."""
        with closing(connected_for_reading(Path(path))) as connection:
            yield Store(connection, Path(path))

    def begin(self, info: RunInfo) -> None:
        """Make a run known, if it is not."""
        with explained(self._path, f"run {info.run}"), transaction(self._connection):
            self._connection.execute(
                "INSERT OR IGNORE INTO runs (run, created, subject, data, info) VALUES (?, ?, ?, ?, ?)",
                (info.run, info.created, info.subject, info.data, to_json(info)),
            )
        self._sweep(info.run)

    def add(self, run: str, trial: Trial, estimates: Tensor) -> None:
        """Keep a trial; one of the same key is replaced, which is how an attack with other settings comes in."""
        key, account = trial.key, trial.account
        arrays = f"{hash_of_text(repr((key, trial.settings)))}.safetensors"
        with explained(self._path, f"trial {key.attack}, draw {key.draw}"):
            if self._path is None:
                self._held[run, key] = estimates
            else:
                from safetensors.torch import save_file

                tensors = {"estimates": estimates.detach().cpu().contiguous()}
                for folder in (self._folder(run).parent, self._folder(run)):
                    folder.mkdir(exist_ok=True, mode=0o700)
                write_whole(self._folder(run) / arrays, lambda path: save_file(tensors, path), secret=True)
            with transaction(self._connection):
                replaced = self._arrays(run, key)
                self._connection.execute(
                    "INSERT OR REPLACE INTO trials VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        *(run, key.defense, key.attack, key.draw),
                        *(account.status.ending.value, account.cost.seconds, account.cost.evaluations),
                        *(arrays, to_json(trial)),
                    ),
                )
            if self._path is not None and replaced not in (None, arrays):
                (self._folder(run) / str(replaced)).unlink(missing_ok=True)

    def finish(self, run: str, result: AuditResult) -> None:
        """Keep the result of a run as it is now."""
        with explained(self._path, f"result of run {run}"), transaction(self._connection):
            self._connection.execute(
                "UPDATE runs SET result = ?, data = ?, planned = ?, standing = ?, sentence = ? WHERE run = ?",
                (to_json(result), result.subject.data, result.planned, _standing(result), result.sentence(), run),
            )

    def runs(self) -> tuple[RunSummary, ...]:
        """Every run in a line, the oldest first; no trial is read."""
        with explained(self._path, "runs"):
            return tuple(RunSummary(*row) for row in self._connection.execute(_SUMMARIES))

    def name(self, beginning: str | None = None) -> str:
        """The run whose name begins so; the newest for None."""
        with explained(self._path, "runs"):
            rows = self._connection.execute("SELECT run FROM runs ORDER BY created DESC, rowid DESC")
            known = [run for (run,) in rows]
        if not known:
            raise InvalidInput(f"Expected a run in {self._path}, there is none. Run an audit with this store.")
        if beginning is None:
            return str(known[0])
        found = [run for run in known if run.startswith(beginning)]
        if len(found) == 1 or beginning in found:
            return beginning if beginning in found else str(found[0])
        if found:
            raise refuse("run", beginning, "to be the beginning of one run", f"It is that of {', '.join(found)}.")
        close = difflib.get_close_matches(beginning, known, n=1, cutoff=0.5)
        more = f" and {len(known) - _NAMED} older ones" if len(known) > _NAMED else ""
        remedy = f"Did you mean {close[0]}?" if close else ""
        raise refuse("run", beginning, f"to be the beginning of one of {', '.join(known[:_NAMED])}{more}", remedy)

    def info(self, run: str | None = None) -> RunInfo:
        """What identifies a run, which may be stated by the beginning of its name."""
        name = self.name(run)
        with explained(self._path, f"run {name}"):
            (text,) = self._connection.execute("SELECT info FROM runs WHERE run = ?", (name,)).fetchone()
        return self._parsed(text, RunInfo, f"run {name}")

    def result(self, run: str | None = None, *, with_exposures: bool = True) -> AuditResult:
        """The result of a run, which may be stated by the beginning of its name; of the newest for None.

        Without exposures, which are as many as records and defenses, it is read many times faster.
        """
        name = self.name(run)
        with explained(self._path, f"result of run {name}"):
            (text,) = self._connection.execute("SELECT result FROM runs WHERE run = ?", (name,)).fetchone()
        if text is None:
            raise InvalidInput(f"Expected run={name!r} to have a result, it was ended before. {_GO_ON}")
        return result_from_json(text, path=str(self._path), with_exposures=with_exposures)

    def trials(self, run: str) -> tuple[Trial, ...]:
        """Every trial of a run, update by update."""
        with explained(self._path, f"trials of run {run}"):
            rows = self._connection.execute(_TRIALS, (run,)).fetchall()
        return tuple(self._parsed(text, Trial, f"trials of run {run}") for (text,) in rows)

    def estimates(self, run: str, key: TrialKey) -> Tensor | None:
        """The estimates of a trial, None if they are gone."""
        if self._path is None:
            return self._held.get((run, key))
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        with explained(self._path, f"trials of run {run}"):
            arrays = self._arrays(run, key)
        try:
            return None if arrays is None else load_file(self._folder(run) / arrays)["estimates"]
        except (OSError, SafetensorError, KeyError):
            return None

    def _arrays(self, run: str, key: TrialKey) -> str | None:
        """The file of the estimates of a trial, None if it is not in the store."""
        row = self._connection.execute(
            "SELECT arrays FROM trials WHERE run = ? AND defense = ? AND attack = ? AND draw = ?",
            (run, key.defense, key.attack, key.draw),
        ).fetchone()
        return None if row is None else str(row[0])

    def _folder(self, run: str) -> Path:
        if self._path is None:
            raise refuse("store", None, "to be a file")
        return self._path.with_name(f"{self._path.name}.arrays") / run

    def _sweep(self, run: str) -> None:
        """Remove what killed processes were writing: it may be private, and nobody will ask for it."""
        if self._path is None:
            return
        for file in self._folder(run).glob("tmp*"):
            with suppress(OSError):  # another process may be faster, and nothing depends on it
                if time.time() - file.stat().st_mtime > _ABANDONED_SECONDS:
                    file.unlink(missing_ok=True)

    def _parsed(self, text: str, kind: type[T], place: str) -> T:
        return _parsed(text, kind, str(self._path), place)


def result_from_json(text: str, *, path: str, with_exposures: bool = True) -> AuditResult:
    """The result of an audit from the JSON in a file, if it is one."""
    from reconrisk.audit.audit_result import AuditResult

    if not with_exposures:
        with suppress(json.JSONDecodeError):  # which reading explains
            plain = json.loads(text)
            text = json.dumps({**plain, "exposures": []}) if isinstance(plain, dict) and "exposures" in plain else text
    return _parsed(text, AuditResult, path, "result")


def _parsed(text: str, kind: type[T], path: str, place: str) -> T:
    """The value of a kind that a text in a file holds."""
    try:
        value = from_json(text)
    except InvalidInput as error:
        raise InvalidFile(path, place, str(error), _DAMAGED) from error
    if not isinstance(value, kind):
        raise InvalidFile(path, place, f"it holds a {type(value).__name__}, no {kind.__name__}.", _DAMAGED)
    return value


def _standing(result: AuditResult) -> str | None:
    """The worst standing of a risk to its limit, None without limits."""
    from reconrisk.audit.audit_result import Standing

    found = {check.standing for line in result.lines for check in line.limits}
    order = (Standing.ABOVE, Standing.NOT_SHOWN, Standing.MEASURED, Standing.PROVED)
    return next((standing.value for standing in order if standing in found), None)

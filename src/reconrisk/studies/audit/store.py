"""Trials in a SQLite file, written one by one as they finish, with their estimates as safetensors.

The estimates of a trial are written first. A run is named by a hash of everything that its trials depend on, except the
attacks, which each trial records: more attacks or trials continue the same run. :func:`write_columns` exports trials as
csv, json or parquet.
"""

from __future__ import annotations

import csv
import difflib
import importlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from reconrisk.core.digest import short_digest
from reconrisk.core.errors import InvalidFile, InvalidInput, MissingExtra
from reconrisk.core.storage.files import write_atomically, wrong_version
from reconrisk.core.storage.serialization import from_json, serializable, to_json, to_plain
from reconrisk.core.validation import invalid_input
from reconrisk.studies.common.runs import RunInfo, Trial, TrialKey

if TYPE_CHECKING:
    from torch import Tensor

    from reconrisk.studies.audit.result import AuditResult
    from reconrisk.studies.common.runs import RunInfo

Columns = Mapping[str, list[Any]]


def trial_columns(run: str, trials: Iterable[Trial]) -> Columns:
    """Return trials as a table with one row for each record of each trial.

    Args:
        run: Name of the run, for the first column.
        trials: Trials of the run.

    Returns:
        Values by column. ``seconds``, ``evaluations`` and ``seed`` are those of the whole trial.

    Edge cases: a metric that some trials lack is None there.
    """
    found = tuple(trials)
    metrics = tuple(dict.fromkeys(scores.metric for trial in found for scores in trial.scores))
    names = ("run", "defense", "attack", "draw", "record", *metrics, "status", "seconds", "evaluations", "seed")
    rows: list[tuple[Any, ...]] = []
    for trial in found:
        key, account = trial.key, trial.account
        known = {scores.metric: scores.values for scores in trial.scores}
        values = [known.get(metric, (None,) * len(trial.records)) for metric in metrics]
        cost = (account.status.ending.value, account.cost.seconds, account.cost.evaluations, trial.seed)
        for place, record in enumerate(trial.records):
            rows.append((run, key.defense, key.attack, key.draw, record, *(each[place] for each in values), *cost))
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def write_columns(path: str | Path, columns: Columns, *, form: str | None = None) -> Path:
    """Write a table to a file that only its owner can read.

    Args:
        path: Path of the file.
        columns: Values by column.
        form: One of :data:`FORMS`; by default the suffix of the path.

    Returns:
        The path.

    Raises:
        InvalidInput: If the form is unknown.
        MissingExtra: If parquet is asked for without pyarrow.
    """
    path = Path(path)
    form = path.suffix.removeprefix(".").lower() if form is None else form
    if form not in FORMS:
        raise invalid_input(
            "format", form, f"to be one of {', '.join(FORMS)}", "Pass form= (--format), or end the file name with one."
        )
    write = FORMS[form]
    return write_atomically(path, lambda temporary: write(temporary, columns), secret=True)


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
"""Writers by form. JSON holds infinite scores as strings that ``float`` reads."""


VERSION = 2
"""Version of the file. Since 2, trials and results have the tags of :mod:`reconrisk.core.storage.serialization`."""

_KIND = 0x52524953  # "RRIS": distinguishes a store from the SQLite file of another program
_MAGIC = b"SQLite format 3\x00"  # first bytes of every SQLite file
_BUSY_SECONDS = 30.0  # time to wait for another process that writes
_ANOTHER = "Name a store that an audit has written, or a path where there is no file. Nothing was changed."
_TABLES = (
    """CREATE TABLE runs (
        run TEXT PRIMARY KEY, created TEXT NOT NULL, subject TEXT NOT NULL, data TEXT NOT NULL, info TEXT NOT NULL,
        planned INTEGER, standing TEXT, sentence TEXT, result TEXT)""",
    """CREATE TABLE trials (
        run TEXT NOT NULL, defense TEXT NOT NULL, attack TEXT NOT NULL, draw INTEGER NOT NULL,
        status TEXT NOT NULL, seconds REAL NOT NULL, evaluations INTEGER NOT NULL, arrays TEXT NOT NULL,
        trial TEXT NOT NULL, PRIMARY KEY (run, defense, attack, draw))""",
    "CREATE INDEX cost ON trials (run, seconds)",  # covers the summary of runs, which then reads no trial
    f"PRAGMA application_id = {_KIND}",
    f"PRAGMA user_version = {VERSION}",
)
_WRITABLE = "Choose a folder that can be written to."
_REMEDIES = (
    (("full", "no space"), "Free space on the disk, then run the same audit again: it resumes."),
    (("locked", "busy"), "Another process is writing to it. Run the same audit again when that is done."),
    (("readonly", "read-only", "unable to open"), _WRITABLE),
    (("i/o",), "Check the disk, then run the same audit again: it resumes."),
    (("no such table", "no such column"), _ANOTHER),
)
_DAMAGED_FILE = "The file is damaged. Restore a backup, or name another store. Nothing was changed."


@contextmanager
def translate_file_errors(path: Path | None, place: str) -> Iterator[None]:
    """Report errors of SQLite, safetensors and the file system as InvalidFile with a remedy.

    Args:
        path: File that the body uses; None for a store in memory.
        place: Part of the file, for the message.

    Raises:
        InvalidFile: If the body raises such an error.
    """
    from safetensors import SafetensorError

    try:
        yield
    except (sqlite3.Error, SafetensorError, OSError) as error:
        text = str((isinstance(error, OSError) and error.strerror) or error).rstrip(".")
        remedies = (remedy for words, remedy in _REMEDIES if any(word in text.lower() for word in words))
        otherwise = _WRITABLE if isinstance(error, OSError) else _DAMAGED_FILE
        raise InvalidFile(path or "store in memory", place, f"{text}.", next(remedies, otherwise)) from error


def connect(path: Path | None) -> sqlite3.Connection:
    """Open the database in a file, and create the file if necessary.

    Args:
        path: File of the store; None for a database in memory.

    Returns:
        The connection, which the caller closes.

    Raises:
        InvalidFile: If the file is not a store, or cannot be opened.

    Guarantee: a file that is not a store is not changed. Only its owner can read a new file.
    """
    with translate_file_errors(path, "store"):
        if path is None:
            connection = sqlite3.connect(":memory:", isolation_level=None)
        else:
            _create_or_check_file(path)
            connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
        try:
            if _is_new(connection, path):
                _create_tables(connection, path)
            connection.execute("PRAGMA synchronous = NORMAL")  # faster; with WAL a killed process loses nothing
        except BaseException:
            connection.close()
            raise
    return connection


def _connect_read_only(path: Path) -> sqlite3.Connection:
    """Open the database in an existing file; writing to it is refused."""
    if not path.exists():
        raise InvalidFile(path, "store", "there is no such file.", "Name a store that an audit has written.")
    with translate_file_errors(path, "store"):
        _create_or_check_file(path)
        writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
        # SQLite opens a read-only file only if it is declared immutable, which it is if nobody can write to it.
        mode = "mode=rw" if writable else "mode=ro&immutable=1"
        uri = f"{path.absolute().as_uri()}?{mode}"
        connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
        try:
            if _is_new(connection, path):
                raise InvalidFile(path, "store", "it is empty.", "Name a store that an audit has written.")
            connection.execute("PRAGMA query_only = ON")
        except BaseException:
            connection.close()
            raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the body as one transaction: everything is written, or nothing.

    Args:
        connection: Open database.
    """
    connection.execute("BEGIN IMMEDIATE")  # takes the write lock now, so that a later write cannot fail on it
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # a full disk ends the transaction by itself
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _create_or_check_file(path: Path) -> None:
    """Create an empty file that only its owner can read, or refuse a file of another kind before it is opened."""
    if path.is_dir():
        raise InvalidFile(path, "store", "it is a folder.", _ANOTHER)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))  # before SQLite opens it
        except FileExistsError:  # another process was faster
            return
    with path.open("rb") as file:
        beginning = file.read(len(_MAGIC))
    if beginning not in (b"", _MAGIC):
        raise InvalidFile(path, "byte 0", "it is not an SQLite file.", _ANOTHER)


@contextmanager
def _read_transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the body on one state of the file, which another process may be changing."""
    own = not connection.in_transaction
    if own:
        connection.execute("BEGIN")
    try:
        yield
    finally:
        if own and connection.in_transaction:  # an error of the file may have ended it
            connection.execute("COMMIT")


def _is_new(connection: sqlite3.Connection, path: Path | None) -> bool:
    """Return True if the database is empty; refuse one of another program or another version."""
    with _read_transaction(connection):
        (tables,) = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        (kind,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    if kind == 0 and version == 0 and tables == 0:  # the values of a new SQLite file
        return True
    if kind != _KIND:
        raise InvalidFile(path or "", "application_id", "it is the database of another program.", _ANOTHER)
    if version != VERSION:
        raise wrong_version(path or "", "user_version", "a store", found=version, reads=VERSION)
    return False


def _create_tables(connection: sqlite3.Connection, path: Path | None) -> None:
    """Create the tables, unless another process does so first."""
    until = time.monotonic() + _BUSY_SECONDS  # the change of the journal mode ignores the timeout of SQLite
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.01)  # another process is creating the tables
        else:
            break
    with transaction(connection):
        if _is_new(connection, path):  # another process may have been faster
            for statement in _TABLES:
                connection.execute(statement)


T = TypeVar("T")

_NAMED = 8  # most runs that a message lists
_ABANDONED_SECONDS = 3600.0  # age at which a temporary file belongs to a killed process
_DAMAGED = "It is damaged, of another version, or another file. Restore a backup, or name another file."
_GO_ON = "Run the same audit again: it resumes."
_TRIALS = "SELECT trial FROM trials WHERE run = ? ORDER BY draw, defense, attack"
_SUMMARIES = """
    SELECT runs.run, created, subject, data, COALESCE(done.trials, 0), planned, COALESCE(done.seconds, 0.0), standing,
        sentence
    FROM runs LEFT JOIN (SELECT run, COUNT(*) AS trials, SUM(seconds) AS seconds FROM trials GROUP BY run) AS done
    ON done.run = runs.run ORDER BY created, runs.rowid
"""


@serializable("run-summary")
@dataclass(frozen=True)
class RunSummary:
    """Summary of a run in a store.

    Attributes:
        run: Name of the run.
        created: Time of creation, ISO 8601 in UTC.
        subject: Name of the audited model.
        data: Name of the data set; its digest if the run has no result yet.
        trials: Trials in the store.
        planned: Planned trials; None without a result.
        seconds: Total time of the attacks.
        standing: Worst position of a risk relative to its limit; None without limits or a result.
        sentence: Verdict; None without a result.
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

    Guarantee: a trial is stored completely or not at all, even if the process is killed; estimates are written first.
    Several processes may write to one file. Only their owner can read the file and the estimates. A file that is not a
    store is not changed. On a full disk, a trial is refused with InvalidFile and earlier trials stay.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path | None) -> None:
        self._connection, self._path = connection, path
        self._in_memory: dict[tuple[str, TrialKey], Tensor] = {}

    @staticmethod
    @contextmanager
    def open(path: str | Path | None) -> Iterator[Store]:
        """Open the store in a file, and create it if necessary; None keeps it in memory.

        >>> with Store.open(None) as store:
        ...     store.runs()
        ()
        """
        file = None if path is None else Path(path)
        with closing(connect(file)) as connection:
            yield Store(connection, file)

    @staticmethod
    @contextmanager
    def read(path: str | Path) -> Iterator[Store]:
        """Open the store in an existing file for reading."""
        with closing(_connect_read_only(Path(path))) as connection:
            yield Store(connection, Path(path))

    def begin(self, info: RunInfo) -> None:
        """Register a run, if it is new, and delete temporary files of killed processes.

        Such files may hold private records, and nothing else would delete them.
        """
        with translate_file_errors(self._path, f"run {info.run}"), transaction(self._connection):
            self._connection.execute(
                "INSERT OR IGNORE INTO runs (run, created, subject, data, info) VALUES (?, ?, ?, ?, ?)",
                (info.run, info.created, info.subject, info.data, to_json(info)),
            )
        if self._path is None:
            return
        for file in self._folder(info.run).glob("tmp*"):
            with suppress(OSError):  # another process may delete it first
                if time.time() - file.stat().st_mtime > _ABANDONED_SECONDS:
                    file.unlink(missing_ok=True)

    def add(self, run: str, trial: Trial, estimates: Tensor) -> None:
        """Store a trial. It replaces a trial with the same key, for example of an attack with other settings.

        Args:
            run: Name of the run.
            trial: The trial.
            estimates: Its estimates, in the order of the records.
        """
        key, account = trial.key, trial.account
        # The name depends on the settings: the estimates of a replaced trial are not overwritten before the commit.
        arrays = f"{short_digest(repr((key, trial.settings)))}.safetensors"
        with translate_file_errors(self._path, f"trial {key.attack}, draw {key.draw}"):
            if self._path is None:
                self._in_memory[run, key] = estimates
            else:
                from safetensors.torch import save_file

                tensors = {"estimates": estimates.detach().cpu().contiguous()}
                for folder in (self._folder(run).parent, self._folder(run)):
                    folder.mkdir(exist_ok=True, mode=0o700)  # estimates resemble private records
                write_atomically(self._folder(run) / arrays, lambda path: save_file(tensors, path), secret=True)
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
        """Store the result of a run, with the worst position of a risk relative to its limit."""
        from reconrisk.studies.audit.result import Standing

        found = {check.standing for line in result.lines for check in line.limits}
        order = (Standing.ABOVE, Standing.NOT_SHOWN, Standing.MEASURED, Standing.PROVED)  # worst first
        standing = next((each.value for each in order if each in found), None)
        with translate_file_errors(self._path, f"result of run {run}"), transaction(self._connection):
            self._connection.execute(
                "UPDATE runs SET result = ?, data = ?, planned = ?, standing = ?, sentence = ? WHERE run = ?",
                (to_json(result), result.subject.data, result.planned, standing, result.sentence, run),
            )

    def runs(self) -> tuple[RunSummary, ...]:
        """Return a summary of every run, the oldest first; trials are not read."""
        with translate_file_errors(self._path, "runs"):
            return tuple(RunSummary(*row) for row in self._connection.execute(_SUMMARIES))

    def name(self, beginning: str | None = None) -> str:
        """Return the name of the run that begins with this text; of the newest run for None."""
        with translate_file_errors(self._path, "runs"):
            rows = self._connection.execute("SELECT run FROM runs ORDER BY created DESC, rowid DESC")
            known = [run for (run,) in rows]
        if not known:
            raise InvalidInput(f"Expected a run in {self._path}, found none. Run an audit with this store.")
        if beginning is None:
            return str(known[0])
        found = [run for run in known if run.startswith(beginning)]
        if len(found) == 1 or beginning in found:
            return beginning if beginning in found else str(found[0])
        if found:
            raise invalid_input(
                "run", beginning, "to be the beginning of one run", f"{', '.join(found)} begin with it."
            )
        close = difflib.get_close_matches(beginning, known, n=1, cutoff=0.5)  # lower than usual: names are short
        more = f" and {len(known) - _NAMED} older ones" if len(known) > _NAMED else ""
        remedy = f"Did you mean {close[0]}?" if close else ""
        raise invalid_input(
            "run", beginning, f"to be the beginning of one of {', '.join(known[:_NAMED])}{more}", remedy
        )

    def info(self, run: str | None = None) -> RunInfo:
        """Return the identity of the run whose name begins with this text; of the newest run for None."""
        from reconrisk.studies.common.runs import RunInfo

        name = self.name(run)
        with translate_file_errors(self._path, f"run {name}"):
            (text,) = self._connection.execute("SELECT info FROM runs WHERE run = ?", (name,)).fetchone()
        return _parse_value(text, RunInfo, str(self._path), f"run {name}")

    def result(self, run: str | None = None, *, with_exposures: bool = True) -> AuditResult:
        """Return the result of a run.

        Args:
            run: Beginning of the name of the run; None for the newest run.
            with_exposures: False to skip the exposures of single records, which makes reading many times faster.

        Returns:
            The result as it was stored when the run ended.
        """
        name = self.name(run)
        with translate_file_errors(self._path, f"result of run {name}"):
            (text,) = self._connection.execute("SELECT result FROM runs WHERE run = ?", (name,)).fetchone()
        if text is None:
            raise InvalidInput(f"Expected run={name!r} to have a result, but it was stopped before. {_GO_ON}")
        return result_from_json(text, path=str(self._path), with_exposures=with_exposures)

    def trials(self, run: str) -> tuple[Trial, ...]:
        """Return every trial of a run, ordered by update."""
        with translate_file_errors(self._path, f"trials of run {run}"):
            rows = self._connection.execute(_TRIALS, (run,)).fetchall()
        return tuple(_parse_value(text, Trial, str(self._path), f"trials of run {run}") for (text,) in rows)

    def estimates(self, run: str, key: TrialKey) -> Tensor | None:
        """Return the estimates of a trial; None if they are lost."""
        if self._path is None:
            return self._in_memory.get((run, key))
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        with translate_file_errors(self._path, f"trials of run {run}"):
            arrays = self._arrays(run, key)
        try:
            return None if arrays is None else load_file(self._folder(run) / arrays)["estimates"]
        except (OSError, SafetensorError, KeyError):
            return None

    def _arrays(self, run: str, key: TrialKey) -> str | None:
        """Return the file name of the estimates of a trial; None if the trial is not in the store."""
        row = self._connection.execute(
            "SELECT arrays FROM trials WHERE run = ? AND defense = ? AND attack = ? AND draw = ?",
            (run, key.defense, key.attack, key.draw),
        ).fetchone()
        return None if row is None else str(row[0])

    def _folder(self, run: str) -> Path:
        if self._path is None:
            raise InvalidInput(
                'Expected a store in a file, got one in memory. Pass store="audit.sqlite", for instance.'
            )
        return self._path.with_name(f"{self._path.name}.arrays") / run


def result_from_json(text: str, *, path: str, with_exposures: bool = True) -> AuditResult:
    """Return the result of an audit from JSON text.

    Args:
        text: JSON of a result.
        path: File of the text, for messages.
        with_exposures: False to skip the exposures of single records, which makes reading many times faster.

    Returns:
        The result.

    Raises:
        InvalidFile: If the text is not the result of an audit.
    """
    from reconrisk.studies.audit.result import AuditResult

    if not with_exposures:
        with suppress(json.JSONDecodeError):  # the parser below reports it
            plain = json.loads(text)
            text = json.dumps({**plain, "exposures": []}) if isinstance(plain, dict) and "exposures" in plain else text
    return _parse_value(text, AuditResult, path, "result")


def _parse_value(text: str, kind: type[T], path: str, place: str) -> T:
    """Return the value in a text of a file, or refuse a value of another kind."""
    try:
        value = from_json(text)
    except InvalidInput as error:
        raise InvalidFile(path, place, str(error), _DAMAGED) from error
    if not isinstance(value, kind):
        raise InvalidFile(path, place, f"it holds a {type(value).__name__}, not a {kind.__name__}.", _DAMAGED)
    return value

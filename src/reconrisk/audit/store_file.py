"""The SQLite file of a store: made, recognised, and its troubles in words."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from reconrisk.core.errors import InvalidFile

VERSION = 1
_KIND = 0x52524953  # "RRIS": tells a store from the SQLite file of another program
_MAGIC = b"SQLite format 3\x00"
_BUSY_SECONDS = 30.0
_ANOTHER = "Name a store that an audit has written, or a path where there is no file. Nothing was changed."
_TABLES = (
    """CREATE TABLE runs (
        run TEXT PRIMARY KEY, created TEXT NOT NULL, subject TEXT NOT NULL, data TEXT NOT NULL, info TEXT NOT NULL,
        planned INTEGER, standing TEXT, sentence TEXT, result TEXT)""",
    """CREATE TABLE trials (
        run TEXT NOT NULL, defense TEXT NOT NULL, attack TEXT NOT NULL, draw INTEGER NOT NULL,
        status TEXT NOT NULL, seconds REAL NOT NULL, evaluations INTEGER NOT NULL, arrays TEXT NOT NULL,
        trial TEXT NOT NULL, PRIMARY KEY (run, defense, attack, draw))""",
    "CREATE INDEX cost ON trials (run, seconds)",  # counts and times without a look at the trials themselves
    f"PRAGMA application_id = {_KIND}",
    f"PRAGMA user_version = {VERSION}",
)
_WRITABLE = "Choose a folder that can be written to."
_REMEDIES = (
    (("full", "no space"), "Free space on the disk, then run the same audit again: it goes on where it was."),
    (("locked", "busy"), "Another process has been writing for long. Run the same audit again when it is done."),
    (("readonly", "read-only", "unable to open"), _WRITABLE),
    (("i/o",), "Check the disk, then run the same audit again: it goes on where it was."),
    (("no such table", "no such column"), _ANOTHER),
)
_DAMAGED = "The file is damaged. Take it from a backup, or name another store. Nothing was changed."


@contextmanager
def explained(path: Path | None, place: str) -> Iterator[None]:
    """Troubles with a file as InvalidFile, which says what to do about them."""
    from safetensors import SafetensorError

    try:
        yield
    except (sqlite3.Error, SafetensorError, OSError) as error:
        text = str((isinstance(error, OSError) and error.strerror) or error).rstrip(".")
        remedies = (remedy for words, remedy in _REMEDIES if any(word in text.lower() for word in words))
        otherwise = _WRITABLE if isinstance(error, OSError) else _DAMAGED
        raise InvalidFile(path or "store in memory", place, f"{text}.", next(remedies, otherwise)) from error


def connected(path: Path | None) -> sqlite3.Connection:
    """The database in a file, made if it is not there; in memory for None.

    Guarantee: a file that is no store is not touched. A new one is readable by its owner alone.
    """
    with explained(path, "store"):
        if path is None:
            connection = sqlite3.connect(":memory:", isolation_level=None)
        else:
            _make_or_recognise(path)
            connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
        try:
            if _is_new(connection, path):
                _fill(connection, path)
            connection.execute("PRAGMA synchronous = NORMAL")  # a killed process loses nothing by it
        except BaseException:
            connection.close()
            raise
    return connection


def connected_for_reading(path: Path) -> sqlite3.Connection:
    """The database in a file that must be there; it cannot be written to."""
    if not path.exists():
        raise InvalidFile(path, "store", "there is no such file.", "Name a store that an audit has written.")
    with explained(path, "store"):
        _make_or_recognise(path)
        writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
        # What nobody may write to nobody is writing to; SQLite cannot open it otherwise.
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
    """All that is written inside, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # a full disk has ended it already
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _make_or_recognise(path: Path) -> None:
    """Make an empty file that others cannot read, or refuse one of another kind before anything opens it."""
    if path.is_dir():
        raise InvalidFile(path, "store", "it is a folder.", _ANOTHER)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:  # another process was faster
            return
    with path.open("rb") as file:
        beginning = file.read(len(_MAGIC))
    if beginning not in (b"", _MAGIC):
        raise InvalidFile(path, "byte 0", "it is a file of another kind.", _ANOTHER)


@contextmanager
def _at_one_time(connection: sqlite3.Connection) -> Iterator[None]:
    """Read all that is inside from one state of the file, which another process may be filling."""
    own = not connection.in_transaction
    if own:
        connection.execute("BEGIN")
    try:
        yield
    finally:
        if own and connection.in_transaction:  # trouble with the file may have ended it already
            connection.execute("COMMIT")


def _is_new(connection: sqlite3.Connection, path: Path | None) -> bool:
    """Whether nothing is in it yet; refuses what another program or a later version wrote."""
    with _at_one_time(connection):
        (tables,) = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        (kind,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    if kind == 0 and version == 0 and tables == 0:
        return True
    if kind != _KIND:
        raise InvalidFile(path or "", "application_id", "it is the database of another program.", _ANOTHER)
    if version != VERSION:
        remedy = f"Update reconrisk. Nothing was changed; this one reads version {VERSION}."
        raise InvalidFile(path or "", "user_version", f"it is a store of version {version}.", remedy)
    return False


def _fill(connection: sqlite3.Connection, path: Path | None) -> None:
    _patiently(lambda: connection.execute("PRAGMA journal_mode = WAL"))
    with transaction(connection):
        if _is_new(connection, path):  # another process may have been faster
            for statement in _TABLES:
                connection.execute(statement)


def _patiently(act: Callable[[], object]) -> None:
    """Try again while another process holds the file: SQLite does not wait when the journal changes."""
    until = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            act()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            return

"""Atomic writing of files, and the error for files of another version."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from reconrisk.core.errors import InvalidFile

_USE_ANOTHER = "Choose a new path, or use the version of reconrisk that wrote it."


def write_atomically(path: str | Path, write: Callable[[Path], object], *, secret: bool = False) -> Path:
    """Write a file atomically: a failure leaves an existing file unchanged.

    The content goes to a temporary file in the same folder, which then replaces ``path``.

    Args:
        path: The file. Missing folders are created.
        write: Writes the content to the path that it is called with.
        secret: True for a file that only its owner can read.

    Returns:
        The path.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, because replacing a file is atomic only within one file system.
    handle, name = tempfile.mkstemp(suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        temporary.chmod(0o600 if secret else 0o644)  # mkstemp creates files for their owner only
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def wrong_version(path: str | Path, place: str, thing: str, *, found: object, reads: int) -> InvalidFile:
    """Return the error for a file that another version of reconrisk wrote.

    Args:
        path: The file or folder.
        place: Key of the version in the file.
        thing: Noun with its article, such as ``"a store"``.
        found: Version of the file.
        reads: Version that this reconrisk reads.

    Returns:
        The error, to be raised by the caller.
    """
    is_later = isinstance(found, int) and found > reads
    who, remedy = ("a later", "Update reconrisk.") if is_later else ("an earlier", _USE_ANOTHER)
    problem = f"it is {thing} of version {found}, written by {who} reconrisk; this one reads version {reads}."
    return InvalidFile(path, place, problem, f"{remedy} Nothing was changed.")

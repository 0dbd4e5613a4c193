"""Files appear whole or not at all, and those of another version are refused."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from reconrisk.core.errors import InvalidFile

_ANOTHER = "Name a new one, or use the reconrisk that wrote it."


def write_whole(path: str | Path, write: Callable[[Path], object], *, secret: bool = False) -> Path:
    """Let ``write`` fill a file beside ``path`` and move it there, so that a failure leaves what was there before.

    Missing folders are made. A ``secret`` file can be read by its owner alone.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        temporary.chmod(0o600 if secret else 0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def wrong_version(path: str | Path, place: str, thing: str, *, found: object, reads: int) -> InvalidFile:
    """Return the error for a file that another version of reconrisk wrote.

    Args:
        path: The file or folder.
        place: The key that states the version.
        thing: What it is, such as ``"a store"``.
        found: The version that it has.
        reads: The version that this reconrisk reads.

    Returns:
        The error; it says that nothing was changed, and to name a new file where the version is an earlier one.
    """
    is_later = isinstance(found, int) and found > reads
    who, remedy = ("a later", "Update reconrisk.") if is_later else ("an earlier", _ANOTHER)
    problem = f"it is {thing} of version {found}, which {who} reconrisk wrote; this one reads version {reads}."
    return InvalidFile(path, place, problem, f"{remedy} Nothing was changed.")

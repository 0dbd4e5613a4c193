"""Files appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


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

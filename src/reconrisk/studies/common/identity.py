"""Identity of a run: a digest of all that its trials depend on, versions, the machine.

Stores and reports read these values, so this file needs no torch.
"""

from __future__ import annotations

import datetime
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata

from reconrisk.core import VERSION
from reconrisk.core.digest import short_digest
from reconrisk.core.storage.serialization import serializable

_PACKAGES = ("torch", "numpy", "scipy")


@serializable("run-info")
@dataclass(frozen=True)
class RunInfo:
    """A run by its identity: ``run`` is a digest of ``parts``, a JSON text of everything that trials depend on.

    Two calls with the same parts are one run: the second goes on where the first ended.
    """

    run: str
    created: str
    subject: str
    data: str
    signature: str
    parts: str

    @staticmethod
    def of(parts: Mapping[str, object], *, subject: str, data: str, signature: str) -> RunInfo:
        """Return the run of these parts, as of now.

        >>> info = RunInfo.of({"seed": 0}, subject="Linear", data="toy", signature="rr.audit(...)")
        >>> info.run == RunInfo.of({"seed": 0}, subject="x", data="y", signature="z").run
        True
        """
        text = json.dumps(parts, sort_keys=True)
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        return RunInfo(short_digest(text), now, subject, data, signature, text)


@serializable("environment")
@dataclass(frozen=True)
class Environment:
    """Where a run took place: versions of what computes, processor threads, system."""

    versions: tuple[tuple[str, str], ...]
    threads: int
    system: str


def environment() -> Environment:
    """Return versions, threads and system of this process."""
    import torch  # stores and reports read these values without it

    return Environment(_versions(), torch.get_num_threads(), f"{platform.system()} {platform.machine()}")


@cache  # reading the metadata of a package takes longer than a small trial
def _versions() -> tuple[tuple[str, str], ...]:
    packages = tuple((name, metadata.version(name)) for name in _PACKAGES)
    return (("reconrisk", VERSION), ("python", platform.python_version()), *packages)

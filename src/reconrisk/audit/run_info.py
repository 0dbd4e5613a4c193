"""What identifies a run: all that its trials depend on, in words and as a hash."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from reconrisk.core.serialization import serializable

_DIGITS = 12


def hash_of_text(text: str) -> str:
    """The beginning of the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


@serializable
@dataclass(frozen=True)
class RunInfo:
    """A run by its identity: ``run`` is a hash of ``parts``, a JSON text of everything that trials depend on.

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
        """The run of these parts, as of now.

        >>> info = RunInfo.of({"seed": 0}, subject="Linear", data="toy", signature="rr.audit(...)")
        >>> info.run == RunInfo.of({"seed": 0}, subject="x", data="y", signature="z").run
        True
        """
        text = json.dumps(parts, sort_keys=True)
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        return RunInfo(hash_of_text(text), now, subject, data, signature, text)

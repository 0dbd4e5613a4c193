"""A run of a study as values: its trials, and its identity, a digest of all that its trials depend on.

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
from reconrisk.core.reconstruction import Account
from reconrisk.core.storage.serialization import serializable
from reconrisk.core.validation import check_not_empty, check_whole, invalid_input

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


@serializable("trial-key")
@dataclass(frozen=True)
class TrialKey:
    """Which trial of an audit: a defense and an attack by their labels in the plan, and the number of the update.

    Trials with one ``draw`` are of the same records, and under one defense of the same noise.
    """

    defense: str
    attack: str
    draw: int

    def __post_init__(self) -> None:
        check_whole("draw", self.draw, minimum=0)


@serializable("trial-scores")
@dataclass(frozen=True)
class TrialScores:
    """Scores by one metric, one for each record of the update."""

    metric: str
    values: tuple[float, ...]


@serializable("trial")
@dataclass(frozen=True)
class Trial:
    """What one attack on one update gave: scores of its ``records``, which are rows of the data, and its account.

    ``distortion`` is the squared distance between what was sent and what would have been without the defense, over the
    squared norm of the latter: what the defense costs whoever uses the update. One of the guesses measures it for all.
    ``settings`` are those of the attack as planned; its account states what it made of them.
    """

    key: TrialKey
    records: tuple[int, ...]
    seed: int
    scores: tuple[TrialScores, ...]
    account: Account
    distortion: float | None = None
    settings: str = ""

    def __post_init__(self) -> None:
        check_not_empty("records", self.records)
        for scores in self.scores:
            if len(scores.values) != len(self.records):
                raise invalid_input(
                    scores.metric, scores.values, f"to have one score for each of {len(self.records)} records"
                )

    def values(self, metric: str) -> tuple[float, ...]:
        """Scores by the metric of this name."""
        for scores in self.scores:
            if scores.metric == metric:
                return scores.values
        raise invalid_input("metric", metric, f"to be one of {', '.join(scores.metric for scores in self.scores)}")

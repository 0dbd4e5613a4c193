"""Values of a run: its trials, and its identity, a digest of everything that the trials depend on.

Stores and reports read these values without torch.
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
from reconrisk.core.reconstruction import AttackReport
from reconrisk.core.storage.serialization import serializable
from reconrisk.core.validation import check_not_empty, check_whole, invalid_input

_PACKAGES = ("torch", "numpy", "scipy")


@serializable("run-info")
@dataclass(frozen=True)
class RunInfo:
    """Identity of a run. Two calls with the same ``parts`` are one run: the second resumes the first.

    Attributes:
        run: Digest of ``parts``.
        created: Time of creation, ISO 8601 in UTC.
        subject: Name of the audited model.
        data: Digest of the records.
        signature: Call or command that repeats the run.
        parts: JSON text of everything that the trials depend on.
    """

    run: str
    created: str
    subject: str
    data: str
    signature: str
    parts: str

    @staticmethod
    def of(parts: Mapping[str, object], *, subject: str, data: str, signature: str) -> RunInfo:
        """Return the identity of a run that is created now.

        Args:
            parts: Everything that the trials depend on.
            subject: Name of the audited model.
            data: Digest of the records.
            signature: Call or command that repeats the run.

        Returns:
            The identity. Its digest depends on ``parts`` alone; its time of creation is the present.

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
    """Environment of a run.

    Attributes:
        versions: Packages and their versions.
        threads: Threads that torch uses.
        system: Operating system and processor.
    """

    versions: tuple[tuple[str, str], ...]
    threads: int
    system: str


def current_environment() -> Environment:
    """Return the environment of this process."""
    import torch  # here: stores and reports read this file without torch

    return Environment(_versions(), torch.get_num_threads(), f"{platform.system()} {platform.machine()}")


@cache  # reading the metadata of a package takes longer than a small trial
def _versions() -> tuple[tuple[str, str], ...]:
    packages = tuple((name, metadata.version(name)) for name in _PACKAGES)
    return (("reconrisk", VERSION), ("python", platform.python_version()), *packages)


@serializable("trial-key")
@dataclass(frozen=True)
class TrialKey:
    """Key of a trial. Trials with the same draw attack the same records, and under one defense the same noise.

    Attributes:
        defense: Name of the defense as shown in reports.
        attack: Name of the attack as shown in reports.
        draw: Number of the update, from 0.
    """

    defense: str
    attack: str
    draw: int

    def __post_init__(self) -> None:
        check_whole("draw", self.draw, minimum=0)


@serializable("trial-scores")
@dataclass(frozen=True)
class TrialScores:
    """Scores by one metric.

    Attributes:
        metric: Name of the metric.
        values: One score for each record of the update.
    """

    metric: str
    values: tuple[float, ...]


@serializable("trial")
@dataclass(frozen=True)
class Trial:
    """Outcome of one attack on one update.

    Attributes:
        key: Defense, attack and draw.
        records: Rows of the data that the update was computed from.
        seed: Seed of the random numbers of the attack.
        scores: Scores of the records, by metric.
        account: Status, objective and cost that the attack reported.
        distortion: Squared distance between the defended and the undefended release, divided by the squared norm of the
            undefended one. It measures the cost of the defense. One baseline measures it for all attacks.
        settings: Settings of the attack as planned.
    """

    key: TrialKey
    records: tuple[int, ...]
    seed: int
    scores: tuple[TrialScores, ...]
    account: AttackReport
    distortion: float | None = None
    settings: str = ""

    def __post_init__(self) -> None:
        check_not_empty("records", self.records)
        for scores in self.scores:
            if len(scores.values) != len(self.records):
                raise invalid_input(
                    f"scores of {scores.metric}",
                    scores.values,
                    f"to have one score for each of {len(self.records)} records",
                )

    def values(self, metric: str) -> tuple[float, ...]:
        """Return the scores by the metric of this name."""
        for scores in self.scores:
            if scores.metric == metric:
                return scores.values
        raise invalid_input("metric", metric, f"to be one of {', '.join(scores.metric for scores in self.scores)}")

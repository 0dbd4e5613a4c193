"""One attack on one update: the unit that an audit runs, scores and stores."""

from __future__ import annotations

from dataclasses import dataclass

from reconrisk.core.reconstruction import Account
from reconrisk.core.storage.serialization import serializable
from reconrisk.core.validation import check_not_empty, check_whole, refuse


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
                raise refuse(scores.metric, scores.values, f"to have one score for each of {len(self.records)} records")

    def values(self, metric: str) -> tuple[float, ...]:
        """Scores by the metric of this name."""
        for scores in self.scores:
            if scores.metric == metric:
                return scores.values
        raise refuse("metric", metric, f"to be one of {', '.join(scores.metric for scores in self.scores)}")

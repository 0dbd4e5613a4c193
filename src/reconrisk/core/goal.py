"""Definition of a rebuilt record, and how often records may be rebuilt.

Goals are made by name in :mod:`reconrisk.metrics.goals`, where the metrics are known; here they are values.
"""

from __future__ import annotations

from dataclasses import dataclass

from reconrisk.core.serialization import serializable
from reconrisk.core.validation import check_finite, check_probability


@serializable
@dataclass(frozen=True)
class Goal:
    """An adversary's goal: a score of one record at ``threshold`` or better.

    Args:
        metric: Name of the metric.
        threshold: The score to reach.
        higher_is_better: True if scores above the threshold reach it.

    >>> print(Goal("psnr", 20, higher_is_better=True), Goal("mse", 0.05, higher_is_better=False))
    psnr>=20 mse<=0.05
    """

    metric: str
    threshold: float
    higher_is_better: bool

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", check_finite("threshold", self.threshold))

    def reached(self, score: float) -> bool:
        """Return True if a score is at the threshold or better.

        >>> Goal("psnr", 20, higher_is_better=True).reached(19.9), Goal("mse", 0.05, False).reached(0.05)
        (False, True)
        """
        return score >= self.threshold if self.higher_is_better else score <= self.threshold

    def __str__(self) -> str:
        """Metric, direction and threshold, as :func:`reconrisk.metrics.goals.goal_from_text` reads it."""
        return f"{self.metric}{'>=' if self.higher_is_better else '<='}{self.threshold:g}"


@serializable
@dataclass(frozen=True)
class Limit:
    """Largest probability, ``at_most``, with which a goal may be reached."""

    goal: Goal
    at_most: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "at_most", check_probability("at_most", self.at_most))

    def __str__(self) -> str:
        """Goal and share, as :func:`reconrisk.metrics.goals.limit_from_text` reads it."""
        return f"{self.goal}: {100 * self.at_most:.6g}%"

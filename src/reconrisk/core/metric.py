"""Metrics that score estimates against targets, and the goals and limits that are expressed in these scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reconrisk.core.storage.serialization import serializable
from reconrisk.core.validation import (
    check_all_finite,
    check_all_numbers,
    check_finite,
    check_not_empty,
    check_probability,
    check_same_shape,
    invalid_input,
)

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Metric:
    """A configured metric, called with a batch of estimates and a batch of targets of the same shape.

    Attributes:
        name: Name of the metric.
        function: Computes one score per record from finite estimates and targets.
        best: Score of an exact estimate; may be infinite.
        worst: Score of a failed estimate, at the other end of the scale; may be infinite. If ``worst`` is below
            ``best``, higher scores are better.
        settings: Names and values of the settings, for ``repr``.

    Guarantee: one score per record. An estimate with NaN or infinite values gets ``worst`` and is never left out.
    """

    name: str
    function: Callable[[Tensor, Tensor], Tensor]
    best: float
    worst: float
    settings: tuple[tuple[str, object], ...] = ()

    @property
    def higher_is_better(self) -> bool:
        """True if a higher score means a better estimate."""
        return self.best > self.worst

    def __call__(self, estimates: Tensor, targets: Tensor) -> Tensor:
        """Return the score of each estimate.

        Args:
            estimates: Batch of estimates, one record per row.
            targets: Batch of targets, in the same order and shape.

        Returns:
            One score per record. An estimate with a value that is not finite has the score ``worst``.

        Raises:
            InvalidInput: If the shapes differ, the batch is empty, or a target is not finite.
        """
        for name, value in (("estimates", estimates), ("targets", targets)):
            if not hasattr(value, "isfinite") or not hasattr(value, "where"):  # isinstance would import torch
                raise invalid_input(
                    f"type({name})", type(value).__name__, "to be a torch tensor", "Convert it with torch.as_tensor."
                )
        check_same_shape("estimates", estimates, "targets", targets, "Match batches first with match_records.")
        check_not_empty("targets", targets)
        check_all_finite("targets", targets, "Remove these records before the audit.")
        # Unusable estimates are scored as if they were exact, so that the function sees finite numbers only; their
        # scores are then overwritten.
        usable = estimates.isfinite().reshape(len(estimates), -1).all(1)
        safe = estimates.where(usable.view(-1, *[1] * (estimates.ndim - 1)), targets)
        scores = self.function(safe, targets)
        if scores.shape != usable.shape:
            raise invalid_input(
                f"shape of the scores of {self.name}",
                tuple(scores.shape),
                f"to be {tuple(usable.shape)}, one per record",
                "Reduce over all dimensions but the first.",
            )
        check_all_numbers(self.name, scores)
        return scores.masked_fill(~usable, self.worst)

    def __repr__(self) -> str:
        """Return the name with every setting."""
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.settings)})"


@serializable("goal")
@dataclass(frozen=True)
class Goal:
    """Goal of an adversary: a score of one record at ``threshold`` or better.

    Attributes:
        metric: Name of the metric.
        threshold: Score to reach.
        higher_is_better: True if scores above the threshold reach the goal, False if scores below it do.

    >>> print(Goal("psnr", 20, higher_is_better=True), Goal("mse", 0.05, higher_is_better=False))
    psnr>=20 mse<=0.05
    """

    metric: str
    threshold: float
    higher_is_better: bool

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", check_finite("threshold", self.threshold))

    def is_reached_by(self, score: float) -> bool:
        """Return True if a score is at the threshold or better.

        >>> Goal("psnr", 20, higher_is_better=True).is_reached_by(19.9), Goal("mse", 0.05, False).is_reached_by(0.05)
        (False, True)
        """
        return score >= self.threshold if self.higher_is_better else score <= self.threshold

    def __str__(self) -> str:
        """Return the text that :func:`reconrisk.metrics.goals.goal_from_text` parses."""
        return f"{self.metric}{'>=' if self.higher_is_better else '<='}{self.threshold:g}"


@serializable("limit")
@dataclass(frozen=True)
class Limit:
    """Largest acceptable probability of reaching a goal.

    Attributes:
        goal: The goal.
        at_most: The largest acceptable probability, in [0, 1].

    >>> print(Limit(Goal("psnr", 20, higher_is_better=True), at_most=0.05))
    psnr>=20: 5%
    """

    goal: Goal
    at_most: float

    def __post_init__(self) -> None:
        if not isinstance(self.goal, Goal):
            raise invalid_input("goal", self.goal, "to be a Goal", "Pass rr.goals.psnr_at_least(20), for instance.")
        object.__setattr__(self, "at_most", check_probability("at_most", self.at_most))

    def __str__(self) -> str:
        """Return the text that :func:`reconrisk.metrics.goals.limit_from_text` parses."""
        return f"{self.goal}: {100 * self.at_most:.6g}%"

"""Scores of estimates against targets, one per record, and the goals and limits that are stated in them."""

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
    """A configured score: call it on estimates and targets of one shape, records first.

    ``best`` and ``worst`` are the ends of its scale; which of the two is larger is the direction.

    Guarantee: one score per record; an estimate with NaN or infinities gets ``worst``, never drops out.
    """

    name: str
    function: Callable[[Tensor, Tensor], Tensor]
    best: float
    worst: float
    settings: tuple[tuple[str, object], ...] = ()

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger score means an estimate nearer to the target."""
        return self.best > self.worst

    def __call__(self, estimates: Tensor, targets: Tensor) -> Tensor:
        """Scores of ``estimates`` against ``targets``, row by row."""
        for name, value in (("estimates", estimates), ("targets", targets)):
            if not hasattr(value, "isfinite") or not hasattr(value, "where"):
                raise invalid_input(
                    name, type(value).__name__, "to be a torch tensor", "Convert it with torch.as_tensor."
                )
        check_same_shape("estimates", estimates, "targets", targets, "Match batches first with match_records.")
        check_not_empty("targets", targets)
        check_all_finite("targets", targets, "Remove such records before the audit.")
        usable = estimates.isfinite().reshape(len(estimates), -1).all(1)
        safe = estimates.where(usable.view(-1, *[1] * (estimates.ndim - 1)), targets)
        scores = self.function(safe, targets)
        if scores.shape != usable.shape:
            raise invalid_input(
                f"{self.name} scores", tuple(scores.shape), f"to be one per record, {tuple(usable.shape)}"
            )
        check_all_numbers(self.name, scores)
        return scores.masked_fill(~usable, self.worst)

    def __repr__(self) -> str:
        """Name and every setting."""
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.settings)})"


@serializable("goal")
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


@serializable("limit")
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

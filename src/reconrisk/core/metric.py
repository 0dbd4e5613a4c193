"""A score of an estimate against its target, one per record, with its direction as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reconrisk.core.validation import check_all_finite, check_all_numbers, check_not_empty, check_same_shape, refuse

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
                raise refuse(name, type(value).__name__, "to be a torch tensor", "Convert it with torch.as_tensor.")
        check_same_shape("estimates", estimates, "targets", targets, "Match batches first with match_records.")
        check_not_empty("targets", targets)
        check_all_finite("targets", targets, "Remove such records before the audit.")
        usable = estimates.isfinite().reshape(len(estimates), -1).all(1)
        safe = estimates.where(usable.view(-1, *[1] * (estimates.ndim - 1)), targets)
        scores = self.function(safe, targets)
        if scores.shape != usable.shape:
            raise refuse(f"{self.name} scores", tuple(scores.shape), f"to be one per record, {tuple(usable.shape)}")
        check_all_numbers(self.name, scores)
        return scores.masked_fill(~usable, self.worst)

    def __repr__(self) -> str:
        """Name and every setting."""
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.settings)})"

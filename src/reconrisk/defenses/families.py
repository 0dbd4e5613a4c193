"""Public reference of families: what turns a strength into a configured defense.

A family is a defense with one strength. Its row is in :mod:`reconrisk.defenses.registry`; the function that builds it
from a :class:`Reference` and a strength is in the file of the defense.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reconrisk.core.validation import check_not_empty, check_positive
from reconrisk.defenses.clipping import total_square

if TYPE_CHECKING:
    from reconrisk.releases.sensitivity.moments import ReferenceMoments

_DIGITS = 3


@dataclass(frozen=True, eq=False)
class Reference:
    """Moments and updates of public records, by which families are configured.

    Args:
        find_moments: Computes the moments when a family first asks for them.
        updates: Releases of some public records. Their size defines what noise is little or much; their median norm is
            the norm to clip to.
    """

    find_moments: Callable[[], ReferenceMoments]
    updates: tuple[Mapping[str, Tensor], ...]

    def __post_init__(self) -> None:
        check_not_empty("updates", self.updates, "Pass updates of public records.")
        check_positive("size of the updates of public records", self.scale, "Check the model and its loss.")

    @cached_property
    def moments(self) -> ReferenceMoments:
        """Moments of the public records."""
        return self.find_moments()

    @cached_property
    def size(self) -> int:
        """Number of values in an update."""
        return sum(value.numel() for value in self.updates[0].values())

    @cached_property
    def scale(self) -> float:
        """Root mean square of the values of updates: equal noise of this standard deviation is as large as they are."""
        squares = [float(total_square(update)) / self.size for update in self.updates]
        return math.sqrt(sum(squares) / len(squares))

    @cached_property
    def clip_norm(self) -> float:
        """The median norm of updates, to three digits."""
        return _rounded(_median_norm(self.updates))

    @cached_property
    def matching_clip_norm(self) -> float:
        """The median norm of updates in units of optimal noise, which is what a clip before it measures."""
        from reconrisk.defenses.optimal_noise import optimal_noise  # which is built from a reference itself

        scales = optimal_noise(self.moments, like=1.0).scales
        return _rounded(_median_norm([scales.in_units(update) for update in self.updates]))

    def share_dropped(self, level: float) -> float:
        """Return the share of values to drop so that one in ``level`` is sent, and at least one value of all."""
        kept = max(1.0 / max(level, 1.0), 1.0 / self.size)
        return 1.0 - float(f"{kept:.{_DIGITS}g}") if kept < 1 else 0.0


def rounded_level(level: float) -> float:
    """Round a level up to three digits, so that the call that is printed is the defense that was tried.

    >>> rounded_level(0.012341), rounded_level(12.0)
    (0.0124, 12.0)
    """
    unit = 10.0 ** (math.floor(math.log10(check_positive("level", level))) + 1 - _DIGITS)
    return _rounded(math.ceil(level / unit * (1 - 1e-12)) * unit)


def _median_norm(updates: Sequence[Mapping[str, Tensor]]) -> float:
    return float(torch.stack([total_square(update) for update in updates]).sqrt().median())


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")

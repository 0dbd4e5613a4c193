"""Public reference data that turn the strength of a family into a configured defense.

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

_DIGITS = 3  # significant digits of printed settings


@dataclass(frozen=True, eq=False)
class Reference:
    """Moments and updates of public records, from which families are configured.

    Attributes:
        find_moments: Function that computes the moments when a family first needs them.
        updates: Releases of some public records. Their size sets the scale of the noise; their median norm is the clip
            norm.
    """

    find_moments: Callable[[], ReferenceMoments]
    updates: tuple[Mapping[str, Tensor], ...]

    def __post_init__(self) -> None:
        check_not_empty("updates", self.updates, "Pass updates of public records.")
        check_positive("size of the public updates", self.scale, "Check the model and its loss.")

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
        """Root mean square of the values of the updates: noise of this standard deviation is as large as they are."""
        squares = [float(total_square(update)) / self.size for update in self.updates]
        return math.sqrt(sum(squares) / len(squares))

    @cached_property
    def clip_norm(self) -> float:
        """Median norm of the updates, to three digits."""
        return _round_to_digits(_median_norm(self.updates))

    @cached_property
    def matching_clip_norm(self) -> float:
        """Median norm of the updates in units of optimal noise, the norm of a clip that precedes it."""
        from reconrisk.defenses.optimal_noise import optimal_noise  # it imports this module

        scales = optimal_noise(self.moments, like=1.0).scales
        return _round_to_digits(_median_norm([scales.to_noise_units(update) for update in self.updates]))

    def share_dropped(self, level: float) -> float:
        """Return the share of values to drop if one in ``level`` is sent, and at least one value in total."""
        kept = max(1.0 / max(level, 1.0), 1.0 / self.size)
        # the kept share is rounded, not the dropped one: near 1, three digits would not resolve a small kept share
        return 1.0 - float(f"{kept:.{_DIGITS}g}") if kept < 1 else 0.0


def round_level_up(level: float) -> float:
    """Round a level up to three digits, so that the call in a report builds exactly the defense that was tried.

    Args:
        level: Strength of a family, above zero.

    Returns:
        The rounded level, at least ``level``.

    Raises:
        InvalidInput: If ``level`` is not above zero.

    >>> round_level_up(0.012341), round_level_up(12.0)
    (0.0124, 12.0)
    """
    unit = 10.0 ** (math.floor(math.log10(check_positive("level", level))) + 1 - _DIGITS)
    # the factor keeps a level that already has three digits: its quotient may exceed a whole number by rounding
    return _round_to_digits(math.ceil(level / unit * (1 - 1e-12)) * unit)


def _median_norm(updates: Sequence[Mapping[str, Tensor]]) -> float:
    return float(torch.stack([total_square(update) for update in updates]).sqrt().median())


def _round_to_digits(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")

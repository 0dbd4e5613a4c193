"""Search for the end of a confidence set, shared by the limits of this folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reconrisk.core.validation import check_probability, invalid_input

_MOST_HALVINGS = 200  # from a bracket of width one to the smallest positive normal floats that matter


def shrink_bracket(
    excludes: Callable[[float], bool], *, kept: float, excluded: float, width: float = 0.0
) -> tuple[float, float]:
    """Halve a bracket around the end of a confidence set until its ends are close.

    Args:
        excludes: Returns True for a number outside of the set; a number that it cannot judge must count as inside.
        kept: A number in the set, or at its end; it is not evaluated.
        excluded: A number outside of the set, or the largest possible one; it is not evaluated.
        width: Distance of the ends at which the search may stop; 0 for neighbouring floats.

    Returns:
        The last number that was kept and the last that was excluded; the caller returns the one that is safe.

    >>> shrink_bracket(lambda x: x * x > 2, kept=1.0, excluded=2.0)
    (1.414213562373095, 1.4142135623730951)
    """
    for _ in range(_MOST_HALVINGS):
        middle = (kept + excluded) / 2
        if middle in (kept, excluded) or abs(excluded - kept) <= width:
            break
        kept, excluded = (kept, middle) if excludes(middle) else (middle, excluded)
    return kept, excluded


def check_level(alpha: Any) -> float:
    """Check that an error probability is in (0, 1).

    Args:
        alpha: The error probability.

    Returns:
        The error probability as a float.

    Raises:
        InvalidInput: If it is not a number in (0, 1).
    """
    if not 0 < check_probability("alpha", alpha) < 1:
        raise invalid_input("alpha", alpha, "in (0, 1)", "Pass 0.05, for example.")
    return float(alpha)

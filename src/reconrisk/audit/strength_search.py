"""The smallest strength that does what is asked, in few tries."""

from __future__ import annotations

import math
from collections.abc import Callable

from reconrisk.core.validation import check_positive, refuse
from reconrisk.defenses.families import rounded_level

_GROWTH = 4.0


def smallest_met(
    is_met: Callable[[float], bool], *, low: float, high: float, start: float, resolution: float = 1.5
) -> float | None:
    r"""The smallest level in [``low``, ``high``] at which ``is_met``, up to a factor; None if it is not at ``high``.

    From ``start`` it goes up or down by factors of four until the answer changes, then halves the bracket in logarithms
    until its ends differ by at most the factor ``resolution``. Levels are rounded up to three digits.

    Assumes: ``is_met`` from some level on; where it is not so, the level returned is still one at which it was met.
    Guarantee: for the threshold t the level is within [t, ``resolution`` t], up to rounding; ``low`` if t is below it.
    Edge cases: what ``is_met`` raises passes: whoever calls knows what was tried.

    >>> smallest_met(lambda level: level >= 0.3, low=0.01, high=100.0, start=1.0, resolution=1.5)
    0.354
    """
    _check(low, high, start, resolution)
    met, unmet = _bracket(is_met, low, high, min(max(start, low), high))
    if met is None or unmet is None:
        return met
    while met > resolution * unmet:
        middle = rounded_level(math.sqrt(met * unmet))
        if not unmet < middle < met:
            break
        met, unmet = (middle, unmet) if is_met(middle) else (met, middle)
    return met


def _bracket(
    is_met: Callable[[float], bool], low: float, high: float, start: float
) -> tuple[float | None, float | None]:
    """The lowest level that was met and the highest that was not, next to each other; None where an end is reached."""
    level = rounded_level(start)
    first = is_met(level)
    while True:
        beyond = max(low, level / _GROWTH) if first else min(high, level * _GROWTH)
        following = rounded_level(beyond)
        if following == level or (first and level <= low) or (not first and level >= high):
            return (level, None) if first else (None, level)
        if is_met(following) != first:
            return (level, following) if first else (following, level)
        level = following


def _check(low: float, high: float, start: float, resolution: float) -> None:
    for name, value in (("low", low), ("high", high), ("start", start)):
        check_positive(name, value)
    if not low < high:
        raise refuse("low", low, f"< high={high}")
    if not resolution > 1:
        raise refuse("resolution", resolution, "> 1", "It is the factor between what is found and what is needed.")

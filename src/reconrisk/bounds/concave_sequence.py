"""Concave functions of a whole number: where they are largest, and where they are still large."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Sequence = Callable[[Integers], Floats]

_POINTS = 65


def argmax_of_concave(function: Sequence, low: int, high: int) -> int:
    """The whole number from ``low`` to ``high`` at which a concave function is largest.

    >>> argmax_of_concave(lambda k: -((k - 123_456.0) ** 2), 0, 10**9)
    123456
    """
    while True:
        points = np.unique(np.linspace(low, high, _POINTS).astype(np.int64))
        best = int(np.argmax(function(points)))
        if len(points) == high - low + 1:
            return int(points[best])
        low, high = int(points[max(best - 1, 0)]), int(points[min(best + 1, len(points) - 1)])


def level_set_of_concave(function: Sequence, low: int, peak: int, high: int, level: float) -> tuple[int, int]:
    """Smallest and largest whole number in the range where a concave function is at least ``level``; ``peak`` is one.

    >>> level_set_of_concave(lambda k: -((k - 50.0) ** 2), 0, 50, 1000, -100.0)
    (40, 60)
    """
    ends = []
    for outside in (low - 1, high + 1):
        inside = peak
        while abs(outside - inside) > 1:
            middle = (outside + inside) // 2
            if float(function(np.array([middle]))[0]) >= level:
                inside = middle
            else:
                outside = middle
        ends.append(inside)
    return ends[0], ends[1]

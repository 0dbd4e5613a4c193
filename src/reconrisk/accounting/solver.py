"""Safe calibration of one number: the value returned is one at which the risk was computed and found to hold."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from reconrisk.core.validation import check_positive, check_real, check_whole, invalid_input

Risk = Callable[[float], float]

_MAX_EVALUATIONS = 400


@dataclass(frozen=True)
class Safe:
    """A setting and the risk computed at it."""

    value: float
    risk: float


def smallest_safe(
    risk: Risk,
    *,
    target: float,
    start: float,
    low: float = 1e-6,
    high: float = 1e6,
    tolerance: float = 1e-6,
    slope: float | None = None,
    name: str = "value",
) -> Safe:
    """Smallest value in [low, high] with ``risk(value) <= target``, for a risk that falls with the value.

    Brackets the answer around ``start``, then closes in by secants and bisection on a logarithmic scale until the value
    is within the relative ``tolerance`` of where the risk meets the target. ``slope``, d risk / d log value near
    ``start``, saves evaluations where it is known.

    Guarantee: ``risk`` was evaluated at the value returned and is at most ``target`` there, even if ``risk`` is not
    quite monotone; NaN counts as unsafe.
    Edge cases: ``low`` if that is safe already; an error naming the least risk in reach if ``high`` is not safe.

    >>> safe = smallest_safe(lambda noise: 1 / noise**2, target=0.25, start=1.0)
    >>> safe.risk <= 0.25, round(safe.value, 4)
    (True, 2.0)
    """
    _check_range(target, start, low, high, tolerance)
    search = _Search(lambda u: risk(_within(math.exp(u), low, high)), target, math.log(low), math.log(high))
    position, value = search.run(math.log(start), tolerance, slope, name)
    return Safe(_within(math.exp(position), low, high), value)


def largest_safe(
    risk: Risk,
    *,
    target: float,
    start: float,
    low: float = 1e-6,
    high: float = 1e6,
    tolerance: float = 1e-6,
    slope: float | None = None,
    name: str = "value",
) -> Safe:
    """Largest value in [low, high] with ``risk(value) <= target``, for a risk that grows with the value.

    Guarantee, edge cases: as in :func:`smallest_safe`, mirrored.

    >>> round(largest_safe(lambda rate: rate**2, target=0.25, start=0.9, high=1.0).value, 4)
    0.5
    """
    _check_range(target, start, low, high, tolerance)
    search = _Search(lambda u: risk(_within(math.exp(-u), low, high)), target, -math.log(high), -math.log(low))
    position, value = search.run(-math.log(start), tolerance, None if slope is None else -slope, name)
    return Safe(_within(math.exp(-position), low, high), value)


def largest_safe_count(
    risk: Callable[[int], float], *, target: float, start: int = 1, high: int = 10**9, name: str = "count"
) -> Safe:
    """Largest whole number from 1 to ``high`` with ``risk(number) <= target``, for a risk that grows with it.

    Guarantee: evaluated and at most ``target`` at the number returned; the next one was evaluated and is not, unless
    the number is ``high``.
    Edge cases: an error naming the risk at 1 if that already exceeds the target.

    >>> largest_safe_count(lambda steps: steps / 10, target=0.75).value
    7.0
    """
    count = min(check_whole("start", start), check_whole("high", high))
    known: dict[int, float] = {}

    def is_safe(number: int) -> bool:
        known[number] = risk(number)
        return known[number] <= target

    safe, unsafe = _count_bracket(is_safe, count, high)
    if safe == 0:
        raise _unreachable(target, known[1], f"{name}=1")
    while unsafe is not None and unsafe - safe > 1:
        middle = _between(safe, unsafe, known, target)
        safe, unsafe = (middle, unsafe) if is_safe(middle) else (safe, middle)
    return Safe(float(safe), known[safe])


@dataclass
class _Search:
    """A search on a line along which the risk falls; ``low`` and ``high`` are its ends."""

    risk: Risk
    target: float
    low: float
    high: float
    evaluated: list[tuple[float, float]] = field(default_factory=list)

    def run(self, start: float, tolerance: float, slope: float | None, name: str) -> tuple[float, float]:
        """Leftmost safe position, to ``tolerance``, and the risk there."""
        safe, unsafe = self._bracket(start, 100 * tolerance if slope is not None else math.log(2), slope)
        if safe is None:
            raise _unreachable(self.target, self.evaluated[-1][1], f"the safest {name}")
        for _ in range(_MAX_EVALUATIONS):
            if unsafe is None or safe[0] - unsafe[0] <= tolerance:
                break
            guess = self._secant(slope)
            if guess is not None and abs(safe[0] - guess) <= tolerance and safe == self.evaluated[-1]:
                break
            # The secant's guess, a little on the safe side, so that the safe end closes in; else the middle. Every
            # fourth step halves the bracket, whatever the shape of the risk.
            stalled = len(self.evaluated) % 4 == 0
            if guess is None or stalled or not unsafe[0] < guess + tolerance / 2 < safe[0]:
                point = self._try((safe[0] + unsafe[0]) / 2)
            else:
                point = self._try(guess + tolerance / 2)
            if point[1] <= self.target:
                safe = point
            else:
                unsafe = point
        return safe

    def _try(self, position: float) -> tuple[float, float]:
        point = (position, self.risk(position))
        self.evaluated.append(point)
        return point

    def _bracket(
        self, start: float, step: float, slope: float | None
    ) -> tuple[tuple[float, float] | None, tuple[float, float] | None]:
        """A safe position and an unsafe one left of it; None for one that does not exist."""
        point = self._try(min(max(start, self.low), self.high))
        is_safe = point[1] <= self.target
        if is_safe and slope is not None:
            return point, (self.low, math.inf)
        while True:
            limit = self.low if is_safe else self.high
            if point[0] == limit:
                return (point, None) if is_safe else (None, point)
            following = max(point[0] - step, limit) if is_safe else min(point[0] + step, limit)
            before, point = point, self._try(following)
            if (point[1] <= self.target) != is_safe:
                return (before, point) if is_safe else (point, before)
            step *= 2

    def _secant(self, slope: float | None) -> float | None:
        """Where the line through the last two points, or with the known slope, meets the target."""
        position, risk = self.evaluated[-1]
        if len(self.evaluated) > 1:
            earlier, other = self.evaluated[-2]
            slope = (risk - other) / (position - earlier) if position != earlier else slope
        if slope is None or not math.isfinite(slope) or slope >= 0 or not math.isfinite(risk):
            return None
        return position + (self.target - risk) / slope


def _count_bracket(is_safe: Callable[[int], bool], start: int, high: int) -> tuple[int, int | None]:
    """A safe count (0 if there is none) and an unsafe one above it (None if ``high`` is safe)."""
    count, step, rises = start, max(1, start // 64), is_safe(start)
    while True:
        if (rises and count == high) or (not rises and count == 1):
            return (count, None) if rises else (0, 1)
        following = min(count + step, high) if rises else max(count - step, 1)
        if is_safe(following) != rises:
            return (count, following) if rises else (following, count)
        count, step = following, 4 * step


def _between(safe: int, unsafe: int, known: dict[int, float], target: float) -> int:
    """A whole number strictly between, by false position where that makes sense, by halves every other time."""
    rise = known[unsafe] - known[safe]
    if len(known) % 2 and math.isfinite(rise) and rise > 0:
        guess = safe + (target - known[safe]) / rise * (unsafe - safe)
        return min(max(round(guess), safe + 1), unsafe - 1)
    return (safe + unsafe) // 2


def _check_range(target: float, start: float, low: float, high: float, tolerance: float) -> None:
    check_real("target", target)
    check_positive("tolerance", tolerance)
    if not check_positive("low", low) <= check_positive("start", start) <= check_positive("high", high):
        raise invalid_input("start", start, f"in [low, high] = [{low}, {high}]")


def _unreachable(target: float, least: float, where: str) -> Exception:
    return invalid_input(
        "target", target, "to be within reach", f"At {where} the risk is still {least!r}: ask for that or more."
    )


def _within(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)

"""Solvers for one setting under a limit on the risk. The risk is evaluated at every value that they return."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from reconrisk.core.validation import check_positive, check_real, check_whole, invalid_input

Risk = Callable[[float], float]

_MAX_EVALUATIONS = 400  # one in four bisects, so about 100 suffice for 1e-6; a guard against endless loops


@dataclass(frozen=True)
class SafeSetting:
    """A setting that meets the target, with its risk.

    Attributes:
        value: The setting.
        risk: Risk at the setting.
    """

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
) -> SafeSetting:
    """Return the smallest value in [low, high] with ``risk(value) <= target``, for a decreasing risk.

    The search brackets the answer around ``start``, then refines it by secants and bisection on a logarithmic scale.

    Args:
        risk: Risk as a function of the value.
        target: Largest acceptable risk.
        start: Start of the search, in [low, high].
        low: Smallest value to consider, above 0.
        high: Largest value to consider.
        tolerance: Relative distance of the answer from the value at which the risk meets the target.
        slope: Derivative of the risk with respect to the logarithm of the value near ``start``. If it is known, the
            search needs fewer evaluations.
        name: Name of the value, for error messages.

    Returns:
        The value with its risk.

    Raises:
        InvalidInput: If ``risk(high)`` exceeds the target, or an argument is outside its domain.

    Guarantee: ``risk`` was evaluated at the value returned and is at most ``target`` there, even if ``risk`` is not
    quite monotone; NaN counts as unsafe.
    Edge cases: ``low`` if its risk is at most the target. If the risk at ``high`` exceeds the target, the error message
    states that risk.

    >>> safe = smallest_safe(lambda noise: 1 / noise**2, target=0.25, start=1.0)
    >>> safe.risk <= 0.25, round(safe.value, 4)
    (True, 2.0)
    """
    _check_range(target, start, low, high, tolerance)
    search = _Search(lambda u: risk(_clip(math.exp(u), low, high)), target, math.log(low), math.log(high))
    position, value = search.run(math.log(start), tolerance, slope, name)
    return SafeSetting(_clip(math.exp(position), low, high), value)


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
) -> SafeSetting:
    """Return the largest value in [low, high] with ``risk(value) <= target``, for an increasing risk.

    Args:
        risk: Risk as a function of the value.
        target: Largest acceptable risk.
        start: Start of the search, in [low, high].
        low: Smallest value to consider, above 0.
        high: Largest value to consider.
        tolerance: Relative distance of the answer from the value at which the risk meets the target.
        slope: Derivative of the risk with respect to the logarithm of the value near ``start``, if known.
        name: Name of the value, for error messages.

    Returns:
        The value with its risk.

    Raises:
        InvalidInput: If ``risk(low)`` exceeds the target, or an argument is outside its domain.

    Guarantee: as in :func:`smallest_safe`, mirrored.
    Edge cases: as in :func:`smallest_safe`, mirrored.

    >>> round(largest_safe(lambda rate: rate**2, target=0.25, start=0.9, high=1.0).value, 4)
    0.5
    """
    _check_range(target, start, low, high, tolerance)
    # The search runs along u = -log value, so that the risk falls along it as in smallest_safe.
    search = _Search(lambda u: risk(_clip(math.exp(-u), low, high)), target, -math.log(high), -math.log(low))
    position, value = search.run(-math.log(start), tolerance, None if slope is None else -slope, name)
    return SafeSetting(_clip(math.exp(-position), low, high), value)


def largest_safe_count(
    risk: Callable[[int], float], *, target: float, start: int = 1, high: int = 10**9, name: str = "count"
) -> SafeSetting:
    """Return the largest whole number from 1 to ``high`` with ``risk(number) <= target``, for an increasing risk.

    Args:
        risk: Risk as a function of the number.
        target: Largest acceptable risk.
        start: Start of the search; a start above ``high`` is reduced to ``high``.
        high: Largest number to consider.
        name: Name of the number, for error messages.

    Returns:
        The number as a float, with its risk.

    Raises:
        InvalidInput: If ``risk(1)`` exceeds the target, or an argument is outside its domain.

    Guarantee: the risk was evaluated at the number returned and is at most ``target``. It was also evaluated at the
    next number and exceeds ``target`` there, unless the number is ``high``.
    Edge cases: if the risk at 1 exceeds the target, the error message states that risk.

    >>> largest_safe_count(lambda steps: steps / 10, target=0.75).value
    7.0
    """
    count = min(check_whole("start", start), check_whole("high", high))
    known: dict[int, float] = {}

    def is_safe(number: int) -> bool:
        known[number] = risk(number)
        return known[number] <= target

    safe, unsafe = _bracket_count(is_safe, count, high)
    if safe == 0:
        raise _unreachable_target(target, known[1], f"{name}=1")
    while unsafe is not None and unsafe - safe > 1:
        middle = _guess_between(safe, unsafe, known, target)
        safe, unsafe = (middle, unsafe) if is_safe(middle) else (safe, middle)
    return SafeSetting(float(safe), known[safe])


@dataclass
class _Search:
    """A search along a line from ``low`` to ``high`` on which the risk decreases."""

    risk: Risk
    target: float
    low: float
    high: float
    evaluated: list[tuple[float, float]] = field(default_factory=list)

    def run(self, start: float, tolerance: float, slope: float | None, name: str) -> tuple[float, float]:
        """Return the leftmost safe position, up to ``tolerance``, and its risk."""
        # With a known slope, start is already close to the answer; otherwise the first step is a factor of two.
        safe, unsafe = self._bracket(start, 100 * tolerance if slope is not None else math.log(2), slope)
        if safe is None:
            raise _unreachable_target(self.target, self.evaluated[-1][1], f"the safest {name}")
        for _ in range(_MAX_EVALUATIONS):
            if unsafe is None or safe[0] - unsafe[0] <= tolerance:
                break
            guess = self._secant_root(slope)
            # The last point is safe, and the secant through it meets the target within the tolerance: close enough.
            if guess is not None and abs(safe[0] - guess) <= tolerance and safe == self.evaluated[-1]:
                break
            # Try the root of the secant, moved to the safe side by half the tolerance so that the safe end improves.
            # Every fourth step bisects the bracket, which guarantees progress for any shape of the risk.
            bisect = len(self.evaluated) % 4 == 0
            if guess is None or bisect or not unsafe[0] < guess + tolerance / 2 < safe[0]:
                point = self._evaluate((safe[0] + unsafe[0]) / 2)
            else:
                point = self._evaluate(guess + tolerance / 2)
            if point[1] <= self.target:
                safe = point
            else:
                unsafe = point
        return safe

    def _evaluate(self, position: float) -> tuple[float, float]:
        point = (position, self.risk(position))
        self.evaluated.append(point)
        return point

    def _bracket(
        self, start: float, step: float, slope: float | None
    ) -> tuple[tuple[float, float] | None, tuple[float, float] | None]:
        """Return a safe point and an unsafe one to its left; None for a point that does not exist."""
        point = self._evaluate(_clip(start, self.low, self.high))
        is_safe = point[1] <= self.target
        if is_safe and slope is not None:  # the secant with the known slope makes the second evaluation unnecessary
            return point, (self.low, math.inf)
        while True:
            limit = self.low if is_safe else self.high
            if point[0] == limit:
                return (point, None) if is_safe else (None, point)
            following = max(point[0] - step, limit) if is_safe else min(point[0] + step, limit)
            before, point = point, self._evaluate(following)
            if (point[1] <= self.target) != is_safe:
                return (before, point) if is_safe else (point, before)
            step *= 2

    def _secant_root(self, slope: float | None) -> float | None:
        """Return the position at which the line through the last two points meets the target, or None.

        With a single point the line has the known ``slope``.
        """
        position, risk = self.evaluated[-1]
        if len(self.evaluated) > 1:
            earlier, other = self.evaluated[-2]
            slope = (risk - other) / (position - earlier) if position != earlier else slope
        if slope is None or not math.isfinite(slope) or slope >= 0 or not math.isfinite(risk):
            return None
        return position + (self.target - risk) / slope


def _bracket_count(is_safe: Callable[[int], bool], start: int, high: int) -> tuple[int, int | None]:
    """Return a safe count (0 if there is none) and an unsafe one above it (None if ``high`` is safe)."""
    # The first step is small because start is usually a good guess; the steps then grow by a factor of four.
    count, step, rises = start, max(1, start // 64), is_safe(start)
    while True:
        if (rises and count == high) or (not rises and count == 1):
            return (count, None) if rises else (0, 1)
        following = min(count + step, high) if rises else max(count - step, 1)
        if is_safe(following) != rises:
            return (count, following) if rises else (following, count)
        count, step = following, 4 * step


def _guess_between(safe: int, unsafe: int, known: dict[int, float], target: float) -> int:
    """Return a number strictly between two counts: by false position, and by bisection every other time."""
    rise = known[unsafe] - known[safe]
    if len(known) % 2 and math.isfinite(rise) and rise > 0:
        guess = safe + (target - known[safe]) / rise * (unsafe - safe)
        return min(max(round(guess), safe + 1), unsafe - 1)
    return (safe + unsafe) // 2


def _check_range(target: float, start: float, low: float, high: float, tolerance: float) -> None:
    check_real("target", target)
    check_positive("tolerance", tolerance)
    if not check_positive("low", low) <= check_positive("start", start) <= check_positive("high", high):
        raise invalid_input("start", start, f"in [{low!r}, {high!r}]", "Pass low <= start <= high.")


def _unreachable_target(target: float, least: float, where: str) -> Exception:
    return invalid_input(
        "target",
        target,
        f"to be within reach, found a risk of {least!r} at {where}",
        "Pass that risk or a larger target.",
    )


def _clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)

"""Number of releases that contain a record: a binomial law, in log space and on the safe side.

:func:`log_average_upper_bound` averages a bound over the number of hits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special
from scipy.special import logsumexp

from reconrisk.accounting.phases import unmerged_phases
from reconrisk.core.mechanism import Mechanism
from reconrisk.core.storage.serialization import serializable
from reconrisk.core.validation import check_probability, check_whole, invalid_input

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
CountFunction = Callable[[Integers], Floats]
"""Function of whole numbers, evaluated on an array of them."""

_POINTS = 65  # evaluated at once; each round narrows the range by a factor of 32


def argmax_of_concave(function: CountFunction, low: int, high: int) -> int:
    """Return the whole number at which a concave function is largest.

    Args:
        function: Concave function, evaluated on an array of whole numbers.
        low: Smallest number to consider.
        high: Largest number to consider.

    Returns:
        The position of the maximum.

    >>> argmax_of_concave(lambda k: -((k - 123_456.0) ** 2), 0, 10**9)
    123456
    """
    while True:
        # The maximum of a concave function lies between the neighbours of the best point of any grid.
        points = np.unique(np.linspace(low, high, _POINTS).astype(np.int64))
        best = int(np.argmax(function(points)))
        if len(points) == high - low + 1:
            return int(points[best])
        low, high = int(points[max(best - 1, 0)]), int(points[min(best + 1, len(points) - 1)])


def level_set_of_concave(function: CountFunction, low: int, peak: int, high: int, level: float) -> tuple[int, int]:
    """Return the first and last whole number at which a concave function is at least ``level``.

    Args:
        function: Concave function, evaluated on an array of whole numbers.
        low: Smallest number to consider.
        peak: A number at which the function is at least ``level``.
        high: Largest number to consider.
        level: Value to reach.

    Returns:
        The ends of the level set.

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


_SMALLEST_TAIL = 1e-200  # below about 1e-240 scipy.special.betainc returns less than the tail
_MOST_ATTEMPTS = 10**12  # counts stay exact in floats, far beyond any training


@serializable("hits")
@dataclass(frozen=True)
class Hits:
    """Number of releases that contain the record, Binomial(``attempts``, ``probability``).

    Attributes:
        attempts: Number of releases.
        probability: Probability that a release contains the record.

    >>> round(math.exp(Hits(attempts=3, probability=0.5).log_pmf(2)), 12)
    0.375
    """

    attempts: int
    probability: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "attempts", check_whole("attempts", self.attempts))
        if self.attempts > _MOST_ATTEMPTS:
            remedy = "Pass the number of steps of the training."
            raise invalid_input("attempts", self.attempts, f"<= {_MOST_ATTEMPTS:g}", remedy)
        check_probability("probability", self.probability)

    def log_pmf(self, hits: ArrayLike) -> Floats:
        """Return the log probability of exactly ``hits``, without underflow."""
        k = np.asarray(hits, dtype=float)
        choose = special.gammaln(self.attempts + 1) - special.gammaln(k + 1) - special.gammaln(self.attempts - k + 1)
        return np.asarray(
            choose + special.xlogy(k, self.probability) + special.xlog1py(self.attempts - k, -self.probability)
        )

    def log_at_least(self, hits: ArrayLike) -> Floats:
        """Return an upper bound on the log probability of ``hits`` or more; exact unless the tail is tiny.

        Tails below 1e-200 are bounded by Chernoff's inequality.

        >>> round(float(Hits(attempts=3, probability=0.5).log_at_least(3)) - math.log(0.125), 12)
        0.0
        """
        k = np.asarray(hits, dtype=float)
        # P(at least k) is the regularised incomplete beta function I_p(k, n - k + 1).
        exact = np.where(k <= 0, 1.0, special.betainc(np.maximum(k, 1), self.attempts - k + 1, self.probability))
        share = np.maximum(k / self.attempts, self.probability)
        with np.errstate(divide="ignore"):
            logs = np.log(exact)
        # Chernoff: P(at least k) <= exp(-n KL(k/n || p)) for k/n >= p; below p the share is raised to p, giving 1.
        divergence = special.rel_entr(share, self.probability) + special.rel_entr(1 - share, 1 - self.probability)
        chernoff = -self.attempts * divergence
        return np.asarray(np.where(exact > _SMALLEST_TAIL, logs, chernoff))


def phases(mechanism: Mechanism) -> tuple[tuple[float, Hits], ...]:
    """Return noise multiplier and hits of each phase of a mechanism that is described by its noise.

    Args:
        mechanism: Gaussian, subsampled, repeated or composed mechanism.

    Returns:
        One pair for each phase.

    Raises:
        InvalidInput: If the mechanism is not described by its noise.

    >>> from reconrisk.core.mechanism import dp_sgd
    >>> phases(dp_sgd(noise_multiplier=1.1, sampling_probability=0.01, steps=500))
    ((1.1, Hits(attempts=500, probability=0.01)),)
    """
    return tuple(
        (phase.noise_multiplier, Hits(phase.steps, phase.sampling_probability)) for phase in unmerged_phases(mechanism)
    )


def one_phase(mechanism: Mechanism) -> tuple[float, Hits]:
    """Return noise multiplier and hits of a mechanism with one phase.

    Args:
        mechanism: Mechanism described by its noise.

    Returns:
        Noise multiplier and hits.

    Raises:
        InvalidInput: If there are several phases, which have no common law.
    """
    found = phases(mechanism)
    if len(found) > 1:
        raise invalid_input("mechanism", mechanism, "to have one phase", "Pass each phase in a separate call.")
    return found[0]


def dominating_phase(mechanism: Mechanism) -> tuple[float, Hits]:
    """Return one phase that releases at least as much as all phases of a mechanism together.

    Args:
        mechanism: Mechanism described by its noise.

    Returns:
        Noise multiplier and hits of the dominating phase.

    Guarantee: exact for one phase, and for phases without sampling, whose values of steps / noise^2 add up.
    Otherwise every step gets the smallest noise and the largest sampling probability of any phase.

    >>> from reconrisk.core.mechanism import Composed, dp_sgd
    >>> dominating_phase(Composed((dp_sgd(noise_multiplier=1.0, steps=9), dp_sgd(noise_multiplier=0.25))))
    (0.2, Hits(attempts=1, probability=1.0))
    """
    found = phases(mechanism)
    if all(hits.probability == 1 for _, hits in found):
        signal = math.hypot(*(math.sqrt(hits.attempts) / noise for noise, hits in found))
        return 1 / signal, Hits(attempts=1, probability=1.0)
    steps = sum(hits.attempts for _, hits in found)
    probability = max(hits.probability for _, hits in found)
    return min(noise for noise, _ in found), Hits(attempts=steps, probability=probability)


_DENSE = 1000  # counts up to here are rungs of their own
_GROWTH = 1e-3  # beyond, rungs grow by 0.1 %, which is worth 0.05 % of noise
_STRIDE = 32  # first look at every 32nd rung
_NEGLIGIBLE = 35.0  # terms below exp(-35), about 6e-16, of the largest are not refined
_ROUNDING = 1e-13  # added to the result, above the rounding of the sum


def log_average_upper_bound(hits: Hits, given: Callable[[NDArray[np.int64]], Floats]) -> float:
    """Upper bound on the log of the mean of ``exp(given(hits))``, for a nondecreasing function.

    Counts are rounded up to the values in :func:`_ladder` (rungs): first to every 32nd rung, then to the next rung
    where the term still matters. Since the function is nondecreasing, the result is an upper bound.

    Args:
        hits: Distribution of the number of hits.
        given: Logarithm of the function to average, nondecreasing, evaluated on an array of counts.

    Returns:
        The bound, at most 0.

    >>> log_mean = log_average_upper_bound(Hits(attempts=2, probability=0.5), lambda hits: np.log((1 + hits) / 4))
    >>> round(math.exp(log_mean), 9)
    0.5
    """
    ladder = _ladder(hits.attempts)
    logs = np.full(len(ladder), math.nan)
    wanted = np.append(np.arange(0, len(ladder) - 1, _STRIDE), len(ladder) - 1)
    while len(wanted):
        logs[wanted] = given(ladder[wanted])
        known = np.flatnonzero(~np.isnan(logs))
        terms = _log_terms(hits, ladder[known], logs[known])
        # Refine every gap between known rungs whose term still matters, to all rungs inside it.
        matter = np.flatnonzero((np.diff(known) > 1) & (terms[1:] > np.max(terms) - _NEGLIGIBLE))
        wanted = np.unique(np.minimum(known[matter][:, None] + np.arange(1, _STRIDE), known[matter + 1][:, None] - 1))
    return min(0.0, float(logsumexp(terms)) + _ROUNDING) if np.isfinite(terms).any() else -math.inf


def _ladder(attempts: int) -> NDArray[np.int64]:
    """Hit counts from 0 to at least ``attempts``: all up to 1000, then in steps of 0.1 %.

    The counts do not depend on the mechanism, so rounding up to them keeps the average monotone in its settings.
    """
    beyond = max(0, math.ceil(math.log(max(attempts, 1) / _DENSE) / math.log1p(_GROWTH)) + 1)
    counts = np.concatenate([np.arange(_DENSE), np.ceil(_DENSE * (1 + _GROWTH) ** np.arange(beyond + 1))])
    return counts[: int(np.searchsorted(counts, attempts)) + 1].astype(np.int64)


def _log_terms(hits: Hits, counts: NDArray[np.int64], logs: Floats) -> Floats:
    """Log terms of an upper bound on the mean over the hits of a nondecreasing function known on rungs.

    Between two rungs the value at the upper one is used. The bound is the sum over rungs of P(hits beyond the rung
    below) times the increase.
    """
    logs = np.maximum.accumulate(logs)  # rounding may break the monotony by an ulp
    with np.errstate(divide="ignore", invalid="ignore"):
        increases = logs[1:] + np.log(-np.expm1(logs[:-1] - logs[1:]))
    increases = np.where(np.isnan(increases), -math.inf, increases)  # both rungs at probability zero
    return np.concatenate([logs[:1], increases + hits.log_at_least(counts[:-1] + 1)])

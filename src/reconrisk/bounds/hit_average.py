"""The average over the number of hits of what each number allows, on the safe side."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from reconrisk.bounds.hits import Hits

Floats = NDArray[np.float64]

_DENSE = 1000
_GROWTH = 1e-3
_STRIDE = 32
_NEGLIGIBLE = 35.0
_ROUNDING = 1e-13


def log_average_upper_bound(hits: Hits, given: Callable[[NDArray[np.int64]], Floats]) -> float:
    """Upper bound on the logarithm of the mean of ``exp(given(hits))``, for a nondecreasing function.

    Counts are rounded up to a ladder: to every 32nd rung at first, to the next one wherever that still matters.
    """
    ladder = _ladder(hits.attempts)
    logs = np.full(len(ladder), math.nan)
    wanted = np.append(np.arange(0, len(ladder) - 1, _STRIDE), len(ladder) - 1)
    while len(wanted):
        logs[wanted] = given(ladder[wanted])
        known = np.flatnonzero(~np.isnan(logs))
        terms = _log_terms(hits, ladder[known], logs[known])
        matter = np.flatnonzero((np.diff(known) > 1) & (terms[1:] > np.max(terms) - _NEGLIGIBLE))
        wanted = np.unique(np.minimum(known[matter][:, None] + np.arange(1, _STRIDE), known[matter + 1][:, None] - 1))
    return min(0.0, float(logsumexp(terms)) + _ROUNDING) if np.isfinite(terms).any() else -math.inf


def _ladder(attempts: int) -> NDArray[np.int64]:
    """Hit counts from 0 to at least ``attempts``: all up to 1000, then in steps of 0.1 %.

    The counts do not depend on the mechanism, so rounding up to them keeps the average monotone in it.
    """
    beyond = max(0, math.ceil(math.log(max(attempts, 1) / _DENSE) / math.log1p(_GROWTH)) + 1)
    counts = np.concatenate([np.arange(_DENSE), np.ceil(_DENSE * (1 + _GROWTH) ** np.arange(beyond + 1))])
    return counts[: int(np.searchsorted(counts, attempts)) + 1].astype(np.int64)


def _log_terms(hits: Hits, counts: NDArray[np.int64], logs: Floats) -> Floats:
    """Terms, in log space, of an upper bound on the mean over the hits of a nondecreasing function known on rungs.

    Between rungs the upper one counts: the sum over rungs of P(hits beyond the rung below) times the increase.
    """
    logs = np.maximum.accumulate(logs)
    with np.errstate(divide="ignore", invalid="ignore"):
        increases = logs[1:] + np.log(-np.expm1(logs[:-1] - logs[1:]))
    increases = np.where(np.isnan(increases), -math.inf, increases)  # both rungs at probability zero
    return np.concatenate([logs[:1], increases + hits.log_at_least(counts[:-1] + 1)])

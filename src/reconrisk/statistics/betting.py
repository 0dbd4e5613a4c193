r"""Limits of a success rate that hold at every time at which somebody looks.

Against the claim "the rate is at least p", a player with capital 1 bets before each trial that it fails. With the share
:math:`x_i \in [0, 1]` of successes in trial i and the fraction c of the capital at stake, capital grows by the factor

.. math:: 1 + c\,\frac{p - x_i}{1 - p}, \qquad c \in (0, 1],

which is never negative. If the claim is true, its mean given the past is at most one. The mean capital of many players
with their own fractions is therefore an e-process: it reaches :math:`1/\alpha` with probability at most alpha, at
whatever time one stops (Ville). Each factor grows with p, so the rates that are not rejected form an interval.

For single trials the factor is the likelihood ratio of the rate (1 - c) p against p.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reconrisk.core.guarantee import Estimate
from reconrisk.core.validation import check_not_empty, check_probability, check_whole, invalid_input
from reconrisk.statistics.search import check_level, shrink_bracket

Array = NDArray[np.float64]

# Bound on the round-off of the logarithm of one factor: 37 is the largest logarithm before p rounds to one, and a
# logarithm, its argument and the sum are each accurate to a few units in the last place.
_EPS = 2.0**-52
_ROUND_OFF = 37 * 8 * _EPS


@dataclass(frozen=True)
class BetPrior:
    """Fractions of the capital at stake, and the share of the capital that each player starts with.

    Attributes:
        fractions: Fractions in (0, 1].
        weights: Shares of the capital; they sum to one.

    >>> BetPrior((0.5, 1.0), (0.25, 0.75)).weights
    (0.25, 0.75)
    """

    fractions: tuple[float, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.fractions or not all(0 < each <= 1 for each in self.fractions):
            raise invalid_input("fractions", self.fractions, "to be numbers in (0, 1]")
        if len(self.weights) != len(self.fractions) or not all(each > 0 for each in self.weights):
            raise invalid_input("weights", self.weights, "to be positive, one for each fraction")
        if not math.isclose(math.fsum(self.weights), 1.0, rel_tol=1e-12):
            raise invalid_input("weights", self.weights, "to sum to one", "Divide them by their sum.")


def _geometric_prior(smallest: float, count: int, atom: float) -> BetPrior:
    """Return fractions from ``smallest`` up in equal ratios, weighted by their roots, and an atom at one."""
    fractions = np.exp(np.linspace(math.log(smallest), 0.0, count + 1))[:-1]
    weights = (1 - atom) * np.sqrt(fractions) / np.sqrt(fractions).sum()
    return BetPrior((*fractions.tolist(), 1.0), (*weights.tolist(), atom))


AUDIT_PRIOR = _geometric_prior(0.001, 48, atom=0.4)
"""Bets for success rates of attacks: 0.4 of the capital expects no success at all."""
CANARY_PRIOR = _geometric_prior(0.003, 32, atom=0.05)
"""Bets for rates in the middle of the scale, such as the accuracy of guesses about canaries."""


def log_evidence_below(successes: int, trials: int, rate: float, prior: BetPrior = AUDIT_PRIOR) -> float:
    r"""Logarithm of the evidence against "the success rate is at least p".

    .. math:: E = \sum_j w_j r_j^k \Big(\frac{1 - p r_j}{1 - p}\Big)^{n-k}, \qquad r_j = 1 - c_j

    Args:
        successes: Number of successes, :math:`k`.
        trials: Number of trials, :math:`n`.
        rate: The claimed rate p.
        prior: Fractions :math:`c_j` and weights :math:`w_j` of the bets.

    Returns:
        The natural logarithm of the e-process.

    Raises:
        InvalidInput: If there are more successes than trials, or ``rate`` is not in [0, 1].

    Assumes: given the past, each trial succeeds with probability at least ``rate`` if the claim is true.
    Guarantee: at any stopping time the mean of E is at most one if the claim is true. Nondecreasing in ``rate``.
    Edge cases: no trial gives 0; ``rate = 1`` gives inf after a failure.

    >>> round(log_evidence_below(0, 50, 0.1), 4)
    4.4743
    """
    rate = check_probability("rate", rate)
    return _log_evidence(*_tally_counts(successes, trials), rate, prior)


def log_evidence_above(successes: int, trials: int, rate: float, prior: BetPrior = AUDIT_PRIOR) -> float:
    """Logarithm of the evidence against "the success rate is at most p".

    Args:
        successes: Number of successes.
        trials: Number of trials.
        rate: The claimed rate p.
        prior: Fractions and weights of the bets.

    Returns:
        The natural logarithm of the e-process; :func:`log_evidence_below` with failures for successes.

    Raises:
        InvalidInput: If there are more successes than trials, or ``rate`` is not in [0, 1].

    >>> log_evidence_above(50, 50, 0.9) == log_evidence_below(0, 50, 1 - 0.9)
    True
    """
    rate = check_probability("rate", rate)
    values, counts = _tally_counts(successes, trials)
    return _log_evidence(1 - values, counts, 1 - rate, prior)


def count_limits(
    successes: int, trials: int, *, alpha: float = 0.025, prior: BetPrior = AUDIT_PRIOR
) -> tuple[float, float]:
    """Anytime-valid limits of a success rate from counts.

    Args:
        successes: Number of successes.
        trials: Number of trials.
        alpha: Probability with which each limit may ever be wrong.
        prior: Fractions and weights of the bets.

    Returns:
        Lower and upper limit; each alone is a one-sided limit at level ``alpha``.

    Raises:
        InvalidInput: If there are more successes than trials, or ``alpha`` is not in (0, 1).

    Assumes: given the past, each trial succeeds with the same probability.
    Guarantee: the share of successes lies between the limits. Looking after every trial does not spoil them.
    Edge cases: no trial gives (0, 1); no success gives a lower limit of 0.

    >>> tuple(round(limit, 4) for limit in count_limits(0, 64))
    (0.0, 0.0672)
    """
    values, counts = _tally_counts(successes, trials)
    return _lower_limit(values, counts, alpha, prior), _upper_limit(values, counts, alpha, prior)


def rate_limits(
    shares: Sequence[float] | Array, *, alpha: float = 0.025, population: int | None = None
) -> tuple[float, float]:
    """Anytime-valid limits of a mean share, such as the share of rebuilt records in each update.

    The records of one update may depend on each other in any way. The mean is over updates: an update of few records
    counts as much as an update of many.

    Args:
        shares: One number in [0, 1] for each update, in the order of observation.
        alpha: Probability with which each limit may ever be wrong.
        population: Number of updates from which these are drawn without replacement; None if each is a new draw.

    Returns:
        Lower and upper limit; each alone is a one-sided limit at level ``alpha``.

    Raises:
        InvalidInput: If a share is not in [0, 1], there are more shares than ``population``, or ``alpha`` is not in
            (0, 1).

    Assumes: given the past, each share has the same mean. With ``population``: a random order.
    Guarantee: shares 0 and 1 give the limits of :func:`count_limits`. With ``population`` both limits reach the mean
    when all updates are seen.
    Edge cases: no share gives (0, 1).
    Reference: the sampling without replacement follows `Waudby-Smith and Ramdas (2024)
    <https://arxiv.org/abs/2010.09686>`_.

    >>> tuple(round(limit, 4) for limit in rate_limits([0, 0.125, 0.25, 0, 0, 0.125, 0, 0.5]))
    (0.0158, 0.5075)
    """
    seen = np.asarray(shares, dtype=np.float64)
    if seen.ndim != 1 or not ((seen >= 0) & (seen <= 1)).all():
        raise invalid_input("shares", shares, "to be a sequence of numbers in [0, 1]")
    if population is None:
        values, counts = np.unique(seen, return_counts=True)
        weights = counts.astype(np.float64)
        return _lower_limit(values, weights, alpha, AUDIT_PRIOR), _upper_limit(values, weights, alpha, AUDIT_PRIOR)
    if len(seen) > check_whole("population", population):
        raise invalid_input("population", population, f">= {len(seen)}, the number of shares")
    upper = _upper_limit_of_population(seen, population, alpha)
    return 1 - _upper_limit_of_population(1 - seen, population, alpha), upper


def best_rate_limits(hits: ArrayLike, *, alpha: float = 0.025) -> tuple[float, float]:
    r"""Anytime-valid limits of the success rate of the best of several attacks.

    The upper limit is the largest of the single upper limits; it needs no correction, because only the limit of the
    best attack must hold. Two players bet against "no attack has a rate above p". The first spreads the capital over
    all attacks. The second bets on the attack that had the most successes before the trial. Half of the capital is
    given to each.

    Args:
        hits: Success of each attack in each trial, with the shape (attacks, trials).
        alpha: Probability with which each limit may ever be wrong.

    Returns:
        Lower and upper limit of the largest rate.

    Raises:
        InvalidInput: If ``hits`` is not a table of zeros and ones with at least one row, or ``alpha`` is not in (0, 1).

    Assumes: given the past, each trial of an attack succeeds with the attack's rate. Attacks may depend on each other.
    Guarantee: one attack has the limits of :func:`count_limits`.
    Edge cases: no trial gives (0, 1).

    >>> tuple(round(limit, 4) for limit in best_rate_limits([[True] * 30, [False] * 30]))
    (0.8536, 1.0)
    """
    table = np.asarray(hits)
    if table.ndim != 2 or len(table) == 0 or not np.isin(table, (0, 1)).all():
        raise invalid_input("hits.shape", table.shape, "to be (attacks, trials), with zeros and ones")
    level, trials, wins = check_level(alpha), table.shape[1], table.astype(np.int64)
    upper = max(_upper_limit(*_tally_counts(int(row.sum()), trials), level, AUDIT_PRIOR) for row in wins)
    if trials == 0:
        return 0.0, upper
    before = np.cumsum(wins, axis=1) - wins
    leader_wins = int(wins[before.argmax(0), np.arange(trials)].sum())
    totals, attacks = np.unique(wins.sum(1), return_counts=True)
    log_shares = np.log(np.append(attacks / len(wins), 1.0) / 2)
    failures = [_tally_counts(trials - int(each), trials) for each in (*totals, leader_wins)]

    def log_evidence(rate: float) -> float:
        logs = [_log_evidence(*tally, rate, AUDIT_PRIOR) for tally in failures]
        return float(np.logaddexp.reduce(log_shares + logs))

    return 1 - _first_rejected_rate(log_evidence, level, trials), upper


def success_estimate(
    shares: Sequence[float] | Array, *, confidence: float = 0.95, population: int | None = None
) -> Estimate:
    """Mean share of successes with its anytime-valid interval.

    Args:
        shares: One number in [0, 1] for each trial: 0 and 1 for a single record, a share for an update of several.
        confidence: Probability in (0, 1) that the interval covers the mean at all times.
        population: Number of trials from which these are drawn without replacement; None if each is a new draw.

    Returns:
        The mean with its interval.

    Raises:
        InvalidInput: If there is no trial, a share is not in [0, 1], or ``confidence`` is not in (0, 1).

    Guarantee: either end alone misses the mean with at most half of the remaining probability.

    >>> print(success_estimate([0, 0, 1, 0, 0, 0, 0, 0]))
    0.125 [0.0003018, 0.6901] (95% anytime-valid betting, 8 samples)
    """
    check_not_empty("shares", list(shares), "An interval needs at least one trial.")
    if not 0 < check_probability("confidence", confidence) < 1:
        raise invalid_input("confidence", confidence, "in (0, 1)", "Pass 0.95, for example.")
    low, high = rate_limits(shares, alpha=(1 - confidence) / 2, population=population)
    mean = math.fsum(shares) / len(shares)
    # Round-off may put the mean of a fully observed population one unit outside.
    return Estimate(mean, min(low, mean), max(high, mean), float(confidence), len(shares), "anytime-valid betting")


def _tally_counts(successes: int, trials: int) -> tuple[Array, Array]:
    """Return the observed values among 0 and 1, and how often each occurred."""
    trials = check_whole("trials", trials, minimum=0)
    successes = check_whole("successes", successes, minimum=0)
    if successes > trials:
        raise invalid_input("successes", successes, f"<= trials={trials}")
    values, counts = np.array([0.0, 1.0]), np.array([trials - successes, successes], dtype=np.float64)
    return values[counts > 0], counts[counts > 0]


def _log_evidence(values: Array, counts: Array, rate: float, prior: BetPrior) -> float:
    """Return the log of the e-process against a mean of at least ``rate``."""
    if rate == 1.0 and (values < 1).any():
        return math.inf
    stakes = np.asarray(prior.fractions)
    odds = (rate - values) / (1 - rate) if rate < 1 else -np.ones(len(values))
    with np.errstate(divide="ignore"):  # a stake of one is lost by a success: capital 0
        logs = np.log1p(np.outer(stakes, odds)) @ counts
    return float(np.logaddexp.reduce(np.log(prior.weights) + logs))


def _upper_limit(values: Array, counts: Array, alpha: float, prior: BetPrior) -> float:
    trials = float(counts.sum())
    return _first_rejected_rate(lambda rate: _log_evidence(values, counts, rate, prior), check_level(alpha), trials)


def _lower_limit(values: Array, counts: Array, alpha: float, prior: BetPrior) -> float:
    return 1 - _upper_limit(1 - values, counts, alpha, prior)


def _first_rejected_rate(log_evidence: Callable[[float], float], alpha: float, trials: float) -> float:
    """Return the outer end of the bracket around the least rate with an evidence of 1/alpha, or 1."""
    needed = -math.log(alpha) + _ROUND_OFF * (trials + 1)
    rejected = shrink_bracket(lambda rate: log_evidence(rate) >= needed, kept=0.0, excluded=1.0)[1]
    return min(1.0, rejected * (1 + 4 * _EPS))


def _upper_limit_of_population(shares: Array, population: int, alpha: float) -> float:
    """Return the upper limit for draws without replacement: each bet is against the mean of the unseen ones."""
    left = population - np.arange(len(shares))
    before = np.cumsum(shares) - shares
    stakes, log_weights = np.asarray(AUDIT_PRIOR.fractions)[:, None], np.log(AUDIT_PRIOR.weights)

    def log_evidence(rate: float) -> float:
        means = (population * rate - before) / left
        if ((means > 1) | ((means == 1) & (shares < 1))).any():
            return math.inf  # the unseen ones cannot have such a mean
        with np.errstate(divide="ignore", invalid="ignore"):
            odds = np.where(means < 1, (means - shares) / (1 - means), -1.0)
            logs = np.log1p(stakes * odds).sum(1)
        return float(np.logaddexp.reduce(log_weights + logs))

    limit = _first_rejected_rate(log_evidence, check_level(alpha), len(shares))
    unseen = population - len(shares)
    most = (math.fsum(shares) + unseen) / population  # as if all unseen ones were 1
    # The sum over earlier shares has a relative error of one unit for each; it acts like an error of the rate.
    return min(min(limit, most) * (1 + (4 + len(shares)) * _EPS), 1.0)

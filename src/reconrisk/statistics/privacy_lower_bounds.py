r"""Lower bounds on privacy parameters from guesses about canaries, and caps on the success of every guess.

A canary is a record that takes part in a run if a fair coin says so. The coin is hidden from the mechanism, and the
auditor guesses it from the release. Every claim caps the share of right guesses; a share above the cap refutes it.

A bound "inside a family" bounds the parameter of mechanisms of that family, such as Gaussian DP. Only the shape-free
bound is a bound on the epsilon of any mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, log_ndtr, ndtr, ndtri

from reconrisk.core.validation import (
    check_finite,
    check_not_empty,
    check_positive,
    check_probability,
    check_real,
    check_whole,
    invalid_input,
)
from reconrisk.statistics.betting import CANARY_PRIOR, count_limits
from reconrisk.statistics.intervals import clopper_pearson
from reconrisk.statistics.search import check_level, shrink_bracket

Array = NDArray[np.float64]
TradeOff = Callable[[float], float]
"""Least probability of missing a record for each probability of a false alarm; convex and nonincreasing."""

GUESS_SHARES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Shares of the canaries about which :func:`best_one_run_mu` guesses."""

LIKELIHOOD_THRESHOLDS = (1.0, 2.0, 3.0, 4.0, 5.0)
"""Thresholds of :func:`shape_free_epsilon` for scores that are log-likelihood ratios."""

_LARGEST_EPSILON = 700.0  # exp overflows at 709
_LARGEST_MU = 37.0  # Phi(mu) and Phi(-mu) are 1 and 0 in double precision beyond
_WIDTH = 1e-9  # at which the search for a bound stops; the rejected end is returned
_SLACK = 1e-12  # relative, more than the round-off of a few hundred sums


def accuracy_cap(trade_off: TradeOff) -> float:
    r"""Upper bound on the share of right guesses about a fair coin.

    .. math:: 1 - \min_a \frac{a + f(a)}{2}

    Args:
        trade_off: Trade-off function f of the claim, convex; it need not be symmetric.

    Returns:
        The cap.

    Raises:
        InvalidInput: If ``trade_off`` returns a number outside of [0, 1].

    Guarantee: not below the true cap for convex f, also between the points at which f is evaluated. In [0.5, 1].

    >>> round(accuracy_cap(lambda a: float(ndtr(-ndtri(a) - 1.0))), 6) == round(gaussian_cap(1.0), 6)
    True
    """
    low, high = 0.0, 1.0
    for _ in range(12):  # each round shrinks the interval by 8: to 2^-36, where a parabola is flat
        nodes = np.linspace(low, high, 17)
        errors = nodes + [check_probability("trade_off(a)", trade_off(float(node))) for node in nodes]
        best = int(errors.argmin())
        left, right = max(best - 1, 0), min(best + 1, len(nodes) - 1)
        low, high = float(nodes[left]), float(nodes[right])
    # Next to the least node, a convex function is at least the line through the two nodes on the other side.
    if best in (0, len(nodes) - 1):
        least = 2 * errors[1] - errors[2] if best == 0 else 2 * errors[-2] - errors[-3]
    else:
        least = 2 * errors[best] - max(errors[left], errors[right])
    return float(min(1.0, max(0.5, 1 - max(least, 0.0) / 2) + 1e-15))


def gaussian_cap(mu: float) -> float:
    r"""Upper bound :math:`\Phi(\mu/2)` on the share of right guesses about a fair coin under Gaussian DP.

    Args:
        mu: Privacy parameter under adding or removing the canary.

    Returns:
        The cap.

    Raises:
        InvalidInput: If ``mu`` is negative.

    >>> round(gaussian_cap(1.0), 4)
    0.6915
    """
    return float(ndtr(_check_mu(mu) / 2))


def gaussian_mu_lower(right: int, runs: int, *, alpha: float = 0.05, anytime: bool = True) -> float:
    r"""Lower bound on the parameter of Gaussian DP from guesses about one canary in each run.

    .. math:: \mu_L = 2 \Phi^{-1}(p_L)

    Args:
        right: Number of runs with a right guess.
        runs: Number of runs; a new fair coin decides in each.
        alpha: Probability with which the bound may be wrong.
        anytime: True if the number of runs depends on their results, False if it was fixed in advance.

    Returns:
        The bound, at least 0. :math:`p_L` is the lower limit of the share of right guesses: by :func:`count_limits`, or
        by :func:`clopper_pearson` for a fixed number.

    Raises:
        InvalidInput: If there are more right guesses than runs, or ``alpha`` is not in (0, 1).

    Assumes: the mechanism belongs to the family of Gaussian DP.
    Edge cases: no run gives 0.

    >>> round(gaussian_mu_lower(692, 1000), 3), round(gaussian_mu_lower(692, 1000, anytime=False), 3)
    (0.746, 0.864)
    """
    share = _lower_share(right, runs, alpha, anytime)
    return max(0.0, 2 * float(ndtri(share)) * (1 - _SLACK))


def gaussian_epsilon(mu: float, delta: float) -> float:
    r"""Epsilon of Gaussian DP at a given delta, rounded down.

    .. math:: \delta = \Phi(\mu/2 - \varepsilon/\mu) - e^\varepsilon \Phi(-\mu/2 - \varepsilon/\mu)

    Args:
        mu: Privacy parameter of Gaussian DP.
        delta: Probability with which the guarantee may fail, in (0, 1).

    Returns:
        The epsilon; a lower bound on mu becomes a lower bound on epsilon.

    Raises:
        InvalidInput: If ``mu`` is negative or ``delta`` is not in (0, 1).

    Edge cases: ``mu = 0`` gives 0, ``mu = inf`` gives inf.

    >>> round(gaussian_epsilon(1.0, 1e-5), 4)
    4.3772
    """
    mu, log_target = _check_mu(mu), math.log(_check_delta(delta))
    if mu == 0 or mu == math.inf:
        return mu

    def exceeds(epsilon: float) -> bool:
        first = float(log_ndtr(mu / 2 - epsilon / mu))
        second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
        difference = -math.expm1(min(second - first, 0.0))
        return difference > 0 and first + math.log(difference) > log_target + _SLACK

    if not exceeds(0.0):
        return 0.0
    most = mu * mu / 2 + mu * math.sqrt(-2 * log_target) + 1  # of the Renyi form, hence above the true epsilon
    return shrink_bracket(lambda each: not exceeds(each), kept=0.0, excluded=most)[0]


def shape_free_epsilon(
    scores: ArrayLike,
    truths: ArrayLike,
    *,
    thresholds: Sequence[float],
    delta: float,
    alpha: float = 0.05,
    anytime: bool = True,
) -> float:
    r"""Lower bound on the epsilon of any mechanism, from scores of one canary in each run.

    A threshold t guesses "in" for scores of at least t, "out" for scores of at most -t, and abstains otherwise. Under
    :math:`(\varepsilon, \delta)`-DP

    .. math:: P(\text{right}) \le e^\varepsilon P(\text{wrong}) + \delta.

    Anytime, :math:`X = 1_\text{right} - e^\varepsilon 1_\text{wrong}` has a mean of at most delta, and bets on a larger
    mean give an e-process; the evidence of all thresholds is averaged. For a fixed number of runs, limits of
    both probabilities are combined, and the error probability is divided by the number of thresholds.

    Args:
        scores: Score of each run; large positive scores speak for a canary that took part, such as log-likelihood
            ratios.
        truths: True for each run in which the canary took part.
        thresholds: Thresholds t of at least 0, chosen before the scores are seen.
        delta: Probability with which the claimed guarantee may fail, in [0, 1).
        alpha: Probability with which the bound may be wrong.
        anytime: True if the number of runs depends on their results, False if it was fixed in advance.

    Returns:
        The bound, at least 0.

    Raises:
        InvalidInput: If scores and truths have different lengths, there is no threshold, a score is NaN, ``delta`` is
            not in [0, 1), or ``alpha`` is not in (0, 1).

    Assumes: a new fair coin decides in each run whether the canary takes part.
    Edge cases: no run gives 0.

    >>> scores, truths = [2.0, -2.0] * 200, [True, False] * 200
    >>> round(shape_free_epsilon(scores, truths, thresholds=(1.0, 3.0), delta=1e-5), 2)
    4.22
    """
    values, inside = np.asarray(scores, dtype=np.float64), np.asarray(truths, dtype=bool)
    check_not_empty("thresholds", thresholds, "Pass thresholds that do not depend on the scores.")
    if values.shape != inside.shape or values.ndim != 1 or np.isnan(values).any():
        raise invalid_input("scores.shape", values.shape, f"to be one number for each of {inside.size} truths")
    if not 0 <= check_probability("delta", delta) < 1:
        raise invalid_input("delta", delta, "in [0, 1)")
    counts = []
    for threshold in thresholds:
        if not check_finite("thresholds", threshold) >= 0:
            raise invalid_input("thresholds", threshold, ">= 0")
        chosen = (np.abs(values) >= threshold) & (values != 0)
        right = int((chosen & ((values > 0) == inside)).sum())
        counts.append((right, int(chosen.sum()) - right))
    if anytime:
        return _epsilon_from_bets(counts, len(values), delta, check_level(alpha))
    level = check_level(alpha) / len(counts)
    return max(_epsilon_from_ends(right, wrong, len(values), delta, level) for right, wrong in counts)


def one_run_p_value(canaries: int, guesses: int, right: int, *, epsilon: float, delta: float) -> float:
    r"""Probability of at least so many right guesses in one run, at most, under (epsilon, delta)-DP.

    .. math:: P(B \ge v) + 2 m \delta \max_{1 \le i \le v} P(v - i \le B < v) / i,
        \qquad B \sim \mathrm{Bin}(r, \tfrac{e^\varepsilon}{1 + e^\varepsilon})

    Args:
        canaries: Number of canaries m; each takes part by its own fair coin.
        guesses: Number of guesses r, fixed in advance.
        right: Number of right guesses v.
        epsilon: Claimed epsilon.
        delta: Claimed delta.

    Returns:
        The p-value, at most 1.

    Raises:
        InvalidInput: If ``right <= guesses <= canaries`` does not hold, or a privacy parameter is out of range.

    Reference: `Steinke, Nasr, Jagielski (2023) <https://arxiv.org/abs/2305.08846>`_, Theorem 5.2.

    >>> round(one_run_p_value(1000, 100, 90, epsilon=1.0, delta=1e-5), 7)
    0.0008413
    """
    canaries, guesses, right = _check_guesses(canaries, guesses, right)
    if check_real("epsilon", epsilon) < 0:
        raise invalid_input("epsilon", epsilon, ">= 0")
    delta = check_probability("delta", delta)
    if right == 0:
        return 1.0
    chance = 1 / (1 + math.exp(-epsilon))
    counts = np.arange(1, right + 1)
    tails = np.concatenate([[1.0], betainc(counts, guesses - counts + 1, chance)])  # P(B >= k) for k = 0, ..., v
    extra = float(((tails[:-1] - tails[-1]) / counts[::-1]).max())
    return min(1.0, float(tails[-1]) + 2 * canaries * delta * extra)


def one_run_epsilon(canaries: int, guesses: int, right: int, *, delta: float, alpha: float = 0.05) -> float:
    """Lower bound on the epsilon of any mechanism from many canaries in one run.

    Args:
        canaries: Number of canaries; each takes part by its own fair coin.
        guesses: Number of guesses, fixed in advance, such as the canaries with the largest scores of either sign.
        right: Number of right guesses.
        delta: Claimed delta.
        alpha: Probability with which the bound may be wrong.

    Returns:
        The largest epsilon that :func:`one_run_p_value` rejects, rounded down; 0 if it rejects none.

    Raises:
        InvalidInput: If ``right <= guesses <= canaries`` does not hold, ``delta`` is not in [0, 1], or ``alpha`` is not
            in (0, 1).

    >>> round(one_run_epsilon(1000, 100, 90, delta=1e-5), 5)
    1.62614
    """
    level = check_level(alpha) * (1 - 1e-9)  # betainc is accurate to about 1e-13

    # For each i the p-value is the mean of a function of B: 0, then 2 m delta / i, then 1. It crosses a level below one
    # once, from below. Binomial laws diminish the number of sign changes, so its mean crosses the level once as well.
    def accepts(epsilon: float) -> bool:
        return one_run_p_value(canaries, guesses, right, epsilon=epsilon, delta=delta) > level

    if accepts(0.0):
        return 0.0
    return shrink_bracket(accepts, kept=0.0, excluded=_LARGEST_EPSILON, width=_WIDTH)[0]


def one_run_mu(canaries: int, guesses: int, right: int, *, alpha: float = 0.05) -> float:
    """Lower bound on the parameter of Gaussian DP from many canaries in one run.

    Args:
        canaries: Number of canaries; each takes part by its own fair coin.
        guesses: Number of guesses, fixed in advance, such as the canaries with the largest scores of either sign.
        right: Number of right guesses.
        alpha: Probability with which the bound may be wrong.

    Returns:
        The largest mu whose trade-off function is rejected, rounded down; 0 if none is.

    Raises:
        InvalidInput: If ``right <= guesses <= canaries`` does not hold, or ``alpha`` is not in (0, 1).

    Assumes: the mechanism belongs to the family of Gaussian DP.
    Reference: `Mahloujifar, Melis, Chaudhuri (2024) <https://arxiv.org/abs/2410.22235>`_, Algorithm 3.

    >>> round(one_run_mu(1000, 100, 90), 4)
    0.6025
    """
    counts, level = _check_guesses(canaries, guesses, right), check_level(alpha)

    def accepts(mu: float) -> bool:
        return not _rejects_run(counts, lambda power: float(ndtr(ndtri(power) - mu)), level)

    if accepts(0.0):
        return 0.0
    return shrink_bracket(accepts, kept=0.0, excluded=_LARGEST_MU, width=_WIDTH)[0]


def best_one_run_mu(
    scores: ArrayLike, truths: ArrayLike, *, alpha: float = 0.05, shares: Sequence[float] = GUESS_SHARES
) -> float:
    """Lower bound on the parameter of Gaussian DP from the scores of many canaries in one run.

    Args:
        scores: Score of each canary; positive scores speak for a canary that took part.
        truths: True for each canary that took part.
        alpha: Probability with which the bound may be wrong.
        shares: Shares of the canaries about which to guess: those with the largest absolute scores. The error
            probability is divided among them.

    Returns:
        The largest of the bounds of :func:`one_run_mu`.

    Raises:
        InvalidInput: If scores and truths have different lengths, a share is not in (0, 1], or ``alpha`` is not in
            (0, 1).

    Assumes: as for :func:`one_run_mu`.

    >>> round(best_one_run_mu([3.0, -2.0] * 50, [True, False] * 50, shares=(0.5, 1.0)), 3)
    1.517
    """
    values, inside = np.asarray(scores, dtype=np.float64), np.asarray(truths, dtype=bool)
    check_not_empty("shares", shares, "Pass shares of the canaries, such as 0.1.")
    if values.shape != inside.shape or values.ndim != 1 or np.isnan(values).any() or len(values) == 0:
        raise invalid_input("scores.shape", values.shape, f"to be one number for each of {inside.size} truths")
    order = np.argsort(-np.abs(values), kind="stable")
    hits = ((values > 0) == inside)[order]
    level, bounds = check_level(alpha) / len(shares), [0.0]
    for share in shares:
        if check_probability("shares", share) == 0:
            raise invalid_input("shares", share, "in (0, 1]")
        guesses = max(1, round(share * len(values)))
        bounds.append(one_run_mu(len(values), guesses, int(hits[:guesses].sum()), alpha=level))
    return max(bounds)


def one_run_trade_off_rejected(
    canaries: int, guesses: int, right: int, trade_off: TradeOff, *, alpha: float = 0.05
) -> bool:
    """Test a claimed trade-off function with many canaries in one run.

    The test uses the symmetric lower envelope of the function, see :func:`symmetric_envelope`.

    Args:
        canaries: Number of canaries; each takes part by its own fair coin.
        guesses: Number of guesses, fixed in advance, such as the canaries with the largest scores of either sign.
        right: Number of right guesses.
        trade_off: Claimed trade-off function, convex; it need not be symmetric.
        alpha: Probability with which a true claim may be rejected.

    Returns:
        True if the claim is rejected.

    Raises:
        InvalidInput: If ``right <= guesses <= canaries`` does not hold, or ``alpha`` is not in (0, 1).

    Reference: `Mahloujifar, Melis, Chaudhuri (2024) <https://arxiv.org/abs/2410.22235>`_, Algorithm 3.

    >>> one_run_trade_off_rejected(1000, 100, 90, lambda a: float(ndtr(-ndtri(a) - 0.5)))
    True
    """
    counts, envelope = _check_guesses(canaries, guesses, right), symmetric_envelope(trade_off)
    return _rejects_run(counts, lambda power: envelope(1 - power), check_level(alpha))


def one_run_trade_off_p_value(canaries: int, guesses: int, right: int, trade_off: TradeOff) -> float:
    """Smallest level at which :func:`one_run_trade_off_rejected` rejects a claimed trade-off function, rounded up.

    Args:
        canaries: Number of canaries; each takes part by its own fair coin.
        guesses: Number of guesses, fixed in advance.
        right: Number of right guesses.
        trade_off: Claimed trade-off function, convex; it need not be symmetric.

    Returns:
        The p-value of one run. :func:`log_evidence_from_p_values` turns those of several runs into evidence.

    Raises:
        InvalidInput: If ``right <= guesses <= canaries`` does not hold.

    Edge cases: 1 if no level below one rejects; 1e-300 if all levels do.

    >>> round(one_run_trade_off_p_value(1000, 100, 90, lambda a: float(ndtr(-ndtri(a) - 0.5))), 4)
    0.0128
    """
    counts, envelope = _check_guesses(canaries, guesses, right), symmetric_envelope(trade_off)

    def rejects(log_level: float) -> bool:
        return _rejects_run(counts, lambda power: envelope(1 - power), math.exp(log_level))

    lowest = math.log(1e-300)
    return min(1.0, math.exp(shrink_bracket(rejects, kept=lowest, excluded=0.0, width=_WIDTH)[1]) * (1 + _SLACK))


def symmetric_envelope(trade_off: TradeOff) -> TradeOff:
    """Largest convex symmetric function below a trade-off function, from points and rounded down.

    A mechanism has one trade-off function for adding a record and its inverse for removing it. If they differ, as with
    subsampling, the envelope bounds both.

    Args:
        trade_off: A nonincreasing trade-off function.

    Returns:
        The envelope, piecewise linear.

    Raises:
        InvalidInput: If ``trade_off`` returns a number outside of [0, 1].

    Guarantee: convex, and nowhere above the function or its inverse, also between the points.

    >>> envelope = symmetric_envelope(lambda a: float(ndtr(-ndtri(a) - 1.0)))
    >>> round(envelope(0.1), 2), round(envelope(envelope(0.1)), 2)
    (0.61, 0.1)
    """
    # Neighbouring errors differ by two percent, and by more below 1e-4, where functions of training runs are slow.
    outer = np.arange(9.0, 20.0, 0.25)
    nodes = 1 / (1 + np.exp(-np.concatenate([-outer[::-1], np.arange(-8.98, 9.0, 0.02), outer])))
    misses = [check_probability("trade_off(a)", trade_off(float(node))) for node in nodes]
    # Between two nodes the function is at least its value at the right one: the corner of a step below it.
    corners = list(zip([0.0, *nodes.tolist()], [*misses, 0.0], strict=True))
    hull: list[tuple[float, float]] = []
    for x, y in sorted({*corners, *((y, x) for x, y in corners)}):
        if hull and y >= hull[-1][1]:
            continue  # to the right and not lower
        while len(hull) > 1 and _turns_right(hull[-2], hull[-1], (x, y)):
            hull.pop()
        hull.append((x, y))
    ends, heights = np.array(hull).T
    return lambda alarm: float(np.interp(check_probability("alarm", alarm), ends, heights))


def _turns_right(first: tuple[float, float], second: tuple[float, float], third: tuple[float, float]) -> bool:
    """Return True if the second point is not below the line through the others."""
    rise = (second[1] - first[1]) * (third[0] - first[0])
    return rise >= (third[1] - first[1]) * (second[0] - first[0])


def log_evidence_from_p_values(p_values: Sequence[float]) -> float:
    r"""Logarithm of the evidence of several runs, each with its own p-value.

    .. math:: \ln \prod_i \frac{1}{2 \sqrt{p_i}}

    Args:
        p_values: P-values of independent runs of one claim, in (0, 1].

    Returns:
        The natural logarithm of the e-process; one may stop after any run.

    Raises:
        InvalidInput: If a p-value is not in (0, 1].

    Edge cases: no run gives 0.

    >>> round(log_evidence_from_p_values([0.01, 0.01]), 3)
    3.219
    """
    if not all(check_probability("p_values", each) > 0 for each in p_values):
        raise invalid_input("p_values", p_values, "to be in (0, 1]")
    return math.fsum(-math.log(2) - math.log(each) / 2 for each in p_values)


def identification_cap(claim: TradeOff | float, candidates: int) -> float:
    r"""Upper bound on the probability of naming the record among equally likely candidates.

    .. math:: 1 - f(1/N), \qquad \Phi(\Phi^{-1}(1/N) + \mu) \text{ under Gaussian DP}

    Args:
        claim: Trade-off function f, or the parameter mu of Gaussian DP, under adding or removing a record.
        candidates: Number N of candidates.

    Returns:
        The cap.

    Raises:
        InvalidInput: If mu is negative, ``trade_off`` returns a number outside of [0, 1], or there is no candidate.

    Assumes: all candidates are equally likely, and the other records do not depend on the choice.
    Edge cases: one candidate gives 1.

    >>> round(identification_cap(1.0, 10), 4)
    0.3891
    """
    chance = 1 / check_whole("candidates", candidates)
    if chance == 1:
        return 1.0
    if callable(claim):
        success = 1 - check_probability("claim(1 / candidates)", claim(chance))
    else:
        success = float(ndtr(ndtri(chance) + _check_mu(claim)))
    return min(1.0, max(success, chance) * (1 + _SLACK))


def gaussian_identification(mu: float, candidates: int) -> float:
    r"""Success of the best guess among candidates with orthogonal gradients of equal norm in Gaussian noise.

    .. math:: \int \varphi(z - \mu)\, \Phi(z)^{N-1} dz

    Args:
        mu: Norm of a gradient over the standard deviation of the noise.
        candidates: Number N of candidates.

    Returns:
        The probability.

    Raises:
        InvalidInput: If ``mu`` is negative, or there is no candidate.

    >>> round(gaussian_identification(1.0, 10), 4)
    0.3409
    """
    mu, others = _check_mu(mu), check_whole("candidates", candidates) - 1
    if mu == math.inf:
        return 1.0
    # The trapezoidal rule converges exponentially for a smooth integrand with Gaussian tails.
    nodes = np.linspace(-12.0, 12.0, 4801)
    density = np.exp(-(nodes**2) / 2) / math.sqrt(2 * math.pi)
    return float(min(1.0, (density * np.exp(others * log_ndtr(nodes + mu))).sum() * (nodes[1] - nodes[0])))


def _lower_share(right: int, runs: int, alpha: float, anytime: bool) -> float:
    level = check_level(alpha)
    if anytime or runs == 0:
        return count_limits(right, runs, alpha=level, prior=CANARY_PRIOR)[0]
    return _lower_end(right, runs, level)


def _lower_end(successes: int, trials: int, alpha: float) -> float:
    """Return the one-sided lower limit of Clopper and Pearson; 0 at a level of one half or more."""
    return clopper_pearson(successes, trials, 1 - 2 * alpha).low if alpha < 0.5 else 0.0


def _epsilon_from_bets(counts: list[tuple[int, int]], runs: int, delta: float, alpha: float) -> float:
    """Invert the mean e-process of several thresholds, each with its numbers of right and wrong guesses."""
    stakes, log_weights = np.asarray(CANARY_PRIOR.fractions), np.log(CANARY_PRIOR.weights)
    # An abstention has the factor 1 - c delta / (e^eps + delta). Its least value, at eps = 0, keeps E monotone.
    log_abstained = np.log1p(-stakes * delta / (1 + delta))
    needed = -math.log(alpha) + _SLACK * (runs + 1)
    with np.errstate(divide="ignore"):
        log_wrong = np.log1p(-stakes)

    def accepts(epsilon: float) -> bool:
        log_right = np.log1p(stakes * (1 - delta) / (math.exp(epsilon) + delta))
        logs = []
        for right, wrong in counts:
            lost = log_wrong * wrong if wrong else 0.0  # not 0 * -inf
            logs.append(log_weights + right * log_right + lost + (runs - right - wrong) * log_abstained)
        return bool(np.logaddexp.reduce(np.concatenate(logs)) - math.log(len(counts)) < needed)

    if accepts(0.0):
        return 0.0
    return shrink_bracket(accepts, kept=0.0, excluded=_LARGEST_EPSILON, width=_WIDTH)[0]


def _epsilon_from_ends(right: int, wrong: int, runs: int, delta: float, alpha: float) -> float:
    """Combine limits of the probabilities of a right and a wrong guess, each at half the level."""
    if runs == 0:
        return 0.0
    most_wrong = 1 - _lower_end(runs - wrong, runs, alpha / 2)
    least_right = _lower_end(right, runs, alpha / 2) - delta
    return max(0.0, math.log(least_right / most_wrong) - _SLACK) if least_right > 0 else 0.0


def _rejects_run(counts: tuple[int, int, int], least_false_alarm: Callable[[float], float], alpha: float) -> bool:
    """Run the recursion of Mahloujifar et al. for a function that maps a power to its least false alarm rate."""
    canaries, guesses, right = counts
    power, alarm = alpha * right / canaries, alpha * (guesses - right) / canaries
    for index in range(right - 1, -1, -1):
        larger = max(alarm, least_false_alarm(power))
        if larger == alarm:
            break  # neither number changes any more
        power = min(1.0, power + index / (guesses - index) * (larger - alarm))
        alarm = larger
    return power + alarm > guesses / canaries * (1 + _SLACK)


def _check_guesses(canaries: int, guesses: int, right: int) -> tuple[int, int, int]:
    canaries, guesses = check_whole("canaries", canaries), check_whole("guesses", guesses)
    right = check_whole("right", right, minimum=0)
    if guesses > canaries:
        raise invalid_input("guesses", guesses, f"<= canaries={canaries}")
    if right > guesses:
        raise invalid_input("right", right, f"<= guesses={guesses}")
    return canaries, guesses, right


def _check_mu(mu: float) -> float:
    if check_real("mu", mu) < 0:
        raise invalid_input("mu", mu, ">= 0")
    return float(mu)


def _check_delta(delta: float) -> float:
    if check_positive("delta", delta) >= 1:
        raise invalid_input("delta", delta, "in (0, 1)", "Pass 1e-5, for example.")
    return float(delta)

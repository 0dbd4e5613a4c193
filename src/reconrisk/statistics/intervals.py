"""Confidence intervals for a success probability from counts, and for a mean from a few values."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from scipy.special import betaincinv, stdtrit

from reconrisk.core.guarantee import Estimate
from reconrisk.core.validation import check_probability, check_whole, invalid_input


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> Estimate:
    r"""Exact two-sided interval for a success probability from independent trials.

    .. math:: [B^{-1}_{\alpha/2}(k, n-k+1),\; B^{-1}_{1-\alpha/2}(k+1, n-k)], \quad \alpha = 1 - \text{confidence}

    Here :math:`B^{-1}_p(a, b)` is the ``p`` quantile of the Beta distribution with parameters a and b.

    Args:
        successes: Number of successes, :math:`k`.
        trials: Number of trials, :math:`n`.
        confidence: Probability in (0, 1) that the interval covers the success probability.

    Returns:
        The success rate with its interval.

    Raises:
        InvalidInput: If there is no trial, there are more successes than trials, or ``confidence`` is not in (0, 1).

    Assumes: independent trials with one success probability.
    Guarantee: covers the truth with probability at least ``confidence``; either end alone misses it with
    probability at most ``(1 - confidence) / 2``. ``low`` is therefore a one-sided bound at ``(1 + confidence) / 2``.
    Edge cases: no success gives ``low = 0``, only successes give ``high = 1``.
    Reference: `Clopper and Pearson (1934) <https://doi.org/10.1093/biomet/26.4.404>`_.

    >>> print(clopper_pearson(3, 20))
    0.15 [0.03207, 0.3789] (95% Clopper-Pearson, 20 samples)
    """
    trials = check_whole("trials", trials, remedy="An interval needs at least one trial.")
    successes = check_whole("successes", successes, minimum=0)
    if successes > trials:
        raise invalid_input("successes", successes, f"<= trials={trials}")
    if not 0 < check_probability("confidence", confidence) < 1:
        raise invalid_input("confidence", confidence, "in (0, 1)", "Pass 0.95, for example.")
    tail = (1 - confidence) / 2
    low = 0.0 if successes == 0 else float(betaincinv(successes, trials - successes + 1, tail))
    # By the reflection of the Beta distribution, because 1 - tail would lose a small tail to rounding.
    high = 1.0 if successes == trials else 1 - float(betaincinv(trials - successes, successes + 1, tail))
    return Estimate(successes / trials, low, high, float(confidence), trials, "Clopper-Pearson")


def success_interval(successes: int, *, trials: int, per_trial: int = 1, confidence: float = 0.95) -> Estimate:
    r"""Interval for a mean success rate from independent trials of ``per_trial`` records each.

    .. math:: P(S \ge k) \le e\, P(\mathrm{Bin}(n, p) \ge k)

    Here S is a sum of n independent variables in [0, 1] with mean p on average, k a number of successes, and Bin(n, p)
    a binomial variable. Records of one trial may depend on each other in any way. For ``per_trial = 1`` the factor e is
    not needed. The number of successes is then a sum of independent events. Its tails are thinner than the tails of a
    binomial variable of the same mean, except for one success or one failure. Markov's inequality covers these two
    cases. The interval is then the interval of :func:`clopper_pearson`, with the lower end for one success, and the
    upper end for one failure, moved outwards by a factor of about half the error.

    Args:
        successes: Number of successes among all records of all trials.
        trials: Number of independent trials.
        per_trial: Number of records in each trial.
        confidence: Probability in (0, 1) that the interval covers the mean success rate.

    Returns:
        The success rate with its interval; ``samples`` is the number of trials.

    Raises:
        InvalidInput: If there is no trial, there are more successes than records, or ``confidence`` is not in (0, 1).

    Assumes: trials are independent. Single records may be drawn without replacement from a finite population in which
    some are easier to reconstruct than others, since that is again a sum of independent events.
    Guarantee: covers the mean with probability at least ``confidence``; either end misses it with at most half of the
    remaining probability. For single records of unequal success this needs a ``confidence`` of at least 1/2.
    Reference: the number of successes in trials of unequal probability against the binomial, `Hoeffding (1956)
    <https://doi.org/10.1214/aoms/1177728178>`_, for single records; the displayed inequality, `Bentkus (2004)
    <https://doi.org/10.1214/009117904000000360>`_, for several.

    >>> print(success_interval(8, trials=4, per_trial=4))
    0.5 [0.04023, 0.9598] (95% Bentkus, 4 samples)
    """
    if check_whole("per_trial", per_trial) == 1:
        exact = clopper_pearson(successes, trials, confidence)
        # The end at which n p = tail: P(S >= 1) <= n p for any single probabilities, but 1 - (1 - p)^n only if equal.
        end = (1 - exact.confidence) / 2 / exact.samples
        low = min(exact.low, end) if successes == 1 else exact.low
        high = max(exact.high, 1 - end) if successes == exact.samples - 1 else exact.high
        return replace(exact, low=low, high=high)
    total = check_whole("trials", trials, remedy="An interval needs at least one trial.") * per_trial
    successes = check_whole("successes", successes, minimum=0)
    if successes > total:
        raise invalid_input("successes", successes, f"<= {total}, which is trials * per_trial")
    inner = 1 - (1 - check_probability("confidence", confidence)) / math.e  # the factor e of the inequality
    low = clopper_pearson(successes // per_trial, trials, inner).low
    high = 1 - clopper_pearson((total - successes) // per_trial, trials, inner).low
    return Estimate(successes / total, low, high, float(confidence), trials, "Bentkus")


def student_interval(values: Sequence[float], confidence: float = 0.95, *, over: str) -> Estimate:
    r"""Student's interval for the mean of independent values.

    .. math:: \bar v \pm t_{n-1,\,(1 + \text{confidence}) / 2}\; s / \sqrt{n}

    Args:
        values: At least one value; infinite values are allowed.
        confidence: Probability in (0, 1) that the interval covers the mean.
        over: Plural noun for the origin of the values, such as ``"seeds"``; it becomes part of the method's name.

    Returns:
        The mean with its interval.

    Assumes: independent values, nearly normal or many.
    Edge cases: one value has an infinite interval. If a value is infinite, the interval is from the least to the
    largest value.
    Reference: `Student (1908) <https://doi.org/10.1093/biomet/6.1.1>`_.

    >>> print(student_interval([1.0, 2.0, 3.0], over="seeds"))
    2 [-0.4841, 4.484] (95% Student over seeds, 3 samples)
    """
    count = len(values)
    if not all(map(math.isfinite, values)):
        mean = sum(values)
        mean = max(values) if math.isnan(mean) else mean
        return Estimate(mean, min(values), max(values), confidence, count, f"extremes over {over}")
    mean, half = statistics.fmean(values), math.inf
    if count > 1:
        half = float(stdtrit(count - 1, (1 + confidence) / 2)) * statistics.stdev(values) / math.sqrt(count)
    return Estimate(mean, mean - half, mean + half, confidence, count, f"Student over {over}")

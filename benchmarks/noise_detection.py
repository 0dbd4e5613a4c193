"""Detection of missing noise in releases of 738 coordinates, and false alarms when one looks after each release.

Asked for are, at level 1e-3, means of at most 1 release for factors up to 0.8, 3 for 0.9, 8 for 0.95 and 150 for 0.99
(in parentheses); and a lower confidence limit of the false alarm rate at level .05 below .05. The naive version repeats
a chi-square test after each release, which is valid only for a number of releases that is fixed in advance.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.stats import chi2

from reconrisk.statistics.intervals import clopper_pearson
from reconrisk.statistics.noise_scale import log_evidence_of_less_noise

SIZE = 738
FACTORS = {0.5: 1, 0.6: 1, 0.8: 1, 0.9: 3, 0.95: 8, 0.99: 150}
REPEATS = 300
AUDITS, LOOKS = 2_000, 200


def missing_noise() -> Callable[[], str]:
    """Mean number of releases until noise of a smaller scale is contradicted."""

    def releases_until(factor: float, rng: np.random.Generator) -> int:
        total, releases = 0.0, 0
        while releases == 0 or log_evidence_of_less_noise(total, SIZE * releases) < math.log(1000):
            total, releases = total + factor**2 * rng.chisquare(SIZE), releases + 1
        return releases

    def work() -> str:
        rng = np.random.default_rng(0)
        means = {factor: np.mean([releases_until(factor, rng) for _ in range(REPEATS)]) for factor in FACTORS}
        return ", ".join(f"{factor:g}: {mean:.3g} ({FACTORS[factor]})" for factor, mean in means.items())

    return work


def alarm_rate(raises_alarm: Callable[[float, int], bool]) -> Callable[[], str]:
    """Share of sound audits with an alarm at any of their looks."""

    def work() -> str:
        sums = np.cumsum(np.random.default_rng(1).chisquare(SIZE, (AUDITS, LOOKS)), axis=1)
        alarms = sum(any(raises_alarm(each, SIZE * (look + 1)) for look, each in enumerate(row)) for row in sums)
        return f"{alarms} of {AUDITS} audits, rate at least {clopper_pearson(alarms, AUDITS).low:.4f}"

    return work


def sound_noise() -> Callable[[], str]:
    """False alarms of the e-process at level .05."""
    return alarm_rate(lambda total, count: log_evidence_of_less_noise(total, count) >= math.log(20))


def naive() -> Callable[[], str]:
    """False alarms of a chi-square test at level .05 after each release."""
    limits = {SIZE * look: chi2.ppf(0.05, SIZE * look) for look in range(1, LOOKS + 1)}
    return alarm_rate(lambda total, count: total < limits[count])


CONTENDERS = {
    "missing noise, releases": missing_noise,
    "sound noise, false alarms": sound_noise,
    "naive test, false alarms": naive,
}

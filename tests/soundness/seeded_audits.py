"""Many audits of one problem with known truth, counted: how often intervals missed it and bounds were beaten."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from scipy import stats
from torch import Tensor

from reconrisk.core.defense import Defense
from reconrisk.core.mechanism import Mechanism
from reconrisk.statistics.intervals import success_interval
from reconrisk.studies.audit.conclusion import FALSE_ALARMS, ContradictedBound
from reconrisk.studies.audit.result import AuditResult

CHANCE = 1e-4
"""Probability at which a count is taken for more than chance: once in ten thousand runs with other seeds."""


@dataclass(frozen=True)
class Claimed:
    """A defense that says of itself to be ``mechanism``, whatever it is."""

    inner: Defense
    mechanism: Mechanism

    def __call__(self, released: Mapping[str, Tensor], *, rng: torch.Generator) -> dict[str, Tensor]:
        return self.inner(released, rng=rng)

    def replay(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self.inner.replay(released)

    def noise_std(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        return self.inner.noise_std(sent)

    def kept(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        return self.inner.kept(sent)


@dataclass
class Tally:
    """Counts over audits with the seeds 0, 1, 2 and so on, of one attack that succeeds with probability ``truth``."""

    truth: float
    audits: int = 0
    trials: int = 0
    successes: int = 0
    missed: int = 0
    beaten: int = 0
    rates: list[float] = field(default_factory=list)
    bounds: set[float] = field(default_factory=set)

    def add(self, result: AuditResult, attack: str) -> None:
        """Count an audit of one goal and one defense."""
        (line,) = result.lines
        (outcome,) = (each for each in line.outcomes if each.attack == attack)
        measured = outcome.success
        self.audits += 1
        self.trials += measured.samples
        self.successes += round(measured.value * measured.samples)
        self.missed += not measured.low <= self.truth <= measured.high
        self.beaten += any(each.is_contradicted for each in line.comparisons)
        self.rates.append(_miss_rate(measured.samples, measured.confidence, self.truth))
        self.bounds |= {each.guarantee.value for each in line.comparisons if each.is_compared}

    def check(self, *, truth_error: float = 0.0) -> None:
        """Fail if counts are more than chance away from what they must be.

        Successes are binomial, with ``truth_error`` the standard error of a simulated truth. The share of intervals
        that miss the truth is at most the stated error, and exactly the sum over those outcomes that lie outside.
        """
        variance = self.truth * (1 - self.truth) / self.trials + truth_error**2
        away = (self.successes / self.trials - self.truth) / variance**0.5
        assert 2 * stats.norm.sf(abs(away)) > CHANCE, (self.successes / self.trials, self.truth)
        rate = max(self.rates)
        assert stats.binomtest(self.missed, self.audits, rate).pvalue > CHANCE, (self.missed, rate * self.audits)
        assert all(self.truth <= bound + 5 * truth_error + 1e-9 for bound in self.bounds), (self.truth, self.bounds)
        # at most FALSE_ALARMS in expectation for each audit, whatever the problem
        assert stats.binom.sf(self.beaten - 1, self.audits, FALSE_ALARMS) > CHANCE, self.beaten


def tally(audit: Callable[[int], AuditResult], *, audits: int, attack: str, truth: float) -> Tally:
    """Run the audit with so many seeds; one that raises ContradictedBound counts with the result that it carries."""
    found = Tally(truth)
    for seed in range(audits):
        try:
            result = audit(seed)
        except ContradictedBound as error:
            result = error.result
        found.add(result, attack)
    return found


def _miss_rate(trials: int, confidence: float, truth: float) -> float:
    """Probability that the interval of a binomial count misses the truth: a finite sum."""
    intervals = [success_interval(k, trials=trials, confidence=confidence) for k in range(trials + 1)]
    missing = [k for k, each in enumerate(intervals) if not each.low <= truth <= each.high]
    rate = float(sum(stats.binom.pmf(k, trials, truth) for k in missing))
    assert rate <= 1 - confidence + 1e-12
    return rate

"""Numbers of trials until a claim is rejected, computed exactly, against the values of an independent program."""

from __future__ import annotations

import math

import numpy as np
import pytest

from reconrisk.statistics.betting import CANARY_PRIOR, log_evidence_above, log_evidence_below
from reconrisk.statistics.privacy_lower_bounds import gaussian_cap, gaussian_identification, identification_cap


def stopping_law(evidence, truth, horizon, alpha, *, above):
    """Probability of the first rejection at each number of trials, from the law of the counts that are not rejected.

    The number of successes at the edge of the rejected counts never falls from trial to trial.
    """
    law, alive, edge = np.zeros(horizon + 1), np.array([1.0]), 0
    for trials in range(1, horizon + 1):
        alive = np.append(alive * (1 - truth), 0) + np.append(0, alive * truth)
        while edge <= trials and (evidence(edge, trials) < -math.log(alpha)) == above:
            edge += 1
        stopped = slice(edge, None) if above else slice(0, edge)
        law[trials] = alive[stopped].sum()
        alive[stopped] = 0
    return law


def mean_and_quantile(law, share):
    assert law.sum() == pytest.approx(1, abs=1e-6)
    return law @ np.arange(len(law)), int(np.searchsorted(np.cumsum(law), share))


def test_trials_to_prove_a_limit_of_twice_the_rate():
    law = stopping_law(lambda k, n: log_evidence_below(k, n, 0.1), 0.05, 2500, 0.025, above=False)
    mean, late = mean_and_quantile(law, 0.9)
    assert round(mean) == 293
    assert late == 539


@pytest.mark.parametrize(("rate", "missed"), [(0.01, 0.030), (0.1, 0.036)])
def test_error_of_looking_after_each_of_five_thousand_trials(rate, missed):
    low = stopping_law(lambda k, n: log_evidence_above(k, n, rate), rate, 5000, 0.025, above=True)
    high = stopping_law(lambda k, n: log_evidence_below(k, n, rate), rate, 5000, 0.025, above=False)
    assert round(low.sum() + high.sum(), 3) == missed
    assert max(low.sum(), high.sum()) <= 0.025


@pytest.mark.parametrize(("claim", "truth", "median", "late"), [(0.5, 1.0, 178, 428), (1.0, 2.0, 57, 121)])
def test_runs_to_contradict_a_claim_of_gaussian_privacy(claim, truth, median, late):
    cap = gaussian_cap(claim)
    law = stopping_law(
        lambda k, n: log_evidence_above(k, n, cap, CANARY_PRIOR), gaussian_cap(truth), 2000, 0.05, above=True
    )
    assert mean_and_quantile(law, 0.5)[1] == median
    assert mean_and_quantile(law, 0.9)[1] == late


@pytest.mark.parametrize(
    ("mu", "factor", "candidates", "by_cap", "exact"),
    [(1.0, 0.5, 100, 20, 18), (2.0, 0.5, 1000, 5, 4), (4.0, 0.8, 10_000, 25, 19)],
)
def test_trials_to_contradict_claimed_noise_by_identification(mu, factor, candidates, by_cap, exact):
    success = gaussian_identification(mu / factor, candidates)
    for claim, expected in [
        (identification_cap(mu, candidates), by_cap),
        (gaussian_identification(mu, candidates), exact),
    ]:

        def evidence(k, n, claim=claim):
            return log_evidence_above(k, n, claim, CANARY_PRIOR)

        law = stopping_law(evidence, success, 400, 0.05, above=True)
        assert round(mean_and_quantile(law, 0.5)[0]) == expected

"""Clopper-Pearson against SciPy, against the binomial tails that define it, and by its exact coverage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from reconrisk.accounting.confidence import clopper_pearson
from reconrisk.core.errors import InvalidInput

law = settings(deadline=None, derandomize=True, max_examples=60)

counts = st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
confidences = st.floats(0.01, 0.9999)


@law
@given(counts, confidences)
def test_agrees_with_scipy(count: tuple[int, int], confidence: float) -> None:
    successes, trials = count
    expected = stats.binomtest(successes, trials).proportion_ci(confidence, method="exact")
    measured = clopper_pearson(successes, trials, confidence)
    assert measured.low == pytest.approx(expected.low, abs=1e-10)
    assert measured.high == pytest.approx(expected.high, abs=1e-10)
    assert measured.value == successes / trials
    assert (measured.confidence, measured.samples, measured.method) == (confidence, trials, "Clopper-Pearson")


@law
@given(counts, confidences)
def test_ends_are_where_the_binomial_tails_reach_half_the_error(count: tuple[int, int], confidence: float) -> None:
    successes, trials = count
    measured = clopper_pearson(successes, trials, confidence)
    tail = (1 - confidence) / 2
    if successes > 0:
        assert stats.binom.sf(successes - 1, trials, measured.low) == pytest.approx(tail, rel=1e-6)
    if successes < trials:
        assert stats.binom.cdf(successes, trials, measured.high) == pytest.approx(tail, rel=1e-6)


@pytest.mark.parametrize("trials", [1, 2, 10, 57])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
def test_covers_every_truth_at_least_as_often_as_stated(trials: int, confidence: float) -> None:
    # Coverage is a finite sum over outcomes, so it is computed instead of simulated: no sampling error to allow for.
    intervals = [clopper_pearson(k, trials, confidence) for k in range(trials + 1)]
    low, high = (np.array([getattr(each, end) for each in intervals])[:, None] for end in ("low", "high"))
    truth = np.linspace(0, 1, 501)
    probability = stats.binom.pmf(np.arange(trials + 1)[:, None], trials, truth)
    half = (1 - confidence) / 2
    assert (probability * (low > truth)).sum(0).max() <= half + 1e-12
    assert (probability * (high < truth)).sum(0).max() <= half + 1e-12
    assert (probability * ((low <= truth) & (truth <= high))).sum(0).min() >= confidence - 1e-12


@law
@given(counts, confidences, confidences)
def test_more_confidence_is_a_wider_interval(count: tuple[int, int], one: float, other: float) -> None:
    wide, narrow = (clopper_pearson(*count, confidence=each) for each in (max(one, other), min(one, other)))
    assert wide.low <= narrow.low + 1e-12
    assert narrow.high <= wide.high + 1e-12


@law
@given(counts, confidences)
def test_failures_mirror_successes(count: tuple[int, int], confidence: float) -> None:
    successes, trials = count
    one, other = clopper_pearson(successes, trials, confidence), clopper_pearson(trials - successes, trials, confidence)
    assert one.low == pytest.approx(1 - other.high, abs=1e-12)
    assert one.high == pytest.approx(1 - other.low, abs=1e-12)


def test_ends_of_the_scale_are_exact() -> None:
    assert clopper_pearson(0, 7).low == 0.0
    assert clopper_pearson(7, 7).high == 1.0
    # With no success in n trials the upper end solves (1 - p)^n = tail.
    assert clopper_pearson(0, 7).high == pytest.approx(1 - 0.025 ** (1 / 7), rel=1e-12)


def test_a_billion_trials_and_a_tiny_error_stay_apart() -> None:
    measured = clopper_pearson(1, 10**9, 1 - 1e-12)
    assert 0 < measured.low < 1e-9 < measured.high < 1e-7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 0), "Expected trials=0 >= 1. An interval needs at least one trial."),
        ((-1, 5), "Expected successes=-1 >= 0."),
        ((6, 5), "Expected successes=6 <= trials=5."),
        ((1.5, 5), "Expected successes=1.5 to be a whole number."),
        ((1, 5, 1.0), r"Expected confidence=1.0 in \(0, 1\). 0.95 is usual."),
        ((1, 5, 0.0), r"Expected confidence=0.0 in \(0, 1\)."),
        ((1, 5, float("nan")), "Expected confidence=nan to be a number, not NaN."),
    ],
)
def test_impossible_counts_are_refused(arguments: tuple[float, ...], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        clopper_pearson(*arguments)

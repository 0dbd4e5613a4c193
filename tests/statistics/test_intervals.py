"""Intervals against SciPy, against the binomial tails that define them, and by their exact coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from reconrisk.core.errors import InvalidInput
from reconrisk.statistics.intervals import clopper_pearson, student_interval, success_interval

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
        ((1, 5, 1.0), r"Expected confidence=1.0 in \(0, 1\). Pass 0.95, for example."),
        ((1, 5, 0.0), r"Expected confidence=0.0 in \(0, 1\)."),
        ((1, 5, float("nan")), "Expected confidence=nan to be a number, not NaN."),
    ],
)
def test_impossible_counts_are_refused(arguments: tuple[float, ...], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        clopper_pearson(*arguments)


batches = st.tuples(st.integers(1, 200), st.integers(1, 9)).flatmap(
    lambda size: st.tuples(st.integers(0, size[0] * size[1]), st.just(size[0]), st.just(size[1]))
)


@law
@given(batches, confidences)
def test_a_share_lies_in_its_interval_and_failures_mirror_successes(
    count: tuple[int, int, int], confidence: float
) -> None:
    successes, trials, size = count
    measured = success_interval(successes, trials=trials, per_trial=size, confidence=confidence)
    mirrored = success_interval(trials * size - successes, trials=trials, per_trial=size, confidence=confidence)
    assert 0 <= measured.low <= successes / (trials * size) == measured.value <= measured.high <= 1
    assert measured.low == pytest.approx(1 - mirrored.high, abs=1e-12)
    assert measured.samples == trials


@law
@given(batches, st.integers(2, 5), confidences)
def test_more_trials_of_the_same_share_narrow_the_interval(
    count: tuple[int, int, int], times: int, confidence: float
) -> None:
    successes, trials, size = count
    few = success_interval(successes, trials=trials, per_trial=size, confidence=max(confidence, 0.5))
    many = success_interval(successes * times, trials=trials * times, per_trial=size, confidence=max(confidence, 0.5))
    assert many.high - many.low <= few.high - few.low + 1e-12


@law
@given(batches, confidences)
def test_batches_never_say_more_than_as_many_single_records_with_their_mean(
    count: tuple[int, int, int], confidence: float
) -> None:
    successes, trials, size = count
    batch = success_interval(successes, trials=trials, per_trial=size, confidence=confidence)
    single = clopper_pearson(successes // size, trials, confidence)
    assert batch.low <= single.low + 1e-12
    assert success_interval(successes // size, trials=trials, confidence=confidence).low <= single.low


def test_single_records_have_the_interval_of_clopper_and_pearson_but_for_one_success_or_one_failure() -> None:
    for successes in range(12):
        exact, measured = clopper_pearson(successes, 11), success_interval(successes, trials=11)
        assert measured.low == pytest.approx(exact.low if successes != 1 else 0.025 / 11, rel=1e-12)
        assert measured.high == pytest.approx(exact.high if successes != 10 else 1 - 0.025 / 11, rel=1e-12)


def misses(pmf: np.ndarray, mean: float, confidence: float) -> tuple[float, float]:
    """Probability that the interval of a count of single records with this law lies above the mean, and below."""
    trials = len(pmf) - 1
    found = [success_interval(k, trials=trials, confidence=confidence) for k in range(trials + 1)]
    above = sum(float(p) for p, each in zip(pmf, found, strict=True) if each.low > mean + 1e-12)
    below = sum(float(p) for p, each in zip(pmf, found, strict=True) if each.high < mean - 1e-12)
    return above, below


@law
@given(st.lists(st.floats(0, 1) | st.sampled_from([0.0, 1.0]), min_size=1, max_size=12), st.floats(0.5, 0.999))
def test_records_of_unequal_success_are_covered(probabilities: list[float], confidence: float) -> None:
    pmf = np.ones(1)
    for p in probabilities:
        pmf = np.convolve(pmf, [1 - p, p])
    above, below = misses(pmf, float(np.mean(probabilities)), confidence)
    assert max(above, below) <= (1 - confidence) / 2 + 1e-9


def test_one_easy_record_among_hopeless_ones_is_covered_where_equal_trials_would_not_be() -> None:
    # Of ten records one succeeds with 0.0251: P(S >= 1) = 0.0251 > 0.025, while a binomial count with this mean has
    # P(S >= 1) = 1 - (1 - 0.00251)^10 = 0.0248, so that the limit for equal trials lies above the mean too often.
    mean = 0.0251 / 10
    assert clopper_pearson(1, 10).low > mean > success_interval(1, trials=10).low


@law
@given(
    st.lists(st.floats(0, 1) | st.sampled_from([0.0, 1.0]), min_size=2, max_size=9),
    st.floats(0.2, 1),
    st.floats(0.5, 0.99),
)
def test_records_drawn_without_replacement_are_covered(
    probabilities: list[float], share: float, confidence: float
) -> None:
    # The law of the count over a random subset, exactly: coefficients of z^n in prod(1 + z (1 - p + p t)).
    drawn = max(1, round(share * len(probabilities)))
    law_of_count = np.zeros((drawn + 1, drawn + 1))  # [drawn, successes]
    law_of_count[0, 0] = 1
    for p in probabilities:
        grown = law_of_count.copy()
        grown[1:, :] += (1 - p) * law_of_count[:-1, :]
        grown[1:, 1:] += p * law_of_count[:-1, :-1]
        law_of_count = grown
    pmf = law_of_count[drawn] / law_of_count[drawn].sum()
    above, below = misses(pmf, float(np.mean(probabilities)), confidence)
    assert max(above, below) <= (1 - confidence) / 2 + 1e-9


@pytest.mark.parametrize("probability", [0.02, 0.3, 0.5])
def test_batches_that_succeed_as_a_whole_are_covered(probability: float) -> None:
    # The strongest dependence: all of a batch or none of it, so that the number of batches is binomial. Its coverage is
    # a finite sum. Counting the records as if they were independent would miss the truth ten times as often.
    trials, size = 12, 8
    pmf = stats.binom.pmf(np.arange(trials + 1), trials, probability)
    rates = {}
    for name, counted in (("batches", (trials, size)), ("records", (trials * size, 1))):
        found = [success_interval(k * size, trials=counted[0], per_trial=counted[1]) for k in range(trials + 1)]
        rates[name] = sum(p for p, e in zip(pmf, found, strict=True) if not e.low <= probability <= e.high)
    assert rates["batches"] <= 0.05
    assert rates["records"] > 0.2


def test_batches_of_any_dependence_are_covered_in_simulation() -> None:
    rng = np.random.default_rng(7)
    trials, size, runs = 10, 5, 4000
    for law_of_shares in ([0.5, 0, 0, 0, 0, 0.5], [0.7, 0.1, 0.1, 0.05, 0.05, 0.0], [0.02, 0, 0, 0, 0.9, 0.08]):
        counts = rng.choice(size + 1, size=(runs, trials), p=law_of_shares).sum(1)
        mean = float(np.dot(law_of_shares, np.arange(size + 1))) / size
        ends = {k: success_interval(int(k), trials=trials, per_trial=size, confidence=0.8) for k in set(counts)}
        missed = np.mean([not ends[k].low <= mean <= ends[k].high for k in counts])
        assert missed <= 0.2 + 3 * np.sqrt(0.2 * 0.8 / runs)


@pytest.mark.parametrize(
    ("settings_of_call", "message"),
    [
        ({"successes": 9, "trials": 2, "per_trial": 4}, r"Expected successes=9 <= 8, which is trials \* per_trial."),
        (
            {"successes": 1, "trials": 0, "per_trial": 4},
            "Expected trials=0 >= 1. An interval needs at least one trial.",
        ),
        ({"successes": -1, "trials": 2, "per_trial": 4}, "Expected successes=-1 >= 0."),
        ({"successes": 1, "trials": 2, "per_trial": 0}, "Expected per_trial=0 >= 1."),
        ({"successes": 1, "trials": 2, "per_trial": 4, "confidence": 1.0}, r"in \(0, 1\)"),
    ],
)
def test_impossible_counts_of_batches_are_refused(settings_of_call: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        success_interval(**settings_of_call)


@law
@given(batches.filter(lambda count: count[2] > 1), st.floats(0.5, 0.999))
def test_ends_for_batches_are_where_the_tails_times_e_reach_half_the_error(
    count: tuple[int, int, int], confidence: float
) -> None:
    successes, trials, size = count
    measured = success_interval(successes, trials=trials, per_trial=size, confidence=confidence)
    whole, failed, tail = successes // size, (trials * size - successes) // size, (1 - confidence) / 2
    if whole:
        assert np.e * stats.binom.sf(whole - 1, trials, measured.low) == pytest.approx(tail, rel=1e-6)
    if failed:
        assert np.e * stats.binom.cdf(trials - failed, trials, measured.high) == pytest.approx(tail, rel=1e-6)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 2.0, 3.0], (2.0, 2 - 4.302653 / math.sqrt(3), 2 + 4.302653 / math.sqrt(3))),  # t_0.975, 2 degrees
        ([5.0, 5.0], (5.0, 5.0, 5.0)),
        ([1.0], (1.0, -math.inf, math.inf)),
        ([math.inf, 1.0], (math.inf, 1.0, math.inf)),
        ([math.inf, math.inf], (math.inf, math.inf, math.inf)),
        ([math.inf, -math.inf], (math.inf, -math.inf, math.inf)),
    ],
)
def test_student_intervals(values: list[float], expected: tuple[float, float, float]) -> None:
    found = student_interval(values, over="seeds")
    assert (found.value, found.low, found.high) == pytest.approx(expected, rel=1e-6)


@law
@given(
    st.lists(st.floats(-100, 100), min_size=2, max_size=20).filter(lambda values: np.std(values) > 1e-3), confidences
)
def test_student_intervals_agree_with_scipy(values: list[float], confidence: float) -> None:
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(confidence)
    found = student_interval(values, confidence, over="updates")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-9, abs=1e-9)
    assert (found.samples, found.method) == (len(values), "Student over updates")

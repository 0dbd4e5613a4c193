"""Anytime-valid limits of rates: reference values, laws, and the exact error of looking after each trial."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconrisk.core.errors import InvalidInput
from reconrisk.statistics.betting import (
    AUDIT_PRIOR,
    CANARY_PRIOR,
    BetPrior,
    best_rate_limits,
    count_limits,
    log_evidence_above,
    log_evidence_below,
    rate_limits,
    success_estimate,
)
from reconrisk.statistics.intervals import clopper_pearson

law = settings(deadline=None, derandomize=True, max_examples=40)
counts = st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
levels = st.floats(1e-4, 0.5)
share_lists = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def capital(shares, rate, prior=AUDIT_PRIOR):
    """Oracle: play every bet, trial by trial, without logarithms."""
    players = np.array(prior.weights)
    for share in shares:
        players = players * (1 + np.array(prior.fractions) * (rate - share) / (1 - rate))
    return players.sum()


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        (0, 4, 0, 0.666304),
        (0, 16, 0, 0.242317),
        (0, 64, 0, 0.067194),
        (0, 256, 0, 0.017250),
        (0, 1000, 0, 0.004445),
        (0, 5000, 0, 0.000891),
        (1, 16, 0.000109, 0.439639),
        (5, 64, 0.010278, 0.236488),
        (10, 100, 0.026983, 0.228239),
        (50, 100, 0.335060, 0.664940),
        (100, 1000, 0.068710, 0.135528),
        (2500, 5000, 0.474185, 0.525815),
    ],
)
def test_limits_have_the_values_of_an_independent_program(successes, trials, low, high):
    assert count_limits(successes, trials) == pytest.approx((low, high), abs=5.1e-7)


def test_updates_have_the_values_of_an_independent_program():
    shares = np.array([0, 1, 2, 0, 0, 1, 0, 4, 0, 0, 2, 0, 1, 0, 0, 0]) / 8
    assert rate_limits(shares) == pytest.approx((0.016342, 0.317074), abs=5.1e-7)


def test_evidence_has_the_values_of_an_independent_program():
    assert log_evidence_below(0, 50, 0.1) == pytest.approx(4.474336, abs=5.1e-7)
    assert log_evidence_below(2, 50, 0.1) == pytest.approx(0.212216, abs=5.1e-7)


@pytest.mark.parametrize(
    ("alpha", "needed"), [(0.025, {0.01: 444, 0.05: 87, 0.1: 43}), (0.05, {0.01: 371, 0.05: 73, 0.1: 36})]
)
def test_trials_without_success_that_prove_a_limit(alpha, needed):
    for limit, trials in needed.items():
        assert count_limits(0, trials, alpha=alpha)[1] <= limit < count_limits(0, trials - 1, alpha=alpha)[1]


@law
@given(share_lists, st.floats(0.01, 0.99), levels)
def test_limits_are_where_the_capital_of_the_players_reaches_its_goal(shares, rate, alpha):
    low, high = rate_limits(shares, alpha=alpha)
    goal = 1 / alpha
    if not math.isclose(rate, high, rel_tol=1e-9):
        assert (capital(shares, rate) >= goal) == (rate > high)
    if not math.isclose(rate, low, rel_tol=1e-9):
        assert (capital([1 - share for share in shares], 1 - rate) >= goal) == (rate < low)


@law
@given(st.lists(st.booleans(), max_size=40), levels)
def test_shares_of_zero_and_one_have_the_limits_of_counts(hits, alpha):
    assert rate_limits([float(hit) for hit in hits], alpha=alpha) == count_limits(sum(hits), len(hits), alpha=alpha)


@law
@given(counts, levels, levels)
def test_limits_contain_the_share_and_the_limits_of_a_fixed_number_and_narrow_with_the_level(count, one, other):
    successes, trials = count
    (low, high), (inner_low, inner_high) = (count_limits(*count, alpha=each) for each in sorted((one, other)))
    assert low <= inner_low <= successes / trials <= inner_high <= high
    fixed = clopper_pearson(successes, trials, 1 - 2 * min(one, other)) if min(one, other) < 0.5 else None
    if fixed:
        assert low <= fixed.low + 1e-9
        assert fixed.high - 1e-9 <= high


@law
@given(counts)
def test_one_more_success_raises_both_limits_and_failures_mirror_successes(count):
    successes, trials = count
    low, high = count_limits(successes, trials)
    assert count_limits(trials - successes, trials) == pytest.approx((1 - high, 1 - low), abs=1e-12)
    if successes < trials:
        more = count_limits(successes + 1, trials)
        assert low <= more[0]
        assert high <= more[1]


@law
@given(counts, st.floats(0, 1), st.floats(0, 1))
def test_evidence_against_a_least_rate_grows_with_it(count, one, other):
    low, high = sorted((one, other))
    assert log_evidence_below(*count, low) <= log_evidence_below(*count, high) + 1e-9
    assert log_evidence_above(*count, low) >= log_evidence_above(*count, high) - 1e-9


@pytest.mark.parametrize("prior", [AUDIT_PRIOR, CANARY_PRIOR])
@pytest.mark.parametrize("rate", [0.05, 0.3, 0.8])
def test_the_mean_evidence_of_a_true_claim_is_at_most_one(prior, rate):
    # All sequences of ten trials, by their counts. At the edge of the claim the mean is exactly one.
    for truth, equal in [(rate, True), (min(1, rate + 0.1), False)]:
        chances = [math.comb(10, k) * truth**k * (1 - truth) ** (10 - k) for k in range(11)]
        mean = sum(p * math.exp(log_evidence_below(k, 10, rate, prior)) for k, p in enumerate(chances))
        assert mean == pytest.approx(1, rel=1e-12) if equal else mean < 1


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.3, 0.5])
def test_looking_after_each_trial_misses_the_rate_at_most_as_often_as_stated(rate):
    # Exact: the law of the counts that have not yet missed, from trial to trial. Clopper-Pearson fails the same test.
    trials, alpha = 150, 0.025

    def missed(limits):
        alive, lost = np.array([1.0]), 0.0
        for n in range(1, trials + 1):
            alive = np.append(alive * (1 - rate), 0) + np.append(0, alive * rate)
            wrong = np.array([not low <= rate <= high for low, high in (limits(k, n) for k in range(n + 1))])
            lost, alive = lost + alive[wrong].sum(), np.where(wrong, 0, alive)
        return lost

    def by_evidence(k, n):
        goal = -math.log(alpha)
        return (
            1.0 if log_evidence_above(k, n, rate) >= goal else 0.0,
            0.0 if log_evidence_below(k, n, rate) >= goal else 1.0,
        )

    assert missed(by_evidence) <= 2 * alpha
    if rate == 0.3:
        assert missed(lambda k, n: (clopper_pearson(k, n).low, clopper_pearson(k, n).high)) > 0.15


def test_draws_without_replacement_never_miss_more_often_than_stated():
    # Exact: all orders of a small population, looking after each draw.
    population, alpha = [0.0, 0.0, 0.5, 1.0, 0.0, 0.25], 0.2
    mean, orders = np.mean(population), list(itertools.permutations(population))
    limits = {}
    lower = upper = 0
    for order in orders:
        seen = [order[:n] for n in range(1, 7)]
        for each in seen:
            if each not in limits:
                limits[each] = rate_limits(each, alpha=alpha, population=6)
        lower += any(limits[each][0] > mean + 1e-12 for each in seen)
        upper += any(limits[each][1] < mean - 1e-12 for each in seen)
    assert max(lower, upper) <= alpha * len(orders)
    assert limits[orders[0]] == pytest.approx((mean, mean), abs=1e-12)


def capital_of_draws(shares, rate, population):
    """Oracle: each bet is against the mean of the unseen ones; None where the claim is impossible."""
    players, seen = np.array(AUDIT_PRIOR.weights), 0.0
    for index, share in enumerate(shares):
        mean = (population * rate - seen) / (population - index)
        if mean >= 1:
            return None
        players = players * (1 + np.array(AUDIT_PRIOR.fractions) * (mean - share) / (1 - mean))
        seen += share
    return players.sum()


@law
@given(share_lists, st.integers(1, 20), st.floats(0.01, 0.99), levels)
def test_limits_of_a_population_are_where_the_capital_of_the_players_reaches_its_goal(shares, unseen, rate, alpha):
    population = len(shares) + unseen
    high = rate_limits(shares, alpha=alpha, population=population)[1]
    money = capital_of_draws(shares, rate, population)
    possible = rate <= (sum(shares) + unseen) / population
    if not math.isclose(rate, high, rel_tol=1e-9):
        assert (not possible or money is None or money >= 1 / alpha) == (rate > high)


@law
@given(share_lists, levels)
def test_a_huge_population_is_like_new_draws_and_a_small_one_says_more(shares, alpha):
    assert rate_limits(shares, alpha=alpha, population=10**9) == pytest.approx(
        rate_limits(shares, alpha=alpha), abs=1e-6
    )
    low, high = rate_limits(shares, alpha=alpha, population=len(shares) + 2)
    assert low <= np.mean(shares) <= high
    assert low >= sum(shares) / (len(shares) + 2) - 1e-12
    assert high <= (sum(shares) + 2) / (len(shares) + 2) + 1e-12


def test_one_attack_has_the_limits_of_its_counts():
    hits = np.arange(50) % 7 == 0
    assert best_rate_limits(hits[None], alpha=0.05) == pytest.approx(count_limits(8, 50, alpha=0.05), abs=1e-12)


def test_half_of_the_capital_follows_the_attack_that_led_before_each_trial():
    hits = (np.random.default_rng(6).random((3, 40)) < 0.5).astype(int)
    low, leaders = best_rate_limits(hits, alpha=0.1)[0], []
    for trial in range(40):
        before = hits[:, :trial].sum(1)
        leaders.append(hits[int(before.argmax()), trial])  # the first of equal ones

    def evidence(rate):
        spread = np.mean([math.exp(log_evidence_above(row.sum(), 40, rate)) for row in hits])
        return (spread + math.exp(log_evidence_above(sum(leaders), 40, rate))) / 2

    assert evidence(low * (1 - 1e-6)) > 10 > evidence(low * (1 + 1e-6))


def test_the_upper_limit_of_the_best_attack_needs_no_correction():
    hits = np.zeros((30, 64), dtype=bool)
    hits[3, :5] = True
    assert best_rate_limits(hits)[1] == count_limits(5, 64)[1]


def test_the_lower_limit_of_the_best_attack_exceeds_that_of_bonferroni():
    hits = np.random.default_rng(0).random((50, 256)) < np.where(np.arange(50) == 7, 0.3, 0.05)[:, None]
    measured = best_rate_limits(hits)[0]
    assert count_limits(int(hits[7].sum()), 256, alpha=0.025 / 50)[0] < measured < count_limits(hits[7].sum(), 256)[0]


def test_the_limits_of_the_best_of_two_attacks_hold():
    # Exact over all results of four trials of two independent attacks.
    alpha, settings_of_rates = 0.3, [(0.3, 0.3), (0.5, 0.1), (0.1, 0.2)]
    missed = {(rates, end): 0.0 for rates in settings_of_rates for end in ("low", "high")}
    for pattern in itertools.product([(0, 0), (0, 1), (1, 0), (1, 1)], repeat=4):
        low, high = best_rate_limits(np.array(pattern).T, alpha=alpha)
        for rates in settings_of_rates:
            chance = math.prod(p if hit else 1 - p for trial in pattern for p, hit in zip(rates, trial, strict=True))
            missed[rates, "low"] += chance * (low > max(rates))
            missed[rates, "high"] += chance * (high < max(rates))
    assert 0 < max(missed.values()) <= alpha


def test_no_trial_says_nothing():
    assert rate_limits([]) == count_limits(0, 0) == (0, 1)
    assert best_rate_limits(np.zeros((3, 0))) == (0, 1)
    assert log_evidence_below(0, 0, 0.3) == pytest.approx(0, abs=1e-12)


def test_certain_claims():
    assert log_evidence_below(3, 4, 1.0) == math.inf
    assert log_evidence_below(4, 4, 1.0) < 0
    assert log_evidence_above(1, 4, 0.0) == math.inf
    assert count_limits(7, 7)[1] == 1.0
    assert count_limits(0, 10**9)[1] == pytest.approx(4.45e-9, rel=0.01)


def test_an_estimate_carries_the_method():
    estimate = success_estimate([0.0, 0.5, 1.0, 0.5], confidence=0.9)
    assert (estimate.low, estimate.high) == rate_limits([0.0, 0.5, 1.0, 0.5], alpha=0.05)
    assert (estimate.value, estimate.samples, estimate.method) == (0.5, 4, "anytime-valid betting")
    assert success_estimate([0.1] * 10, population=10).value == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: count_limits(3, 2), "Expected successes=3 <= trials=2."),
        (lambda: count_limits(1, 2, alpha=1.0), r"Expected alpha=1.0 in \(0, 1\). Pass 0.05, for example."),
        (lambda: rate_limits([0.5, 1.5]), "to be a sequence of numbers in"),
        (lambda: rate_limits([math.nan]), "to be a sequence of numbers in"),
        (lambda: rate_limits([0.5] * 4, population=3), "Expected population=3 >= 4, the number of shares."),
        (lambda: best_rate_limits([0, 1, 1]), r"Expected hits.shape=\(3,\) to be \(attacks, trials\)"),
        (lambda: best_rate_limits([[0.5]]), "with zeros and ones"),
        (lambda: success_estimate([]), "Expected shares with at least one element"),
        (lambda: success_estimate([1.0], confidence=1.0), "Expected confidence=1.0 in"),
        (lambda: log_evidence_below(1, 2, 1.1), "Expected rate=1.1 in"),
        (lambda: BetPrior((0.5, 1.5), (0.5, 0.5)), "Expected fractions="),
        (lambda: BetPrior((0.5,), (0.5, 0.5)), "one for each fraction"),
        (lambda: BetPrior((0.5, 1.0), (0.5, 0.6)), "to sum to one"),
    ],
)
def test_impossible_arguments_are_refused(call, message):
    with pytest.raises(InvalidInput, match=message):
        call()

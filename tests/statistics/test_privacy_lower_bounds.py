"""Lower bounds on privacy parameters: reference values, laws, and the error under mechanisms with known parameters."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, optimize, stats
from scipy.special import ndtr, ndtri

from reconrisk.accounting.trade_off import epsilon_from_gaussian
from reconrisk.core.errors import InvalidInput
from reconrisk.statistics.betting import CANARY_PRIOR
from reconrisk.statistics.privacy_lower_bounds import (
    accuracy_cap,
    best_one_run_mu,
    gaussian_cap,
    gaussian_epsilon,
    gaussian_identification,
    gaussian_mu_lower,
    identification_cap,
    log_evidence_from_p_values,
    one_run_epsilon,
    one_run_mu,
    one_run_p_value,
    one_run_trade_off_p_value,
    one_run_trade_off_rejected,
    shape_free_epsilon,
    symmetric_envelope,
)
from tests.reference import jax_privacy_one_run

STORED = json.loads(Path(jax_privacy_one_run.__file__).with_suffix(".json").read_text())

law = settings(deadline=None, derandomize=True, max_examples=30)
DELTA = 1e-5


def gaussian_trade_off(mu):
    return lambda a: float(ndtr(-ndtri(a) - mu))


@pytest.mark.parametrize(
    ("right", "runs", "anytime", "fixed"),
    [(69, 100, 0.2269, 0.5343), (692, 1000, 0.7460, 0.8638), (6915, 10_000, 0.9141, 0.9568)],
)
def test_mu_from_canaries_has_the_values_of_an_independent_program(right, runs, anytime, fixed):
    assert gaussian_mu_lower(right, runs) == pytest.approx(anytime, abs=5.1e-5)
    assert gaussian_mu_lower(right, runs, anytime=False) == pytest.approx(fixed, abs=5.1e-5)


@pytest.mark.parametrize(("mu", "epsilon"), [(0.25, 0.9263), (0.5, 1.993), (1, 4.3772), (2, 9.9973), (4, 24.3816)])
def test_epsilon_of_gaussian_privacy_has_the_values_of_an_independent_program(mu, epsilon):
    assert gaussian_epsilon(mu, DELTA) == pytest.approx(epsilon, abs=1.5e-4)


@law
@given(st.floats(1e-3, 30), st.floats(-30, -0.1))
def test_epsilon_is_rounded_down_from_the_upper_bound_of_the_accountant(mu, log_delta):
    above = epsilon_from_gaussian(mu, math.exp(log_delta))
    below = gaussian_epsilon(mu, math.exp(log_delta))
    assert below <= above
    assert below == pytest.approx(above, rel=1e-7, abs=1e-7)


def test_epsilon_at_the_ends_of_the_scale():
    assert gaussian_epsilon(0.0, DELTA) == 0
    assert gaussian_epsilon(1e-9, DELTA) == 0
    assert gaussian_epsilon(math.inf, DELTA) == math.inf


@pytest.mark.parametrize("mu", [0.0, 0.01, 0.5, 1.0, 3.0, 8.0, 30.0])
def test_the_cap_of_a_gaussian_trade_off_is_its_closed_form(mu):
    measured = accuracy_cap(gaussian_trade_off(mu))
    assert measured >= gaussian_cap(mu)
    assert measured == pytest.approx(gaussian_cap(mu), abs=1e-7)


@law
@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 1)), min_size=1, max_size=5))
def test_the_cap_of_a_trade_off_made_of_lines_is_never_too_small(lines):
    # f(a) = max(0, 1 - delta - e^eps a, ...) is piecewise linear, so its least sum is at a corner.
    def trade_off(a):
        return max(0.0, *(1 - delta - math.exp(epsilon) * a for epsilon, delta in lines))

    corners = [0.0, 1.0] + [(1 - delta) / math.exp(epsilon) for epsilon, delta in lines]
    for (e, d), (f, g) in itertools.combinations(lines, 2):
        if math.exp(e) != math.exp(f):
            corners.append(min(1.0, max(0.0, (g - d) / (math.exp(e) - math.exp(f)))))
    exact = 1 - min(a + trade_off(a) for a in corners) / 2
    assert exact - 1e-12 <= accuracy_cap(trade_off) <= max(exact, 0.5) + 1e-7


def test_mu_grows_with_right_guesses_and_is_smaller_when_one_may_stop_at_will():
    bounds = [gaussian_mu_lower(right, 200) for right in range(0, 201, 10)]
    assert bounds == sorted(bounds)
    assert bounds[0] == bounds[10] == gaussian_mu_lower(0, 0) == 0
    for right in (120, 150, 200):
        assert 0 <= gaussian_mu_lower(right, 200) < gaussian_mu_lower(right, 200, anytime=False)


@pytest.mark.parametrize(
    ("counts", "epsilon", "mu", "gaussian"),
    [
        ((1000, 100, 90), 1.62614, 0.602504, 2.45640),
        ((1000, 200, 150), 0.81997, 0.339466, 1.29692),
        ((100, 20, 20), None, 0.769355, 3.23939),
        ((5000, 500, 450), None, 0.671522, 2.77607),
    ],
)
def test_one_run_has_the_values_of_an_independent_program(counts, epsilon, mu, gaussian):
    if epsilon is not None:
        assert one_run_epsilon(*counts, delta=DELTA) == pytest.approx(epsilon, abs=5.1e-6)
    assert one_run_mu(*counts) == pytest.approx(mu, abs=6e-7)
    assert gaussian_epsilon(one_run_mu(*counts), DELTA) == pytest.approx(gaussian, abs=5.1e-6)


def test_p_values_of_one_run_have_the_values_of_an_independent_program():
    assert one_run_p_value(1000, 100, 90, epsilon=1, delta=DELTA) == pytest.approx(8.41289e-4, abs=5.1e-10)
    assert one_run_p_value(1000, 100, 90, epsilon=1, delta=0) == pytest.approx(2.73581e-5, abs=5.1e-11)


@law
@given(st.integers(1, 40), st.integers(0, 40), st.floats(0, 4), st.sampled_from([0.0, 1e-5, 1e-2]))
def test_the_p_value_of_one_run_is_its_sum_over_binomial_probabilities(guesses, right, epsilon, delta):
    right = min(right, guesses)
    chance = stats.binom.pmf(np.arange(guesses + 1), guesses, 1 / (1 + math.exp(-epsilon)))
    extra = max((chance[right - i : right].sum() / i for i in range(1, right + 1)), default=0.0)
    expected = min(1.0, chance[right:].sum() + 2 * 50 * delta * extra)
    assert one_run_p_value(50, guesses, right, epsilon=epsilon, delta=delta) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("canaries", "guesses", "right", "delta"), [(200, 60, 50, 1e-3), (2000, 900, 800, 2e-3)])
def test_all_epsilons_below_the_bound_of_one_run_are_rejected_and_all_above_are_not(canaries, guesses, right, delta):
    bound = one_run_epsilon(canaries, guesses, right, delta=delta)
    assert bound > 0
    for epsilon in np.linspace(0, 3 * bound, 61):
        if abs(epsilon - bound) > 1e-6:
            p_value = one_run_p_value(canaries, guesses, right, epsilon=epsilon, delta=delta)
            assert (p_value <= 0.05) == (epsilon < bound)


@pytest.mark.parametrize("counts", [(100, 20, 18), (300, 300, 220), (50, 10, 10), (1000, 50, 40)])
def test_all_mu_below_the_bound_of_one_run_are_rejected_and_all_above_are_not(counts):
    bound = one_run_mu(*counts)
    assert bound > 0
    for mu in np.linspace(0, 3 * bound, 61):
        if not bound - 0.03 < mu < bound + 1e-6:  # the test of a function rounds it down
            assert one_run_trade_off_rejected(*counts, gaussian_trade_off(mu)) == (mu < bound)


@pytest.mark.parametrize("counts", [(100, 20, 18), (300, 300, 220), (1000, 50, 40), (20, 4, 0)])
def test_the_p_value_of_a_trade_off_is_the_smallest_level_that_rejects_it(counts):
    trade_off = gaussian_trade_off(0.2)
    p_value = one_run_trade_off_p_value(*counts, trade_off)
    for level in (0.5, 0.05, 1e-3, 1e-6, p_value * 0.999, min(p_value * 1.001, 0.999)):
        assert one_run_trade_off_rejected(*counts, trade_off, alpha=level) == (p_value <= level)


@pytest.mark.parametrize("mu", [0.1, 1.0, 4.0])
def test_the_envelope_of_a_symmetric_function_is_close_to_it_from_below(mu):
    trade_off = gaussian_trade_off(mu)
    envelope = symmetric_envelope(trade_off)
    for alarm in np.concatenate([np.geomspace(1e-3, 0.5, 40), 1 - np.geomspace(1e-3, 0.5, 40)]):
        assert envelope(alarm) <= trade_off(alarm)
        assert envelope(alarm) == pytest.approx(trade_off(alarm), abs=0.01)


def test_the_envelope_of_an_asymmetric_function_has_a_line_of_slope_minus_one_between_its_branches():
    # One subsampled step, f(a) = q G(a) + (1 - q)(1 - a) with slope -1 at c: f, a line, and the inverse above f(c).
    rate, mu = 0.3, 2.0

    def trade_off(a):
        return rate * gaussian_trade_off(mu)(a) + (1 - rate) * (1 - a)

    envelope, corner = symmetric_envelope(trade_off), float(ndtr(-mu / 2))
    assert corner < trade_off(corner)
    for a in np.linspace(0.001, 0.999, 97):
        if a <= corner:
            exact = trade_off(a)
        elif a <= trade_off(corner):
            exact = corner + trade_off(corner) - a
        else:
            exact = optimize.brentq(lambda x, a=a: trade_off(x) - a, 0, 1)
        assert envelope(a) <= exact + 1e-12
        assert envelope(a) == pytest.approx(exact, abs=0.01)
    assert envelope(1.0) == 0


@law
@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 1)), min_size=1, max_size=4), st.lists(st.floats(0, 1)))
def test_an_envelope_is_convex_and_below_the_function_and_its_inverse(lines, alarms):
    def trade_off(a):
        return max(0.0, *(1 - delta - math.exp(epsilon) * a for epsilon, delta in lines))

    envelope = symmetric_envelope(trade_off)
    for a in alarms:
        assert envelope(a) <= trade_off(a) + 1e-12
        assert envelope(trade_off(a)) <= a + 1e-12
        for b in alarms:
            assert envelope((a + b) / 2) <= (envelope(a) + envelope(b)) / 2 + 1e-12


def test_one_run_bounds_grow_with_right_guesses():
    for bound in (lambda v: one_run_epsilon(200, 50, v, delta=DELTA), lambda v: one_run_mu(200, 50, v)):
        values = [bound(right) for right in range(0, 51, 5)]
        assert values == sorted(values)
        assert values[0] == 0
        assert values[-1] > 1


@pytest.mark.parametrize("counts", sorted(STORED["epsilon"]))
def test_bounds_of_one_run_equal_jax_privacy_on_equal_counts(counts):
    stored = STORED["epsilon"][counts]
    numbers = [int(each) for each in counts.split()]
    # The peer stops its search at 1e-6.
    assert one_run_epsilon(*numbers, delta=DELTA) == pytest.approx(stored["any mechanism"], abs=1e-6)
    assert gaussian_epsilon(one_run_mu(*numbers), DELTA) == pytest.approx(stored["Gaussian DP"], abs=1e-6)


@pytest.mark.parametrize("mu", jax_privacy_one_run.MUS)
def test_bounds_of_one_run_are_at_least_the_default_of_jax_privacy_on_the_same_scores(mu):
    ours = [
        gaussian_epsilon(best_one_run_mu(*jax_privacy_one_run.canary_scores(mu, seed)), DELTA)
        for seed in range(jax_privacy_one_run.RUNS)
    ]
    peer = STORED["default"][str(mu)]
    assert np.mean(ours) > 1.03 * np.mean(peer)


def test_independent_gaussian_canaries_exceed_the_true_mu_rarely():
    rng, mu, above = np.random.default_rng(11), 1.0, 0
    for _ in range(200):
        truths = rng.random(200) < 0.5
        scores = mu * (truths - 0.5) + rng.normal(size=200)
        above += best_one_run_mu(scores, truths) > mu
    assert stats.binom.sf(above - 1, 200, 0.05) > 0.01


def test_the_best_share_of_guesses_pays_for_the_choice():
    rng = np.random.default_rng(2)
    truths = rng.random(500) < 0.5
    scores = 2 * (truths - 0.5) + rng.normal(size=500)
    order = np.argsort(-np.abs(scores))
    singles = [
        one_run_mu(500, n, int(((scores > 0) == truths)[order[:n]].sum()), alpha=0.05 / 6)
        for n in (10, 25, 50, 100, 250, 500)
    ]
    assert best_one_run_mu(scores, truths) == max(singles)


def randomized_response(rng, runs, epsilon):
    truths = rng.random(runs) < 0.5
    kept = rng.random(runs) < 1 / (1 + math.exp(-epsilon))
    return np.where(truths == kept, 1.0, -1.0), truths


@pytest.mark.parametrize("anytime", [True, False])
def test_the_shape_free_bound_of_randomized_response_approaches_its_epsilon_from_below(anytime):
    rng = np.random.default_rng(4)
    scores, truths = randomized_response(rng, 20_000, 1.0)
    bound = shape_free_epsilon(scores, truths, thresholds=(0.5,), delta=0.0, anytime=anytime)
    assert 0.9 < bound < 1.0


def test_the_shape_free_bound_is_rarely_too_large_at_any_time():
    # Exact: at the true epsilon the mean of the capital over all sequences of guesses is at most one, so that the bound
    # exceeds it with probability at most alpha. Eight runs of randomised response that abstains in part of them.
    epsilon, alpha, above = 0.7, 0.3, 0.0
    right = 0.6 / (1 + math.exp(-epsilon))
    chances = {(1.0, True): right, (-1.0, True): 0.6 - right, (0.1, True): 0.4}
    for hits, misses in itertools.product(range(9), repeat=2):
        if hits + misses <= 8:
            results = [(1.0, True)] * hits + [(-1.0, True)] * misses + [(0.1, True)] * (8 - hits - misses)
            bound = shape_free_epsilon(*zip(*results, strict=True), thresholds=(0.5, 2.0), delta=0.0, alpha=alpha)
            ways = math.factorial(8) / math.factorial(hits) / math.factorial(misses) / math.factorial(8 - hits - misses)
            above += (bound > epsilon) * ways * math.prod(chances[each] for each in results)
    assert 0 < above <= alpha


def test_the_shape_free_bound_is_where_the_mean_capital_of_the_thresholds_reaches_its_goal():
    rng, delta = np.random.default_rng(9), 0.02
    truths = rng.random(300) < 0.5
    scores = 3 * (truths - 0.5) + 2 * rng.normal(size=300)
    bound = shape_free_epsilon(scores, truths, thresholds=(1.0, 4.0), delta=delta, alpha=0.1)

    def capital(epsilon):
        total, stakes = 0.0, np.array(CANARY_PRIOR.fractions)
        for threshold in (1.0, 4.0):
            players = np.array(CANARY_PRIOR.weights)
            for score, truth in zip(scores, truths, strict=True):
                gain = (1 if (score > 0) == truth else -math.exp(epsilon)) - delta
                bet = gain / (math.exp(epsilon) + delta) if abs(score) >= threshold else -delta / (1 + delta)
                players = players * (1 + stakes * bet)
            total += players.sum() / 2
        return total

    assert bound > 0
    assert capital(bound - 1e-6) > 10 > capital(bound + 1e-6)


def test_a_fixed_number_of_runs_pays_for_each_threshold_and_both_ends():
    scores, truths = randomized_response(np.random.default_rng(8), 500, 2.0)
    right = int(((scores > 0) == truths).sum())
    bound = shape_free_epsilon(scores, truths, thresholds=(0.5, 2.0), delta=0.01, alpha=0.05, anytime=False)
    least = stats.binomtest(right, 500, alternative="greater").proportion_ci(1 - 0.05 / 4).low
    most = stats.binomtest(500 - right, 500, alternative="less").proportion_ci(1 - 0.05 / 4).high
    assert bound == pytest.approx(math.log((least - 0.01) / most), abs=1e-8)


@pytest.mark.parametrize("anytime", [True, False])
def test_the_shape_free_bound_falls_with_delta_and_with_the_level(anytime):
    scores, truths = randomized_response(np.random.default_rng(8), 500, 2.0)

    def bound(delta, alpha):
        return shape_free_epsilon(scores, truths, thresholds=(0.5, 2.0), delta=delta, alpha=alpha, anytime=anytime)

    assert bound(0.0, 0.05) > bound(0.01, 0.05) > bound(0.1, 0.05)
    assert bound(0.0, 0.1) > bound(0.0, 0.01)
    assert bound(0.9, 0.05) == 0
    assert shape_free_epsilon([], [], thresholds=(1.0,), delta=0.0, anytime=anytime) == 0


@pytest.mark.parametrize(
    ("candidates", "success", "cap"),
    [(2, 0.76025, 0.8413), (10, 0.34094, 0.3891), (100, 0.08246, 0.0924), (1000, 0.01660, 0.0183)],
)
def test_identification_has_the_values_of_an_independent_program(candidates, success, cap):
    assert gaussian_identification(1.0, candidates) == pytest.approx(success, abs=5.1e-6)
    assert identification_cap(1.0, candidates) == pytest.approx(cap, abs=5.1e-5)
    assert identification_cap(gaussian_trade_off(1.0), candidates) == pytest.approx(
        identification_cap(1.0, candidates), rel=1e-9
    )


@law
@given(st.floats(0, 10), st.integers(1, 10**6))
def test_no_guess_among_candidates_beats_the_cap(mu, candidates):
    success = gaussian_identification(mu, candidates)
    assert 1 / candidates * (1 - 1e-9) <= success <= identification_cap(mu, candidates) + 1e-12
    exact = integrate.quad(
        lambda z: stats.norm.pdf(z - mu) * ndtr(z) ** (candidates - 1), mu - 10, mu + 10, epsabs=1e-12, limit=200
    )[0]
    assert success == pytest.approx(exact, abs=1e-9)


def test_certain_identification():
    assert gaussian_identification(3.0, 1) == pytest.approx(1)
    assert identification_cap(0.0, 1) == 1
    assert gaussian_identification(math.inf, 10) == 1
    assert gaussian_identification(0.0, 10) == pytest.approx(0.1)


def test_p_values_become_evidence_with_a_mean_of_one():
    mean = integrate.quad(lambda p: math.exp(log_evidence_from_p_values([p])), 0, 1)[0]
    assert mean == pytest.approx(1, abs=1e-6)
    assert log_evidence_from_p_values([]) == 0
    assert log_evidence_from_p_values([0.25, 0.01]) == pytest.approx(math.log(5))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gaussian_mu_lower(3, 2), "Expected successes=3 <= trials=2."),
        (lambda: gaussian_cap(-1.0), "Expected mu=-1.0 >= 0."),
        (lambda: gaussian_epsilon(1.0, 1.0), r"Expected delta=1.0 in \(0, 1\)."),
        (lambda: gaussian_epsilon(1.0, 0.0), "Expected delta=0.0 > 0."),
        (lambda: accuracy_cap(lambda a: 1.5), r"Expected trade_off\(a\)=1.5 in"),
        (lambda: one_run_epsilon(10, 11, 5, delta=0.0), "Expected guesses=11 <= canaries=10."),
        (lambda: one_run_mu(10, 5, 6), "Expected right=6 <= guesses=5."),
        (lambda: one_run_p_value(10, 5, 4, epsilon=-1.0, delta=0.0), "Expected epsilon=-1.0 >= 0."),
        (lambda: best_one_run_mu([1.0], [True, False]), r"Expected scores.shape=\(1,\)"),
        (lambda: best_one_run_mu([1.0], [True], shares=(0.0,)), r"Expected shares=0.0 in \(0, 1\]."),
        (lambda: shape_free_epsilon([1.0], [True], thresholds=(), delta=0.0), "Expected thresholds with at least"),
        (lambda: shape_free_epsilon([1.0], [True], thresholds=(-1.0,), delta=0.0), "Expected thresholds=-1.0 >= 0."),
        (lambda: shape_free_epsilon([math.nan], [True], thresholds=(1.0,), delta=0.0), "Expected scores.shape="),
        (lambda: shape_free_epsilon([1.0], [True], thresholds=(1.0,), delta=1.0), r"Expected delta=1.0 in \[0, 1\)."),
        (lambda: log_evidence_from_p_values([0.0]), "to be in"),
        (lambda: identification_cap(1.0, 0), "Expected candidates=0 >= 1."),
    ],
)
def test_impossible_arguments_are_refused(call, message):
    with pytest.raises(InvalidInput, match=message):
        call()

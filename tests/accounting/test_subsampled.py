import itertools
import math
import tracemalloc

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from reconrisk.accounting import subsampled
from reconrisk.accounting.composition import MAX_POINTS
from reconrisk.accounting.renyi import ORDERS, renyi_curve
from reconrisk.accounting.subsampled import DEFAULT_ACCURACY, epsilon_of_training, log_success_of_training
from reconrisk.accounting.trade_off import log_success_from_renyi
from reconrisk.core.mechanism import Composed, dp_sgd


def run(noise, rate, steps):
    return dp_sgd(noise_multiplier=noise, sampling_probability=rate, steps=steps)


def success(noise, rate, steps, prior, accuracy=DEFAULT_ACCURACY):
    return math.exp(log_success_of_training(run(noise, rate, steps), math.log(prior), accuracy))


# Values of the characteristic-function oracle to 1e-9; the last two, where it does not converge, to 1e-7 from the
# engine at accuracy 1e-9, and confirmed by simulation below.
TRUTH = {
    (1.0, 0.01, 10_000, 0.1): 0.505074175,
    (1.0, 0.01, 1_000, 0.1): 0.194201132,
    (0.6, 0.01, 1_000, 0.1): 0.417230951,
    (0.3, 0.01, 30, 0.1): 0.2800690,
    (0.5, 0.001, 100, 0.001): 0.0021901,
}


@pytest.mark.parametrize(("setting", "truth"), TRUTH.items())
def test_is_above_the_truth_by_no_more_than_the_accuracy(setting, truth):
    excess = success(*setting) - truth
    assert -1e-7 < excess <= DEFAULT_ACCURACY


@pytest.mark.parametrize("setting", [key for key in TRUTH if key[2] >= 1000])
def test_the_oracle_agrees_with_its_stored_values(true_success, setting):
    assert true_success([setting[:3]], setting[3]) == pytest.approx(TRUTH[setting], abs=1e-8)


def test_excess_over_the_oracle_stays_within_the_accuracy_on_random_settings(true_success):
    rng = np.random.default_rng(3)
    for _ in range(10):
        noise, rate, steps = (
            10 ** rng.uniform(-0.1, 0.6),
            10 ** rng.uniform(-2.5, -0.5),
            int(10 ** rng.uniform(2.5, 4.5)),
        )
        prior = rng.uniform(0.001, 0.9)
        truth = true_success([(noise, rate, steps)], prior)
        for accuracy in (1e-3, DEFAULT_ACCURACY):
            assert -1e-8 <= success(noise, rate, steps, prior, accuracy) - truth <= accuracy


def test_a_schedule_agrees_with_the_oracle(true_success):
    phases = [(2.0, 0.05, 400), (0.8, 0.01, 900), (1.5, 0.2, 50)]
    schedule = Composed(tuple(run(*phase) for phase in phases))
    excess = math.exp(log_success_of_training(schedule, math.log(0.05))) - true_success(phases, 0.05)
    assert -1e-8 <= excess <= DEFAULT_ACCURACY


@pytest.mark.parametrize("noise", [0.1, 0.15, 0.2, 0.25])
def test_says_one_at_very_little_noise(noise):
    assert success(noise, 0.01, 10_000, 0.1) == pytest.approx(1.0, abs=1e-9)


@given(st.floats(0.05, 50), st.integers(1, 10**6), st.floats(-1e4, -1e-3))
def test_the_full_batch_is_the_closed_form(noise, steps, log_prior):
    got = log_success_of_training(run(noise, 1.0, steps), log_prior)
    mu = math.sqrt(steps) / noise
    if log_prior > -30:
        expected = float(ndtr(ndtri(math.exp(log_prior)) + mu))
        assert math.exp(got) == pytest.approx(expected, rel=1e-10)
    assert log_prior <= got <= 0


@pytest.mark.parametrize(("noise", "steps", "log_prior"), [(10.0, 100, -2.3), (5.0, 400, -50.0), (20.0, 100, -1e4)])
def test_the_closed_form_is_exact_to_twelve_digits(noise, steps, log_prior):
    with mpmath.workdps(60):
        quantile = mpmath.findroot(
            lambda z: mpmath.log(mpmath.erfc(-z / mpmath.sqrt(2)) / 2) - log_prior, -math.sqrt(-2 * log_prior) + 0.5
        )
        exact = mpmath.log(mpmath.erfc(-(quantile + mpmath.sqrt(steps) / noise) / mpmath.sqrt(2)) / 2)
    assert log_success_of_training(run(noise, 1.0, steps), log_prior) == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize(("noise", "rate"), [(0.3, 0.01), (1.0, 0.3), (0.7, 0.9)])
@pytest.mark.parametrize("prior", [0.001, 0.2, 0.8])
def test_one_step_is_the_half_line_test(noise, rate, prior):
    exact = (1 - rate) * prior + rate * ndtr(ndtri(prior) + 1 / noise)
    assert success(noise, rate, 1, prior) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(("noise", "rate"), [(0.4, 0.05), (1.0, 0.3), (0.7, 0.9)])
def test_the_lattice_agrees_with_the_closed_form_of_one_step(noise, rate):
    phases = subsampled.phases_of(run(noise, rate, 1))
    for prior in (0.001, 0.2, 0.8):
        log_success = subsampled._log_success_on_lattice(phases, math.log(prior), DEFAULT_ACCURACY)
        assert 0 <= math.exp(log_success) - success(noise, rate, 1, prior) <= DEFAULT_ACCURACY


def test_is_never_below_the_power_of_the_optimal_test():
    # Both thresholds and powers are empirical. Standard errors: of the power sqrt(g/n), of the level sqrt(k/n) times
    # the slope of the power, at most g/k for a concave curve. Five of their sum leave a chance below 1e-6.
    rng = np.random.default_rng(7)
    for noise, rate, steps, prior in [(0.3, 0.01, 30, 0.1), (0.5, 0.001, 100, 0.001), (1.0, 0.2, 20, 0.05)]:
        draws = 400_000

        def losses(with_record, noise=noise, rate=rate, steps=steps, draws=draws):
            total = np.zeros(draws)
            for _ in range(steps):
                x = noise * rng.standard_normal(draws) + (with_record & (rng.random(draws) < rate))
                total += np.log1p(rate * np.expm1((x - 0.5) / noise**2))
            return total

        threshold = np.quantile(losses(False), 1 - prior)
        power = float((losses(True) > threshold).mean())
        bound = success(noise, rate, steps, prior)
        error = math.sqrt(power / draws) + power / prior * math.sqrt(prior / draws)
        assert bound >= power - 5 * error
        assert bound <= power + 5 * error + DEFAULT_ACCURACY


def test_never_falls_when_any_argument_becomes_more_dangerous():
    # No tolerance beyond the round-off allowance: lattices are nested in the order of the danger.
    rng = np.random.default_rng(11)
    for _ in range(120):
        noise, rate = 10 ** rng.uniform(-0.7, 0.8), 10 ** rng.uniform(-3, -0.05)
        steps, prior = int(10 ** rng.uniform(0.3, 3.5)), min(10 ** rng.uniform(-8, 0), 0.99)
        factor = 1 + 10 ** rng.uniform(-6, 0)
        base = success(noise, rate, steps, prior, 2e-3)
        allowance = 1e-12 * steps + 1e-9 * base
        worse = [
            success(noise / factor, rate, steps, prior, 2e-3),
            success(noise, min(rate * factor, 1.0), steps, prior, 2e-3),
            success(noise, rate, math.ceil(steps * factor), prior, 2e-3),
            success(noise, rate, steps, min(prior * factor, 1.0), 2e-3),
        ]
        assert min(worse) >= base - allowance


def test_is_concave_in_the_prior_up_to_the_accuracy():
    priors = np.linspace(0.01, 0.99, 25)
    values = np.array([success(1.0, 0.02, 500, prior) for prior in priors])
    assert (np.diff(values, 2) <= 2 * DEFAULT_ACCURACY).all()


def test_the_order_and_grouping_of_phases_do_not_matter():
    parts = [run(2.0, 0.05, 100), run(1.0, 0.01, 300), run(3.0, 1.0, 4)]
    values = {log_success_of_training(Composed(order), -3.0) for order in itertools.permutations(parts)}
    assert len(values) == 1
    halves = Composed((run(1.0, 0.01, 500), run(1.0, 0.01, 500)))
    assert log_success_of_training(halves, -3.0) == log_success_of_training(run(1.0, 0.01, 1000), -3.0)


def test_a_further_phase_never_helps_privacy():
    first, second = run(1.0, 0.01, 300), run(3.0, 1.0, 4)
    both = log_success_of_training(Composed((first, second)), -3.0)
    assert both >= max(log_success_of_training(first, -3.0), log_success_of_training(second, -3.0))


def test_tiny_priors_keep_relative_accuracy():
    # The Renyi form bounds the truth from above, the one-step-tests' power from below.
    mechanism = run(1.0, 0.01, 1000)
    for log_prior in (-12.0, -25.0, -50.0):
        coarse = log_success_of_training(mechanism, log_prior, 1e-4)
        fine = log_success_of_training(mechanism, log_prior, 1e-6)
        assert coarse == pytest.approx(fine, abs=1e-3)
        assert coarse < log_success_from_renyi(ORDERS, renyi_curve(mechanism), log_prior) - 0.2
        assert math.exp(coarse) >= subsampled._power_of_largest_outcome(subsampled.phases_of(mechanism), log_prior)


def test_priors_of_minus_ten_thousand_stay_finite_and_ordered():
    mechanism = run(1.0, 0.01, 1000)
    logs = [log_success_of_training(mechanism, log_prior) for log_prior in (-1e4, -1e3, -200.0)]
    assert logs == sorted(logs)
    assert -1e4 < logs[0] < -8e3


@pytest.mark.parametrize(
    ("noise", "rate", "steps"),
    [
        (0.05, 0.5, 10**6),
        (5.0, 0.9, 10**9),
        (1e-3, 1e-6, 10**9),
        (100.0, 1e-9, 10**12),
        (1e-4, 0.99, 2),
        (0.3, 1e-4, 10**7),
    ],
)
def test_memory_is_bounded_for_any_input(noise, rate, steps):
    tracemalloc.start()
    try:
        value = success(noise, rate, steps, 0.01)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        subsampled._compose_cached.cache_clear()
    assert 0.01 <= value <= 1
    assert peak < 20 * 8 * MAX_POINTS


@pytest.mark.parametrize(
    ("noise", "rate", "steps"),
    [
        (1.0, 0.01, 10**20),
        (1e150, 1e-200, 10**20),
        (1e-160, 0.5, 3),
        (1e-160, 1.0, 3),
        (1e200, 1.0, 3),
        (1.0, 1 - 1e-16, 5),
        (1e160, 0.5, 10),
        (0.0011, 1e-6, 50),
    ],
)
def test_absurd_settings_give_a_number_on_the_safe_side(noise, rate, steps):
    for prior in (0.1, 1e-200):
        value = success(noise, rate, steps, prior)
        assert prior * (1 - 1e-9) <= value <= 1
    assert epsilon_of_training(run(noise, rate, steps), 1e-5) >= 0


def test_without_noise_only_the_sampling_protects():
    assert success(1e-9, 0.01, 20, 0.1) == pytest.approx(1 - 0.99**20 * 0.9, rel=1e-12)
    assert success(0.02, 0.01, 20, 0.1) == pytest.approx(1 - 0.99**20 * 0.9, rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    st.floats(-3, 3).map(lambda e: 10**e),
    st.floats(-8, 0).map(lambda e: 10**e),
    st.floats(0, 6).map(lambda e: int(10**e)),
    st.floats(-1e4, 0),
)
def test_is_always_a_number_between_the_prior_and_one(noise, rate, steps, log_prior):
    value = log_success_of_training(run(noise, rate, steps), log_prior, 1e-2)
    assert log_prior <= value <= 0


@pytest.mark.parametrize(("log_prior", "expected"), [(0.0, 0.0), (-math.inf, -math.inf)])
def test_certain_and_impossible_priors_stay_so(log_prior, expected):
    assert log_success_of_training(run(1.0, 0.01, 100), log_prior) == expected


@pytest.mark.parametrize(("noise", "rate", "steps"), [(1.0, 0.01, 1000), (0.7, 0.1, 50), (2.0, 0.5, 30)])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_epsilon_lies_between_the_two_estimates_of_dp_accounting(noise, rate, steps, delta):
    from dp_accounting.pld import privacy_loss_distribution as pld

    def theirs(pessimistic):
        one = pld.from_gaussian_mechanism(
            noise, sampling_prob=rate, pessimistic_estimate=pessimistic, value_discretization_interval=1e-3
        )
        return one.self_compose(steps).get_epsilon_for_delta(delta)

    ours = epsilon_of_training(run(noise, rate, steps), delta)
    assert theirs(False) <= ours <= theirs(True) + 2e-3


@pytest.mark.parametrize(("noise", "rate", "steps"), [(1.0, 0.9, 2), (1.0, 0.1, 50), (2.0, 0.01, 1000)])
def test_the_profiles_of_both_directions_agree(noise, rate, steps):
    # delta of Q against P at epsilon is 1 - e^epsilon (1 - delta of P against Q at -epsilon)
    phases = subsampled.phases_of(run(noise, rate, steps))
    spacing = subsampled.spacing_for(phases, DEFAULT_ACCURACY, math.log(0.3))
    forward, back = (subsampled._compose_cached(phases, spacing, 0.0, side, math.inf) for side in subsampled.Direction)
    for epsilon in (0.1, 0.5, 1.0):
        mirrored = np.interp(-epsilon, forward.epsilons, forward.deltas)
        expected = 1 - math.exp(epsilon) * (1 - mirrored)
        got = np.interp(epsilon, back.epsilons, back.deltas)
        assert got == pytest.approx(max(expected, 0.0), abs=2 * math.exp(epsilon) * DEFAULT_ACCURACY)


@pytest.mark.parametrize("noise", [0.05, 0.1, 0.2, 0.3])
@pytest.mark.parametrize(("rate", "steps"), [(0.01, 20), (0.1, 3), (0.001, 300)])
def test_is_never_below_the_test_by_the_largest_outcome(noise, rate, steps):
    for prior in (1e-6, 1e-3, 0.1, 0.5):
        level = -ndtri(1 - (1 - prior) ** (1 / steps))
        miss = (1 - rate) * ndtr(level) + rate * ndtr(level - 1 / noise)
        power = 1 - miss**steps
        assert success(noise, rate, steps, prior, 1e-3) >= power - 1e-12


def test_the_cap_on_losses_of_one_step_costs_nothing():
    mechanism, log_prior = run(0.35, 0.01, 100), math.log(2e-4)
    phases = subsampled.phases_of(mechanism)
    spacing = subsampled.spacing_for(phases, 1e-3, log_prior)
    uncapped = subsampled._compose_cached(phases, spacing, 0.0, subsampled.Direction.WITH_RECORD, math.inf)
    capped = math.exp(log_success_of_training(mechanism, log_prior, 1e-3))
    assert capped == pytest.approx(uncapped.success(math.exp(log_prior)), rel=1e-8)


@pytest.mark.parametrize(("delta", "expected"), [(0.0, math.inf), (1.0, 0.0)])
def test_epsilon_at_the_ends(delta, expected):
    assert epsilon_of_training(run(1.0, 0.01, 100), delta) == expected

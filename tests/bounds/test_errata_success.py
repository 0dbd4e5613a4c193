"""Each test shows a printed statement failing and ours holding."""

import math

import numpy as np
import pytest
from scipy.special import gammaln
from scipy.stats import chi2, norm

from reconrisk.accounting.renyi import replace_one_order_two
from reconrisk.bounds import prior_success
from reconrisk.bounds.success import success_upper_bound
from reconrisk.core.mechanism import Gaussian, Neighbouring, PureDP, ZeroConcentratedDP, dp_sgd


def test_balle2022_section_7f_prints_the_ratio_of_success_to_prior():
    size, epsilon = 10, 2.0
    printed = size * math.exp(epsilon) / (size + math.expm1(epsilon))
    ours = success_upper_bound(PureDP(epsilon, Neighbouring.REPLACE_ONE), prior_success=1 / size).value
    assert printed > 1  # no probability
    assert ours == pytest.approx(printed / size, rel=1e-12)


def test_balle2022_corollary_3_can_exceed_one_where_the_posterior_odds_do_not():
    epsilon, prior = 2.0, 0.5
    assert prior * math.exp(epsilon) > 1
    ours = success_upper_bound(PureDP(epsilon, Neighbouring.REPLACE_ONE), prior_success=prior).value
    assert ours == pytest.approx(1 / (1 + math.exp(-epsilon)), rel=1e-12)


def test_balle2022_theorem_2_drops_a_term():
    printed = math.exp(-((math.sqrt(math.log(10)) - math.sqrt(0.5)) ** 2))
    ours = success_upper_bound(ZeroConcentratedDP(0.5), prior_success=0.1).value
    exact = success_upper_bound(Gaussian(1.0), prior_success=0.1).value
    assert exact < ours == pytest.approx(0.484, abs=5e-4)
    assert printed == pytest.approx(0.519, abs=5e-4)


def test_the_volume_ratio_of_a_box_says_nothing_where_the_success_is_practically_zero():
    d, mse = 784, 0.06
    ratio = d / 2 * math.log(math.pi * d * mse) - gammaln(d / 2 + 1)
    ours = prior_success.uniform_box(sides=1.0, dimension=d, mse=mse).log_value
    assert ratio > 0
    assert ours < -40
    # a Gaussian tail of (784/12 - 784 * .06)/sqrt(784/180) = 8.8 standard deviations
    assert ours == pytest.approx(norm.logcdf(-(d / 12 - d * mse) / math.sqrt(d / 180)), rel=0.15)


def test_balle2022_gaussian_prior_is_exact_instead_of_bounded():
    # Proposition 7's tail bound exp(-d/2 (x - 1 - log x)) at x = mse/variance, against the chi-square itself.
    d, mse = 100, 0.5
    printed = math.exp(-d / 2 * (mse - 1 - math.log(mse)))
    ours = prior_success.gaussian(dimension=d, prior_std=1.0, mse=mse).value
    assert ours == pytest.approx(chi2.cdf(d * mse, d), rel=1e-8)
    assert printed > 5 * ours


def best_test_power(noise, rate, steps, prior, draws, rng):
    """Empirical power of the likelihood-ratio test at the level ``prior``."""

    def losses(with_record):
        total = np.zeros(draws)
        for _ in range(steps):
            x = noise * rng.standard_normal(draws) + (with_record & (rng.random(draws) < rate))
            total += np.log1p(rate * np.expm1((x - 0.5) / noise**2))
        return total

    threshold = np.quantile(losses(False), 1 - prior)
    return float((losses(True) > threshold).mean())


def test_a_central_limit_value_is_no_bound():
    # mu = q sqrt(T (e^(1/s^2) - 1)), the Gaussian approximation, at 30 steps and at 1000.
    power = best_test_power(0.3, 0.01, 30, 0.1, 200_000, np.random.default_rng(1))
    ours = success_upper_bound(dp_sgd(noise_multiplier=0.3, sampling_probability=0.01, steps=30), prior_success=0.1)
    first_order = norm.cdf(norm.ppf(0.1) + 0.01 * math.sqrt(30) / 0.3)  # linearised loss
    error = 5 * (math.sqrt(power / 200_000) + power / 0.1 * math.sqrt(0.1 / 200_000))
    assert first_order < power - error
    assert ours.value >= power - error
    assert ours.value == pytest.approx(0.2801, abs=5e-5)
    mu = 0.01 * math.sqrt(1000 * math.expm1(1.0))
    ours = success_upper_bound(dp_sgd(noise_multiplier=1.0, sampling_probability=0.01, steps=1000), prior_success=0.1)
    assert norm.cdf(norm.ppf(0.1) + mu) == pytest.approx(0.1930, abs=1e-4)
    assert ours.value >= 0.1942011


def test_importance_sampling_at_little_noise_depends_on_the_seed():
    # hayes2023 estimate P(loss > t) by draws from Q, weighted: at little noise a few huge weights decide.
    noise, rate, steps, prior = 0.3, 0.01, 1000, 0.1
    estimates = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        total = np.zeros(20_000)
        for _ in range(steps):
            total += np.log1p(rate * np.expm1((noise * rng.standard_normal(20_000) - 0.5) / noise**2))
        top = np.sort(total)[-int(prior * 20_000) :]
        estimates.append(float(np.exp(top).sum() / 20_000))
    ours = success_upper_bound(
        dp_sgd(noise_multiplier=noise, sampling_probability=rate, steps=steps), prior_success=prior
    )
    assert ours.value == pytest.approx(0.9909, abs=1e-4)
    assert min(estimates) < 0.6


def test_guo2022_runs_with_the_smaller_neighbouring_relation():
    mechanism = dp_sgd(noise_multiplier=1.0, sampling_probability=0.01, steps=100)
    printed = 100 * math.log1p(0.01**2 * math.expm1(1.0))
    # truth under replacement: chi-square of opposite contributions, by its expansion at small rates, q^2 A
    truth = 100 * math.log1p(0.01**2 * 2 * (math.e - math.exp(-1)) * 0.95)
    assert printed < truth <= replace_one_order_two(mechanism)

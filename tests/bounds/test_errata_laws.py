"""Corrections to the papers: each printed form fails where ours holds."""

import math

import numpy as np
import pytest
from scipy import special, stats

from reconrisk.bounds.analytic_inversion import (
    analytic_inversion_law,
    analytic_inversion_ncc,
    neurons_needed,
    training_run_law,
)
from reconrisk.bounds.known_norm import from_scratch_success
from reconrisk.bounds.mse.bayesian import bayesian_mse_lower_bound, box_prior_information
from reconrisk.bounds.mse.fisher import mse_lower_bound_from_fisher
from reconrisk.bounds.mse.output_perturbation import output_perturbation_epsilon
from reconrisk.bounds.mse.renyi import mse_lower_bound_from_rdp
from reconrisk.bounds.numerics.hits import Hits
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import Gaussian

DRAWS = 40_000
SLACK = 5 * math.sqrt(0.25 / DRAWS)


def test_riess2025_hits_are_binomial_not_the_printed_power():
    records, attempts = 10, 4
    counts = np.arange(attempts + 1)
    printed = special.binom(attempts, counts) / records**attempts
    assert printed.sum() == pytest.approx((2 / records) ** attempts)  # 0.0016: no distribution
    ours = np.exp(Hits(attempts, 1 / records).log_pmf(counts))
    assert ours.sum() == pytest.approx(1)
    drawn = np.random.default_rng(0).integers(0, records, (DRAWS, attempts))
    measured = np.bincount((drawn == 0).sum(1), minlength=attempts + 1) / DRAWS
    np.testing.assert_allclose(ours, measured, atol=SLACK)
    law = training_run_law(Gaussian(0.1), dimension=4, norm=1.0, attempts=attempts, hit_probability=1 / records)
    assert law.success(mse=100.0) == pytest.approx(1 - 0.9**attempts)


def test_riess2025_neurons_need_the_squared_ratio():
    clip, norm, noise = 5.0, 1.0, 0.1
    printed, ours = math.ceil(clip / norm), neurons_needed(clip, norm=norm)
    assert (printed, ours) == (5, 25)

    def variance(neurons):
        # Gradient norm sqrt(M)|x|; each of M rows is scaled by min(1, C/(sqrt(M)|x|)), gets noise sigma C, is averaged.
        scale = min(1.0, clip / (math.sqrt(neurons) * norm))
        return (noise * clip / scale) ** 2 / neurons

    claimed = (noise * norm) ** 2  # Theorem IV.1: minimal, sigma^2 |x|^2
    assert variance(printed) > 4 * claimed
    assert variance(ours) == pytest.approx(claimed)


def test_riess2025_law_is_no_bound_on_any_reconstruction():
    # "The probability of a successful reconstruction for any ... attack": the cap estimate doubles it at d = 4.
    rng = np.random.default_rng(1)
    dimension, noise, threshold = 4, 0.1, 0.3 * 0.01
    directions = rng.standard_normal((DRAWS, dimension))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    released = directions + noise * rng.standard_normal(directions.shape)
    estimates = math.sqrt(1 - dimension * threshold) * released / np.linalg.norm(released, axis=1, keepdims=True)
    success = float((((estimates - directions) ** 2).mean(1) <= threshold).mean())
    printed = analytic_inversion_law(Gaussian(noise), dimension=dimension, norm=1.0).success(mse=threshold)
    ours = from_scratch_success(Gaussian(noise), dimension=dimension, norm=1.0, mse=threshold).value
    assert printed == pytest.approx(0.122, abs=1e-3)
    assert success > printed + 0.1
    assert success == pytest.approx(ours, abs=SLACK)


def test_riess2025_minimum_variance_does_not_order_probabilities():
    # Equation 56 infers a larger success probability from a smaller variance: an unbiased estimate of larger variance
    # succeeds more often.
    rng = np.random.default_rng(2)
    unbiased = 1 + rng.standard_normal(DRAWS)
    lucky = rng.random(DRAWS) < 0.5
    other = np.where(lucky, 1.0, 2 * unbiased - 1.0)
    assert other.mean() == pytest.approx(1.0, abs=5 * other.std() / math.sqrt(DRAWS))
    assert other.var() > unbiased.var()
    assert (np.abs(other - 1) <= 0.01).mean() > 10 * (np.abs(unbiased - 1) <= 0.01).mean()


def test_riess2025_ncc_is_a_population_value():
    # Equation 23 is printed as a limit that no reconstruction passes; 38 % of draws exceed it.
    rng = np.random.default_rng(3)
    targets = rng.random((DRAWS, 4))
    noise = 0.5 * np.linalg.norm(targets, axis=1, keepdims=True)
    estimates = targets + noise * rng.standard_normal(targets.shape)
    a, b = targets - targets.mean(1, keepdims=True), estimates - estimates.mean(1, keepdims=True)
    correlations = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    ours = analytic_inversion_ncc(Gaussian(0.5), dimension=4, norm=1.0)
    assert ours.value == pytest.approx(math.sqrt(1 / (1 + 0.25 * 4)))
    assert (correlations > ours.value).mean() == pytest.approx(0.38, abs=0.02)
    assert ours.high > 0.99


def test_riess2025_unequal_scales_need_weights():
    # Equation 14 takes the plain mean of grad_j / s_j; rows with small s_j drown it. Weights s_j^2 are right.
    scales, noise = np.array([1.0, 0.1]), 1.0
    plain = float(np.mean(noise**2 / scales**2)) / len(scales)
    weighted = noise**2 / float((scales**2).sum())
    rng = np.random.default_rng(4)
    rows = scales * 2.0 + noise * rng.standard_normal((DRAWS, 2))
    for estimates, variance in (((rows / scales).mean(1), plain), (rows @ scales / (scales @ scales), weighted)):
        assert estimates.mean() == pytest.approx(2.0, abs=5 * math.sqrt(variance / DRAWS))
        assert estimates.var() == pytest.approx(variance, rel=5 * math.sqrt(2 / DRAWS))
    assert plain > 25 * weighted


def test_guo2022_output_perturbation_is_squared_and_scales_with_the_records():
    records, regularization, noise = 12_665, 0.01, 0.01
    printed = 2 / (records * regularization * noise)
    assert printed == pytest.approx(1.58, abs=0.01)
    # Order-2 divergence between two neighbours whose minimisers differ by the sensitivity 2 R / (n lambda).
    for radius, ours in ((1.0, 2.49), (14.9, 554)):
        shift = 2 * radius / (records * regularization) / noise
        x = np.linspace(-40, 40 + 2 * shift, 400_001)
        log_integrand = 2 * stats.norm.logpdf(x, shift) - stats.norm.logpdf(x)
        divergence = float(special.logsumexp(log_integrand) + math.log(x[1] - x[0]))
        assert divergence > printed
        epsilon = output_perturbation_epsilon(noise, records=records, regularization=regularization, record_norm=radius)
        assert epsilon == pytest.approx(divergence, rel=1e-6)
        assert epsilon == pytest.approx(ours, rel=2e-3)


def test_guo2022_replace_one_not_add_remove():
    # Theorem 1 needs the divergence between two records in place of each other. With the add/remove value it "proves"
    # more than the estimate y attains: y = z + noise on [-1, 1], full batch.
    noise, record = 3.0, 1.0
    add_remove, replace_one = (1 / noise) ** 2, (2 / noise) ** 2
    truth = noise**2
    box = {"low": -1.0, "high": 1.0, "record": [record], "constant_guess_mse": math.inf}
    assert mse_lower_bound_from_rdp(add_remove, **box).value > truth
    assert mse_lower_bound_from_rdp(replace_one, **box).value <= truth


def test_guo2022_information_of_a_step_has_the_clip_norm():
    # Equation 1 divides by sigma^2; the noise has standard deviation sigma * clip_norm.
    rng = np.random.default_rng(5)
    multiplier, clip, record = 0.5, 0.2, 0.1
    released = record + multiplier * clip * rng.standard_normal(DRAWS)  # gradient x, below the clip norm
    measured = float(((released - record) ** 2).mean())
    printed = mse_lower_bound_from_fisher([1 / multiplier**2]).value
    ours = mse_lower_bound_from_fisher([1 / Gaussian(multiplier, clip).noise_std ** 2]).value
    assert printed > 20 * measured
    assert ours == pytest.approx(measured, rel=5 * math.sqrt(2 / DRAWS))


def test_chen2025_largest_eigenvalue_and_dimension_of_the_record():
    information, prior = np.diag([1.0, 1.0]), np.diag([0.01, 100.0])
    truth = float(np.trace(np.linalg.inv(information + prior))) / 2  # posterior variance of a linear Gaussian release
    appendix = 2 / (np.trace(information) + 2 * 0.01)  # lambda_1 the smallest, as the appendix defines it
    assert appendix > truth
    ours = bayesian_mse_lower_bound(trace=2.0, dimension=2, prior_information=100.0).value
    assert ours <= truth
    # With d the number of parameters, the letter's other use, the bound grows with the size of the release.
    by_parameters = 500**2 / (2.0 + 500 * 100.0) / 2
    assert by_parameters > truth
    # The form with the trace of the prior lies between.
    assert ours <= bayesian_mse_lower_bound(trace=2.0, prior_information=prior).value <= truth


def test_chen2025_flat_prior_is_refused_because_it_proves_too_much():
    # x uniform on [0,1], y = x + N(0,1): with P = 0 the bound says 1; the posterior mean has .077, a constant 1/12.
    x, y = np.linspace(0, 1, 2001), np.linspace(-8, 9, 3401)
    joint = np.exp(-0.5 * (y - x[:, None]) ** 2)
    joint /= joint.sum()
    mean = (x[:, None] * joint).sum(0) / joint.sum(0)
    truth = float((joint * (x[:, None] - mean) ** 2).sum())
    assert truth == pytest.approx(0.077, abs=5e-4)
    printed = 1**2 / (1.0 + 1 * 0.0)
    assert printed > 10 * truth
    with pytest.raises(InvalidInput, match="uniform density has infinite information"):
        bayesian_mse_lower_bound([1.0], prior_information=0.0)
    assert bayesian_mse_lower_bound([1.0], prior_information=box_prior_information(1.0)).value < truth

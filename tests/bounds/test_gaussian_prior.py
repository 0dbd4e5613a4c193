"""The interior of the corridor: exact, attained by the posterior mean, with both ends of the corridor as limits."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from reconrisk.bounds.analytic_inversion import analytic_inversion_law
from reconrisk.bounds.gaussian_prior import (
    gaussian_prior_success,
    linear_gaussian_success,
    log_gaussian_prior_success,
    posterior_variances,
)
from reconrisk.core.errors import InvalidInput
from reconrisk.core.guarantee import Scope
from reconrisk.core.mechanism import Gaussian

DRAWS = 40_000
SLACK = 5 * math.sqrt(0.25 / DRAWS)  # five standard errors of a binomial proportion


def test_attained_by_the_posterior_mean_and_beaten_by_no_other_guess():
    rng = np.random.default_rng(0)
    dimension, noise, spread, threshold = 6, 0.7, 1.2, 0.3
    records = spread * rng.standard_normal((DRAWS, dimension))
    released = records + noise * rng.standard_normal(records.shape)
    bound = gaussian_prior_success(noise, dimension=dimension, prior_std=spread, mse=threshold).value
    weight = spread**2 / (spread**2 + noise**2)
    for scale in (0.0, 0.7 * weight, weight, 1.0):
        success = float((((scale * released - records) ** 2).mean(1) <= threshold).mean())
        assert success <= bound + SLACK
        if scale == weight:
            assert success == pytest.approx(bound, abs=SLACK)


@pytest.mark.parametrize("dimension", [1, 3, 784])
def test_wide_prior_is_the_law_of_the_attack(dimension):
    # y = x + N(0, v I) with v = sigma^2 |x|^2 is what riess2025's attack sees after rescaling.
    law = analytic_inversion_law(Gaussian(0.5), dimension=dimension, norm=2.0)
    interior = log_gaussian_prior_success(1.0, dimension=dimension, prior_std=1e8, mse=0.8)
    assert interior == pytest.approx(law.log_success(mse=0.8), rel=1e-10)


@pytest.mark.parametrize("dimension", [1, 3, 784])
def test_much_noise_leaves_the_prior_success(dimension):
    kappa = special.gammainc(dimension / 2, dimension * 0.9 / 2)
    assert gaussian_prior_success(1e8, dimension=dimension, prior_std=1.0, mse=0.9).value == pytest.approx(
        kappa, rel=1e-9
    )


@given(
    noise=st.floats(1e-3, 1e3),
    spread=st.floats(1e-3, 1e3),
    dimension=st.integers(1, 150_528),
    threshold=st.floats(1e-6, 10),
)
@settings(max_examples=100, deadline=None)
def test_monotone_and_between_its_ends(noise, spread, dimension, threshold):
    def value(noise=noise, spread=spread, threshold=threshold):
        return log_gaussian_prior_success(noise, dimension=dimension, prior_std=spread, mse=threshold)

    slack = 1e-9 * (1 + abs(value()))
    assert value(noise=2 * noise) <= value() + slack
    assert value(spread=2 * spread) <= value() + slack
    assert value(threshold=2 * threshold) >= value() - slack
    assert value() >= value(noise=1e9) - slack  # never below the prior success


def test_general_covariance_against_simulation():
    rng = np.random.default_rng(1)
    jacobian = rng.standard_normal((7, 4)) * np.array([3.0, 1.0, 0.3, 0.0])  # one direction is not released at all
    covariance = np.diag([0.5, 1.0, 2.0, 0.1, 1.0, 1.0, 3.0])
    factor = rng.standard_normal((4, 4))
    prior = factor @ factor.T
    information = jacobian.T @ np.linalg.inv(covariance) @ jacobian
    records = rng.multivariate_normal(np.zeros(4), prior, DRAWS)
    released = records @ jacobian.T + rng.multivariate_normal(np.zeros(7), covariance, DRAWS)
    gain = prior @ jacobian.T @ np.linalg.inv(jacobian @ prior @ jacobian.T + covariance)
    errors = ((released @ gain.T - records) ** 2).mean(1)
    for threshold in np.quantile(errors, [0.05, 0.5, 0.95]):
        bound = linear_gaussian_success(information, prior_covariance=prior, mse=threshold)
        assert (errors <= threshold).mean() == pytest.approx(bound.value, abs=SLACK)
    np.testing.assert_allclose(
        np.sort(posterior_variances(information, prior_covariance=prior)),
        np.linalg.eigvalsh(np.linalg.inv(np.linalg.inv(prior) + information)),
        rtol=1e-8,
    )


@given(
    noise=st.floats(0.01, 100), spread=st.floats(0.01, 100), dimension=st.integers(1, 40), threshold=st.floats(1e-4, 10)
)
@settings(max_examples=50, deadline=None)
def test_scalar_case_is_the_matrix_case(noise, spread, dimension, threshold):
    scalar = gaussian_prior_success(noise, dimension=dimension, prior_std=spread, mse=threshold).value
    for information in (np.full(dimension, noise**-2.0), np.eye(dimension) * noise**-2.0):
        matrix = linear_gaussian_success(information, prior_covariance=spread**2, mse=threshold).value
        assert matrix == pytest.approx(scalar, rel=1e-8)


def test_rotation_does_not_matter():
    rng = np.random.default_rng(2)
    turn, _ = np.linalg.qr(rng.standard_normal((5, 5)))
    information, prior = np.array([4.0, 1.0, 0.5, 0.1, 0.0]), np.array([1.0, 2.0, 0.5, 1.0, 3.0])
    plain = linear_gaussian_success(information, prior_covariance=prior, mse=0.6).value
    turned = linear_gaussian_success(
        turn * information @ turn.T, prior_covariance=(turn * prior) @ turn.T, mse=0.6
    ).value
    assert turned == pytest.approx(plain, rel=1e-9)


def test_known_directions_count_as_hit():
    with_known = linear_gaussian_success([1.0, 1.0], prior_covariance=[1.0, 0.0], mse=0.25)
    alone = linear_gaussian_success([1.0], prior_covariance=[1.0], mse=0.5)
    assert with_known.value == pytest.approx(alone.value, rel=1e-12)
    assert linear_gaussian_success([1.0], prior_covariance=[0.0], mse=0.0).value == 1
    assert linear_gaussian_success([1.0], prior_covariance=[1.0], mse=0.0).value == 0


def test_scope_and_words():
    bound = gaussian_prior_success(1.0, dimension=2, prior_std=1.0, mse=0.1)
    assert bound.scope is Scope.ANY_ADVERSARY_WITH_PRIOR
    assert any("without clipping" in text for text in bound.assumptions)
    tiny = gaussian_prior_success(1.0, dimension=100_000, prior_std=1.0, mse=1e-3)
    assert 0 < tiny.value < 1e-300


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gaussian_prior_success(0.0, dimension=2, prior_std=1.0, mse=0.1), "noise_std=0.0 > 0"),
        (lambda: gaussian_prior_success(1.0, dimension=2, prior_std=-1.0, mse=0.1), "prior_std=-1.0 > 0"),
        (lambda: gaussian_prior_success(1.0, dimension=2, prior_std=1.0, mse=math.nan), "mse=nan"),
        (lambda: gaussian_prior_success(1.0, dimension=0, prior_std=1.0, mse=0.1), "dimension=0 >= 1"),
        (lambda: linear_gaussian_success([[1.0, 2.0], [0.0, 1.0]], prior_covariance=1.0, mse=0.1), "symmetric"),
        (lambda: linear_gaussian_success([[1.0, 2.0], [2.0, 1.0]], prior_covariance=1.0, mse=0.1), "semidefinite"),
        (lambda: linear_gaussian_success([-1.0], prior_covariance=1.0, mse=0.1), "information.*>= 0"),
        (lambda: linear_gaussian_success([1.0], prior_covariance=[1.0, 1.0], mse=0.1), "prior_covariance.shape"),
        (lambda: linear_gaussian_success([1.0], prior_covariance=[-1.0], mse=0.1), "prior_covariance.*>= 0"),
        (lambda: linear_gaussian_success([math.inf], prior_covariance=1.0, mse=0.1), "finite"),
        (lambda: linear_gaussian_success([], prior_covariance=1.0, mse=0.1), "empty"),
        (lambda: linear_gaussian_success("no", prior_covariance=1.0, mse=0.1), "array of numbers"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InvalidInput, match=message):
        call()

"""Van Trees' bound against priors whose best estimate is known."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from reconrisk.bounds.mse.bayesian import (
    bayesian_mse_lower_bound,
    blurred_prior_information,
    box_prior_information,
    gaussian_prior_information,
)
from reconrisk.core.errors import InvalidInput
from reconrisk.core.guarantee import Scope


def _bayes_mse(density, noise, low, high):
    """Mean squared error of the posterior mean of x with this density from x + N(0, noise^2), on a fine grid."""
    x = np.linspace(low, high, 2001)
    y = np.linspace(low - 8 * noise, high + 8 * noise, 2001)
    joint = density(x)[:, None] * np.exp(-0.5 * ((y - x[:, None]) / noise) ** 2)
    joint /= joint.sum()
    mean = (x[:, None] * joint).sum(0) / joint.sum(0)
    return float((joint * (x[:, None] - mean) ** 2).sum())


@given(seed=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_linear_gaussian_release_is_met_exactly(seed):
    rng = np.random.default_rng(seed)
    jacobian, factor = rng.standard_normal((5, 3)), rng.standard_normal((3, 3)) + 3 * np.eye(3)
    information, prior = jacobian.T @ jacobian, factor @ factor.T
    bound = bayesian_mse_lower_bound(information, prior_information=gaussian_prior_information(prior)).value
    posterior = np.linalg.inv(information + np.linalg.inv(prior))
    assert bound == pytest.approx(np.trace(posterior) / 3, rel=1e-9)
    by_trace = bayesian_mse_lower_bound(
        trace=float(np.trace(information)), prior_information=gaussian_prior_information(prior)
    ).value
    largest = float(np.linalg.eigvalsh(np.linalg.inv(prior)).max())
    by_largest = bayesian_mse_lower_bound(
        trace=float(np.trace(information)), dimension=3, prior_information=largest
    ).value
    assert bound * (1 + 1e-9) >= by_trace >= by_largest * (1 - 1e-9)
    assert bound * (1 + 1e-9) >= bayesian_mse_lower_bound(information, prior_information=largest).value


@pytest.mark.parametrize("noise", [0.05, 0.3, 1.0, 10.0])
def test_box_prior_bounds_its_own_bayes_error(noise):
    truth = _bayes_mse(lambda x: np.cos(math.pi * x) ** 2, noise, -0.5, 0.5)
    bound = bayesian_mse_lower_bound([noise**-2.0], prior_information=box_prior_information(1.0)).value
    assert bound <= truth
    assert bound >= 0.7 * truth  # and is not empty


def test_information_of_the_box_prior_by_quadrature():
    width = 3.0
    information, _ = integrate.quad(
        lambda x: 2 / width * (2 * math.pi / width * math.sin(math.pi * x / width)) ** 2, -width / 2, width / 2
    )
    assert box_prior_information(width) == pytest.approx(information)


def test_blurred_data_have_at_most_the_information_of_the_blur():
    points, blur = np.array([0.0, 0.3, 2.0]), 0.4
    x = np.linspace(-3, 5, 20_001)
    kernels = np.exp(-0.5 * ((x[:, None] - points) / blur) ** 2)
    density = kernels.sum(1)
    slope = (-(x[:, None] - points) / blur**2 * kernels).sum(1)
    information = np.trapezoid(slope**2 / density, x) / np.trapezoid(density, x) if hasattr(np, "trapezoid") else None
    if information is None:  # NumPy 1.26 has it under its old name
        information = (slope**2 / density).sum() / density.sum()
    assert information <= blurred_prior_information(blur)


def test_nothing_released_leaves_the_prior():
    variance = 1 / 12 - 1 / (2 * math.pi**2)
    bound = bayesian_mse_lower_bound([0.0], prior_information=box_prior_information(1.0)).value
    assert bound <= variance
    assert bayesian_mse_lower_bound([0.0], prior_information=gaussian_prior_information(2.0)).value == pytest.approx(
        2.0
    )


def test_covers_biased_estimates_and_is_capped_by_the_constant_guess():
    bound = bayesian_mse_lower_bound([1.0], prior_information=1e-3, constant_guess_mse=0.25)
    assert bound.scope is Scope.ANY_ADVERSARY_WITH_PRIOR
    assert bound.value == 0.25


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bayesian_mse_lower_bound([1.0], prior_information=0.0), "positive definite.*uniform"),
        (lambda: bayesian_mse_lower_bound([1.0, 1.0], prior_information=[1.0, 0.0]), "positive definite"),
        (lambda: bayesian_mse_lower_bound([1.0, 1.0], prior_information=np.ones((2, 2))), "positive definite"),
        (lambda: bayesian_mse_lower_bound(trace=1.0, dimension=2, prior_information=-1.0), "positive definite"),
        (lambda: bayesian_mse_lower_bound(prior_information=1.0), "exactly one value"),
        (lambda: bayesian_mse_lower_bound([1.0], trace=1.0, prior_information=1.0), "exactly one value"),
        (lambda: bayesian_mse_lower_bound(trace=1.0, prior_information=1.0), "dimension=None"),
        (lambda: bayesian_mse_lower_bound(trace=1.0, dimension=3, prior_information=[1.0]), "dimension=3 to equal 1"),
        (lambda: bayesian_mse_lower_bound([1.0], prior_information=[1.0, 1.0]), "prior_information.shape"),
        (lambda: bayesian_mse_lower_bound([1.0], prior_information=math.nan), "finite"),
        (lambda: gaussian_prior_information(0.0), r"min\(covariance\)=0.0 > 0"),
        (lambda: gaussian_prior_information(np.ones((2, 2))), "positive definite"),
        (lambda: box_prior_information([1.0, 0.0]), "widths"),
        (lambda: blurred_prior_information(0.0), "blur_std=0.0 > 0"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InvalidInput, match=message):
        call()

"""Output perturbation of logistic regression: the derivative of the minimiser by retraining, the traces by matrices."""

import math

import numpy as np
import pytest
from scipy.special import expit

from reconrisk.bounds.mse.fisher import mse_lower_bound_from_fisher
from reconrisk.bounds.mse.output_perturbation import (
    logistic_information,
    mse_lower_bound_from_output_perturbation,
    output_perturbation_epsilon,
)
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import output_perturbation


def _fit(features, labels, regularization):
    """Newton's method to machine precision."""
    theta = np.zeros(features.shape[1])
    weight = len(labels) * regularization
    for _ in range(50):
        probability = expit(features @ theta)
        gradient = features.T @ (probability - labels) + weight * theta
        hessian = (features.T * (probability * (1 - probability))) @ features + weight * np.eye(len(theta))
        theta = theta - np.linalg.solve(hessian, gradient)
    return theta


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    features = rng.random((40, 4))
    labels = (features[:, 0] > 0.5).astype(float)
    return features, labels, _fit(features, labels, 0.05)


def test_jacobian_is_the_change_of_the_minimiser_on_retraining(problem):
    features, labels, theta = problem
    information = logistic_information(theta, features=features, labels=labels, regularization=0.05, noise_std=0.1)
    step = 1e-5
    for record in (0, 7):
        jacobian = np.empty((4, 4))
        for coordinate in range(4):
            ends = []
            for sign in (1, -1):
                moved = features.copy()
                moved[record, coordinate] += sign * step
                ends.append(_fit(moved, labels, 0.05))
            jacobian[:, coordinate] = (ends[0] - ends[1]) / (2 * step)
        # Central differences of step 1e-5 err by about 1e-10 relative to the derivative, rounding by 1e-11 / 1e-5.
        np.testing.assert_allclose(information.matrix(record), jacobian.T @ jacobian / 0.01, rtol=1e-5, atol=1e-8)


def test_traces_of_all_records_are_those_of_the_matrices(problem):
    features, labels, theta = problem
    information = logistic_information(theta, features=features, labels=labels, regularization=0.05, noise_std=0.1)
    matrices = [information.matrix(record) for record in range(40)]
    np.testing.assert_allclose(information.traces, [np.trace(matrix) for matrix in matrices], rtol=1e-9)
    np.testing.assert_allclose(
        information.inverse_traces, [np.trace(np.linalg.inv(matrix)) for matrix in matrices], rtol=1e-7
    )
    assert information.mse_lower_bounds()[3] == pytest.approx(mse_lower_bound_from_fisher(matrices[3]).value, rel=1e-7)
    assert (information.mse_lower_bounds() >= 4 / information.traces * (1 - 1e-12)).all()


def test_a_record_whose_release_does_not_move_with_it():
    # One record x = t with theta = 1 and y = 1: the derivative (s - 1) + s (1 - s) t vanishes where 1 + exp(-t) = t.
    root = 1.2784645427610738
    balance = (1 - expit(root)) * root  # the regularisation for which theta = 1 is the minimiser
    information = logistic_information([1.0], features=[[root]], labels=[1], regularization=balance, noise_std=1.0)
    assert information.traces[0] == pytest.approx(0.0, abs=1e-12)
    assert information.inverse_traces[0] > 1e12


def test_epsilon_and_bound_of_guo2022():
    setting = {"records": 12_665, "regularization": 0.01}
    assert output_perturbation_epsilon(0.01, **setting) == pytest.approx(2.4938, abs=1e-3)
    assert output_perturbation_epsilon(0.01, **setting, record_norm=14.9) == pytest.approx(554, abs=1)
    bound = mse_lower_bound_from_output_perturbation(0.01, **setting)
    assert bound.value == pytest.approx(0.0225, abs=1e-4)
    assert bound.mechanism == output_perturbation(noise_std=0.01, **setting)


def test_epsilon_covers_what_retraining_can_do():
    rng = np.random.default_rng(1)
    features = rng.standard_normal((30, 3))
    features /= np.maximum(1, np.linalg.norm(features, axis=1, keepdims=True))
    labels = rng.integers(0, 2, 30).astype(float)
    base = _fit(features, labels, 0.1)
    moved = 0.0
    for direction in rng.standard_normal((50, 3)):
        neighbour = features.copy()
        neighbour[0] = direction / np.linalg.norm(direction)
        for label in (0.0, 1.0):
            flipped = labels.copy()
            flipped[0] = label
            moved = max(moved, float(np.linalg.norm(_fit(neighbour, flipped, 0.1) - base)))
    # Order 2 of two Gaussians of equal covariance is the squared distance in units of the noise.
    assert (moved / 0.05) ** 2 <= output_perturbation_epsilon(0.05, records=30, regularization=0.1)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"coefficients": [1.0, 0.0, 0.0, 0.0]}, "that minimise the objective"),
        ({"coefficients": [1.0]}, "features.shape"),
        ({"labels": np.arange(40.0)}, "labels"),
        ({"regularization": 0.0}, "regularization=0.0 > 0"),
        ({"noise_std": -1.0}, "noise_std=-1.0 > 0"),
        ({"features": np.full((40, 4), math.nan)}, "finite"),
    ],
)
def test_bad_input_is_named(problem, setting, message):
    features, labels, theta = problem
    arguments = {
        "coefficients": theta,
        "features": features,
        "labels": labels,
        "regularization": 0.05,
        "noise_std": 0.1,
    } | setting
    with pytest.raises(InvalidInput, match=message):
        logistic_information(arguments.pop("coefficients"), **arguments)


def test_a_record_that_is_not_there(problem):
    features, labels, theta = problem
    information = logistic_information(theta, features=features, labels=labels, regularization=0.05, noise_std=0.1)
    with pytest.raises(InvalidInput, match="record=40 < 40"):
        information.matrix(40)

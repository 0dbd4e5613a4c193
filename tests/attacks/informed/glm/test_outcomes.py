"""Noisy linear models: the most likely record, its covariance, and the Cramer-Rao bound beside it."""

import mpmath
import numpy as np
import pytest
import torch
from scipy.special import expit, softmax
from sklearn.linear_model import LogisticRegression, Ridge

import reconrisk as rr
from reconrisk.attacks.informed.glm.outcomes import _covariance
from reconrisk.bounds.glm.problem import fit_glm
from reconrisk.core.errors import InvalidInput
from reconrisk.core.reconstruction import Ending


def problem(family, seed=0, n=40, d=4):
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((n, d))
    labels = {
        "squared": features[:, 0] + rng.standard_normal(n),
        "logistic": (features[:, 0] + rng.standard_normal(n) > 0).astype(float),
        "multinomial": np.digitize(features[:, 0] + 0.7 * rng.standard_normal(n), [-0.5, 0.5]).astype(float),
        "poisson": rng.poisson(np.exp(0.3 * features[:, 0])).astype(float),
    }[family]
    setting = {"family": family, "penalty": 2.0}
    fit = fit_glm(features=features, labels=labels, intercept=True, **setting)
    return features, labels, fit, setting


def largest_residual(features, labels, fit, family):
    """The record that pulls most: the bound is small for it, so that first order in the noise holds."""
    scores = np.atleast_2d(fit.coefficients) @ features.T + fit.intercept[:, None]
    if family == "multinomial":
        chances = softmax(scores, axis=0)[labels.astype(int), range(len(labels))]
        return int(np.argmin(chances))
    means = {"squared": lambda s: s, "logistic": expit, "poisson": np.exp}[family](scores[0])
    return int(np.argmax(np.abs(means - labels)))


def noisy(fit, noise_std, rng):
    coefficients = fit.coefficients + noise_std * rng.standard_normal(fit.coefficients.shape)
    return coefficients, fit.intercept + noise_std * rng.standard_normal(fit.intercept.shape)


@pytest.mark.parametrize(
    ("family", "draws"), [("logistic", 500), ("squared", 200), ("multinomial", 200), ("poisson", 200)]
)
def test_covariance_over_many_draws_is_the_stated_one_and_not_below_the_bound(family, draws):
    features, labels, fit, setting = problem(family)
    target = largest_residual(features, labels, fit, family)
    known, known_labels = np.delete(features, target, 0), np.delete(labels, target)
    noise_std = 1e-4
    information = rr.bounds.glm_information(
        fit.coefficients, intercept=fit.intercept, features=features, labels=labels, noise_std=noise_std, **setting
    )
    inverse = np.linalg.inv(information.matrix(target))
    rng = np.random.default_rng(3)
    errors = []
    for _ in range(draws):
        coefficients, intercept = noisy(fit, noise_std, rng)
        found = rr.attacks.glm(
            coefficients,
            known,
            known_labels,
            intercept=intercept,
            label=labels[target],
            noise_std=noise_std,
            objective=rr.attacks.LinearObjective(**setting),
        )
        errors.append(found.record - features[target])
    errors = np.array(errors)
    assert found.status.ending is Ending.CONVERGED
    # the last draw's own statements, at its estimate instead of the truth: equal up to the noise
    np.testing.assert_allclose(found.covariance, inverse, rtol=0.02, atol=0.02 * np.abs(inverse).max())
    assert found.cramer_rao_mse == pytest.approx(np.trace(inverse) / 4, rel=0.02)
    assert found.expected_error == pytest.approx(np.sqrt(np.trace(inverse) / 4), rel=0.02)
    # whitened errors have unit covariance: entries of an estimate from n draws have standard deviation 1 / sqrt(n) off,
    # sqrt(2 / n) on the diagonal; five of them
    white = errors @ np.linalg.inv(np.linalg.cholesky(inverse)).T
    np.testing.assert_allclose(white.T @ white / draws, np.eye(4), atol=5 * np.sqrt(2 / draws))
    # the mean squared error does not beat the bound by more than five standard errors
    squares = (errors**2).mean(1)
    assert squares.mean() + 5 * squares.std() / np.sqrt(draws) > np.trace(inverse) / 4
    assert abs(errors.mean(0) / np.sqrt(np.diag(inverse) / draws)).max() < 5


@pytest.mark.parametrize("family", ["squared", "poisson"])
def test_a_label_that_is_not_known_costs_accuracy(family):
    features, labels, fit, setting = problem(family)
    target = largest_residual(features, labels, fit, family)
    known, known_labels = np.delete(features, target, 0), np.delete(labels, target)
    rng = np.random.default_rng(1)
    stated = {"noise_std": 1e-4, "objective": rr.attacks.LinearObjective(**setting)}
    errors = []
    for _ in range(200):
        coefficients, intercept = noisy(fit, 1e-4, rng)
        blind = rr.attacks.glm(coefficients, known, known_labels, intercept=intercept, **stated)
        errors.append(blind.record - features[target])
    told = rr.attacks.glm(coefficients, known, known_labels, intercept=intercept, label=labels[target], **stated)
    assert blind.cramer_rao_mse == pytest.approx(told.cramer_rao_mse, rel=1e-2)
    assert np.trace(blind.covariance) > 1.001 * np.trace(told.covariance)
    white = np.array(errors) @ np.linalg.inv(np.linalg.cholesky(blind.covariance)).T
    np.testing.assert_allclose(white.T @ white / 200, np.eye(4), atol=5 * np.sqrt(2 / 200))


@pytest.mark.parametrize("family", ["logistic", "multinomial"])
def test_the_label_is_the_one_whose_model_is_nearest(family):
    features, labels, fit, setting = problem(family)
    target = largest_residual(features, labels, fit, family)
    known, known_labels = np.delete(features, target, 0), np.delete(labels, target)
    rng = np.random.default_rng(2)
    for _ in range(8):
        coefficients, intercept = noisy(fit, 1e-3, rng)
        stated = {"intercept": intercept, "objective": rr.attacks.LinearObjective(**setting)}
        found = rr.attacks.glm(coefficients, known, known_labels, noise_std=1e-3, **stated)
        assert found.label == labels[target]


def test_known_features_lower_the_error_of_the_others():
    features, labels, fit, setting = problem("logistic")
    target = largest_residual(features, labels, fit, "logistic")
    known, known_labels = np.delete(features, target, 0), np.delete(labels, target)
    coefficients, intercept = noisy(fit, 1e-4, np.random.default_rng(0))
    partly = np.array([features[target, 0], np.nan, np.nan, features[target, 3]])
    objective = rr.attacks.LinearObjective(**setting)
    stated = {"intercept": intercept, "noise_std": 1e-4, "label": labels[target], "objective": objective}
    whole = rr.attacks.glm(coefficients, known, known_labels, **stated)
    part = rr.attacks.glm(coefficients, known, known_labels, known_values=partly, **stated)
    assert part.covariance.shape == (2, 2)
    assert (np.linalg.eigvalsh(whole.covariance[1:3, 1:3] - part.covariance) > 0).all()
    np.testing.assert_array_equal(part.record[[0, 3]], features[target, [0, 3]])


def precisely(features, labels, record, label, alpha, noise_std):
    """Covariance of who knows the label, for ridge regression: the implicit function theorem in 60 digits."""
    with mpmath.workdps(60):
        rows = np.vstack([features, record])
        design = mpmath.matrix(np.column_stack([rows, np.ones(len(rows))]).tolist())
        count = rows.shape[1]
        penalty = mpmath.diag([alpha] * count + [0])
        inverse = (design.T * design + penalty) ** -1
        theta = inverse * design.T * mpmath.matrix(np.append(labels, label).tolist())
        own = design[len(rows) - 1, :]
        residual = label - (own * theta)[0]
        sides = mpmath.matrix(count + 1, count)
        for column in range(count):
            for row in range(count + 1):
                sides[row, column] = residual * (row == column) - own[row] * theta[column]
        jacobian = inverse * sides
        return np.array(((jacobian.T * jacobian) ** -1 * noise_std**2).tolist(), dtype=float)


@pytest.mark.parametrize("scales", [(1.0, 1.0, 1.0), (1e3, 1.0, 1e-2), (1e4, 1.0, 1e-4)])
def test_features_of_very_different_units_have_their_whole_covariance(scales):
    rng = np.random.default_rng(0)
    features = rng.random((80, 3)) * scales
    labels = features @ (1 / np.array(scales)) + 0.1 * rng.standard_normal(80)
    model = Ridge(alpha=1e-6).fit(features, labels)
    known, known_labels = np.delete(features, 5, 0), np.delete(labels, 5)
    found = rr.attacks.glm(model, known, known_labels, label=labels[5], noise_std=1e-9)
    expected = precisely(known, known_labels, found.record, labels[5], 1e-6, 1e-9)
    # the condition of the derivatives, up to 1e11, times rounding
    sizes = np.sqrt(np.outer(expected.diagonal(), expected.diagonal()))
    np.testing.assert_allclose(found.covariance / sizes, expected / sizes, atol=1e-4)
    assert found.cramer_rao_mse == pytest.approx(expected.trace() / 3, rel=1e-4)


def test_a_direction_that_the_model_does_not_show_has_no_bound():
    columns = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 2.0]]).double()
    found = _covariance(columns, 0.5)
    assert found.diagonal().tolist() == [np.inf, np.inf, pytest.approx(0.5**2 / 4)]
    assert _covariance(torch.zeros(3, 2).double(), 0.5).diagonal().tolist() == [np.inf, np.inf]


def test_noise_that_hides_the_record_is_said_to():
    features, labels, fit, setting = problem("logistic")
    known, known_labels = features[1:], labels[1:]
    coefficients, intercept = noisy(fit, 0.3, np.random.default_rng(0))
    stated = {"intercept": intercept, "objective": rr.attacks.LinearObjective(**setting)}
    found = rr.attacks.glm(coefficients, known, known_labels, noise_std=0.3, **stated)
    assert found.status.ending is Ending.NOT_APPLICABLE


@pytest.mark.parametrize("noise_std", [1e-3, 0.1, 10.0])
def test_errors_under_noise_are_not_understated(noise_std):
    # first order in the noise at the estimate itself flatters: what noise made pull hard would be seen well
    data = rr.load_dataset("diabetes")
    features, labels = data.inputs.double().numpy(), data.labels.double().numpy()
    fit, rng = Ridge().fit(features, labels), np.random.default_rng(0)
    objective = rr.attacks.LinearObjective("squared", penalty=1.0)
    for target in range(12):
        coefficients = fit.coef_ + noise_std * rng.standard_normal(fit.coef_.shape)
        intercept = np.atleast_1d(fit.intercept_ + noise_std * rng.standard_normal())
        known, known_labels = np.delete(features, target, 0), np.delete(labels, target)
        found = rr.attacks.glm(
            coefficients, known, known_labels, intercept=intercept, objective=objective, noise_std=noise_std
        )
        error = np.sqrt(np.mean((found.record - features[target]) ** 2))
        assert error < 2.5 * found.expected_error  # one in a thousand of a chi-square of ten is beyond
        if noise_std == 10.0:
            assert found.status.ending is Ending.NOT_APPLICABLE
            assert "The noise hides the record" in str(found.status)


def test_an_estimator_can_be_attacked_under_noise_and_bad_noise_is_refused():
    features, labels, *_ = problem("logistic")
    model = LogisticRegression(C=0.5, solver="newton-cholesky", tol=1e-12).fit(features, labels)
    exact = rr.attacks.glm(model, features[1:], labels[1:])
    found = rr.attacks.glm(model, features[1:], labels[1:], noise_std=1e-6)
    np.testing.assert_allclose(found.record, exact.record, atol=1e-8)
    with pytest.raises(InvalidInput, match=r"noise_std=-1.0 > 0"):
        rr.attacks.glm(model, features[1:], labels[1:], noise_std=-1.0)

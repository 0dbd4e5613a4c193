"""The minimiser of a generalised linear model: against scikit-learn, closed forms, and its own definition."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import approx_fprime
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge

from reconrisk.bounds.glm.problem import GlmFit, build_glm_problem, fit_glm
from reconrisk.core.errors import InvalidInput

FAMILIES = ["squared", "logistic", "multinomial", "poisson"]


def _records(family, seed=0, n=60, d=4):
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((n, d))
    signal = features[:, 0] + 0.5 * rng.standard_normal(n)
    labels = {
        "squared": signal,
        "logistic": (signal > 0).astype(float),
        "multinomial": np.digitize(signal, [-0.5, 0.5]).astype(float),
        "poisson": rng.poisson(np.exp(0.3 * signal)).astype(float),
    }[family]
    return features, labels, rng.uniform(0.5, 2, n)


@pytest.mark.parametrize("family", FAMILIES)
@given(seed=st.integers(0, 10_000))
def test_gradient_and_hessian_are_those_of_the_objective(family, seed):
    features, labels, weights = _records(family, seed, n=12, d=2)
    problem = build_glm_problem(features, labels, family, 0.3, True, 0.2, weights)
    theta = np.random.default_rng(seed).standard_normal((problem.outputs, 3))

    def of(fn):
        return lambda flat: fn(flat.reshape(theta.shape))

    # Forward differences of step 1.5e-8 err by about 1e-7 relative to second derivatives of up to 1e3.
    numeric = approx_fprime(theta.ravel(), of(problem.value))
    np.testing.assert_allclose(problem.gradient(theta).ravel(), numeric, rtol=1e-4, atol=1e-3)
    numeric = approx_fprime(theta.ravel(), of(lambda t: problem.gradient(t).ravel()))
    np.testing.assert_allclose(problem.hessian(theta), numeric, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_fits_are_those_of_scikit_learn(family, intercept, weighted):
    features, labels, weights = _records(family)
    weights = weights if weighted else np.ones(len(labels))
    penalty = 0.7
    estimator = {
        "squared": Ridge(alpha=penalty, fit_intercept=intercept, solver="cholesky"),
        "logistic": LogisticRegression(C=1 / penalty, fit_intercept=intercept, solver="newton-cholesky", tol=1e-10),
        "multinomial": LogisticRegression(C=1 / penalty, fit_intercept=intercept, tol=1e-12, max_iter=10_000),
        "poisson": PoissonRegressor(
            alpha=penalty / weights.sum(), fit_intercept=intercept, solver="newton-cholesky", tol=1e-10
        ),
    }[family].fit(features, labels, sample_weight=weights)
    fit = fit_glm(
        features=features, labels=labels, family=family, penalty=penalty, intercept=intercept, sample_weight=weights
    )
    # lbfgs ends where the gradient is about 1e-8; the other solvers at 1e-10.
    np.testing.assert_allclose(fit.coefficients.ravel(), estimator.coef_.ravel(), atol=1e-6)
    if intercept:
        np.testing.assert_allclose(fit.intercept, np.atleast_1d(estimator.intercept_), atol=1e-6)
    else:
        assert fit.intercept is None


def test_two_classes_are_one_logit_or_two_predictors_of_half_the_penalty_each():
    features, labels, _ = _records("logistic")
    one = fit_glm(features=features, labels=labels, family="logistic", penalty=0.5, intercept=True)
    two = fit_glm(features=features, labels=labels, family="multinomial", penalty=1.0, intercept=True)
    np.testing.assert_allclose(two.coefficients[1] - two.coefficients[0], one.coefficients, rtol=1e-9)
    np.testing.assert_allclose(two.intercept[1] - two.intercept[0], one.intercept[0], rtol=1e-9)
    np.testing.assert_allclose(two.intercept.sum(), 0, atol=1e-9)


def test_a_weight_of_two_is_a_record_twice():
    features, labels, _ = _records("poisson", n=20)
    weights = np.where(np.arange(20) < 5, 2.0, 1.0)
    weighted = fit_glm(features=features, labels=labels, family="poisson", penalty=0.1, sample_weight=weights)
    twice = fit_glm(
        features=np.vstack([features, features[:5]]),
        labels=np.append(labels, labels[:5]),
        family="poisson",
        penalty=0.1,
    )
    np.testing.assert_allclose(weighted.coefficients, twice.coefficients, rtol=1e-9)


def test_several_targets_are_fitted_as_if_alone():
    features, labels, _ = _records("squared")
    targets = np.column_stack([labels, labels**2])
    both = fit_glm(features=features, labels=targets, family="squared", penalty=1.0)
    alone = fit_glm(features=features, labels=targets[:, 1], family="squared", penalty=1.0)
    np.testing.assert_allclose(both.coefficients[1], alone.coefficients, rtol=1e-9)


def test_a_start_far_away_changes_nothing():
    features, labels, _ = _records("logistic")
    near = fit_glm(features=features, labels=labels, family="logistic", penalty=0.1)
    start = GlmFit(np.full(4, 50.0), None)
    far = fit_glm(features=features, labels=labels, family="logistic", penalty=0.1, start=start)
    np.testing.assert_allclose(far.coefficients, near.coefficients, rtol=1e-9)


def test_residuals_of_records_that_are_fitted_well_keep_their_digits():
    for family, targets in (("logistic", [1.0]), ("multinomial", [1.0])):
        problem = build_glm_problem([[40.0]], targets, family, 1.0, False, 0.0, None, classes=2)
        theta = np.array([[1.0]]) if family == "logistic" else np.array([[0.0], [1.0]])
        assert problem.residuals(theta)[0, -1] == pytest.approx(-math.exp(-40), rel=1e-9, abs=0)


def test_separable_classes_without_penalty_have_no_minimum():
    with pytest.raises(
        InvalidInput,
        match=r"penalty=0.0 to be large enough for a minimum|positive definite Hessian .* got a singular one",
    ):
        fit_glm(features=[[-1.0], [1.0]], labels=[0, 1], family="logistic", penalty=0.0)


def test_collinear_features_without_penalty_are_refused():
    features = np.ones((5, 2))
    with pytest.raises(InvalidInput, match="drop collinear features"):
        fit_glm(features=features, labels=np.arange(5.0), family="squared", penalty=0.0)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"family": "gamma"}, "family='gamma' to be one of squared, logistic"),
        ({"labels": [0.0, 2.0]}, "labels=.* to be 0 or 1"),
        ({"labels": [0.5, 1.0], "family": "multinomial"}, "class indices"),
        ({"labels": [-1.0, 1.0], "family": "poisson"}, r"labels\[0\]=-1.0 >= 0"),
        ({"labels": [0.0]}, r"to be \(1, features\), one row per label"),
        ({"penalty": -1.0}, "penalty=-1.0 >= 0"),
        ({"intercept": True, "intercept_penalty": -1.0}, "intercept_penalty=-1.0 >= 0"),
        ({"sample_weight": [1.0, -1.0]}, r"sample_weight\[1\]=-1.0 >= 0"),
        ({"sample_weight": [1.0]}, "one per record"),
        ({"start": GlmFit(np.zeros(2), None)}, "start"),
        ({"start": GlmFit(np.zeros(1), np.zeros(2))}, "intercept.shape"),
        ({"features": [1.0, 2.0]}, "Flatten each record to a row"),
    ],
)
def test_bad_input_is_named(setting, message):
    arguments = {"features": [[1.0], [2.0]], "labels": [0.0, 1.0], "family": "logistic", "penalty": 1.0} | setting
    with pytest.raises(InvalidInput, match=message):
        fit_glm(**arguments)


def test_a_class_beyond_the_coefficients_is_named():
    with pytest.raises(InvalidInput, match=r"max\(labels\)=2 < 2, the number of classes"):
        build_glm_problem([[1.0]], [2.0], "multinomial", 1.0, False, 0.0, None, classes=2)

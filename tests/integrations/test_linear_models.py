"""Estimators of scikit-learn: every convention against refitting the estimator itself with a record moved."""

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.linear_model import (
    ElasticNet,
    LinearRegression,
    LogisticRegression,
    LogisticRegressionCV,
    PoissonRegressor,
    Ridge,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from reconrisk.bounds.glm.information import glm_information
from reconrisk.core.errors import InvalidInput
from reconrisk.integrations.linear_models import information_from_estimator

CHOLESKY = {"solver": "newton-cholesky", "tol": 1e-12}
LBFGS = {"tol": 1e-13, "max_iter": 100_000}


def _records(seed=0, n=40, d=3):
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((n, d)) + 0.5
    signal = features[:, 0] + 0.7 * rng.standard_normal(n)
    return features, signal


LABELS = {
    "numbers": lambda signal: signal,
    "two": lambda signal: np.where(signal > 0.5, "yes", "no"),
    "three": lambda signal: np.digitize(signal, [0.0, 1.0]) + 5,
    "counts": lambda signal: np.floor(np.exp(0.4 * signal)),
    "targets": lambda signal: np.column_stack([signal, signal**2]),
}

CASES = {
    "ridge": (Ridge(alpha=0.3), "numbers"),
    "ridge without intercept": (Ridge(alpha=0.3, fit_intercept=False), "numbers"),
    "ridge of two targets": (Ridge(alpha=0.3), "targets"),
    "least squares": (LinearRegression(), "numbers"),
    "least squares without intercept": (LinearRegression(fit_intercept=False), "numbers"),
    "logistic": (LogisticRegression(C=2.0, **CHOLESKY), "two"),
    "logistic without intercept": (LogisticRegression(C=0.2, fit_intercept=False, **CHOLESKY), "two"),
    "logistic without penalty": (LogisticRegression(C=np.inf, **CHOLESKY), "two"),
    "logistic with class weights": (LogisticRegression(class_weight={"no": 1.0, "yes": 3.0}, **CHOLESKY), "two"),
    "logistic with balanced classes": (LogisticRegression(class_weight="balanced", **CHOLESKY), "two"),
    "liblinear": (LogisticRegression(solver="liblinear", tol=1e-14, max_iter=10_000), "two"),
    "liblinear with scaled intercept": (
        LogisticRegression(solver="liblinear", intercept_scaling=3.0, tol=1e-14, max_iter=10_000),
        "two",
    ),
    "multinomial": (LogisticRegression(C=2.0, **LBFGS), "three"),
    "multinomial without intercept": (LogisticRegression(C=2.0, fit_intercept=False, **LBFGS), "three"),
    "poisson": (PoissonRegressor(alpha=0.1, **CHOLESKY), "counts"),
}


def _released(estimator):
    rows = np.atleast_2d(estimator.coef_)
    if estimator.fit_intercept:
        rows = np.column_stack([rows, np.atleast_1d(estimator.intercept_)])
    return rows.ravel()


@pytest.mark.parametrize("case", CASES)
def test_jacobian_is_the_change_of_the_estimator_on_refitting(case):
    estimator, kind = CASES[case]
    features, signal = _records()
    labels = LABELS[kind](signal)
    information = information_from_estimator(estimator.fit(features, labels), features, labels, noise_std=0.1)
    step, ends = 1e-3, []
    direction = np.array([0.6, -0.8, 0.0])
    for sign in (1, -1):
        moved = features.copy()
        moved[7] += sign * step * direction
        ends.append(_released(clone(estimator).fit(moved, labels)))
    numeric = (ends[0] - ends[1]) / (2 * step)
    # Central differences of step 1e-3 err by about 1e-6 and solvers that stop at 1e-8 by 1e-5 of the step.
    np.testing.assert_allclose(information.jacobian(7) @ direction, numeric, rtol=1e-3, atol=3e-5)
    assert np.trace(information.matrix(7)) == pytest.approx(information.traces[7], rel=1e-9)


@pytest.mark.parametrize("estimator", [LogisticRegression(**CHOLESKY), PoissonRegressor(**CHOLESKY), Ridge()])
def test_sample_weights_are_those_of_the_fit(estimator):
    features, signal = _records()
    labels = (signal > 0.5).astype(float)
    weights = np.random.default_rng(1).uniform(0.2, 3, len(labels))
    estimator.fit(features, labels, sample_weight=weights)
    information = information_from_estimator(estimator, features, labels, noise_std=1.0, sample_weight=weights)
    assert (information.traces > 0).all()
    with pytest.raises(InvalidInput, match="that minimise the objective"):
        information_from_estimator(estimator, features, labels, noise_std=1.0)


def test_a_default_fit_is_refused_and_can_be_polished():
    features, signal = _records(n=200, d=20)
    labels = (signal > 0.5).astype(int)
    rough = LogisticRegression().fit(features, labels)
    with pytest.raises(InvalidInput, match=r"that minimise the objective.*polish=True"):
        information_from_estimator(rough, features, labels, noise_std=1.0)
    polished = information_from_estimator(rough, features, labels, noise_std=1.0, polish=True)
    exact = LogisticRegression(**CHOLESKY).fit(features, labels)
    np.testing.assert_allclose(polished.coefficients, exact.coef_[0], rtol=1e-8)
    np.testing.assert_allclose(polished.intercept, exact.intercept_, rtol=1e-8)
    sharp = information_from_estimator(exact, features, labels, noise_std=1.0)
    np.testing.assert_allclose(polished.traces, sharp.traces, rtol=1e-7)
    loose = information_from_estimator(rough, features, labels, noise_std=1.0, tolerance=0.1)
    np.testing.assert_array_equal(loose.coefficients, rough.coef_[0])


def test_it_is_the_closed_form_in_the_conventions_of_sums():
    features, signal = _records()
    labels = (signal > 0.5).astype(float)
    estimator = LogisticRegression(C=4.0, **CHOLESKY).fit(features, labels)
    direct = glm_information(
        estimator.coef_[0],
        intercept=estimator.intercept_,
        features=features,
        labels=labels,
        family="logistic",
        penalty=0.25,
        noise_std=0.5,
    )
    through = information_from_estimator(estimator, features, labels, noise_std=0.5)
    np.testing.assert_array_equal(through.traces, direct.traces)
    np.testing.assert_array_equal(through.inverse_traces, direct.inverse_traces)


def _refused(estimator, kind="two", **changes):
    features, signal = _records()
    given = LABELS[kind](signal)
    arguments = {"features": features, "labels": given, "noise_std": 1.0} | changes
    information_from_estimator(estimator.fit(features, given), **arguments)


@pytest.mark.parametrize(
    ("estimator", "labels", "message"),
    [
        (
            LogisticRegression(l1_ratio=1.0, solver="saga", max_iter=10_000),
            "two",
            "l1_ratio=1.0 to be 0.*Use penalty='l2'",
        ),
        (LogisticRegression(l1_ratio=0.5, solver="saga", max_iter=10_000), "two", r"l1_ratio=0.5 to be 0"),
        (Ridge(positive=True), "numbers", "positive=True to be False"),
        (Ridge(alpha=[0.1, 0.2]), "targets", "alpha=.* to be one number. Fit one Ridge per target"),
        (LinearRegression(positive=True), "numbers", "positive=True to be False"),
        (ElasticNet(), "numbers", r"type\(estimator\)='ElasticNet' to be one of LogisticRegression, Ridge"),
        (make_pipeline(StandardScaler(), Ridge()), "numbers", r"type\(estimator\)='Pipeline'.*last step"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(estimator, labels, message):
    with pytest.raises(InvalidInput, match=message):
        _refused(estimator, labels)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # the old spelling of penalties warns since 1.8
@pytest.mark.parametrize("penalty", ["l1", "elasticnet"])
def test_old_spellings_of_penalties_are_refused_by_name(penalty):
    estimator = LogisticRegression(penalty=penalty, l1_ratio=0.5, solver="saga", max_iter=10_000)
    with pytest.raises(InvalidInput, match=f"penalty='{penalty}' to be 'l2' or None"):
        _refused_unfitted(estimator)


def _refused_unfitted(estimator):
    """Readers look at settings alone: whatever this version of scikit-learn thinks of fitting them."""
    features, signal = _records()
    labels = LABELS["two"](signal)
    fitted = LogisticRegression(**CHOLESKY).fit(features, labels)
    estimator.coef_, estimator.intercept_, estimator.classes_ = fitted.coef_, fitted.intercept_, fitted.classes_
    information_from_estimator(estimator, features, labels, noise_std=1.0)


def test_several_classes_with_liblinear_or_one_versus_rest_are_refused():
    features, signal = _records()
    labels = LABELS["three"](signal)
    estimator = LogisticRegression(**LBFGS).fit(features, labels)
    estimator.solver = "liblinear"
    with pytest.raises(InvalidInput, match="solver='liblinear'"):
        information_from_estimator(estimator, features, labels, noise_std=1.0)
    estimator.solver, estimator.multi_class = "lbfgs", "ovr"
    with pytest.raises(InvalidInput, match="multi_class='ovr'"):
        information_from_estimator(estimator, features, labels, noise_std=1.0)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_cross_validated_estimators_are_refused_with_a_remedy():
    with pytest.raises(InvalidInput, match=r"LogisticRegressionCV'.*choosing it by these records leaks too"):
        _refused(LogisticRegressionCV(Cs=2, cv=2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": csr_array(np.ones((40, 3)))}, r"Pass features.toarray\(\)"),
        ({"labels": np.full(40, "maybe")}, r"labels\[0\]=.*maybe.* to be one of estimator.classes_"),
        ({"sample_weight": np.ones(3)}, "one per record"),
        ({"sample_weight": -np.ones(40)}, r"sample_weight\[0\]=-1.0 >= 0"),
        ({"noise_std": 0.0}, r"noise_std=0.0 > 0"),
    ],
)
def test_bad_arguments_are_named(changes, message):
    with pytest.raises(InvalidInput, match=message):
        _refused(LogisticRegression(**CHOLESKY), **changes)


def test_balanced_classes_beside_sample_weights_are_refused():
    with pytest.raises(InvalidInput, match="class_weight='balanced'"):
        _refused(LogisticRegression(class_weight="balanced", **CHOLESKY), sample_weight=np.linspace(1, 2, 40))


def test_missing_values_and_labels_are_refused_with_their_own_remedy():
    features, _ = _records()
    features[3, 1] = np.nan
    with pytest.raises(InvalidInput, match=r"features\[3, 1\]=nan to be finite. Remove or impute"):
        _refused(Ridge(), "numbers", features=features)
    for labels in (None, 1.0):
        with pytest.raises(InvalidInput, match=rf"labels={labels} to have one label per record. Pass the labels"):
            _refused(Ridge(), "numbers", labels=labels)


@pytest.mark.parametrize("case", ["logistic", "multinomial", "ridge", "poisson"])
def test_another_model_is_not_taken_for_the_polished_one(case):
    estimator, kind = CASES[case]
    features, signal = _records()
    labels = LABELS[kind](signal)
    estimator = clone(estimator).fit(features, labels)
    information_from_estimator(estimator, features, labels, noise_std=1.0, polish=True)
    message = (
        r"coefficients within 10% of the minimum .* differ from it by \d+%.*labels, sample_weight and penalty \(C or"
    )
    with pytest.raises(InvalidInput, match=message):
        information_from_estimator(estimator, features, labels[::-1], noise_std=1.0, polish=True)


def test_another_penalty_is_not_polished_away():
    features, signal = _records()
    labels = LABELS["two"](signal)
    estimator = LogisticRegression(C=0.01).fit(features, labels).set_params(C=10.0)
    with pytest.raises(InvalidInput, match="within 10% of the minimum"):
        information_from_estimator(estimator, features, labels, noise_std=1.0, polish=True)

"""Information in generalised linear models: the derivative by retraining, the traces by matrices, laws of noise."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconrisk.bounds.glm.information import glm_information
from reconrisk.bounds.glm.problem import fit_glm
from reconrisk.core.errors import InvalidInput

FAMILIES = ["squared", "logistic", "multinomial", "poisson"]


def _setting(family, intercept, *, seed=0, n=30, d=3, weighted=True, penalty=0.5):
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((n, d))
    signal = features[:, 0] + 0.5 * rng.standard_normal(n)
    labels = {
        "squared": signal,
        "logistic": (signal > 0).astype(float),
        "multinomial": np.digitize(signal, [-0.5, 0.5]).astype(float),
        "poisson": rng.poisson(np.exp(0.3 * signal)).astype(float),
    }[family]
    if family == "multinomial":
        labels[:3] = 0, 1, 2  # a class without a record has no finite intercept
    setting = {"features": features, "labels": labels, "family": family, "penalty": penalty}
    if weighted:
        setting["sample_weight"] = rng.uniform(0.5, 2, n)
    return setting, intercept


def _fit(setting, intercept, **changes):
    return fit_glm(**(setting | changes), intercept=intercept)


def _information(setting, intercept, *, noise_std=0.1):
    fit = _fit(setting, intercept)
    return glm_information(fit.coefficients, intercept=fit.intercept, noise_std=noise_std, **setting)


def _released(fit):
    rows = np.atleast_2d(fit.coefficients)
    return (rows if fit.intercept is None else np.column_stack([rows, fit.intercept])).ravel()


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_jacobian_is_the_change_of_the_minimiser_on_retraining(family, intercept):
    setting, _ = _setting(family, intercept)
    information = _information(setting, intercept)
    step, numeric = 1e-5, []
    for coordinate in range(3):
        ends = []
        for sign in (1, -1):
            moved = setting["features"].copy()
            moved[4, coordinate] += sign * step
            ends.append(_released(_fit(setting, intercept, features=moved)))
        numeric.append((ends[0] - ends[1]) / (2 * step))
    # Central differences of step 1e-5 err by about 1e-10, the minimiser's rounding by 1e-14 / 1e-5.
    np.testing.assert_allclose(information.jacobian(4), np.transpose(numeric), rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(
        information.matrix(4), information.jacobian(4).T @ information.jacobian(4) / 0.01, rtol=1e-12
    )


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
@given(seed=st.integers(0, 10_000), d=st.integers(1, 4))
def test_traces_of_all_records_are_those_of_the_matrices_on_the_safe_side(family, intercept, seed, d):
    setting, _ = _setting(family, intercept, seed=seed, n=12, d=d)
    information = _information(setting, intercept)
    matrices = np.stack([information.matrix(record) for record in range(12)])
    exact = np.trace(matrices, axis1=1, axis2=2)
    # Where the terms of a trace cancel, its rounding is relative to them, which the largest trace stands for.
    np.testing.assert_allclose(information.traces, exact, rtol=1e-9, atol=1e-10 * exact.max())
    assert (information.traces >= exact * (1 - 1e-14)).all()
    if information.inverse_traces is None:
        np.testing.assert_array_equal(information.mse_lower_bounds(), d / information.traces)
        return
    inverse = np.trace(np.linalg.inv(matrices), axis1=1, axis2=2)
    condition = np.linalg.cond(matrices)
    # Beyond, the oracle's own inverse is off by more than 1e-8, or the terms of the trace have cancelled.
    clear = (condition < 1e8) & (exact > 1e-5 * exact.max())
    np.testing.assert_allclose(information.inverse_traces[clear], inverse[clear], rtol=1e-6)
    assert (information.inverse_traces <= inverse * (1 + 1e-14 * condition)).all()
    assert (information.inverse_traces >= d * d / information.traces * (1 - 1e-14)).all()
    np.testing.assert_allclose(information.mse_lower_bounds(), information.inverse_traces / d)


def test_a_multinomial_model_of_two_classes_is_the_logistic_one():
    setting, _ = _setting("logistic", True)
    one = _information(setting, True)
    two = _information(setting | {"family": "multinomial", "penalty": 1.0}, True)
    # The two rows are plus and minus half of the logistic one: half the information.
    np.testing.assert_allclose(two.traces, one.traces / 2, rtol=1e-9)


def test_shifts_of_the_predictors_of_a_multinomial_model_change_nothing():
    setting, _ = _setting("multinomial", True)
    fit = _fit(setting, True)
    records = setting | {"noise_std": 1.0}
    centred = glm_information(fit.coefficients, intercept=fit.intercept, **records)
    shifted = glm_information(fit.coefficients, intercept=fit.intercept + 3.0, **records)
    np.testing.assert_allclose(shifted.traces, centred.traces, rtol=1e-9)


@given(seed=st.integers(0, 1000), noise=st.floats(1e-3, 1e3))
def test_information_goes_with_one_over_the_square_of_the_noise(seed, noise):
    setting, _ = _setting("logistic", True, seed=seed)
    unit, other = _information(setting, True, noise_std=1.0), _information(setting, True, noise_std=noise)
    np.testing.assert_allclose(other.traces * noise**2, unit.traces, rtol=1e-12)
    np.testing.assert_allclose(other.inverse_traces / noise**2, unit.inverse_traces, rtol=1e-12)


def test_ridge_without_intercept_has_its_textbook_information():
    setting, _ = _setting("squared", False, weighted=False)
    information = _information(setting, False, noise_std=1.0)
    x, y, w = setting["features"], setting["labels"], information.coefficients
    hessian = x.T @ x + 0.5 * np.eye(3)
    jacobian = -np.linalg.solve(hessian, (x[0] @ w - y[0]) * np.eye(3) + np.outer(x[0], w))
    assert information.traces[0] == pytest.approx((jacobian**2).sum(), rel=1e-12)


def test_a_record_of_weight_zero_leaves_no_trace():
    setting, _ = _setting("logistic", True)
    setting["sample_weight"][3] = 0.0
    information = _information(setting, True)
    assert information.traces[3] == 0
    assert information.inverse_traces[3] == math.inf
    assert np.isfinite(information.inverse_traces[:3]).all()


def test_a_residual_of_zero_by_rounding_is_not_infinite_safety():
    # Labels on a plane: ridge of penalty zero fits every record, the residuals are zero up to rounding.
    rng = np.random.default_rng(0)
    features = rng.standard_normal((20, 3))
    setting = {"features": features, "labels": features @ [0.3, 0.7, 0.1], "family": "squared", "penalty": 0.0}
    information = _information(setting, False)
    assert np.isfinite(information.inverse_traces).all()
    assert (information.inverse_traces > 1e15).all()


def test_where_the_release_stands_still_the_bound_falls_to_the_one_from_the_trace():
    # r + A W x = 0: the record is balanced along itself, N is singular, and rounding hides by how much.
    root = 1.2784645427610738  # 1 + exp(-t) = t
    penalty = (1 / (1 + math.exp(root))) * root
    features, labels = np.array([[root, 0.0]]), [1.0]
    records = {"features": features, "labels": labels, "family": "logistic", "penalty": penalty}
    information = glm_information([1.0, 0.0], noise_std=1.0, **records)
    assert information.inverse_traces[0] >= 4 / information.traces[0] * (1 - 1e-14)
    assert math.isfinite(information.inverse_traces[0])


def test_coefficients_beside_the_minimum_are_refused_unless_tolerated():
    setting, _ = _setting("logistic", True)
    fit = _fit(setting, True)
    beside = fit.coefficients + 1e-4
    with pytest.raises(
        InvalidInput,
        match=r"that minimise the objective up to a relative distance of 1e-06, found a distance of .*tighter",
    ):
        glm_information(beside, intercept=fit.intercept, noise_std=1.0, **setting)
    tolerated = glm_information(beside, intercept=fit.intercept, noise_std=1.0, tolerance=1e-2, **setting)
    np.testing.assert_array_equal(tolerated.coefficients, beside)
    np.testing.assert_array_equal(tolerated.intercept, fit.intercept)


def test_another_penalty_is_another_minimum():
    setting, _ = _setting("squared", False)
    fit = _fit(setting, False)
    with pytest.raises(InvalidInput, match="check penalty and weights"):
        glm_information(fit.coefficients, noise_std=1.0, **(setting | {"penalty": 0.6}))


def test_a_hessian_that_rounding_makes_singular_is_refused():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((30, 3)) * [1e8, 1.0, 1.0]
    setting = {"features": features, "labels": rng.standard_normal(30), "family": "squared", "penalty": 1e-3}
    with pytest.raises(InvalidInput, match="Scale the features"):
        _information(setting, False)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"coefficients": [0.0, 0.0]}, "features.shape"),
        ({"coefficients": [[0.0], [0.0]]}, "features.shape"),
        ({"noise_std": 0.0}, "noise_std=0.0 > 0"),
        ({"tolerance": 0.0}, "tolerance=0.0 > 0"),
        ({"intercept": [0.0, 0.0]}, "intercept.shape"),
    ],
)
def test_bad_input_is_named(setting, message):
    arguments = {
        "coefficients": [0.0],
        "features": [[1.0], [1.0]],
        "labels": [0, 1],
        "family": "logistic",
        "penalty": 1.0,
        "noise_std": 1.0,
    } | setting
    with pytest.raises(InvalidInput, match=message):
        glm_information(arguments.pop("coefficients"), **arguments)


def test_a_record_that_is_not_there():
    setting, _ = _setting("squared", False)
    with pytest.raises(InvalidInput, match="record=30 < 30"):
        _information(setting, False).matrix(30)

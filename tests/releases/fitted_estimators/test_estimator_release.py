"""Estimators as releases: what is released, and that an adversary gets neither the record nor the coefficients."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeRegressor

import reconrisk as rr
from reconrisk.releases.fitted_estimators.estimator_release import EstimatorMap, coefficients, strip_coefficients

DRAWS = np.random.default_rng(1)
X = DRAWS.random((20, 3))
Y = X @ (1.0, -2.0, 0.5) + DRAWS.normal(size=20)
NAMES = np.array(["no", "yes"])[(Y.mean() < Y).astype(int)]


def release(estimator, targets, **changes):
    rows, answers = torch.as_tensor(X), torch.as_tensor(targets)
    given = {"known_inputs": rows[1:], "known_labels": answers[1:], **changes}
    return rr.releases.EstimatorRelease(
        estimator, given.pop("inputs", rows[:1]), given.pop("labels", answers[:1]), **given
    )


@pytest.mark.parametrize(
    ("estimator", "labels"),
    [
        (Ridge(alpha=0.3), Y),
        (LinearRegression(fit_intercept=False), Y),
        (LogisticRegression(tol=1e-10), np.searchsorted(["no", "yes"], NAMES)),
        (PoissonRegressor(tol=1e-10), np.round(np.exp(Y))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_release_is_the_estimator_and_its_map_fits_it_anew(estimator, labels):
    classifies = isinstance(estimator, LogisticRegression)
    estimator.fit(X, NAMES if classifies else labels)
    made = release(estimator, labels)
    value = made.value()
    assert set(value) == ({"coef", "intercept"} if estimator.fit_intercept else {"coef"})
    assert np.array_equal(value["coef"].numpy(), estimator.coef_)
    again = made.forward(made.inputs, made.labels)
    for name, tensor in value.items():
        # solvers stop at a gradient of 1e-10 a record; records in another order end within that
        assert torch.allclose(again[name], tensor, rtol=1e-5, atol=1e-7)


def test_the_map_holds_neither_the_coefficients_nor_the_record():
    fitted = Ridge().fit(X, Y)
    known = release(fitted, Y).forward
    assert not hasattr(known.estimator, "coef_")
    assert not hasattr(known.estimator, "intercept_")
    assert hasattr(fitted, "coef_")
    assert not bool((known.known_inputs == torch.as_tensor(X[0])).all(1).any())
    seen = known.with_coefficients({"coef": torch.ones(3), "intercept": torch.zeros(())})
    assert seen.coef_.tolist() == [1.0, 1.0, 1.0]
    assert not hasattr(known.estimator, "coef_")


@pytest.mark.parametrize(
    "fitted", [Ridge().fit(X, Y), LinearRegression().fit(X, Y), LogisticRegression().fit(X, NAMES)]
)
def test_of_what_a_fit_left_the_map_holds_only_what_is_known_before_the_release(fitted):
    known = EstimatorMap(strip_coefficients(fitted), torch.as_tensor(X[1:]), torch.as_tensor(Y[1:])).estimator
    assert {name for name in vars(known) if name.endswith("_")} <= {"classes_", "n_iter_", "solver_", "n_features_in_"}
    assert known.get_params() == fitted.get_params()


@pytest.mark.parametrize("other", [make_pipeline(StandardScaler(), Ridge()), DecisionTreeRegressor()])
def test_fitted_estimators_of_other_kinds_are_refused_by_name(other):
    with pytest.raises(
        rr.InvalidInput, match=rf"type\(estimator\)='{type(other).__name__}' to be one of LogisticRegression"
    ):
        release(other.fit(X, Y), Y)


def test_records_in_units_of_their_ranges_are_those_that_the_estimator_read():
    low, width = torch.tensor([1.0, -2.0, 0.0]).double(), torch.tensor([10.0, 4.0, 1.0]).double()
    features = (low + width * torch.as_tensor(X)).numpy()
    fitted = Ridge().fit(features, Y)
    known = torch.as_tensor(features[1:])
    made = release(fitted, Y, known_inputs=known, low=low, width=width)
    assert torch.allclose(made.forward.to_estimator_units(made.inputs), torch.as_tensor(features[:1]))
    assert torch.allclose(made.forward.to_record_units(known), torch.as_tensor(X[1:]))
    assert torch.allclose(made.forward(made.inputs, made.labels)["coef"], made.value()["coef"], rtol=1e-6)


def test_weights_of_records_take_part_in_the_fit():
    weights = np.linspace(0.5, 2.0, 20)
    fitted = Ridge().fit(X, Y, sample_weight=weights)
    made = release(fitted, Y, known_weights=weights[1:], target_weight=float(weights[0]))
    assert torch.allclose(made.forward(made.inputs, made.labels)["coef"], made.value()["coef"], rtol=1e-8)
    plain = release(fitted, Y)
    assert not torch.allclose(plain.forward(made.inputs, made.labels)["coef"], made.value()["coef"], rtol=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": torch.rand(2, 3), "labels": torch.zeros(2)}, r"len\(inputs\)=2 to be 1"),
        ({"inputs": torch.rand(1, 4)}, "number of features=4 to be 3"),
        ({"known_inputs": torch.rand(19, 2).double()}, "number of features=2 to be 3"),
        ({"known_inputs": torch.rand(19, 3)}, r"to be \(torch.float64, \(records, features\)\)"),
        ({"known_inputs": torch.rand(18, 3).double()}, "got 18 records with 19 labels"),
        ({"known_inputs": torch.full((19, 3), torch.nan).double()}, "to be finite"),
    ],
)
def test_records_that_do_not_fit_are_refused(change, message):
    with pytest.raises(rr.InvalidInput, match=message):
        release(Ridge().fit(X, Y), Y, **change)


def test_what_is_no_fitted_estimator_is_refused_and_there_is_no_derivative():
    with pytest.raises(rr.InvalidInput, match="Ridge that is not fitted"):
        release(Ridge(), Y)
    with pytest.raises(rr.InvalidInput, match="to be a fitted estimator"):
        release(torch.nn.Linear(3, 1), Y)
    with pytest.raises(rr.InvalidInput, match="has no derivative"):
        release(Ridge().fit(X, Y), Y).linearize()


def test_coefficients_are_copies():
    fitted = Ridge().fit(X, Y)
    coefficients(fitted)["coef"].zero_()
    assert bool(fitted.coef_.any())
    assert isinstance(release(fitted, Y).forward, EstimatorMap)

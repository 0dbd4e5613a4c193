"""The exact attack on linear models: every convention of scikit-learn and torch, roots, accuracy, refusals."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor, Ridge
from sklearn.svm import SVC
from torch import nn

import reconrisk as rr
from reconrisk.bounds.glm.problem import fit_glm
from reconrisk.core.errors import InvalidInput
from reconrisk.core.reconstruction import Ending

CHOLESKY = {"solver": "newton-cholesky", "tol": 1e-12}
TARGET = 7


def scaled(loader, count=150):
    features, labels = loader(return_X_y=True)
    features, labels = features[:count], labels[:count]
    spread = features.std(0)
    return ((features - features.mean(0)) / np.where(spread == 0, 1, spread)), labels


def cancer(count=150):
    features, labels = scaled(load_breast_cancer, count)
    return features, np.array(["benign" if label else "malign" for label in labels])


def wine():
    features, labels = scaled(load_wine, 178)
    return features, labels + 3


def diabetes():
    features, labels = scaled(load_diabetes)
    return features, labels / 50


def two_targets():
    features, labels = diabetes()
    return features, np.column_stack([labels, np.cos(labels) + features[:, 0]])


def counts():
    features, labels = diabetes()
    return features * 0.3, np.floor(labels)


CASES = {
    "ridge": (Ridge(alpha=0.3), diabetes, 1e-9),
    "ridge of two targets": (Ridge(alpha=0.3), two_targets, 1e-9),
    "ridge by svd": (Ridge(alpha=2.0, solver="svd"), diabetes, 1e-9),
    "least squares": (LinearRegression(), diabetes, 1e-9),
    "logistic": (LogisticRegression(C=0.1, **CHOLESKY), cancer, 1e-9),
    "logistic without penalty": (LogisticRegression(C=np.inf, **CHOLESKY), lambda: few(cancer), 1e-6),
    "newton-cg": (LogisticRegression(C=0.1, solver="newton-cg", tol=1e-12), cancer, 1e-6),
    "lbfgs": (LogisticRegression(C=0.1, tol=1e-14, max_iter=10_000), cancer, 1e-4),
    "saga": (LogisticRegression(C=0.1, solver="saga", tol=1e-15, max_iter=20_000), cancer, 1e-7),
    "sag": (LogisticRegression(C=0.1, solver="sag", tol=1e-15, max_iter=20_000), cancer, 1e-7),
    "liblinear": (LogisticRegression(C=0.1, solver="liblinear", tol=1e-14, max_iter=10_000), cancer, 1e-5),
    "liblinear with scaled intercept": (
        LogisticRegression(C=0.1, solver="liblinear", intercept_scaling=3.0, tol=1e-14, max_iter=10_000),
        cancer,
        1e-5,
    ),
    "class weights": (LogisticRegression(C=0.1, class_weight={"benign": 1.0, "malign": 4.0}, **CHOLESKY), cancer, 1e-9),
    "balanced classes": (LogisticRegression(C=0.1, class_weight="balanced", **CHOLESKY), cancer, 1e-9),
    "multinomial": (LogisticRegression(C=0.1, **CHOLESKY), wine, 1e-9),
    "multinomial by lbfgs": (LogisticRegression(C=0.1, tol=1e-14, max_iter=10_000), wine, 1e-4),
    "balanced multinomial": (LogisticRegression(C=0.1, class_weight="balanced", **CHOLESKY), wine, 1e-9),
    "poisson": (PoissonRegressor(alpha=0.03, **CHOLESKY), counts, 1e-9),
}


def few(loader):
    features, labels = loader()
    noise = np.random.default_rng(0).random(len(labels))
    return features[:, :3], np.where(noise < 0.3, "benign", labels)


def split(features, labels, target=TARGET):
    return np.delete(features, target, 0), np.delete(labels, target, 0), features[target], labels[target]


def root_mean_square(values):
    return float(np.sqrt(np.mean(np.square(values))))


@pytest.mark.parametrize("case", CASES)
def test_the_left_out_record_and_its_label_come_out_of_the_estimator(case):
    estimator, data, tolerance = CASES[case]
    features, labels = data()
    known, known_labels, record, label = split(features, labels)
    found = rr.attacks.glm(estimator.fit(features, labels), known, known_labels)
    error = root_mean_square(found.record - record)
    assert error < tolerance * root_mean_square(record)
    if isinstance(label, str):
        assert found.label == label
    else:
        np.testing.assert_allclose(found.label, label, rtol=1e-5)
    assert not found.status.is_failure
    assert error <= max(found.error_range[1], 1e-12)


@pytest.mark.parametrize("estimator", [Ridge(alpha=0.5), LinearRegression(), PoissonRegressor(alpha=0.1, **CHOLESKY)])
def test_sample_weights_of_known_records_and_target_are_part_of_the_equations(estimator):
    features, labels = counts()
    weights = np.random.default_rng(1).uniform(0.5, 2.0, len(labels))
    known, known_labels, record, label = split(features, labels)
    model = estimator.fit(features, labels, sample_weight=weights)
    rest = {"sample_weight": np.delete(weights, TARGET), "target_weight": weights[TARGET]}
    found = rr.attacks.glm(model, known, known_labels, **rest)
    assert root_mean_square(found.record - record) < 1e-8
    assert found.label == pytest.approx(label, abs=1e-6)
    blind = rr.attacks.glm(model, known, known_labels)
    assert root_mean_square(blind.record - record) > 1e-3


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    family=st.sampled_from(["squared", "logistic", "multinomial", "poisson"]),
    penalty=st.floats(0.1, 10.0),
    intercept_penalty=st.floats(0.0, 3.0),
)
def test_exact_minimisers_of_every_family_and_penalty_give_the_record_back(seed, family, penalty, intercept_penalty):
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((60, 5))
    labels = {
        "squared": rng.standard_normal(60),
        "logistic": rng.integers(0, 2, 60),
        "multinomial": np.concatenate([[0, 1, 2], rng.integers(0, 3, 57)]),
        "poisson": rng.integers(0, 5, 60),
    }[family]
    objective = {"family": family, "penalty": penalty, "intercept_penalty": intercept_penalty}
    fit = fit_glm(features=features, labels=labels, intercept=True, **objective)
    stated = rr.attacks.LinearObjective(**objective)
    found = rr.attacks.glm(fit.coefficients, features[:-1], labels[:-1], intercept=fit.intercept, objective=stated)
    size = root_mean_square(features[-1])
    # rounding of 60 records of order one leaves about 1e-14 in the gradient, divided by the pull
    assert root_mean_square(found.record - features[-1]) < 1e-11 / found.influence + 1e-12 * size
    # the label adds the pull back to what is expected of the record, and so errs by no more
    assert found.label == pytest.approx(labels[-1], abs=1e-10 * (1 + 1 / found.influence))


def test_the_printed_label_formula_fails_where_the_sum_holds():
    """balle2022, Theorem 1 prints y = g^-1(<x, theta>) + lambda 1^T r b."""
    features, labels = diabetes()
    known, known_labels, record, label = split(features, labels)
    model = Ridge(alpha=2.0).fit(features, labels)
    pull = float((model.predict(known) - known_labels).sum())
    expected = float(model.predict(record[None])[0])
    assert expected + 2.0 * pull * model.intercept_ != pytest.approx(label, abs=0.1)
    assert expected + pull == pytest.approx(label, abs=1e-9)
    assert rr.attacks.glm(model, known, known_labels).label == pytest.approx(label, abs=1e-9)


def test_the_printed_penalty_lacks_the_factor_of_its_derivative():
    """balle2022, Section III-B has lambda |theta|^2 in the objective, and lambda theta in Theorem 1."""
    features, labels = diabetes()
    known, known_labels, record, _ = split(features, labels)
    strength = 1.5
    model = fit_glm(features=features, labels=labels, family="squared", penalty=2 * strength, intercept=True)
    residuals = known @ model.coefficients + model.intercept - known_labels
    printed = (known.T @ residuals + strength * model.coefficients) / residuals.sum()
    ours = (known.T @ residuals + 2 * strength * model.coefficients) / residuals.sum()
    assert root_mean_square(printed - record) > 0.1
    assert root_mean_square(ours - record) < 1e-9


@pytest.mark.parametrize("alpha", [0.0, 2.0])
def test_without_intercept_the_label_gives_both_roots(alpha):
    features, labels = diabetes()
    known, known_labels, record, label = split(features, labels)
    model = Ridge(alpha=alpha, fit_intercept=False, solver="svd").fit(features, labels)
    found = rr.attacks.glm(model, known, known_labels, label=label)
    roots = np.vstack([found.record[None], found.alternatives])
    assert len(roots) == 2
    assert found.status.ending is Ending.CONVERGED
    assert found.status.cause.startswith("one of 2 records that fit the model equally well")
    assert min(root_mean_square(root - record) for root in roots) < 1e-9
    # Theorem 8, balle2022: both solve a^2 v^T theta - a y + 1 = 0, so that refitting with either gives the model
    for root in roots:
        again = Ridge(alpha=alpha, fit_intercept=False, solver="svd").fit(
            np.vstack([known, root]), np.append(known_labels, label)
        )
        np.testing.assert_allclose(again.coef_, model.coef_, rtol=1e-7, atol=1e-9)


def test_without_intercept_a_wrong_root_is_never_called_exact():
    rng = np.random.default_rng(0)
    features = rng.random((60, 4)) - 0.5
    labels = features @ (1, -2, 1, 0.5) + 0.5 * rng.standard_normal(60)
    model = Ridge(fit_intercept=False).fit(features, labels)
    wrong = 0
    for target in range(60):
        known, known_labels, record, label = split(features, labels, target)
        found = rr.attacks.glm(model, known, known_labels, label=label)
        is_wrong = root_mean_square(found.record - record) > 1e-3
        wrong += is_wrong
        assert not (is_wrong and found.status.ending is Ending.EXACT)
    assert wrong > 0


def test_a_predictor_of_zero_has_one_root():
    # labels of the known records for which theta, orthogonal to the target, is the minimum: v^T theta = 0, a = 1 / y
    known, record, label = np.diag([2.0, 2.0]), np.array([1.0, 1.0]), 3.0
    theta = np.array([0.7, -0.7])
    known_labels = known @ theta + (theta @ record - label) * record / 2.0
    found = rr.attacks.glm(
        theta, known, known_labels, label=label, objective=rr.attacks.LinearObjective("squared", 0.0)
    )
    np.testing.assert_allclose(found.record, record, atol=1e-12)
    assert len(found.alternatives) == 0 or np.abs(found.alternatives).max() > 1e10


@pytest.mark.parametrize(
    ("estimator", "data"),
    [
        (LogisticRegression(C=0.3, fit_intercept=False, **CHOLESKY), cancer),
        (LogisticRegression(C=0.3, fit_intercept=False, **CHOLESKY), wine),
        (PoissonRegressor(alpha=0.01, fit_intercept=False, **CHOLESKY), counts),
    ],
)
@pytest.mark.parametrize("target", [3, 20, 100])
def test_any_model_without_intercept_has_the_record_among_the_roots(estimator, data, target):
    features, labels = data()
    known, known_labels, record, label = split(features, labels, target)
    model = estimator.fit(features, labels)
    found = rr.attacks.glm(model, known, known_labels, label=label)
    roots = np.vstack([found.record[None], found.alternatives])
    assert 1 <= len(roots) <= 2
    assert min(root_mean_square(root - record) for root in roots) < 1e-6
    assert found.label == label


def test_a_classifier_without_intercept_cannot_tell_a_record_from_its_mirror():
    features, labels = cancer()
    known, known_labels, record, _ = split(features, labels)
    model = LogisticRegression(C=0.3, fit_intercept=False, **CHOLESKY).fit(features, labels)
    found = rr.attacks.glm(model, known, known_labels)
    roots = np.vstack([found.record[None], found.alternatives])
    for sign in (1, -1):
        assert min(root_mean_square(root - sign * record) for root in roots) < 1e-6


def test_known_features_stand_in_for_intercept_and_label():
    features, labels = diabetes()
    known, known_labels, record, _ = split(features, labels)
    model = Ridge(fit_intercept=False).fit(features, labels)
    partly = np.full(len(record), np.nan)
    partly[2] = record[2]
    found = rr.attacks.glm(model, known, known_labels, known_values=partly)
    assert root_mean_square(found.record - record) < 1e-8
    assert found.label == pytest.approx(labels[TARGET], abs=1e-8)


@pytest.mark.parametrize(
    ("loss_fn", "family", "data"),
    [
        (nn.MSELoss(), "squared", diabetes),
        (nn.BCEWithLogitsLoss(), "logistic", lambda: (cancer()[0], (cancer()[1] == "benign").astype(float))),
        (nn.BCEWithLogitsLoss(reduction="sum"), "logistic", lambda: (cancer()[0], (cancer()[1] == "benign") * 1.0)),
        (nn.CrossEntropyLoss(), "multinomial", lambda: (wine()[0], wine()[1] - 3)),
        (nn.PoissonNLLLoss(), "poisson", counts),
    ],
)
@pytest.mark.parametrize("decay_bias", [True, False])
def test_linear_torch_models_are_read_with_their_losses(loss_fn, family, data, decay_bias):
    features, labels = data()
    known, known_labels, record, label = split(features, labels)
    decay = 0.02
    scale = 1 if loss_fn.reduction == "sum" else len(labels)
    penalty = decay * scale / (2 if family == "squared" else 1)
    fit = fit_glm(
        features=features,
        labels=labels,
        family=family,
        penalty=penalty,
        intercept=True,
        intercept_penalty=penalty if decay_bias else 0.0,
    )
    weight = np.atleast_2d(fit.coefficients)
    layer = nn.Linear(weight.shape[1], len(weight)).double()
    layer.weight.data, layer.bias.data = torch.as_tensor(weight), torch.as_tensor(fit.intercept)
    model = nn.Sequential(nn.Flatten(), layer)
    inputs = torch.as_tensor(known)
    training = rr.attacks.LinearObjective(loss_fn=loss_fn, weight_decay=decay, decay_bias=decay_bias)
    found = rr.attacks.glm(model, inputs, torch.as_tensor(known_labels), objective=training)
    assert root_mean_square(found.record - record) < 1e-7
    assert found.label == pytest.approx(label, abs=1e-6)
    rough = rr.attacks.glm(model.float(), inputs, torch.as_tensor(known_labels), objective=training)
    error = root_mean_square(rough.record - record)
    assert error > 1e-9
    if not np.isnan(rough.expected_error):
        assert error < rough.error_range[1]


def test_a_target_that_is_fitted_exactly_leaves_no_trace():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((20, 3))
    labels = features @ [1.0, -2.0, 0.5] + 0.3
    found = rr.attacks.glm(LinearRegression().fit(features, labels), features[:-1], labels[:-1])
    assert found.status.ending is Ending.NOT_APPLICABLE
    objective = rr.attacks.LinearObjective("squared", penalty=1.0)
    zero = rr.attacks.glm(np.zeros(3), features[:-1], np.zeros(19), intercept=0.0, objective=objective)
    assert zero.status.ending is Ending.NOT_APPLICABLE
    assert zero.expected_error == np.inf
    np.testing.assert_allclose(zero.record, features[:-1].mean(0))


def test_a_model_of_the_known_records_alone_is_not_said_to_hold_another():
    features, labels = cancer()
    model = LogisticRegression(C=0.1, **CHOLESKY).fit(features, labels)
    found = rr.attacks.glm(model, features, labels)
    assert found.status.ending in (Ending.NOT_APPLICABLE, Ending.BUDGET_SPENT)
    assert found.influence < 1e-9


AT_THE_MINIMUM = {
    "logistic": (
        LogisticRegression(**CHOLESKY),
        lambda x, noise: (x @ (1, -2, 1, 0.5) + 0.3 * noise > 0.2).astype(int),
    ),
    "multinomial": (LogisticRegression(**CHOLESKY), lambda x, noise: np.digitize(x.sum(1) + 0.3 * noise, [1.7, 2.3])),
    "poisson": (PoissonRegressor(**CHOLESKY), lambda x, noise: np.floor(np.exp(x @ (1, -0.5, 0.2, 0.1) + 0.5 * noise))),
    "ridge": (Ridge(), lambda x, noise: x @ (1, -2, 1, 0.5) + 0.3 * noise),
}


def at_the_minimum(kind, **weights):
    rng = np.random.default_rng(0)
    features = rng.random((60, 4))
    estimator, answer = AT_THE_MINIMUM[kind]
    labels = answer(features, rng.standard_normal(60))
    return estimator.fit(features, labels, **weights), features, labels


@pytest.mark.parametrize("kind", ["logistic", "multinomial", "poisson"])
def test_two_missing_records_are_not_read_as_one(kind):
    model, features, labels = at_the_minimum(kind)
    for target in range(0, 58, 3):
        two = np.delete(features, [target, target + 1], 0), np.delete(labels, [target, target + 1])
        found = rr.attacks.glm(model, *two)
        assert found.status.ending is Ending.NOT_APPLICABLE
        assert str(found.status).startswith("not applicable: no single record is consistent with the model")
        assert found.error_range[1] == np.inf
        one = np.delete(features, target, 0), np.delete(labels, target)
        assert rr.attacks.glm(model, *one).status.ending is Ending.EXACT


@pytest.mark.parametrize("kind", ["logistic", "poisson", "ridge"])
def test_weights_that_are_not_passed_are_not_read_as_a_record(kind):
    model, features, labels = at_the_minimum(kind, sample_weight=np.random.default_rng(1).uniform(0.5, 3, 60))
    for target in range(0, 60, 3):
        found = rr.attacks.glm(model, np.delete(features, target, 0), np.delete(labels, target))
        if kind == "ridge":  # as many numbers as unknowns: what is wrong shows only where the record is out of range
            assert found.error_range[1] > 0.1 or "if the known records are right" in found.status.cause
        else:
            assert found.status.ending is Ending.NOT_APPLICABLE


@pytest.mark.parametrize("kind", ["logistic", "ridge"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_rounded_copies_of_known_records_are_part_of_the_error(kind, dtype):
    model, features, labels = at_the_minimum(kind)
    copies = torch.as_tensor(features.astype(dtype))
    within, caution = 0, []
    for target in range(60):
        kept = np.arange(60) != target
        found = rr.attacks.glm(model, copies[kept], labels[kept])
        error = root_mean_square(found.record - features[target])
        within += error <= found.error_range[1]
        assert found.status.ending is not Ending.EXACT or error < 1e-6
        caution.append(found.error_range[1] / error)
        own = copies[target : target + 1], labels[target : target + 1]
        assert rr.attacks.glm_candidates(model, copies[kept], labels[kept], *own).membership() != "not in"
    assert within >= 54  # 60 ranges of 95 % miss more than six times with chance 3 %
    assert np.median(caution) < 50  # nor is it so cautious that it says nothing


def test_where_nothing_is_left_to_check_only_records_like_the_known_are_exact():
    model, features, labels = at_the_minimum("ridge")
    seen = set()
    for target in range(59):
        two = np.delete(features, [target, target + 1], 0), np.delete(labels, [target, target + 1])
        found = rr.attacks.glm(model, *two)
        far = root_mean_square(found.record - found.record.clip(two[0].min(0), two[0].max(0))) > two[0].std()
        seen.add(far)
        assert (found.status.ending is Ending.EXACT) == (not far)
        assert "if the known records are right" in found.status.cause
        assert not far or found.error_range[1] > root_mean_square(found.record - features[target]) / 2
    assert seen == {True, False}


def test_an_outlier_that_the_equations_confirm_is_exact():
    model, features, labels = at_the_minimum("logistic")
    features = np.vstack([features, [[9.0, 8.0, 9.0, 9.0]]])
    labels = np.append(labels, 0)
    found = rr.attacks.glm(model.fit(features, labels), features[:-1], labels[:-1])
    np.testing.assert_allclose(found.record, features[-1], rtol=1e-9)
    assert found.status.ending is Ending.EXACT


def test_a_label_far_above_all_known_ones_is_not_exact():
    """The penalty of PoissonRegressor belongs to a mean: as one of a sum it is too small by the number of records."""
    _, features, labels = at_the_minimum("poisson")
    model = PoissonRegressor(alpha=0.1, **CHOLESKY).fit(features, labels)
    small, right_size = (rr.attacks.LinearObjective("poisson", penalty) for penalty in (0.1, 0.1 * 60))
    for target in range(0, 60, 2):
        known = np.delete(features, target, 0), np.delete(labels, target)
        wrong = rr.attacks.glm(model.coef_, *known, intercept=model.intercept_, objective=small)
        assert wrong.status.ending in (Ending.BUDGET_SPENT, Ending.NOT_APPLICABLE)
        right = rr.attacks.glm(model.coef_, *known, intercept=model.intercept_, objective=right_size)
        np.testing.assert_allclose(right.record, features[target], atol=1e-8)
        assert right.status.ending is not Ending.NOT_APPLICABLE


SOLVERS = {
    "lbfgs": {},
    "lbfgs 1e-6": {"tol": 1e-6},
    "newton-cg": {"solver": "newton-cg"},
    "newton-cholesky": {"solver": "newton-cholesky"},
    "newton-cholesky 1e-7": {"solver": "newton-cholesky", "tol": 1e-7},
    "liblinear": {"solver": "liblinear"},
    "saga": {"solver": "saga", "max_iter": 10_000},
    "unconverged": {"max_iter": 3},
}


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_no_confident_wrong_answer_whatever_the_solver_left_over(solver):
    features, labels = cancer(300)
    model = LogisticRegression(**SOLVERS[solver]).fit(features, labels)
    # the model is one and the same for each target that is left out, so each is an attack of its own
    within, confident_and_wrong, targets = 0, 0, range(0, 300, 5)
    for target in targets:
        known, known_labels, record, label = split(features, labels, target)
        found = rr.attacks.glm(model, known, known_labels)
        error = root_mean_square(found.record - record)
        within += found.error_range[1] >= error or found.status.is_failure
        sure = found.status.ending in (Ending.EXACT, Ending.CONVERGED)
        confident_and_wrong += sure and (error > 10 * found.error_range[1] or found.label != label)
    assert confident_and_wrong == 0
    assert within >= 0.9 * len(targets)  # 60 ranges of 95 % miss more than six times with chance 3 %


@pytest.mark.parametrize(
    ("penalty", "solver"),
    [
        (0.1, {"tol": 1e-5}),
        (0.1, {"tol": 1e-7}),
        (0.01, {"tol": 1e-5}),
        (0.1, {"solver": "newton-cholesky"}),
        (0.01, {"solver": "newton-cholesky"}),
    ],
)
def test_what_a_solver_left_over_is_expected_also_where_it_fits_by_chance(penalty, solver):
    """784 features: what is left over dwarfs most targets, and the one number that shows it is small for some."""
    digits = rr.load_dataset("mnist", split="train")
    chosen = digits.class_labels < 2
    features, labels = digits.inputs[chosen].flatten(1).double().numpy(), digits.class_labels[chosen].numpy()
    model = LogisticRegression(C=penalty, **solver).fit(features, labels)
    understated, targets = 0, range(0, len(labels), len(labels) // 20)
    for target in targets:
        known, known_labels, record, label = split(features, labels, target)
        found = rr.attacks.glm(model, known, known_labels)
        error = root_mean_square(found.record - record)
        understated += error > 2 * found.expected_error and not found.status.is_failure
        if found.status.ending in (Ending.EXACT, Ending.CONVERGED):
            assert error <= found.error_range[1]
            assert found.label == label
        if not found.status.is_failure:
            assert error < root_mean_square(record)  # nearer than a guess of nothing
    assert understated == 0


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_model_that_did_not_converge_is_named():
    features, labels = cancer()
    known, known_labels, *_ = split(features, labels)
    found = rr.attacks.glm(LogisticRegression(max_iter=2).fit(features, labels), known, known_labels)
    assert "stopped at max_iter=2 before it converged" in str(found.status)
    assert found.status.ending not in (Ending.EXACT, Ending.CONVERGED)


def test_bad_input_is_refused_in_words():
    features, labels = cancer()
    known, known_labels, *_ = split(features, labels)
    model = LogisticRegression(C=0.1, **CHOLESKY).fit(features, labels)
    with pytest.raises(InvalidInput, match=r"got LogisticRegression that is not fitted\. Call its fit"):
        rr.attacks.glm(LogisticRegression(), known, known_labels)
    with pytest.raises(InvalidInput, match=r"known_inputs.shape=\(149, 29\) to be \(records, 30\)"):
        rr.attacks.glm(model, known[:, 1:], known_labels)
    with pytest.raises(InvalidInput, match=r"to be one of estimator\.classes_"):
        rr.attacks.glm(model, known, np.where(known_labels == "benign", "odd", known_labels))
    with pytest.raises(InvalidInput, match=r"label='odd' to be one of the classes"):
        rr.attacks.glm(model, known, known_labels, label="odd")
    with pytest.raises(InvalidInput, match=r"len\(known_labels\)=148 to be 149"):
        rr.attacks.glm(model, known, known_labels[1:])
    with pytest.raises(InvalidInput, match=r"penalty=1\.0 to be left out for an estimator"):
        rr.attacks.glm(model, known, known_labels, objective=rr.attacks.LinearObjective(penalty=1.0))
    broken = known.copy()
    broken[2, 1] = np.nan
    with pytest.raises(InvalidInput, match=r"known_inputs\[2, 1\]=nan to be finite"):
        rr.attacks.glm(model, broken, known_labels)
    numbers = np.where(np.arange(149) == 3, np.nan, 1.0)
    with pytest.raises(InvalidInput, match=r"known_labels\[3\]=nan to be finite"):
        rr.attacks.glm(Ridge().fit(known, np.ones(149)), known, numbers)
    with pytest.raises(InvalidInput, match="family=None to be one of"):
        rr.attacks.glm(np.zeros(30), known, known_labels)
    with pytest.raises(
        InvalidInput, match=r"penalty=None to be given with plain coefficients.*alpha of PoissonRegressor times the sum"
    ):
        rr.attacks.glm(np.zeros(30), known, np.zeros(149), objective=rr.attacks.LinearObjective("squared"))
    with pytest.raises(InvalidInput, match="to be 0 or 1"):
        rr.attacks.glm(np.zeros(30), known, np.full(149, 2), objective=rr.attacks.LinearObjective("logistic", 1.0))
    with pytest.raises(InvalidInput, match="loss_fn=None"):
        rr.attacks.glm(nn.Linear(30, 1), known, np.zeros(149))
    with pytest.raises(InvalidInput, match="'SVC' to be one of LogisticRegression"):
        rr.attacks.glm(SVC(), known, known_labels)


def test_a_regression_without_intercept_asks_for_the_label():
    features, labels = diabetes()
    model = Ridge(fit_intercept=False).fit(features, labels)
    with pytest.raises(InvalidInput, match="label=None to be given for a model without intercept"):
        rr.attacks.glm(model, features[1:], labels[1:])


def test_digits_of_ten_classes_come_back_by_name():
    features, labels = load_digits(return_X_y=True)
    features, labels = features[:300] / 16, labels[:300]
    known, known_labels, record, label = split(features, labels)
    model = LogisticRegression(C=0.1, **CHOLESKY).fit(features, labels)
    found = rr.attacks.glm(model, known, known_labels)
    assert root_mean_square(found.record - record) < 1e-9
    assert found.label == label
    assert found.account.labels == (int(label),)
    assert rr.metrics.score(found.reconstruction, torch.as_tensor(record)[None], rr.metrics.mse())["mse"].max() < 1e-18


def test_the_pull_is_the_residual_of_the_target():
    features, labels = cancer()
    known, known_labels, record, _ = split(features, labels)
    model = LogisticRegression(C=0.1, **CHOLESKY).fit(features, labels)
    fitted = expit(model.decision_function(record[None])[0])
    found = rr.attacks.glm(model, known, known_labels)
    assert found.influence == pytest.approx(min(fitted, 1 - fitted), rel=1e-6)


def test_warnings_of_the_solver_are_not_swallowed_by_the_attack():
    features, labels = cancer()
    with pytest.warns(ConvergenceWarning):
        model = LogisticRegression(max_iter=2).fit(features, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rr.attacks.glm(model, features[1:], labels[1:])

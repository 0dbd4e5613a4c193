"""Membership and attributes read from linear models: cases whose answer is known."""

import itertools

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor, Ridge

import reconrisk as rr
from reconrisk.attacks.informed.glm.candidates import GlmMatch
from reconrisk.core.errors import InvalidInput

CHOLESKY = {"solver": "newton-cholesky", "tol": 1e-12}


def standardised(loader, count=120):
    features, labels = loader(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))[:count]
    features, labels = features[order], labels[order]
    return (features - features.mean(0)) / features.std(0), labels


def counts():
    features, labels = standardised(load_diabetes)
    return features * 0.3, np.floor(labels / 50)


CASES = {
    "ridge": (Ridge(alpha=0.5), lambda: standardised(load_diabetes)),
    "least squares without intercept": (LinearRegression(fit_intercept=False), lambda: standardised(load_diabetes)),
    "logistic": (LogisticRegression(C=0.1, **CHOLESKY), lambda: standardised(load_breast_cancer)),
    "balanced": (LogisticRegression(C=0.1, class_weight="balanced", **CHOLESKY), lambda: standardised(load_wine)),
    "multinomial": (LogisticRegression(C=0.1, **CHOLESKY), lambda: standardised(load_wine)),
    "poisson": (PoissonRegressor(alpha=0.1, **CHOLESKY), counts),
}


@pytest.mark.parametrize("case", CASES)
def test_the_record_that_was_trained_on_fits_and_others_do_not(case):
    estimator, data = CASES[case]
    features, labels = data()
    model = estimator.fit(features[:100], labels[:100])
    chosen = [99, *range(100, 110)]
    found = rr.attacks.glm_candidates(model, features[:99], labels[:99], features[chosen], labels[chosen])
    assert found.index == 0
    assert found.fits.tolist() == [True] + [False] * 10
    assert found.is_member
    assert found.posterior is None


@pytest.mark.parametrize("case", ["ridge", "logistic", "multinomial"])
def test_no_candidate_is_a_member_of_a_model_of_the_known_records_alone(case):
    estimator, data = CASES[case]
    features, labels = data()
    model = estimator.fit(features[:99], labels[:99])
    found = rr.attacks.glm_candidates(model, features[:99], labels[:99], features[100:110], labels[100:110])
    assert not found.is_member
    assert not found.fits.any()


def toy(seed=0):
    rng = np.random.default_rng(seed)
    features = rng.random((60, 4))
    return features, (features @ (1, -2, 1, 0.5) + 0.3 * rng.standard_normal(60) > 0.2).astype(int)


@pytest.mark.parametrize(
    "settings",
    [{"max_iter": 3}, {"solver": "liblinear"}, {"solver": "saga", "max_iter": 300}, {"tol": 1e-3}, {}, {"tol": 1e-6}],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("plain", [False, True], ids=["estimator", "coefficients"])
def test_a_record_that_was_trained_on_is_never_excluded_whatever_the_solver_left(settings, plain):
    features, labels = toy()
    features = features * (100, 1, 0.1, 1)
    fitted = LogisticRegression(C=100.0, random_state=0, **settings).fit(features, labels)
    model, stated = fitted, {}
    if plain:
        # liblinear has its own penalty on the intercept
        own = {"intercept_penalty": 0.01} if fitted.solver == "liblinear" else {}
        objective = rr.attacks.LinearObjective("logistic", penalty=0.01, **own)
        model, stated = fitted.coef_, {"intercept": fitted.intercept_, "objective": objective}
    for target in range(0, 60, 6):
        known = np.delete(features, target, 0), np.delete(labels, target)
        own = features[target : target + 1], labels[target : target + 1]
        found = rr.attacks.glm_candidates(model, *known, *own, **stated)
        assert found.membership() != "not in"
        assert found.is_member == (found.membership() == "in")
        says = not plain and settings.get("solver") is None and "max_iter" not in settings
        assert found.excludes == (says or found.is_member)


def test_coefficients_at_their_minimum_show_who_was_trained_on():
    features, labels = toy()
    model = LogisticRegression(**CHOLESKY).fit(features[:50], labels[:50])
    stated = {"intercept": model.intercept_, "objective": rr.attacks.LinearObjective("logistic", penalty=1.0)}
    found = rr.attacks.glm_candidates(model.coef_, features[:49], labels[:49], features[49:], labels[49:], **stated)
    assert [found.membership(index) for index in range(11)] == ["in"] + ["not in"] * 10
    assert found.index == 0
    alone = rr.attacks.glm_candidates(model.coef_, features[:50], labels[:50], features[50:], labels[50:], **stated)
    assert not alone.is_member
    assert {alone.membership(index) for index in range(10)} == {"not in"}
    others = rr.attacks.glm_candidates(model.coef_, features[:49], labels[:49], features[50:], labels[50:], **stated)
    assert {others.membership(index) for index in range(10)} == {"undecided"}


def test_known_records_that_explain_a_model_up_to_its_tolerance_leave_membership_open():
    found = GlmMatch(np.array([0.5, 4.0]), 2.0, np.array([True, False]), None)
    assert [found.membership(index) for index in range(2)] == ["undecided", "not in"]
    assert not found.is_member


@pytest.mark.parametrize("weights", ["balanced", {0: 1.0, 1: 5.0}], ids=["balanced", "dict"])
@pytest.mark.parametrize("noise_std", [None, 1e-3])
def test_with_class_weights_each_candidate_is_met_with_its_own_label(weights, noise_std):
    features, labels = toy()
    model = LogisticRegression(class_weight=weights, **CHOLESKY).fit(features[:50], labels[:50])
    given = model, features[:49], labels[:49]
    together = rr.attacks.glm_candidates(*given, features[49:], labels[49:], noise_std=noise_std)
    assert len(set(labels[49:])) == 2
    for index in range(11):
        row = slice(49 + index, 50 + index)
        single = rr.attacks.glm_candidates(*given, features[row], labels[row], noise_std=noise_std)
        assert single.misfits[0] == pytest.approx(together.misfits[index], rel=1e-9)
        assert single.without == pytest.approx(together.without, rel=1e-9)
    alone = LogisticRegression(class_weight=weights, **CHOLESKY).fit(features[:49], labels[:49])
    nothing = rr.attacks.glm_candidates(
        alone, features[:49], labels[:49], features[49:], labels[49:], noise_std=noise_std
    )
    assert nothing.without < 1
    assert not nothing.is_member


@pytest.mark.parametrize("case", ["ridge", "logistic", "multinomial"])
def test_under_noise_misfits_are_distances_to_refitted_models(case):
    estimator, data = CASES[case]
    features, labels = data()
    model = estimator.fit(features[:100], labels[:100])
    noise = 1e-3
    rng = np.random.default_rng(0)
    stacked = np.column_stack([np.atleast_2d(model.coef_), np.atleast_1d(model.intercept_)])
    model.coef_ = model.coef_ + noise * rng.standard_normal(model.coef_.shape)
    model.intercept_ = model.intercept_ + noise * rng.standard_normal(np.shape(model.intercept_))
    moved = np.column_stack([np.atleast_2d(model.coef_), np.atleast_1d(model.intercept_)])
    chosen = [99, 104]
    found = rr.attacks.glm_candidates(
        model, features[:99], labels[:99], features[chosen], labels[chosen], noise_std=noise
    )
    # the model of the true candidate is the released one before the noise, up to shifts that classes have in common
    own = moved - stacked
    own = own - own.mean(0) * (len(own) > 1)
    common = float(np.linalg.norm(np.atleast_2d(moved).mean(0))) if len(stacked) > 1 else 0.0
    assert found.misfits[0] * noise == pytest.approx(np.linalg.norm(own), rel=0.05, abs=2 * common)
    assert found.posterior.sum() == pytest.approx(1.0)
    assert found.fits[0]


def test_misfits_of_a_quadratic_objective_are_exact_distances():
    rng = np.random.default_rng(0)
    known, known_labels = rng.standard_normal((8, 3)), rng.standard_normal(8)
    candidates, labels = 3 * rng.standard_normal((4, 3)), rng.standard_normal(4)
    model = Ridge(alpha=0.4).fit(known, known_labels)
    model.coef_ = rng.standard_normal(3)
    found = rr.attacks.glm_candidates(model, known, known_labels, candidates, labels, noise_std=0.5)
    for misfit, record, label in zip(found.misfits, candidates, labels, strict=True):
        own = Ridge(alpha=0.4).fit(np.vstack([known, record]), np.append(known_labels, label))
        distance = np.hypot(np.linalg.norm(own.coef_ - model.coef_), own.intercept_ - model.intercept_)
        assert misfit * 0.5 == pytest.approx(distance, rel=1e-9)


def test_the_posterior_is_calibrated():
    """The mean posterior of the choice is how often it is right, for targets drawn from the candidates."""
    features, labels = standardised(load_diabetes)
    rng, noise = np.random.default_rng(1), 0.25
    hits, stated = [], []
    for _ in range(150):
        chosen = int(rng.integers(4))
        rows = [*range(60), 60 + chosen]
        model = Ridge(alpha=5.0).fit(features[rows], labels[rows])
        model.coef_ = model.coef_ + noise * rng.standard_normal(model.coef_.shape)
        model.intercept_ = model.intercept_ + noise * rng.standard_normal()
        found = rr.attacks.glm_candidates(
            model, features[:60], labels[:60], features[60:64], labels[60:64], noise_std=noise
        )
        hits.append(found.index == chosen)
        stated.append(found.posterior.max())
    # the difference has mean zero and at most a standard deviation of 1/2 a draw; four standard errors
    assert abs(np.mean(hits) - np.mean(stated)) < 4 * 0.5 / np.sqrt(150)


def test_unknown_attributes_are_those_that_fit():
    rng = np.random.default_rng(0)
    features = np.column_stack([rng.standard_normal((80, 3)), rng.integers(0, 2, (80, 3))]).astype(float)
    labels = (features[:, 0] + features[:, 4] + rng.standard_normal(80) > 0.5).astype(int)
    model = LogisticRegression(C=0.5, **CHOLESKY).fit(features, labels)
    options = np.array(list(itertools.product([0.0, 1.0], repeat=3)))
    for target in range(0, 80, 8):
        record = features[target].copy()
        record[3:] = np.nan
        known = np.delete(features, target, 0), np.delete(labels, target)
        found = rr.attacks.glm_attributes(model, *known, record, labels[target], options)
        np.testing.assert_array_equal(options[found.index], features[target, 3:])
        assert found.fits.sum() == 1
        # the same attributes as real numbers, from known features
        exact = rr.attacks.glm(model, *known, known_values=record)
        np.testing.assert_allclose(exact.record[3:], features[target, 3:], atol=1e-6)


def test_attributes_without_influence_on_the_model_are_not_told_apart():
    features, labels = standardised(load_diabetes, 60)
    features = np.column_stack([features[:, :3], features[:, :1]])  # twice the same column
    model = Ridge(alpha=1.0).fit(features, labels)
    record = features[-1].copy()
    record[1] = np.nan
    found = rr.attacks.glm_attributes(
        model, features[:-1], labels[:-1], record, labels[-1], [[features[-1, 1]], [features[-1, 1]]]
    )
    assert found.fits.all()


def test_bad_input_is_refused_in_words():
    features, labels = standardised(load_diabetes)
    model = Ridge().fit(features, labels)
    known = model, features[:-1], labels[:-1]
    with pytest.raises(InvalidInput, match=r"records\.shape=\(1, 3\) to be \(candidates, 10\)"):
        rr.attacks.glm_candidates(*known, features[-1:, :3], labels[-1:])
    with pytest.raises(InvalidInput, match=r"len\(labels\)=2 to be 1"):
        rr.attacks.glm_candidates(*known, features[-1:], labels[-2:])
    with pytest.raises(TypeError, match="unexpected keyword argument 'lam'"):
        rr.attacks.glm_candidates(*known, features[-1:], labels[-1:], lam=1)
    missing = np.where(np.arange(len(labels)) == 3, np.nan, labels)
    with pytest.raises(InvalidInput, match=r"known_labels\[3\]=nan to be finite"):
        rr.attacks.glm_candidates(model, features[:-1], missing[:-1], features[-1:], labels[-1:])
    with pytest.raises(InvalidInput, match=r"labels\[1\]=nan to be finite"):
        rr.attacks.glm_candidates(*known, features[-2:], [1.0, np.nan])
    partly = np.full(10, np.nan)
    with pytest.raises(InvalidInput, match=r"values\.shape=\(1, 2\) to be \(possibilities, 10\), one column per"):
        rr.attacks.glm_attributes(*known, partly, 1.0, [[0.0, 1.0]])
    with pytest.raises(InvalidInput, match=r"known_values has no unknown feature\. Pass NaN"):
        rr.attacks.glm_attributes(*known, features[-1], 1.0, [[0.0]])

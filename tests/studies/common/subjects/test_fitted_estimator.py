"""Fitted estimators audited in one call: every record of the fit comes back from the coefficients."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.linear_model import Lasso, LinearRegression, LogisticRegression, PoissonRegressor, Ridge

import reconrisk as rr
from reconrisk.core.digest import short_digest
from reconrisk.core.threat import Knows, Sees
from reconrisk.data.dataset import Dataset
from reconrisk.releases.fitted_estimators.estimator_release import coefficients
from reconrisk.studies.common.subjects.fitted_estimator import FittedEstimator, attach_records

DRAWS = np.random.default_rng(0)
X = DRAWS.normal(size=(60, 5)) * (1.0, 10.0, 0.1, 1000.0, 1.0) + (0.0, 5.0, 0.0, 300.0, -2.0)
SCORES = ((X - X.mean(0)) / X.std(0)) @ (1.0, -0.5, 0.7, 0.2, -1.0) + DRAWS.normal(size=60)
STANDARD = (X - X.mean(0)) / X.std(0)
CLASSES, COUNTS = (SCORES > 0).astype(int), np.round(np.exp(SCORES / 3))
THREE = np.digitize(SCORES, (-1.0, 1.0))

ESTIMATORS = {
    "logistic": (LogisticRegression(tol=1e-10, max_iter=10_000), STANDARD, CLASSES),
    "multinomial": (LogisticRegression(tol=1e-10, max_iter=10_000), STANDARD, THREE),
    "ridge": (Ridge(alpha=2.0), X, SCORES),
    "least squares": (LinearRegression(), X, SCORES),
    "poisson": (PoissonRegressor(alpha=0.1, tol=1e-10, max_iter=10_000), STANDARD, COUNTS),
    "several outputs": (Ridge(), X, np.stack([SCORES, SCORES**2], axis=1)),
    "names of classes": (
        LogisticRegression(tol=1e-10, max_iter=10_000, class_weight={"no": 1.0, "yes": 3.0}),
        STANDARD,
        np.array(["no", "yes"])[CLASSES],
    ),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_record_comes_back_from_an_estimator_at_its_minimum(name):
    estimator, features, labels = ESTIMATORS[name]
    result = rr.audit(estimator.fit(features, labels), (features, labels), trials=6, goals="psnr>=80")
    (line,) = result.lines
    assert (line.success.value, line.best_attack, line.baseline.value) == (1.0, "glm", 0.0)
    assert result.threat == FittedEstimator.default_threat
    assert result.subject.release.endswith("fitted to 60 records, all but one of them known")
    assert (result.subject.data_range, result.subject.population) == ((0.0, 1.0), 60)


def test_goals_are_a_tenth_and_a_hundredth_of_the_range_unless_stated():
    result = rr.audit(Ridge().fit(X, SCORES), (X, SCORES), trials=2)
    assert [str(goal) for goal in result.goals] == ["psnr>=20", "psnr>=40"]
    assert "errors are in units of the column ranges, which are taken as public" in result.assumptions


def test_what_lies_in_the_unit_range_keeps_its_units():
    unit = (X - X.min(0)) / (X.max(0) - X.min(0))
    found = attach_records(Ridge().fit(unit, SCORES), (unit, SCORES))
    assert found.low is None
    assert torch.equal(found.dataset.inputs, torch.as_tensor(unit).float())
    scaled = attach_records(Ridge().fit(X, SCORES), (X, SCORES))
    assert torch.allclose(scaled.low + scaled.width * scaled.dataset.inputs, torch.as_tensor(X), rtol=1e-6, atol=1e-4)


def test_a_column_of_one_value_is_no_division_by_zero():
    features = np.concatenate([X, np.full((60, 1), 7.0)], axis=1)
    result = rr.audit(Ridge().fit(features, SCORES), (features, SCORES), trials=2, goals="psnr>=80")
    assert result.lines[0].success.value == 1.0


def test_a_data_set_is_attacked_in_its_own_range():
    digits = rr.load_dataset("digits").subset(range(200))
    model = LogisticRegression(tol=1e-8, max_iter=10_000).fit(digits.inputs.double().flatten(1).numpy(), digits.labels)
    result = rr.audit(model, digits, trials=3, goals="psnr>=60")
    assert result.lines[0].success.value == 1.0
    assert len(result.pictures) == 3
    assert result.subject.shape == (1, 8, 8)


def test_noise_hides_records_and_that_is_a_finding():
    model = ESTIMATORS["logistic"][0].fit(STANDARD, CLASSES)
    little, much = rr.defenses.gaussian_noise(1e-9), rr.defenses.gaussian_noise(1.0)
    result = rr.audit(model, (STANDARD, CLASSES), trials=4, goals="psnr>=40", defenses={"little": little, "much": much})
    clear, hidden = result.lines
    assert (clear.success.value, hidden.success.value) == (1.0, 0.0)
    assert hidden.success.samples == 4
    assert hidden.verdict.name == "NO_GAIN"
    assert next(each for each in result.attacks if each.label == "glm").failed == 0


def test_an_estimator_that_stopped_early_says_so_and_nothing_is_certain():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns too
        model = LogisticRegression(C=100.0, max_iter=2).fit(STANDARD, CLASSES)
    result = rr.audit(model, (STANDARD, CLASSES), trials=4, max_risk="psnr>=40: 50%")
    assert any("stopped at max_iter=2 before it converged" in words for words in result.assumptions)
    attack = next(each for each in result.attacks if each.label == "glm")
    assert attack.failed == 4
    assert "stopped at max_iter=2" in attack.remark
    assert all(line.verdict.name == "NOTHING_RUN" for line in result.lines)
    assert result.failures()  # a limit that nothing was run for is not kept
    assert "-1 (" not in str(result)


def test_a_loose_solver_loses_accuracy_which_counts_as_not_known():
    model = LogisticRegression(tol=1e-2).fit(STANDARD, CLASSES)
    result = rr.audit(model, (STANDARD, CLASSES), trials=8, goals="psnr>=40")
    assert any("hides" in words for words in result.assumptions)
    line, attack = result.lines[0], next(each for each in result.attacks if each.label == "glm")
    # trials whose record is hidden count as rebuilt at the upper end of the interval
    assert attack.failed > 0
    assert line.success.high > 0.9


def test_records_of_another_fit_are_refused_before_any_attack():
    with pytest.raises(rr.InvalidInput, match="to be the records that Ridge was fitted to"):
        rr.audit(Ridge().fit(X[1:], SCORES[1:]), (X, SCORES), trials=1)
    with pytest.raises(rr.InvalidInput, match="to be the records that LogisticRegression was fitted to"):
        rr.audit(ESTIMATORS["logistic"][0].fit(STANDARD[1:], CLASSES[1:]), (STANDARD, CLASSES), trials=1)


def test_without_an_intercept_the_label_must_be_known():
    model = LinearRegression(fit_intercept=False).fit(X, SCORES)
    result = rr.audit(model, (X, SCORES), trials=3, goals="psnr>=60")
    assert result.lines[0].verdict.name == "NOTHING_RUN"
    assert "to contain the labels" in next(each for each in result.attacks if each.label == "glm").remark
    known = rr.audit(
        model,
        (X, SCORES),
        trials=20,
        goals="psnr>=60",
        threat=FittedEstimator.default_threat.with_knowledge(Knows.LABELS),
    )
    # of two roots one is taken, so that about half of the records come back; a fifth or fewer with probability 0.006
    assert known.lines[0].success.value > 0.2


def fitted():
    return Ridge().fit(X, SCORES)


def one_record():
    known = {"known_inputs": torch.as_tensor(X[1:]), "known_labels": torch.as_tensor(SCORES[1:])}
    return rr.releases.EstimatorRelease(fitted(), torch.zeros(1, 5), torch.zeros(1), **known)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": (X[:, 1:], SCORES)}, "number of features=4 to be 5"),
        ({"data": (X, SCORES[1:])}, "got 60 records and 59 labels"),
        ({"data": (X[:1], SCORES[:1])}, "number of records in data=1 >= 2"),
        ({"data": None}, "to hold the records of the fit"),
        ({"data": X}, r"type\(data\)='ndarray' to hold the records of the fit"),
        ({"data": Dataset("bare", torch.rand(9, 5))}, "data='bare' to have labels"),
        ({"data": (np.where(X > 1000, np.nan, X), SCORES)}, "to be finite"),
        ({"subject": Ridge()}, "got Ridge that is not fitted"),
        ({"subject": Ridge}, r"type\(subject\)='the class Ridge' to be a torch model, a release or a fitted estimator"),
        ({"subject": Lasso(alpha=0.01).fit(X, SCORES)}, r"type\(estimator\)='Lasso' to be one of LogisticRegression"),
        ({"subject": LogisticRegression().fit(STANDARD, CLASSES)}, "to be one of estimator.classes_"),
        ({"subject": one_record()}, "to be None for the release of one record"),
        ({"update": rr.UpdateRecipe(batch_size=2)}, "batch_size=2 to be 1"),
        ({"options": rr.AuditOptions(records=[60])}, "to be different rows from 0 to 59"),
        ({"threat": rr.ThreatModel(Sees.ONE_UPDATE)}, "threat.sees='one-update' to be final-model"),
        ({"training": rr.mechanisms.dp_sgd(noise_multiplier=1.0)}, "to be None for an estimator"),
        (
            {"attacks": ["best_candidate"], "threat": FittedEstimator.default_threat.with_knowledge(Knows.PRIOR)},
            "Expected candidate records for best_candidate",
        ),
    ],
)
def test_what_does_not_fit_an_estimator_is_refused(change, message):
    given = {"subject": fitted(), "data": (X, SCORES), "trials": 1, **change}
    with pytest.raises(rr.InvalidInput, match=message):
        rr.audit(given.pop("subject"), given.pop("data"), **given)


def test_a_bound_is_not_compared_where_known_records_leave_one_candidate():
    both = rr.defenses.clip_and_noise(noise_multiplier=1.0, clip_norm=1.0)
    result = rr.audit(fitted(), (X, SCORES), trials=2, defenses=both, goals="psnr>=40")
    (line,) = result.lines
    assert line.comparisons
    assert not any(each.is_compared for each in line.comparisons)
    assert "all others of the data" in line.comparisons[0].why
    assert "to add noise and do nothing else" in next(each for each in result.attacks if each.label == "glm").remark


def test_the_same_estimator_and_seed_give_the_same_trials_and_another_fit_another_run(tmp_path):
    store = tmp_path / "trials.db"
    one, same = (rr.audit(fitted(), (X, SCORES), trials=3, goals="psnr>=40", store=store) for _ in range(2))
    other = rr.audit(Ridge(alpha=9.0).fit(X, SCORES), (X, SCORES), trials=3, goals="psnr>=40", store=store)
    assert one.exposures == same.exposures
    assert one.run == same.run != other.run


@pytest.mark.parametrize("name", ["ridge", "logistic", "poisson"])
def test_weights_of_records_are_part_of_the_fit(name):
    estimator, features, labels = ESTIMATORS[name]
    weights = np.linspace(0.5, 3.0, 60)
    model = estimator.fit(features, labels, sample_weight=weights)
    with pytest.raises(rr.InvalidInput, match="Check that features, labels, sample_weight and penalty"):
        rr.audit(model, (features, labels), trials=1)
    result = rr.audit(model, (features, labels, weights), trials=4, goals="psnr>=80")
    assert (result.lines[0].success.value, result.lines[0].best_attack) == (1.0, "glm")
    assert attach_records(model, (features, labels, weights)).fingerprint != hash_without_weights(model)


def hash_without_weights(model):
    return short_digest((repr(model), sorted(coefficients(model).items())))


def test_weights_that_do_not_fit_are_refused():
    with pytest.raises(rr.InvalidInput, match=r"sample_weight.shape=\(59,\) to be \(60,\)"):
        rr.audit(fitted(), (X, SCORES, np.ones(59)), trials=1)

"""Linear models met by who knows every training record but one: exact at the minimum, honest about the rest."""

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge

import reconrisk.studies.informed.linear as linear_module
from reconrisk.bounds.glm.information import glm_information
from reconrisk.bounds.glm.problem import fit_glm
from reconrisk.core.errors import InvalidInput
from reconrisk.core.reconstruction import Ending
from reconrisk.core.storage.serialization import from_json, to_json
from reconrisk.data.dataset import Dataset
from reconrisk.data.load import load_dataset
from reconrisk.studies.informed.linear import KINDS, Coefficients, rebuild_informed_linear

INPUTS = torch.rand(40, 4, generator=torch.Generator().manual_seed(1))
SUMS = INPUTS.sum(1)
LABELS = {
    "logistic": (SUMS + torch.rand(40, generator=torch.Generator().manual_seed(2)) > 2.5).long(),
    "ridge": SUMS + INPUTS[:, 0] ** 2,
    "linear": SUMS + INPUTS[:, 0] ** 2,
    "poisson": (2 * SUMS).round(),
}


def data(kind):
    return Dataset("toy", INPUTS, LABELS[kind])


def run(model, dataset, targets, **settings):
    return rebuild_informed_linear(model, dataset, targets, rng=torch.Generator().manual_seed(0), **settings)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_gives_its_records_away(kind):
    found = run(kind, data(kind), [3, 9], membership=True)
    assert max(target.mse for target in found.report.targets) < 1e-14
    assert [target.found for target in found.report.targets] == [target.label for target in found.report.targets]
    assert [target.membership for target in found.report.targets] == ["in", "in"]
    assert {account.status.ending for account in found.report.accounts} == {Ending.EXACT}
    assert found.report.known == 38
    assert from_json(to_json(found.report)) == found.report


def test_several_classes_and_images(monkeypatch):
    digits = load_dataset("digits").subset(range(150))
    found = run("logistic", digits, [17], fixed=100)
    assert found.report.targets[0].mse < 1e-14
    assert found.estimates.shape == (1, 1, 8, 8)
    assert found.report.known == 100
    monkeypatch.setattr(linear_module, "_SECOND_ORDER", 1)  # as for many coefficients: gradients alone
    rough = run("logistic", digits, [17], fixed=100)
    assert found.report.targets[0].mse < rough.report.targets[0].mse < 1e-6
    assert "solver='lbfgs'" in str(rough)


def fitted(kind="ridge", rows=40):
    estimators = {
        "ridge": Ridge(alpha=0.5),
        "logistic": LogisticRegression(C=2.0, solver="newton-cholesky", tol=1e-12),
        "poisson": PoissonRegressor(alpha=0.5 / rows, solver="newton-cholesky", tol=1e-12),
    }
    return estimators[kind].fit(INPUTS[:rows].double().numpy(), LABELS[kind][:rows].double().numpy())


@pytest.mark.parametrize("kind", ["ridge", "logistic", "poisson"])
def test_released_estimators_and_their_coefficients_give_each_record_to_who_knows_the_others(kind):
    estimator = fitted(kind)
    found = run(estimator, data(kind), [3, 9])
    assert max(target.mse for target in found.report.targets) < 1e-14
    assert found.report.known == 39
    bare = Coefficients(kind, estimator.coef_, np.atleast_1d(estimator.intercept_))
    stated = run(bare, data(kind), [3, 9], regularization=0.5)
    torch.testing.assert_close(stated.estimates, found.estimates, rtol=0, atol=1e-6)
    assert "one released model" in str(stated)


def test_membership_of_a_record_that_was_not_trained_on():
    found = run(fitted(rows=30), data("ridge"), [5, 35], fixed=28, membership=True)
    assert found.report.targets[1].membership != "in"
    # known are 28 of the 30 records and target 35: the model has one more and misses one, so nothing fits
    assert found.report.targets[0].membership == "not in"
    alone = run(fitted(rows=30), data("ridge"), [35], fixed=30, membership=True)
    assert alone.report.targets[0].membership == "not in"
    assert alone.report.failed_reports
    inside = run(fitted(rows=30), data("ridge"), [29], fixed=29, membership=True)
    assert inside.report.targets[0].membership == "in"


def test_membership_in_a_model_that_stopped_early_is_not_denied():
    with pytest.warns(ConvergenceWarning):
        rough = LogisticRegression(C=100.0, max_iter=3).fit(INPUTS.double().numpy(), LABELS["logistic"].numpy())
    bare = Coefficients("logistic", rough.coef_, rough.intercept_)
    for model, settings in ((rough, {}), (bare, {"regularization": 0.01})):
        report = run(model, data("logistic"), [3, 9], membership=True, **settings).report
        assert [target.membership for target in report.targets] == ["undecided", "undecided"]


def test_an_estimator_that_did_not_converge_says_what_that_costs():
    rough = LogisticRegression(max_iter=2)
    found = run(rough, data("logistic"), [3])
    account = found.report.accounts[0]
    assert account.status.ending is not Ending.EXACT
    assert "stopped at max_iter=2 before it converged" in account.status.cause
    assert found.report.targets[0].mse > 1e-8


def test_noise_is_met_with_its_bound_beside():
    report = run("ridge", data("ridge"), list(range(10)), noise_std=1e-7, known_labels=True).report
    ratios = [target.mse / target.cramer_rao_mse for target in report.targets]
    # 10 targets of 4 values: a mean of 40 squares of correlated values, within a factor 4 but once in 10^4
    assert 1 / 4 < sum(ratios) / 10 < 4
    assert "1e-07 on every coefficient, known" in str(report)


@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_is_that_of_the_target_and_grows_with_the_noise(kind):
    quiet, loud = (run(kind, data(kind), [3], noise_std=std).report.targets[0] for std in (1e-7, 0.1))
    assert loud.cramer_rao_mse == pytest.approx(1e12 * quiet.cramer_rao_mse, rel=1e-6)
    features, labels = INPUTS.double().numpy(), LABELS[kind].double().numpy()
    family = {"logistic": "logistic", "poisson": "poisson"}.get(kind, "squared")
    settings = {"family": family, "penalty": 0.0 if kind == "linear" else 1.0}
    fit = fit_glm(features=features, labels=labels, intercept=True, **settings)
    told = glm_information(
        fit.coefficients, features=features, labels=labels, intercept=fit.intercept, noise_std=0.1, **settings
    )
    expected = float(np.linalg.inv(told.matrix(3)).trace()) / 4
    assert loud.cramer_rao_mse == pytest.approx(expected, rel=1e-6)


def test_coefficients_have_the_bound_of_their_estimator():
    estimator, settings = fitted("logistic"), {"noise_std": 1e-3}
    bare = Coefficients("logistic", estimator.coef_, estimator.intercept_)
    own = run(estimator, data("logistic"), [3], **settings).report.targets[0].cramer_rao_mse
    stated = run(bare, data("logistic"), [3], regularization=0.5, **settings).report.targets[0].cramer_rao_mse
    assert stated == pytest.approx(own, rel=1e-9)


def test_membership_under_noise_is_decided_only_by_evidence():
    told = [run("ridge", data("ridge"), [3], noise_std=std, membership=True).report for std in (1e-6, 1.0)]
    assert [report.targets[0].membership for report in told] == ["in", "undecided"]


def test_known_columns_leave_the_others_to_be_found():
    table = load_dataset("diabetes").subset(range(60))
    names = [column.name for column in table.columns]
    found = run("ridge", table, [3], known_columns=names[:-1])
    width = table.columns[-1].coordinates
    torch.testing.assert_close(found.estimates[0, width], table.inputs[3, width].double(), rtol=0, atol=1e-6)
    only = float((found.neighbours[0] - table.inputs[3])[width].square().mean())
    assert found.report.targets[0].neighbour_mse == pytest.approx(only, rel=1e-5)
    assert names[0] in found.report.attack


def test_ctrl_c_gives_what_is_done(monkeypatch):
    attack, calls = linear_module.glm, []

    def attacking(*words, **settings):
        calls.append(1)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return attack(*words, **settings)

    monkeypatch.setattr(linear_module, "glm", attacking)
    report = run("ridge", data("ridge"), [3, 9]).report
    assert (len(report.targets), report.is_complete) == (1, False)
    monkeypatch.setattr(linear_module, "glm", lambda *words, **settings: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run("ridge", data("ridge"), [3, 9])


@pytest.mark.parametrize(
    ("model", "kind", "settings", "message"),
    [
        ("lasso", "ridge", {}, "Expected model='lasso' to be one of logistic, ridge, linear, poisson"),
        (3, "ridge", {}, r"Expected type\(model\)='int' to be an estimator, Coefficients or"),
        ("logistic", "ridge", {}, r"Expected labels\.dtype='float64' to be a type of classes .* for logistic"),
        (
            "linear",
            "linear",
            {"regularization": 1.0},
            "Expected regularization=1.0 to be 0 for model='linear'. Use model='ridge'",
        ),
        ("ridge", "ridge", {"regularization": -1.0}, r"Expected regularization=-1.0 >= 0"),
        (Ridge(), "ridge", {"regularization": 1.0}, "to be left out for an estimator"),
        (Coefficients("ridge", np.ones(4)), "ridge", {}, "to be a number for released coefficients.*alpha of Poisson"),
        (
            Coefficients("ridge", np.ones(3), np.ones(1)),
            "ridge",
            {"regularization": 1.0},
            r"to be \(records, 3\), as many",
        ),
        ("ridge", "ridge", {"known_columns": ["age"]}, "to be left out for records that are not a table"),
        ("ridge", "ridge", {"noise_std": -1.0}, r"Expected noise_std=-1.0 > 0"),
        ("ridge", "ridge", {"fixed": 40}, "Expected fixed=40 <= 39"),
    ],
)
def test_what_is_wrong_is_named(model, kind, settings, message):
    with pytest.raises(InvalidInput, match=message):
        run(model, data(kind), [3], **settings)


def test_one_class_and_unknown_columns_are_refused():
    with pytest.raises(InvalidInput, match="LogisticRegression can be fitted to"):
        run("logistic", Dataset("one", INPUTS, torch.zeros(40, dtype=torch.int64)), [3])
    table = load_dataset("diabetes").subset(range(60))
    with pytest.raises(InvalidInput, match="Expected known_columns='agee' to be one of age"):
        run("ridge", table, [3], known_columns=["agee"])
    with pytest.raises(InvalidInput, match="to leave at least one column"):
        run("ridge", table, [3], known_columns=[column.name for column in table.columns])
    with pytest.raises(InvalidInput, match=">= 0 for poisson"):
        run("poisson", Dataset("negative", INPUTS, -SUMS), [3])


@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_records_are_part_of_the_fit(kind):
    weights = np.linspace(0.5, 3.0, 40)
    found = run(kind, data(kind), [3, 9], sample_weight=weights, membership=True)
    assert max(target.mse for target in found.report.targets) < 1e-14
    assert [target.membership for target in found.report.targets] == ["in", "in"]
    released = Ridge().fit(INPUTS.double().numpy(), LABELS["ridge"].double().numpy(), sample_weight=weights)
    rebuilt = run(released, data("ridge"), [3], sample_weight=weights)
    assert rebuilt.report.targets[0].mse < 1e-14
    assert run(released, data("ridge"), [3]).report.targets[0].mse > 1e-6
    with pytest.raises(InvalidInput, match=r"sample_weight\.shape"):
        run(kind, data(kind), [3], sample_weight=weights[1:])

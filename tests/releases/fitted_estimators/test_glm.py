"""Solutions of generalised linear models as releases: against scikit-learn, retraining, and the closed form."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from reconrisk.bounds.glm.information import glm_information
from reconrisk.bounds.glm.problem import fit_glm
from reconrisk.core.errors import InvalidInput
from reconrisk.releases.fitted_estimators.glm import GlmMap, GlmRelease

FAMILIES = ["squared", "logistic", "multinomial", "poisson"]


def _labels(family, signal, rng):
    if family == "squared":
        return signal
    if family == "logistic":
        return (signal > 0).double()
    if family == "multinomial":
        labels = torch.bucketize(signal, torch.tensor([-0.5, 0.5], dtype=torch.float64))
        labels[:3] = torch.arange(3)  # a class without a record has no finite intercept
        return labels
    return torch.poisson((0.3 * signal).exp(), generator=rng)


def _release(family, intercept, *, private=2, seed=0, dtype=torch.float64):
    rng = torch.Generator().manual_seed(seed)
    inputs = torch.randn(20, 3, generator=rng, dtype=torch.float64)
    labels = _labels(family, inputs[:, 0] + 0.5 * torch.randn(20, generator=rng, dtype=torch.float64), rng)
    cut = 20 - private
    return GlmRelease(
        inputs[cut:].to(dtype),
        labels[cut:],
        known_inputs=inputs[:cut],
        known_labels=labels[:cut],
        family=family,
        penalty=0.4,
        intercept=intercept,
        classes=3 if family == "multinomial" else None,
    )


def _stacked(released):
    weight = released["weight"]
    return torch.cat([weight, released["bias"][:, None]], dim=1) if "bias" in released else weight


def _jacobian(release):
    """All of J by pulls: one row per released number, in the order of the closed form."""
    shapes = {name: value.shape for name, value in release.value().items()}
    linearized = release.linearize()
    rows = []
    for output in range(shapes["weight"][0]):
        for column in range(shapes["weight"][1] + ("bias" in shapes)):
            unit = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
            if column < shapes["weight"][1]:
                unit["weight"][output, column] = 1
            else:
                unit["bias"][output] = 1
            rows.append(linearized.pull(unit))
    return torch.stack(rows)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_jacobian_is_that_of_the_closed_form(family, intercept):
    release = _release(family, intercept)
    features = torch.cat([release.known_inputs, release.inputs]).numpy()
    labels = torch.cat([release.known_labels, release.labels]).numpy()
    setting = {"features": features, "labels": labels, "family": family, "penalty": 0.4}
    fit = fit_glm(**setting, intercept=intercept)
    information = glm_information(fit.coefficients, intercept=fit.intercept, noise_std=1.0, **setting)
    jacobian = _jacobian(release)
    for index in range(2):
        np.testing.assert_allclose(jacobian[:, index], information.jacobian(18 + index), rtol=1e-9, atol=1e-12)
        assert float(jacobian[:, index].square().sum()) == pytest.approx(information.traces[18 + index], rel=1e-9)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_jacobian_is_the_change_of_the_solution_on_retraining(family, intercept):
    release = _release(family, intercept)
    direction = torch.randn(2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ends = [_stacked(release.forward(release.inputs + step * direction, release.labels)) for step in (1e-5, -1e-5)]
    # Central differences of step 1e-5 err by about 1e-10, the solution's rounding by 1e-14 / 1e-5.
    torch.testing.assert_close(
        _stacked(release.linearize().push(direction)), (ends[0] - ends[1]) / 2e-5, rtol=1e-5, atol=1e-8
    )


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=10)
@given(seed=st.integers(0, 10_000))
def test_push_and_pull_are_transposed(family, seed):
    release = _release(family, True, seed=seed)
    rng = torch.Generator().manual_seed(seed)
    linearized = release.linearize()
    tangent = torch.randn(2, 3, generator=rng, dtype=torch.float64)
    cotangent = {
        name: torch.randn(value.shape, generator=rng, dtype=torch.float64) for name, value in release.value().items()
    }
    pushed = linearized.push(tangent)
    left = sum(float((pushed[name] * cotangent[name]).sum()) for name in cotangent)
    assert left == pytest.approx(float((linearized.pull(cotangent) * tangent).sum()), rel=1e-9, abs=1e-12)


def test_the_solution_is_that_of_scikit_learn_and_the_precision_that_of_the_records():
    release = _release("squared", True, dtype=torch.float32)
    features = torch.cat([release.known_inputs, release.inputs.double()]).numpy()
    ridge = Ridge(alpha=0.4).fit(features, torch.cat([release.known_labels, release.labels]).numpy())
    value = release.value()
    assert value["weight"].dtype == torch.float32
    np.testing.assert_allclose(value["weight"][0], ridge.coef_, rtol=1e-5)  # single precision
    np.testing.assert_allclose(value["bias"], [ridge.intercept_], rtol=1e-5, atol=1e-6)


def test_pictures_are_records_too():
    rng = torch.Generator().manual_seed(0)
    pictures = torch.rand(6, 1, 2, 2, generator=rng)
    labels = torch.tensor([0, 1, 0, 1, 0, 1])
    release = GlmRelease(
        pictures[:1],
        labels[:1],
        known_inputs=pictures[1:],
        known_labels=labels[1:],
        family="logistic",
        penalty=1.0,
    )
    assert release.value()["weight"].shape == (1, 4)
    assert release.linearize().pull({"weight": torch.ones(1, 4)}).shape == (1, 1, 2, 2)


def test_the_map_holds_no_private_record():
    release = _release("logistic", False)
    tensors = [value for value in vars(release.forward).values() if isinstance(value, torch.Tensor)]
    assert all(len(tensor) in (18, 1) for tensor in tensors)


def test_known_records_of_one_class_alone_do_not_stop_a_map_without_penalty():
    known = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
    apart = GlmMap(known, torch.zeros(3), family="logistic", penalty=0.0, intercept=True)
    solution = apart(torch.tensor([[1.5]], dtype=torch.float64), torch.ones(1))
    assert math.isfinite(float(solution["weight"]))


def test_separable_classes_without_penalty_have_no_minimum():
    apart = GlmMap(torch.tensor([[-1.0]]), torch.tensor([0.0]), family="logistic", penalty=0.0)
    with pytest.raises(InvalidInput, match="Raise"):
        apart(torch.tensor([[1.0]]), torch.tensor([1.0]))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"family": "gamma"}, "family='gamma' to be one of"),
        ({"family": "multinomial"}, "classes"),
        ({"family": "multinomial", "classes": 2}, "class indices below 2"),
        ({"family": "poisson"}, r"min\(labels\)=-1.0 >= 0"),
        ({"family": "logistic"}, r"labels=.*-1\.0.* to be 0 or 1"),
        ({"penalty": -1.0}, "penalty=-1.0 >= 0"),
        ({"intercept_penalty": -1.0}, "intercept_penalty=-1.0 >= 0"),
    ],
)
def test_bad_settings_are_named(setting, message):
    arguments = {"family": "squared", "penalty": 1.0} | setting
    with pytest.raises(InvalidInput, match=message):
        GlmMap(torch.ones(2, 3), torch.tensor([-1.0, 2.0]), **arguments)


def test_records_of_another_shape_are_refused():
    with pytest.raises(InvalidInput, match=r"inputs.shape=\(1, 2\) to end in \(3,\)"):
        GlmMap(torch.ones(2, 3), torch.zeros(2), family="squared", penalty=1.0)(torch.ones(1, 2), torch.zeros(1))

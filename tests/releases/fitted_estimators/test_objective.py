"""The objective of generalised linear models: one code for NumPy and torch, against automatic differentiation."""

import subprocess
import sys
from typing import get_args

import numpy as np
import pytest
import torch

from reconrisk.core.errors import InvalidInput
from reconrisk.releases.fitted_estimators.glm import TORCH
from reconrisk.releases.fitted_estimators.objective import NUMPY, Family, GlmObjective, minimise

FAMILIES = get_args(Family)


def problem(family, penalties=(0.5, 0.5, 0.5, 0.1)):
    rng = np.random.default_rng(3)
    design = np.column_stack([rng.normal(size=(30, 3)), np.ones(30)])
    targets = {
        "squared": rng.normal(size=(30, 2)),
        "logistic": rng.integers(0, 2, size=(30, 1)).astype(float),
        "multinomial": np.eye(3)[rng.integers(0, 3, size=30)],
        "poisson": rng.poisson(2.0, size=(30, 1)).astype(float),
    }[family]
    parts = (design, targets, rng.uniform(0.5, 2.0, size=30), np.array(penalties))
    theta = rng.normal(size=(targets.shape[1], 4)) / 2
    tensors = [torch.as_tensor(part) for part in parts]
    return GlmObjective(*parts, family, NUMPY, True), GlmObjective(*tensors, family, TORCH, True), theta


@pytest.mark.parametrize("family", FAMILIES)
def test_numpy_and_torch_give_the_same_numbers(family):
    arrays, tensors, theta = problem(family)
    point = torch.as_tensor(theta)
    assert arrays.value(theta) == pytest.approx(tensors.value(point), rel=1e-13)
    for name in ("residuals", "gradient", "hessian"):
        np.testing.assert_allclose(getattr(arrays, name)(theta), getattr(tensors, name)(point), rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(arrays.mixed_derivative(theta, -2), tensors.mixed_derivative(point, -2), atol=1e-13)
    best = minimise(arrays, 0 * theta)
    np.testing.assert_allclose(best, minimise(tensors, 0 * point), atol=1e-12)
    assert np.abs(arrays.gradient(best)).max() < 1e-11


@pytest.mark.parametrize("family", FAMILIES)
def test_derivatives_are_those_of_the_losses(family):
    _, objective, theta = problem(family)
    losses = {
        "squared": lambda p, t: (p - t).square().sum() / 2,
        "logistic": lambda p, t: torch.nn.functional.binary_cross_entropy_with_logits(p, t, reduction="sum"),
        "multinomial": lambda p, t: torch.nn.functional.cross_entropy(p, t, reduction="sum"),
        "poisson": lambda p, t: torch.nn.functional.poisson_nll_loss(p, t, reduction="sum"),
    }[family]

    def total(point, design):
        each = [losses(row @ point.T, target) for row, target in zip(design, objective.targets, strict=True)]
        return objective.weights @ torch.stack(each) + (objective.penalties * point.square()).sum() / 2

    def gradient(point, design):
        return torch.func.grad(total)(point, design)

    point = torch.as_tensor(theta)
    torch.testing.assert_close(objective.gradient(point), gradient(point, objective.design))
    hessian = torch.func.jacrev(gradient)(point, objective.design).reshape(theta.size, theta.size)
    torch.testing.assert_close(objective.hessian(point), hessian)
    by_record = torch.func.jacrev(gradient, argnums=1)(point, objective.design)[..., 5, :3].reshape(theta.size, 3)
    torch.testing.assert_close(objective.weights[5] * objective.mixed_derivative(point, 5), by_record)


def test_a_model_without_penalty_on_classes_has_a_centred_minimum():
    arrays, tensors, theta = problem("multinomial", penalties=(0.5, 0.5, 0.5, 0.0))
    best = minimise(arrays, 0 * theta)
    assert abs(best[:, 3].sum()) < 1e-12
    np.testing.assert_allclose(best, minimise(tensors, torch.as_tensor(0 * theta)), atol=1e-12)


@pytest.mark.parametrize(("arrays", "array"), [(NUMPY, np.asarray), (TORCH, torch.as_tensor)])
def test_separable_classes_without_penalty_are_refused(arrays, array):
    design, targets = np.array([[-1.0], [1.0]]), np.array([[0.0], [1.0]])
    objective = GlmObjective(*map(array, (design, targets, np.ones(2), np.zeros(1))), "logistic", arrays)
    with pytest.raises(InvalidInput, match="penalty"):
        minimise(objective, array(np.zeros((1, 1))))


def test_bounds_need_no_torch():
    code = "import sys; import reconrisk.bounds.glm.information; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.attacks.gauss_newton import curvature as gauss_newton_curvature
from reconrisk.attacks.gauss_newton.curvature import assemble_curvature
from reconrisk.attacks.gauss_newton.problem import Likelihood, Point
from reconrisk.core.observation import Observation
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows

LABELLED = HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS)


def network_point():
    rng = torch.Generator().manual_seed(0)
    model = rr.models.lenet((1, 10, 10), 10, activation=nn.Tanh, rng=rng)
    target = torch.rand(1, 1, 10, 10, generator=rng)
    release = rr.releases.GradientRelease(model, nn.functional.cross_entropy, target, torch.tensor([3]))
    observation = rr.observe(release, threat=LABELLED)
    return Point(Likelihood(observation, observation.labels), target.double())


def exact_matrix(point):
    columns = torch.stack([point.push(row.view_as(point.inputs)) for row in torch.eye(point.inputs.numel()).double()])
    return columns @ columns.T


def spread(point, solve):
    """Condition of the preconditioned matrix, which bounds the iterations of conjugate gradients."""
    size = point.inputs.numel()
    product = torch.stack([solve(row.view_as(point.inputs)).flatten() for row in exact_matrix(point)])
    values = torch.linalg.eigvals(product.view(size, size)).real
    return float(values.max() / values.min())


def test_the_matrix_is_that_of_the_jacobian_within_a_factor_of_nine():
    point = network_point()
    assert len(point.residual) > 8 * point.inputs.numel()  # so that rows are hashed
    curvature = assemble_curvature(point, rng=torch.Generator().manual_seed(0), in_time=lambda: True)
    # d rows of 4d random ones: condition ((1 + 1/2) / (1 - 1/2))^2 = 9 in the limit, a little more for d = 100
    assert spread(point, curvature.solver(0.0)) < 14
    assert spread(point, lambda vector: vector) > 50


def test_large_problems_agree_up_to_single_precision(monkeypatch):
    point = network_point()
    monkeypatch.setattr(gauss_newton_curvature, "_SMALL", 50)
    curvature = assemble_curvature(point, rng=torch.Generator().manual_seed(0), in_time=lambda: True)
    assert spread(point, curvature.solver(0.0)) < 60  # ((1 + .71) / (1 - .71))^2 = 34 in the limit


def test_solving_within_free_values_keeps_the_others():
    point = network_point()
    curvature = assemble_curvature(point, rng=torch.Generator().manual_seed(0), in_time=lambda: True)
    free = torch.rand(point.inputs.shape, generator=torch.Generator().manual_seed(1)) < 0.5
    vector = torch.ones_like(point.inputs) * free
    found = curvature.solver_within(free)(vector)
    assert not found[~free].any()
    every = torch.ones_like(free)
    whole = curvature.solver_within(every)(torch.ones_like(point.inputs))
    torch.testing.assert_close(whole, curvature.solver(0.0)(torch.ones_like(point.inputs)))


class Untraceable(torch.autograd.Function):
    """The cube, by a function that functorch cannot vectorise."""

    @staticmethod
    def forward(ctx, value):
        ctx.save_for_backward(value)
        return value**3

    @staticmethod
    def backward(ctx, gradient):
        return 3 * ctx.saved_tensors[0] ** 2 * gradient


@pytest.mark.parametrize("map_", [Untraceable.apply, lambda value: value.detach() * value**2])
def test_what_torch_cannot_vectorise_or_gets_wrong_is_multiplied_column_by_column(map_):
    matrix = torch.randn(7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    observation = Observation(
        {"y": torch.ones(7, dtype=torch.float64)},
        lambda inputs, labels: {"y": matrix.to(inputs.dtype) @ map_(inputs[0])},
        LABELLED,
        (5,),
        (0.0, 1.0),
        labels=torch.tensor([0]),
    )
    point = Point(Likelihood(observation, observation.labels), torch.full((1, 5), 0.7, dtype=torch.float64))
    curvature = assemble_curvature(point, rng=torch.Generator().manual_seed(0), in_time=lambda: True)
    assert spread(point, curvature.solver(0.0)) == pytest.approx(1, rel=1e-3)  # few rows are not hashed


def test_no_matrix_is_assembled_when_time_is_up():
    assert assemble_curvature(network_point(), rng=torch.Generator(), in_time=lambda: False) is None

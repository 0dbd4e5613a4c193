import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.attacks.gauss_newton.problem import Likelihood, Point, damped_step
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows


def point():
    rng = torch.Generator().manual_seed(0)
    model = rr.models.lenet((1, 8, 8), 4, activation=nn.Tanh, rng=rng)
    target = torch.rand(2, 1, 8, 8, generator=rng, dtype=torch.float64)
    release = rr.releases.GradientRelease(model, nn.functional.cross_entropy, target, torch.tensor([0, 2]))
    observation = rr.observe(release, threat=HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS))
    likelihood = Likelihood(observation, observation.labels)
    return Point(likelihood, torch.rand(2, 1, 8, 8, generator=rng, dtype=torch.float64))


def jacobian(place):
    found = torch.func.jacfwd(place.likelihood)(place.inputs)  # forward mode: independent of both products
    return found.reshape(len(place.residual), -1)


def test_products_are_those_with_the_jacobian():
    place = point()
    matrix = jacobian(place)
    tangent = torch.randn(place.inputs.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(place.push(tangent), matrix @ tangent.flatten())
    torch.testing.assert_close(place.pull(place.residual).flatten(), matrix.T @ place.residual)


@pytest.mark.parametrize("bound", [False, True])
def test_the_step_solves_the_damped_normal_equations_of_the_free_values(bound):
    place = point()
    matrix = jacobian(place)
    damping = 0.1 * float(matrix.square().sum() / matrix.shape[1])
    free = torch.rand(place.inputs.shape, generator=torch.Generator().manual_seed(2)) < 0.5 if bound else None
    step = damped_step(place, damping=damping, forcing=1e-8, iterations=500, in_time=lambda: True, free=free)
    chosen = matrix if free is None else matrix[:, free.flatten()]
    normal = chosen.T @ chosen + damping * torch.eye(chosen.shape[1], dtype=torch.float64)
    expected = torch.linalg.solve(normal, chosen.T @ place.residual)
    found = step.change.flatten() if free is None else step.change[free]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))
    torch.testing.assert_close(step.pushed, matrix @ step.change.flatten(), rtol=1e-6, atol=1e-6)
    assert step.finished
    assert free is None or not step.change[~free].any()


def test_a_solve_that_is_cut_off_says_so():
    place = point()
    assert not damped_step(place, damping=0.0, forcing=1e-8, iterations=3, in_time=lambda: True).finished
    assert not damped_step(place, damping=0.0, forcing=1e-8, iterations=3, in_time=lambda: False).change.any()

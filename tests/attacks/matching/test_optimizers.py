import itertools
import math

import pytest
import torch

from reconrisk.attacks.matching.optimizers import LBFGS, Adam, Point
from reconrisk.core.errors import InvalidInput

DIMENSION = 6


def evaluated(objective):
    """From the objective of flat variables (restarts, d) to a point with gradients."""

    def evaluate(variables):
        leaves = {name: value.detach().requires_grad_() for name, value in variables.items()}
        values = objective(torch.cat([leaf.flatten(1) for leaf in leaves.values()], 1))
        found = torch.autograd.grad(values.sum(), list(leaves.values()))
        return Point(dict(variables), values.detach(), dict(zip(leaves, found, strict=True)), values.detach())

    return evaluate


def quadratic(seed, restarts, condition=20.0):
    """A convex quadratic for each restart, with its minimum and curvature."""
    rng = torch.Generator().manual_seed(seed)
    basis, _ = torch.linalg.qr(torch.randn(restarts, DIMENSION, DIMENSION, generator=rng, dtype=torch.float64))
    curvature = torch.logspace(0, math.log10(condition), DIMENSION, dtype=torch.float64)
    sizes = 10 ** torch.linspace(-2, 2, restarts, dtype=torch.float64)  # restarts differ in scale
    matrix = sizes[:, None, None] * basis @ torch.diag(curvature) @ basis.mT
    centre = torch.randn(restarts, DIMENSION, generator=rng, dtype=torch.float64)
    start = torch.randn(restarts, DIMENSION, generator=rng, dtype=torch.float64)

    def objective(flat, rows=slice(None)):
        away = flat - centre[rows]
        return 0.5 * torch.einsum("ri,rij,rj->r", away, matrix[rows], away)

    return objective, start, centre


def rosenbrock(flat):
    return (100 * (flat[:, 1:] - flat[:, :-1] ** 2) ** 2 + (1 - flat[:, :-1]) ** 2).sum(1)


def moved(rule, evaluate, variables, steps):
    """All points from the start on."""
    points = [evaluate(variables)]
    memory = rule.begin(points[0])
    for step in range(steps):
        point, memory = rule.step(evaluate, points[-1], memory, step / steps)
        points.append(point)
    return points


@pytest.mark.parametrize("signed", [False, True])
def test_adam_with_a_constant_rate_moves_as_that_of_torch(signed):
    objective, start, _ = quadratic(0, restarts=3)
    variables = {"inputs": start[:, :4].reshape(3, 2, 2).clone(), "labels": start[:, 4:].clone()}
    points = moved(Adam(0.05, signed=signed, schedule="constant"), evaluated(objective), variables, steps=30)
    leaves = [value.clone().requires_grad_() for value in variables.values()]
    reference = torch.optim.Adam(leaves, lr=0.05)
    for point in points[1:]:
        reference.zero_grad()
        objective(torch.cat([leaf.flatten(1) for leaf in leaves], 1)).sum().backward()
        for leaf in leaves if signed else ():
            leaf.grad.sign_()
        reference.step()
        for found, leaf in zip(point.variables.values(), leaves, strict=True):
            torch.testing.assert_close(found, leaf.detach(), rtol=1e-10, atol=1e-12)


def test_adam_leaves_a_coordinate_whose_gradient_is_not_a_number():
    def objective(flat):
        return flat[:, 1:].square().sum(1) + flat[:, 0].sqrt()  # NaN slope below zero

    start = torch.tensor([[-1.0, 1.0, 1.0]])
    points = moved(Adam(0.1, schedule="constant"), evaluated(objective), {"inputs": start}, steps=5)
    assert float(points[-1].variables["inputs"][0, 0]) == -1.0
    assert float(points[-1].variables["inputs"][0, 1]) < 0.6


@pytest.mark.parametrize("schedule", ["steps", "cosine", "constant"])
def test_the_rate_starts_whole_and_never_rises(schedule):
    factors = [Adam(schedule=schedule).factor(step / 100) for step in range(101)]
    assert factors[0] == pytest.approx(1.0, abs=2e-3)
    assert all(later <= earlier for earlier, later in itertools.pairwise(factors))
    assert factors[-1] == (1.0 if schedule == "constant" else pytest.approx(1e-3, rel=1e-6))
    assert Adam(schedule="cosine").factor(0.5) == pytest.approx(0.5, abs=2e-3)
    assert Adam(schedule="cosine").factor(1.5) == pytest.approx(1e-3)


@pytest.mark.parametrize("condition", [1.0, 20.0])
def test_lbfgs_minimises_quadratics_superlinearly_in_twice_as_many_steps_as_dimensions(condition):
    objective, start, centre = quadratic(0, restarts=60, condition=condition)
    points = moved(LBFGS(), evaluated(objective), {"inputs": start}, steps=2 * DIMENSION + 2)
    gain = points[-1].values / points[0].values
    assert float(gain.max()) < 1e-9, gain
    torch.testing.assert_close(points[-1].variables["inputs"], centre, rtol=0, atol=1e-4)


def test_no_objective_rises_under_lbfgs_on_a_curved_valley():
    start = torch.tensor([[-1.2, 1.0], [2.0, -1.0], [0.0, 0.0]], dtype=torch.float64)
    points = moved(LBFGS(), evaluated(rosenbrock), {"inputs": start}, steps=80)
    values = torch.stack([point.values for point in points])
    assert bool((values.diff(dim=0) <= 0).all())
    assert bool((values[-1] < 1e-10).all()), values[-1]


def test_restarts_of_different_scale_move_under_lbfgs_as_each_does_alone():
    objective, start, _ = quadratic(3, restarts=4)
    together = moved(LBFGS(memory=3), evaluated(objective), {"inputs": start}, steps=12)
    for row in range(4):
        rows = slice(row, row + 1)
        alone = moved(LBFGS(memory=3), evaluated(lambda x: objective(x, rows)), {"inputs": start[rows]}, 12)  # noqa: B023  # used at once
        for one, other in zip(alone, together, strict=True):
            torch.testing.assert_close(one.variables["inputs"], other.variables["inputs"][rows], rtol=1e-6, atol=1e-9)


def walled(flat, rows=slice(None)):
    """Two valleys: the second restart meets a wall of NaN at the first tries and must go on from less curvature."""
    values = rosenbrock(flat)
    wall = torch.tensor([math.inf, -0.5], dtype=flat.dtype)[rows]
    return torch.where(flat[:, 0] > wall, torch.nan, values)


def test_a_restart_that_is_stuck_forgets_its_curvature_and_does_not_disturb_the_others():
    start = torch.tensor([[-1.2, 1.0], [-1.2, 1.0]], dtype=torch.float64)
    together = moved(LBFGS(trials=3), evaluated(walled), {"inputs": start}, steps=40)
    for row in range(2):
        rows = slice(row, row + 1)
        alone = moved(LBFGS(trials=3), evaluated(lambda x: walled(x, rows)), {"inputs": start[rows]}, 40)  # noqa: B023  # used at once
        for one, other in zip(alone, together, strict=True):
            torch.testing.assert_close(one.values, other.values[rows], rtol=1e-6, atol=1e-12)
    stuck = torch.stack([point.values[1] for point in together]).diff() == 0
    assert bool(stuck.any())  # else the wall was never met


def test_a_stuck_restart_goes_on_from_the_slope_alone_while_others_move():
    """Almost no curvature promises a step of a million, which three halvings do not bring back before the wall."""

    def objective(flat):
        long_way = torch.where(flat[:, 0] < 0, torch.nan, flat[:, 0] + 5e-7 * flat[:, 0] ** 2)
        bowl = flat[:, 0] ** 4
        return torch.where(torch.tensor([True, False]), long_way, bowl)

    points = moved(LBFGS(trials=3), evaluated(objective), {"inputs": torch.full((2, 1), 5.0)}, steps=20)
    values = torch.stack([point.values[0] for point in points])
    assert bool((values.diff() == 0).any())
    assert float(values[-1]) < float(values[10]) < float(values[0])


def test_lbfgs_never_moves_to_what_is_not_a_number():
    start = torch.tensor([[-0.6, 0.3]], dtype=torch.float64)
    points = moved(LBFGS(), evaluated(lambda x: walled(x, slice(1, 2))), {"inputs": start}, steps=20)
    assert all(bool(point.values.isfinite().all()) for point in points)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Adam(0.0), "learning_rate"),
        (lambda: Adam(schedule="linear"), "schedule"),
        (lambda: LBFGS(memory=0), "memory"),
        (lambda: LBFGS(trials=0), "trials"),
        (lambda: LBFGS(decrease=-1.0), "decrease"),
    ],
)
def test_settings_outside_their_domain_are_refused_by_name(make, name):
    with pytest.raises(InvalidInput, match=f"Expected {name}="):
        make()

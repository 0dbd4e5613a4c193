import pytest
import torch

from reconrisk.attacks.gauss_newton.curvature import assemble_curvature
from reconrisk.attacks.gauss_newton.descent import BoundedDescent, Outcome
from reconrisk.attacks.gauss_newton.problem import Likelihood, Point
from reconrisk.core.observation import Observation
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows


def curved_point(seed):
    """A curved release whose best fit has values at both ends of the range, at a start inside."""
    rng = torch.Generator().manual_seed(seed)
    matrix = torch.randn(30, 8, generator=rng, dtype=torch.float64)
    values = 2 * torch.randn(30, generator=rng, dtype=torch.float64)
    observation = Observation(
        {"y": values},
        lambda inputs, labels: {"y": torch.tanh(matrix.to(inputs.dtype) @ inputs[0])},
        HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS, Knows.DEFENSE),
        (8,),
        (0.0, 1.0),
        labels=torch.tensor([0]),
        noise_std={"y": torch.ones(30, dtype=torch.float64)},
    )
    likelihood = Likelihood(observation, observation.labels)
    return Point(likelihood, torch.full((1, 8), 0.5, dtype=torch.float64)), matrix, values


@pytest.mark.parametrize("preconditioned", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_end_satisfies_the_conditions_of_a_minimum_within_the_range(seed, preconditioned):
    point, _, _ = curved_point(seed)
    rng = torch.Generator().manual_seed(0)
    curvature = assemble_curvature(point, rng=rng, in_time=lambda: True) if preconditioned else None
    descent = BoundedDescent(point, 60, 50, (0.0, 1.0), rng, lambda: True, curvature)
    assert descent.run("") is Outcome.STATIONARY
    end = descent.point
    slope = end.pull(end.residual)  # downhill
    inside = (end.inputs > 0) & (end.inputs < 1)
    assert bool(((end.inputs >= 0) & (end.inputs <= 1)).all())
    # what is left to gain inside is below a hundredth of a standard error, 1e-4 in chi-square per coordinate
    columns = torch.func.jacfwd(end.likelihood)(end.inputs).view(30, 8)[:, inside[0]]
    gain = slope[inside] @ torch.linalg.solve(columns.T @ columns, slope[inside])
    assert float(gain) < 1e-3 * end.loss
    assert bool((slope[end.inputs == 0] <= 1e-6).all())
    assert bool((slope[end.inputs == 1] >= -1e-6).all())


def test_the_end_is_no_worse_than_that_of_an_independent_solver():
    from scipy.optimize import least_squares

    for seed in range(4):
        point, matrix, values = curved_point(seed)
        descent = BoundedDescent(point, 60, 50, (0.0, 1.0), torch.Generator(), lambda: True)
        descent.run("")

        def residual(record, matrix=matrix, values=values):
            return (torch.tanh(matrix @ torch.from_numpy(record)) - values).numpy()

        oracle = least_squares(residual, [0.5] * 8, bounds=(0, 1), xtol=1e-12, ftol=1e-12)
        assert descent.point.loss <= 2 * oracle.cost * (1 + 1e-4)


def test_time_and_infinite_starts_end_it():
    point, _, _ = curved_point(0)
    assert BoundedDescent(point, 5, 5, (0.0, 1.0), torch.Generator(), lambda: False).run("") is Outcome.SECONDS
    point.loss = float("nan")
    assert BoundedDescent(point, 5, 5, (0.0, 1.0), torch.Generator(), lambda: True).run("") is Outcome.NOT_FINITE

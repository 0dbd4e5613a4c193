"""Maximum likelihood by damped Gauss-Newton: the records whose release fits the observed one best."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from reconrisk.attacks.labels import labels_for
from reconrisk.core.observation import Observation
from reconrisk.core.progress import track
from reconrisk.core.reconstruction import Account, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import HONEST_BUT_CURIOUS, ThreatModel
from reconrisk.core.validation import check_positive, check_whole

LinearMap = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class GaussNewton:
    """The configured attack that :func:`gauss_newton` returns."""

    iterations: int = 40
    inner_iterations: int = 100
    tolerance: float = 1e-10
    needs: ThreatModel = HONEST_BUT_CURIOUS

    def __post_init__(self) -> None:
        check_whole("iterations", self.iterations)
        check_whole("inner_iterations", self.inner_iterations)
        check_positive("tolerance", self.tolerance)

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Estimate the records behind ``observation``, starting from noise around the middle of the data range."""
        begun = time.monotonic()
        observation.check_covers(self.needs)
        labels = labels_for(observation)
        problem = _Problem.of(observation, labels)
        state = _Point.at(problem, _start(observation, rng))
        state, status = self._descend(problem, state)
        low, high = observation.data_range
        objective = float(state.loss)
        account = Account(
            attack=(
                f"gauss_newton(iterations={self.iterations}, inner_iterations={self.inner_iterations}, "
                f"tolerance={self.tolerance:g})"
            ),
            status=status,
            objective=(objective,) * observation.batch_size,
            cost=Cost(time.monotonic() - begun, problem.evaluations),
            labels=tuple(int(label) for label in labels),
        )
        return Reconstruction(state.inputs.clamp(low, high).to(torch.get_default_dtype()), account)

    def _descend(self, problem: _Problem, state: _Point) -> tuple[_Point, Status]:
        damping = 1e-2
        if not problem.observed.any():
            return state, Status(Ending.NOT_APPLICABLE, "the release is zero", "Observe another update")
        if not state.loss.isfinite():
            return state, Status(Ending.DIVERGED, "the release of the start is not finite", "Check the forward map")
        try:
            for _ in track(range(self.iterations), "Gauss-Newton"):
                step, predicted = _damped_step(state, damping, self.inner_iterations)
                proposal = _Point.at(problem, state.inputs + step)
                gain = float((state.loss - proposal.loss) / predicted)
                if gain > 0:  # NaN is no gain, so the best point so far stays
                    state = proposal
                damping = _adapted(damping, gain)
                if state.loss < self.tolerance:
                    return state, Status(Ending.CONVERGED, f"relative residual {float(state.loss):.1e}")
        except KeyboardInterrupt:
            return state, Status(Ending.INTERRUPTED, "stopped by the user", "Run again for the full strength")
        cause = f"relative residual {float(state.loss):.1e} after {self.iterations} iterations"
        return state, Status(Ending.BUDGET_SPENT, cause, "Raise iterations or inner_iterations")


def gauss_newton(*, iterations: int = 40, inner_iterations: int = 100, tolerance: float = 1e-10) -> GaussNewton:
    r"""Rebuild records from any smooth release by Levenberg-Marquardt steps with conjugate gradients.

    .. math:: \hat x = \arg\min_x \|y - f(x)\|^2 / \|y\|^2

    Assumes: a forward map that is differentiable twice in the records; exact observation or equal noise on all values.
    Guarantee: the objective never rises from one iteration to the next.
    Edge cases: interrupted, it returns the best records so far; estimates are clipped to the data range.
    Reference: Chapter 10.3, Nocedal and Wright (2006), Numerical Optimization.

    >>> from reconrisk.core.threat import Knows
    >>> forward = lambda inputs, labels: {"y": inputs[0].exp()}
    >>> threat = HONEST_BUT_CURIOUS.knowing(Knows.LABELS)
    >>> released = {"y": torch.tensor([0.25, 0.5]).exp()}
    >>> observation = Observation(released, forward, threat, (2,), (0.0, 1.0), labels=torch.tensor([0]))
    >>> gauss_newton()(observation, rng=torch.Generator().manual_seed(0)).estimates.round(decimals=3)
    tensor([[0.2500, 0.5000]])
    """
    return GaussNewton(iterations, inner_iterations, tolerance)


@dataclass
class _Problem:
    """Residual of candidate records against the observation, both divided by the norm of the observation."""

    forward: Callable[[Tensor], Tensor]
    observed: Tensor
    evaluations: int = 0

    @classmethod
    def of(cls, observation: Observation, labels: Tensor) -> _Problem:
        names = list(observation.released)
        observed = _flat(observation.released, names).double()
        scale = observed.norm().clamp_min(torch.finfo(observed.dtype).tiny)
        return cls(lambda inputs: _flat(observation.forward(inputs, labels), names) / scale, observed / scale)


@dataclass(frozen=True, eq=False)
class _Point:
    """Records with their residual and the products of its Jacobian with vectors from either side."""

    inputs: Tensor
    residual: Tensor
    loss: Tensor
    forward_product: LinearMap
    backward_product: LinearMap

    @classmethod
    def at(cls, problem: _Problem, inputs: Tensor) -> _Point:
        leaf = inputs.detach().requires_grad_()
        values = problem.forward(leaf)
        problem.evaluations += 1
        probe = torch.zeros_like(values, requires_grad=True)
        (pulled,) = torch.autograd.grad(values, leaf, probe, create_graph=True)

        def forward_product(tangent: Tensor) -> Tensor:
            # J v as the derivative of J^T u in u: reuses the graph, which a forward-mode product would rebuild.
            return torch.autograd.grad(pulled, probe, tangent, retain_graph=True)[0]

        def backward_product(cotangent: Tensor) -> Tensor:
            return torch.autograd.grad(values, leaf, cotangent, retain_graph=True)[0]

        residual = problem.observed - values.detach()
        return cls(leaf.detach(), residual, residual @ residual, forward_product, backward_product)


def _start(observation: Observation, rng: torch.Generator) -> Tensor:
    low, high = observation.data_range
    shape = (observation.batch_size, *observation.input_shape)
    noise = torch.randn(shape, generator=rng, dtype=torch.float64)
    return (low + high) / 2 + 0.1 * (high - low) * noise


def _damped_step(point: _Point, damping: float, inner_iterations: int) -> tuple[Tensor, Tensor]:
    """Conjugate gradients on (J^T J + damping) step = J^T residual, and the decrease the linear model predicts."""
    step = torch.zeros_like(point.inputs)
    remainder = point.backward_product(point.residual)
    direction, norm = remainder, remainder.square().sum()
    enough = 1e-6 * norm
    for _ in range(inner_iterations):
        product = point.backward_product(point.forward_product(direction)) + damping * direction
        length = norm / (direction * product).sum()
        step, remainder = step + length * direction, remainder - length * product
        new_norm = remainder.square().sum()
        if new_norm <= enough:
            break
        direction, norm = remainder + new_norm / norm * direction, new_norm
    modelled = point.residual - point.forward_product(step)
    return step, point.loss - modelled @ modelled


def _adapted(damping: float, gain: float) -> float:
    """Trust the linear model more where its prediction came true."""
    if gain > 0.75:
        return max(damping / 5, 1e-14)
    return damping if gain > 0.25 else damping * (2 if gain > 0 else 5)


def _flat(tensors: Mapping[str, Tensor], names: list[str]) -> Tensor:
    return torch.cat([tensors[name].flatten() for name in names])

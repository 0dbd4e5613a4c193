"""The least-squares problem of Gauss-Newton: released values in units of their noise, and linear solves at a point.

:class:`Likelihood` defines the fit and judges it. :class:`Point` has the records, their residual and solves with the
Jacobian that use products only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from reconrisk.core.observation import Observation

_SMALLEST_SHARE = 1e-6  # of the release: a tensor smaller than that weighs as if it were so large


@dataclass(frozen=True, eq=False)
class GaussianPrior:
    """What the adversary believes of each coordinate before seeing the release: independent, normal."""

    mean: Tensor
    std: Tensor


@dataclass(eq=False)
class Likelihood:
    r"""Candidate records to their release in units of the noise, so that the fit is plain least squares.

    .. math:: \chi^2(x) = (y - f(x))^T \Sigma^{-1} (y - f(x)) + (x - m)^T S^{-1} (x - m)

    Known noise and unsent values enter as they are. Where no noise is known, what remains is rounding: its standard
    deviation is taken as the precision times the geometric mean of the tensor's size and the whole release's, between
    equal errors everywhere and errors relative to each tensor. After ``weigh_equally`` it is the same everywhere.
    """

    observation: Observation
    labels: Tensor
    prior: GaussianPrior | None = None
    dtype: torch.dtype = torch.float64
    evaluations: int = 0
    observed: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.weigh(equally=False)

    def weigh(self, *, equally: bool) -> None:
        """Choose what the error is taken to be where no noise is known."""
        self.rounding_only = not equally and not self.knows_noise
        self._weights = _weights(self.observation, equally)
        self.observed = self._joined(self.observation.released, None)

    @property
    def knows_noise(self) -> bool:
        """Whether the fit is in units of a known noise."""
        return self.observation.noise_std is not None

    @property
    def rows(self) -> int:
        """How many equations there are: values that were sent and are not drowned in infinite noise, and the prior."""
        rows = sum(int(weight.count_nonzero()) for weight in self._weights.values())
        return rows if self.prior is None else rows + self.prior.mean.numel()

    def __call__(self, inputs: Tensor) -> Tensor:
        """The values that ``observed`` is compared with, differentiable in ``inputs``."""
        self.evaluations += 1
        return self._joined(self.observation.forward(inputs, self.labels), inputs)

    def chi_square(self, inputs: Tensor) -> float:
        """The squared residual in units of the noise."""
        with torch.no_grad():
            return float((self(inputs) - self.observed).square().sum())

    def relative_residual(self, inputs: Tensor) -> float:
        """The squared residual of the values that were sent relative to these, without weights and prior."""
        self.evaluations += 1
        with torch.no_grad():
            caused = self.observation.forward(inputs, self.labels)
        pairs = [(value.double(), caused[name].double()) for name, value in self.observation.released.items()]
        if self.observation.kept is not None:
            pairs = [(a * kept, b * kept) for (a, b), kept in zip(pairs, self.observation.kept.values(), strict=True)]
        squares = sum(float((one - other).square().sum()) for one, other in pairs)
        return squares / sum(float(one.square().sum()) for one, _ in pairs)

    def _joined(self, released: Mapping[str, Tensor], inputs: Tensor | None) -> Tensor:
        dtype = self.dtype if inputs is None else inputs.dtype
        parts = [(released[name].to(dtype) * weight.to(dtype)).flatten() for name, weight in self._weights.items()]
        if self.prior is not None:
            records = self.prior.mean if inputs is None else inputs
            parts.append((records / self.prior.std).to(dtype).flatten())
        return torch.cat(parts)


def working_precision(observation: Observation, labels: Tensor, inputs: Tensor) -> torch.dtype:
    """Double where the forward map takes it, else that of what was released."""
    released = next(iter(observation.released.values()))
    try:
        with torch.no_grad():
            observation.forward(inputs.double(), labels)
    except RuntimeError:  # parameters of another precision than the records
        return released.dtype
    return torch.float64


def _weights(observation: Observation, equal: bool) -> dict[str, Tensor]:
    """One over the standard deviation of each value; 0 for those that say nothing."""
    released = {name: tensor.double() for name, tensor in observation.released.items()}
    kept = observation.kept or {name: torch.ones_like(value, dtype=torch.bool) for name, value in released.items()}
    whole = _root_mean_square(torch.cat([value[kept[name]] for name, value in released.items()]))
    # the relative precision of what was released, but not beyond what the solver itself rounds
    kinds = [tensor.dtype for tensor in observation.released.values() if tensor.is_floating_point()]
    precision = max([torch.finfo(kind).eps for kind in kinds] + [1e-10])
    weights = {}
    for name, value in released.items():
        size = max(_root_mean_square(value[kept[name]]), _SMALLEST_SHARE * whole)
        error = precision * (whole if equal else math.sqrt(size * whole))
        known = observation.noise_std
        std = torch.full_like(value, error) if known is None else known[name].double().clamp_min(precision * size)
        weights[name] = kept[name] / std
    return weights


def _root_mean_square(values: Tensor) -> float:
    return float(values.square().mean().sqrt()) if values.numel() else 0.0


Product = Callable[[Tensor], Tensor]


@dataclass(eq=False)
class Point:
    """Records with their residual and the products of its Jacobian with vectors from either side."""

    likelihood: Likelihood
    inputs: Tensor
    residual: Tensor = field(init=False)
    loss: float = field(init=False)

    def __post_init__(self) -> None:
        self._leaf = self.inputs.detach().clone().requires_grad_()
        with torch.enable_grad():
            self._values = self.likelihood(self._leaf)
        self.residual = self.likelihood.observed - self._values.detach()
        self.loss = float(self.residual @ self.residual)
        self._transposed: tuple[Tensor, Tensor] | None = None

    def pull(self, cotangent: Tensor) -> Tensor:
        """Transposed Jacobian times a vector."""
        self.likelihood.evaluations += 1
        if not self._values.requires_grad:
            return torch.zeros_like(self.inputs)
        return torch.autograd.grad(
            self._values, self._leaf, cotangent, retain_graph=True, materialize_grads=True, allow_unused=True
        )[0]

    def push(self, tangent: Tensor) -> Tensor:
        """Jacobian times a vector, as the derivative of J^T u in u: it reuses the graph instead of tracing forward."""
        self.likelihood.evaluations += 1
        if not self._values.requires_grad:
            return torch.zeros_like(self.residual)
        if self._transposed is None:
            probe = torch.zeros_like(self._values, requires_grad=True)
            (pulled,) = torch.autograd.grad(
                self._values, self._leaf, probe, create_graph=True, materialize_grads=True, allow_unused=True
            )
            self._transposed = probe, pulled
        probe, pulled = self._transposed
        if not pulled.requires_grad:
            return torch.zeros_like(probe)
        return torch.autograd.grad(pulled, probe, tangent, retain_graph=True, materialize_grads=True)[0].detach()


@dataclass(frozen=True, eq=False)
class Step:
    """A change of the records, what it does to the residual by the linear model, and whether the solve was finished."""

    change: Tensor
    pushed: Tensor
    finished: bool


def damped_step(
    point: Point,
    *,
    damping: float,
    forcing: float,
    iterations: int,
    in_time: Callable[[], bool],
    precondition: Product | None = None,
    free: Tensor | None = None,
) -> Step:
    """Conjugate gradients on (J^T J + damping) change = J^T residual, until the remainder is ``forcing`` of its start.

    Where ``free`` is false the records stay; ``precondition`` must keep them too.
    """

    def held(vector: Tensor) -> Tensor:
        return vector if free is None else vector * free

    solve = held if precondition is None else precondition
    change, pushed = torch.zeros_like(point.inputs), torch.zeros_like(point.residual)
    remainder = held(point.pull(point.residual))
    direction = solve(remainder)
    norm = float((remainder * direction).sum())
    enough = forcing**2 * norm
    for _ in range(iterations):
        if not norm > 0 or not in_time():
            return Step(change, pushed, norm == 0)
        image = point.push(direction)
        length = norm / float(image @ image + damping * direction.square().sum())
        change, pushed = change + length * direction, pushed + length * image
        remainder = remainder - length * (held(point.pull(image)) + damping * direction)
        conditioned = solve(remainder)
        previous, norm = norm, float((remainder * conditioned).sum())
        if norm <= enough:
            return Step(change, pushed, True)
        direction = conditioned + norm / previous * direction
    return Step(change, pushed, False)

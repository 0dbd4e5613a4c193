"""Least-squares problem of Gauss-Newton: released values in units of their noise, and linear solves at a point.

:class:`Likelihood` defines and evaluates the fit. :class:`Point` holds records, their residual, and matrix-free
products with the Jacobian.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from reconrisk.core.observation import Observation

_SMALLEST_SHARE = 1e-6  # share of the release; a smaller tensor weighs as if it were that large


@dataclass(frozen=True, eq=False)
class GaussianPrior:
    """Independent normal prior on each coordinate.

    Attributes:
        mean: Mean of each coordinate.
        std: Standard deviation of each coordinate.
    """

    mean: Tensor
    std: Tensor


@dataclass(eq=False)
class Likelihood:
    r"""Map from candidate records to their release in units of the noise, so that the fit is plain least squares.

    .. math:: \chi^2(x) = (y - f(x))^T \Sigma^{-1} (y - f(x)) + (x - m)^T S^{-1} (x - m)

    Here y is the observed release, f(x) the release of the records x, :math:`\Sigma` the variance of the noise, and m
    and S are mean and variance of the prior.

    Known noise and unsent values enter as they are. Without known noise the error is rounding. Its standard deviation
    is the relative rounding error times the geometric mean of the norm of the tensor and the norm of the whole release,
    a compromise between equal errors everywhere and errors relative to each tensor. After ``weigh(equally=True)`` it is
    the same everywhere.

    Attributes:
        observation: The observation to fit.
        labels: Labels of the records.
        prior: Prior on the coordinates, or None.
        dtype: Floating point type of the computation.
        evaluations: Number of evaluated releases and products with their derivative.
        observed: Observed values in units of the noise, followed by the prior mean.
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
        """Choose the error model for unknown noise: equal everywhere, or relative to each tensor."""
        self.rounding_only = not equally and not self.knows_noise
        self._weights = _weights(self.observation, equally)
        self.observed = self._join_values(self.observation.released, None)

    @property
    def knows_noise(self) -> bool:
        """Return True if the fit is in units of a known noise."""
        return self.observation.noise_std is not None

    @property
    def rows(self) -> int:
        """Number of equations: sent values of finite noise, plus the coordinates of the prior."""
        rows = sum(int(weight.count_nonzero()) for weight in self._weights.values())
        return rows if self.prior is None else rows + self.prior.mean.numel()

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the values to compare with ``observed``, differentiable in ``inputs``."""
        self.evaluations += 1
        return self._join_values(self.observation.forward(inputs, self.labels), inputs)

    def chi_square(self, inputs: Tensor) -> float:
        """Return the squared residual in units of the noise."""
        with torch.no_grad():
            return float((self(inputs) - self.observed).square().sum())

    def relative_residual(self, inputs: Tensor) -> float:
        """Return the squared residual of the sent values relative to them, without weights and prior."""
        self.evaluations += 1
        with torch.no_grad():
            caused = self.observation.forward(inputs, self.labels)
        pairs = [(value.double(), caused[name].double()) for name, value in self.observation.released.items()]
        if self.observation.kept is not None:
            pairs = [(a * kept, b * kept) for (a, b), kept in zip(pairs, self.observation.kept.values(), strict=True)]
        squares = sum(float((one - other).square().sum()) for one, other in pairs)
        return squares / sum(float(one.square().sum()) for one, _ in pairs)

    def _join_values(self, released: Mapping[str, Tensor], inputs: Tensor | None) -> Tensor:
        """Return weighted released values, and prior coordinates, as one vector."""
        dtype = self.dtype if inputs is None else inputs.dtype
        parts = [(released[name].to(dtype) * weight.to(dtype)).flatten() for name, weight in self._weights.items()]
        if self.prior is not None:
            records = self.prior.mean if inputs is None else inputs
            parts.append((records / self.prior.std).to(dtype).flatten())
        return torch.cat(parts)


def working_precision(observation: Observation, labels: Tensor, inputs: Tensor) -> torch.dtype:
    """Return double precision if the forward map accepts it, else the precision of the release.

    Args:
        observation: The observation with the forward map.
        labels: Labels of the records.
        inputs: Records to try.

    Returns:
        The precision to solve in.
    """
    released = next(iter(observation.released.values()))
    try:
        with torch.no_grad():
            observation.forward(inputs.double(), labels)
    except RuntimeError:  # parameters and records have different precisions
        return released.dtype
    return torch.float64


def _weights(observation: Observation, equal: bool) -> dict[str, Tensor]:
    """Return one over the standard deviation of each value; 0 for values without information."""
    released = {name: tensor.double() for name, tensor in observation.released.items()}
    kept = observation.kept or {name: torch.ones_like(value, dtype=torch.bool) for name, value in released.items()}
    whole = _root_mean_square(torch.cat([value[kept[name]] for name, value in released.items()]))
    # Relative precision of the release, but at least the rounding of the solver itself.
    kinds = [tensor.dtype for tensor in observation.released.values() if tensor.is_floating_point()]
    precision = max([torch.finfo(kind).eps for kind in kinds] + [1e-10])
    weights = {}
    for name, value in released.items():
        size = max(_root_mean_square(value[kept[name]]), _SMALLEST_SHARE * whole)
        # Geometric mean of the sizes of tensor and release; see Likelihood.
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
    """Records with their residual and matrix-free products with its Jacobian.

    Attributes:
        likelihood: The least-squares problem.
        inputs: The records.
        residual: Observed minus predicted values, in units of the noise.
        loss: Squared norm of the residual.
    """

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
        """Return the transposed Jacobian times a vector."""
        self.likelihood.evaluations += 1
        if not self._values.requires_grad:
            return torch.zeros_like(self.inputs)
        return torch.autograd.grad(
            self._values, self._leaf, cotangent, retain_graph=True, materialize_grads=True, allow_unused=True
        )[0]

    def push(self, tangent: Tensor) -> Tensor:
        """Return the Jacobian times a vector, as the derivative of J^T u in u: the graph is reused."""
        self.likelihood.evaluations += 1
        if not self._values.requires_grad:
            return torch.zeros_like(self.residual)
        if self._transposed is None:
            # J v = d(u^T J v)/du: differentiate the pullback in its cotangent (double backward).
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
    """A Gauss-Newton step.

    Attributes:
        change: Change of the records.
        pushed: Predicted change of the released values, by the linear model.
        finished: True if conjugate gradients converged.
    """

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
    """Solve (J^T J + damping I) change = J^T residual by conjugate gradients; J is the Jacobian of the release.

    Args:
        point: The current point.
        damping: Levenberg-Marquardt damping.
        forcing: Residual of these linear equations, relative to their right side, at which conjugate gradients stop.
        iterations: Largest number of conjugate gradient steps.
        in_time: Returns False once the time is up.
        precondition: Multiplication with an approximate inverse of the matrix; the result must be zero at coordinates
            that are not free.
        free: Mask of coordinates that may change; None frees all.

    Returns:
        The step.
    """

    def restrict(vector: Tensor) -> Tensor:
        return vector if free is None else vector * free

    solve = restrict if precondition is None else precondition
    change, pushed = torch.zeros_like(point.inputs), torch.zeros_like(point.residual)
    remainder = restrict(point.pull(point.residual))
    direction = solve(remainder)
    norm = float((remainder * direction).sum())
    # Norms are in the metric of the preconditioner.
    enough = forcing**2 * norm
    for _ in range(iterations):
        if not norm > 0 or not in_time():
            return Step(change, pushed, norm == 0)
        image = point.push(direction)
        length = norm / float(image @ image + damping * direction.square().sum())
        change, pushed = change + length * direction, pushed + length * image
        remainder = remainder - length * (restrict(point.pull(image)) + damping * direction)
        conditioned = solve(remainder)
        previous, norm = norm, float((remainder * conditioned).sum())
        if norm <= enough:
            return Step(change, pushed, True)
        direction = conditioned + norm / previous * direction
    return Step(change, pushed, False)

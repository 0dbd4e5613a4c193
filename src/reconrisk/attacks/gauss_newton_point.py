"""A place of the records, the residual there, and linear solves with its Jacobian by products alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from reconrisk.attacks.gauss_newton_likelihood import Likelihood

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

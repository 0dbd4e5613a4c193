"""Damped Gauss-Newton steps by conjugate gradients, from one start until the fit no longer improves.

:class:`BoundedDescent` does the same within the data range: values at an end of the range stay there while the gradient
pushes them outward.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from reconrisk.attacks.gauss_newton.curvature import LARGEST, Curvature, assemble_curvature
from reconrisk.attacks.gauss_newton.problem import Point, Product, damped_step
from reconrisk.core.progress import ProgressBar

_FIRST_STEP = 0.3  # share of the data range (root mean square) that the first damping allows, roughly
_LOOSEST, _TIGHTEST = 0.1, 1e-4  # limits of the relative residual at which conjugate gradients stop
_WORTH = 2.0  # factor by which going on must cost more than assembling the matrix, before it is assembled
_PATIENCE = 8  # iterations without a gain of one percent
_ENOUGH = 1.0  # root mean square residual in units of rounding below which nothing can improve

STATIONARY = 1e-4
"""Possible decrease relative to that from noise; the remaining distance is a hundredth of the standard error."""

ROUNDING = 8.0
"""Root mean square residual, in units of rounding, up to which two releases count as equal."""


class Outcome(Enum):
    """Reasons for the end of a descent."""

    FITTED = "the estimate reproduces the observed release up to rounding"
    STATIONARY = "no step improves the fit"
    STALLED = "the fit improves no further"
    ITERATIONS = "iterations"
    SECONDS = "seconds"
    NOT_FINITE = "the release of the start is not finite"


def _iterate_until_done(iterate: Callable[[], Outcome | None], iterations: int, label: str) -> Outcome:
    """Iterate until there is an outcome, with a progress bar."""
    bar = ProgressBar(label, total=iterations)
    try:
        for _ in range(iterations):
            outcome = iterate()
            if outcome is not None:
                return outcome
            bar.advance()
    finally:
        bar.close()
    return Outcome.ITERATIONS


@dataclass(eq=False)
class Descent:
    """Descent from one start; ``point`` is always the best so far.

    The damping follows Nielsen's rule. The relative accuracy to which conjugate gradients solve for a step follows the
    rule of Eisenstat and Walker. Where conjugate gradients converge so slowly that assembling the normal matrix costs
    less, the descent assembles it as their preconditioner.

    Attributes:
        point: The current point.
        iterations: Largest number of Gauss-Newton steps.
        inner_iterations: Largest number of conjugate gradient steps per Gauss-Newton step.
        tolerance: Step size, as a share of ``span``, at which the descent ends if the release has no noise.
        span: Width of the data range.
        rng: Source of randomness of the preconditioner.
        in_time: Returns False once the time is up.
        damping: First damping; None chooses it as if one step could remove the whole residual.
    """

    point: Point
    iterations: int
    inner_iterations: int
    tolerance: float
    span: float
    rng: torch.Generator
    in_time: Callable[[], bool]
    damping: float | None = None

    def __post_init__(self) -> None:
        size = self.point.inputs.numel()
        # A step of _FIRST_STEP of the range in every value costs a quarter of the loss in damping.
        whole = self.point.loss / (4 * size * (_FIRST_STEP * self.span) ** 2)
        self._damping = whole if self.damping is None else self.damping
        self._least_damping = 1e-24 * whole  # no damping in double precision, but not zero: growth multiplies it
        self._growth = 2.0
        self._forcing = _LOOSEST
        self._products_left = 0.0
        self.curvature: Curvature | None = None
        self._milestone, self._idle = self.point.loss, 0

    def run(self, label: str) -> Outcome:
        """Iterate until there is a reason to stop, and return it."""
        return (
            _iterate_until_done(self._iterate, self.iterations, label)
            if math.isfinite(self.point.loss)
            else Outcome.NOT_FINITE
        )

    def _iterate(self) -> Outcome | None:
        if not self.in_time():
            return Outcome.SECONDS
        origin, likelihood = self.point, self.point.likelihood
        step = damped_step(
            origin,
            damping=self._damping,
            forcing=self._forcing,
            iterations=self.inner_iterations,
            in_time=self.in_time,
            precondition=self._preconditioner(),
        )
        predicted = origin.loss - float((origin.residual - step.pushed).square().sum())
        self._move(Point(likelihood, origin.inputs + step.change), predicted)
        if not step.finished:
            self._products_left = self._estimate_products_left(origin.loss)
        squares, size = float(step.change.square().sum()), step.change.numel()
        # The step is close to the undamped one: damping takes a smaller share than the predicted gain.
        settled = step.finished and self._damping * squares <= predicted
        still = squares <= size * (self.tolerance * self.span) ** 2
        if likelihood.rounding_only and self._is_fitted(origin.loss, still=still and settled):
            return Outcome.FITTED
        if settled and predicted <= STATIONARY * size / likelihood.rows * origin.loss:
            return Outcome.STATIONARY
        # Progress below one percent per iteration counts as a stall.
        gained = self.point.loss < 0.99 * self._milestone and not still
        self._milestone, self._idle = (self.point.loss, 0) if gained else (self._milestone, self._idle + 1)
        return Outcome.STALLED if self._idle >= _PATIENCE else None

    def _move(self, proposal: Point, predicted: float) -> None:
        """Move if the fit improves, and adapt the damping to the accuracy of the linear model."""
        before = self.point.loss
        gain = (before - proposal.loss) / predicted if predicted > 0 else 0.0
        if gain > 0:  # False for NaN, so the best point so far stays
            # Eisenstat and Walker: solve more accurately as the fit improves.
            self._forcing = min(_LOOSEST, max(_TIGHTEST, math.sqrt(proposal.loss / before) / 2))
            self.point = proposal
            # Nielsen's rule, with at most a factor of 100 per step.
            self._damping = max(self._damping * max(0.01, 1 - (2 * min(gain, 1.0) - 1) ** 3), self._least_damping)
            self._growth = 2.0
        else:
            # Nielsen's rule for failed steps: growth by 2, 4, 8 and so on.
            self._damping *= self._growth
            self._growth *= 2

    def _estimate_products_left(self, before: float) -> float:
        """Estimate the products still needed if every step is truncated and helps as much as this one."""
        loss = max(self.point.loss, sys.float_info.min)
        gained = max(math.log(before / loss), 1e-9)
        # Log-decrease still needed to reach the expected chi-square, one per row.
        missing = max(math.log(loss / self.point.likelihood.rows), 0.1)
        return 2 * self.inner_iterations * missing / gained

    def _is_fitted(self, before: float, *, still: bool) -> bool:
        """Return True if the residual is rounding, or the records have stopped changing."""
        loss = self.point.loss
        rounding = math.sqrt(loss / self.point.likelihood.rows)
        return rounding < _ENOUGH or (rounding < ROUNDING and loss > before / 2) or (still and loss < before / 4)

    def _preconditioner(self) -> Product | None:
        """Return the preconditioner, assembling the matrix first if that pays off."""
        size = self.point.inputs.numel()
        cost = size * (0.2 + size / 10_000)  # rough cost of matrix and factorisation, in products with the Jacobian
        if self._products_left > _WORTH * cost and size <= LARGEST:
            self._products_left = 0.0
            fresh = assemble_curvature(self.point, rng=self.rng, in_time=self.in_time)
            self.curvature = fresh or self.curvature
        return None if self.curvature is None else self.curvature.solver(self._damping)


_FIRST_MARGIN, _LAST_MARGIN = 1e-3, 1e-7  # share of the data range within which a value counts as at an end
_HALVINGS = 12  # step halvings of the line search: down to 1/2048 of the full step
_FORCING = 0.1  # relative residual at which conjugate gradients stop


@dataclass(eq=False)
class BoundedDescent:
    """Descent that never leaves the data range; ``point`` is always the best so far.

    Projected Gauss-Newton steps with a search along the projection. Values within a margin of an end that the gradient
    pushes outward are set to the end. The margin shrinks when no step helps.

    Attributes:
        point: The current point.
        iterations: Largest number of Gauss-Newton steps.
        inner_iterations: Largest number of conjugate gradient steps per Gauss-Newton step.
        data_range: Range of the values.
        rng: Source of randomness of the preconditioner.
        in_time: Returns False once the time is up.
        curvature: Matrix of an earlier descent, or None.

    Reference: Section 2, `Bertsekas (1982) <https://doi.org/10.1137/0320018>`_.
    """

    point: Point
    iterations: int
    inner_iterations: int
    data_range: tuple[float, float]
    rng: torch.Generator
    in_time: Callable[[], bool]
    curvature: Curvature | None = None

    def __post_init__(self) -> None:
        self._margin = _FIRST_MARGIN
        self._assembles = self.point.inputs.numel() <= LARGEST

    def run(self, label: str) -> Outcome:
        """Iterate until there is a reason to stop, and return it."""
        return (
            _iterate_until_done(self._iterate, self.iterations, label)
            if math.isfinite(self.point.loss)
            else Outcome.NOT_FINITE
        )

    def _iterate(self) -> Outcome | None:
        if not self.in_time():
            return Outcome.SECONDS
        low, high = self.data_range
        origin = self.point
        inputs, slope = origin.inputs, origin.pull(origin.residual)
        margin = self._margin * (high - low)
        # Active set: values near an end that the fit pushes outward.
        held = ((inputs <= low + margin) & (slope < 0)) | ((inputs >= high - margin) & (slope > 0))
        step = damped_step(
            origin,
            damping=0.0,
            forcing=_FORCING,
            iterations=self.inner_iterations,
            in_time=self.in_time,
            precondition=None if self.curvature is None else self.curvature.solver_within(~held),
            free=~held,
        )
        # Held values move by the full range and are clamped to their end in the search.
        change = step.change + held * slope.sign() * (high - low)
        before = origin.loss
        self._search(change)
        likelihood = self.point.likelihood
        if likelihood.rounding_only and self.point.loss <= ROUNDING**2 * likelihood.rows / 4:
            return Outcome.FITTED
        # Decrease that matters relative to the noise of as many values as there are unknowns.
        noticeable = STATIONARY * inputs.numel() / likelihood.rows * before
        if before - self.point.loss > noticeable:
            return None
        if not step.finished and self.curvature is None and self._assembles:
            self.curvature = assemble_curvature(self.point, rng=self.rng, in_time=self.in_time)
            self._assembles = False
            return None
        # No step helps: release values that were held too early.
        self._margin /= 10
        if self._margin >= _LAST_MARGIN:
            return None
        predicted = before - float((origin.residual - step.pushed).square().sum())
        return Outcome.STATIONARY if predicted <= 10 * noticeable else Outcome.STALLED

    def _search(self, change: Tensor) -> None:
        """Halve the step until the fit improves, and further while it keeps improving."""
        low, high = self.data_range
        origin, improved = self.point.inputs, False
        for halving in range(_HALVINGS):
            proposal = Point(self.point.likelihood, (origin + change * 0.5**halving).clamp(low, high))
            if proposal.loss < self.point.loss:
                self.point, improved = proposal, True
            elif improved:
                return

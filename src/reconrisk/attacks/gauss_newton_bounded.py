"""Gauss-Newton within the data range: values at its ends stay there while the fit would push them beyond."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from reconrisk.attacks.gauss_newton_curvature import LARGEST, Curvature, assembled
from reconrisk.attacks.gauss_newton_descent import ROUNDING, STATIONARY, Outcome, repeated
from reconrisk.attacks.gauss_newton_point import Point, Product, Step, damped_step

_FIRST_MARGIN, _LAST_MARGIN = 1e-3, 1e-7  # of the data range: how near to an end a value counts as at it
_HALVINGS = 12
_FORCING = 0.1


@dataclass(eq=False)
class BoundedDescent:
    """A descent that never leaves the data range; ``point`` is always the best so far.

    Projected Gauss-Newton steps with a search along the projection. Values within a margin of an end, which the
    gradient pushes outwards, are set to the end; the margin shrinks when no step helps.
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
        """Go on until there is a reason to stop."""
        return repeated(self._iterate, self.iterations, label) if math.isfinite(self.point.loss) else Outcome.NOT_FINITE

    def _iterate(self) -> Outcome | None:
        if not self.in_time():
            return Outcome.SECONDS
        low, high = self.data_range
        origin = self.point
        inputs, slope = origin.inputs, origin.pull(origin.residual)
        margin = self._margin * (high - low)
        held = ((inputs <= low + margin) & (slope < 0)) | ((inputs >= high - margin) & (slope > 0))
        step = self._step(~held)
        change = step.change + held * slope.sign() * (high - low)
        before = origin.loss
        self._search(change)
        likelihood = self.point.likelihood
        if likelihood.rounding_only and self.point.loss <= ROUNDING**2 * likelihood.rows / 4:
            return Outcome.FITTED
        noticeable = STATIONARY * inputs.numel() / likelihood.rows * before
        if before - self.point.loss > noticeable:
            return None
        if not step.finished and self.curvature is None and self._assembles:
            self.curvature = assembled(self.point, rng=self.rng, in_time=self.in_time)
            self._assembles = False
            return None
        self._margin /= 10
        if self._margin >= _LAST_MARGIN:
            return None
        predicted = before - float((origin.residual - step.pushed).square().sum())
        return Outcome.STATIONARY if predicted <= 10 * noticeable else Outcome.STALLED

    def _step(self, free: Tensor) -> Step:
        precondition: Product | None = None if self.curvature is None else self.curvature.solver_within(free)
        return damped_step(
            self.point,
            damping=0.0,
            forcing=_FORCING,
            iterations=self.inner_iterations,
            in_time=self.in_time,
            precondition=precondition,
            free=free,
        )

    def _search(self, change: Tensor) -> None:
        """Halve the step until the fit improves, and on while it improves further."""
        low, high = self.data_range
        origin, improved = self.point.inputs, False
        for halving in range(_HALVINGS):
            proposal = Point(self.point.likelihood, (origin + change * 0.5**halving).clamp(low, high))
            if proposal.loss < self.point.loss:
                self.point, improved = proposal, True
            elif improved:
                return

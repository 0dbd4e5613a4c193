"""Starts of Gauss-Newton one after the other, until one fits what was released."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from reconrisk.attacks.gauss_newton_bounded import BoundedDescent
from reconrisk.attacks.gauss_newton_descent import ROUNDING, Descent, Outcome
from reconrisk.attacks.gauss_newton_likelihood import GaussianPrior, Likelihood, working_precision
from reconrisk.attacks.gauss_newton_point import Point
from reconrisk.attacks.objective import NOTHING, says_nothing
from reconrisk.core.observation import Attack, Observation
from reconrisk.core.reconstruction import Ending, Status

_SPREAD = 0.1  # of the data range, around its middle or the warm start
_BEYOND = 1e-9  # of the data range: how far beyond it records may lie without a second descent within it
_BOUNDED_ITERATIONS = 25  # enough to find which values lie at the ends of the range
_TINY = 1e-8  # relative squared residual below which another start would find nothing else
_SURPRISE = 5.0  # standard deviations of chi-square beyond which the fit is not that of the record
_ALIKE = 0.01  # relative difference of objectives at which two starts have come to the same end


@dataclass(frozen=True)
class Settings:
    """How long to search."""

    iterations: int
    inner_iterations: int
    restarts: int
    seconds: float | None
    tolerance: float


class Search:
    """The best records so far, ``estimates`` within the data range, and their ``objective``."""

    def __init__(
        self,
        settings: Settings,
        observation: Observation,
        labels: Tensor,
        prior: GaussianPrior | None,
        warm_start: Attack | None,
        rng: torch.Generator,
    ) -> None:
        self._settings, self._observation, self._warm_start, self._rng = settings, observation, warm_start, rng
        low, high = observation.data_range
        self._shape = (observation.batch_size, *observation.input_shape)
        self.estimates = torch.full(self._shape, (low + high) / 2, dtype=torch.float64)
        self.objective = math.inf
        self._exact = False
        self._ends: list[float] = []
        self._outcome = Outcome.NOT_FINITE
        self._descent: Descent | BoundedDescent | None = None
        dtype = working_precision(observation, labels, self.estimates)
        self._likelihood = Likelihood(observation, labels, prior, dtype)

    @property
    def evaluations(self) -> int:
        """Releases and products with their derivative that were computed."""
        return self._likelihood.evaluations

    def run(self, begun: float) -> Status:
        """Starts until one fits or the budget is spent."""
        if says_nothing(self._observation):
            return NOTHING
        self._begun = begun
        try:
            self._starts()
        except KeyboardInterrupt:
            if self._descent is not None:
                self._keep(self._descent.point.inputs, Outcome.ITERATIONS)
            return Status(Ending.INTERRUPTED, "stopped by the user", "Run again for the full strength")
        return self._status()

    def _starts(self) -> None:
        for turn in range(self._settings.restarts):
            outcome, objective = self._descend(self._start(turn), f"Gauss-Newton, start {turn + 1}")
            self._ends.append(objective)
            if self._fits() or outcome in (Outcome.ITERATIONS, Outcome.SECONDS):
                return

    def _start(self, turn: int) -> Tensor:
        """Noise around the middle of the range, or around the warm start, which comes first without."""
        low, high = self._observation.data_range
        noise = _SPREAD * (high - low) * torch.randn(self._shape, generator=self._rng, dtype=torch.float64)
        if self._warm_start is None:
            return (low + high) / 2 + noise
        if turn == 0:
            warm = self._warm_start(self._observation, rng=self._rng)
            self._warm = warm.estimates.to(self._likelihood.dtype)
            self._keep(self._warm, Outcome.ITERATIONS)
            if warm.status.ending is Ending.INTERRUPTED:
                raise KeyboardInterrupt
            return self._warm
        return self._warm + noise

    def _descend(self, start: Tensor, label: str) -> tuple[Outcome, float]:
        """Down to the best fit, then within the data range; if rounding does not explain the rest, by equal errors."""
        likelihood = self._likelihood
        outcome, objective, end = self._fit(start.to(likelihood.dtype), label)
        unexplained = outcome in (Outcome.STATIONARY, Outcome.STALLED) and objective > _TINY
        if unexplained and not likelihood.knows_noise:
            likelihood.weigh(equally=True)
            outcome, objective, _ = self._fit(end, f"{label}, equal errors")
            likelihood.weigh(equally=False)
        return outcome, objective

    def _fit(self, start: Tensor, label: str) -> tuple[Outcome, float, Tensor]:
        low, high = self._observation.data_range
        settings = self._settings
        descent = Descent(
            Point(self._likelihood, start),
            settings.iterations,
            settings.inner_iterations,
            settings.tolerance,
            high - low,
            self._rng,
            self._in_time,
        )
        self._descent = descent
        outcome = descent.run(label)
        ended = descent.point.inputs
        if outcome in (Outcome.NOT_FINITE, Outcome.SECONDS) or self._is_within(ended):
            return outcome, self._keep(ended, outcome), ended
        bounded = BoundedDescent(
            Point(self._likelihood, ended.clamp(low, high)),
            min(settings.iterations, _BOUNDED_ITERATIONS),
            settings.inner_iterations,
            (low, high),
            self._rng,
            self._in_time,
            descent.curvature,
        )
        self._descent = bounded
        outcome = bounded.run(f"{label}, within the range")
        return outcome, self._keep(bounded.point.inputs, outcome), bounded.point.inputs

    def _is_within(self, inputs: Tensor) -> bool:
        """Whether clipping to the range would change nothing, or leave the fit exact."""
        low, high = self._observation.data_range
        clipped = inputs.clamp(low, high)
        if bool((clipped - inputs).abs().max() < _BEYOND * (high - low)):
            return True
        rounding_only = self._likelihood.rounding_only
        return rounding_only and self._likelihood.chi_square(clipped) <= ROUNDING**2 / 4 * self._likelihood.rows

    def _in_time(self) -> bool:
        return self._settings.seconds is None or time.monotonic() - self._begun < self._settings.seconds

    def _keep(self, inputs: Tensor, outcome: Outcome) -> float:
        """Take these records if they are better than all before; their objective."""
        low, high = self._observation.data_range
        clipped = inputs.detach().clamp(low, high)
        if not bool(clipped.isfinite().all()):
            return math.inf
        likelihood = self._likelihood
        chi_square = likelihood.chi_square(clipped)
        objective = chi_square / 2 if likelihood.knows_noise else likelihood.relative_residual(clipped)
        if objective < self.objective:
            self.estimates, self.objective, self._outcome = clipped, objective, outcome
            self._exact = likelihood.rounding_only and chi_square <= ROUNDING**2 * likelihood.rows
        return objective

    def _fits(self) -> bool:
        if not self._likelihood.knows_noise:
            return self._exact or self.objective < _TINY
        rows = self._likelihood.rows
        return 2 * self.objective <= rows + _SURPRISE * math.sqrt(2 * rows)

    def _status(self) -> Status:
        known = self._likelihood.knows_noise
        fit = (
            f"chi-square {2 * self.objective / self._likelihood.rows:.3g} per value"
            if known
            else f"relative squared residual {self.objective:.1e}"
        )
        if not math.isfinite(self.objective):
            return Status(Ending.DIVERGED, "no start has a finite release", "Check the forward map")
        if self._exact and self._likelihood.rows < self.estimates.numel():
            remedy = "Fewer values were sent than are unknown, so that other records may fit as well"
            return Status(Ending.CONVERGED, f"the estimate has the observed release, {fit}", remedy)
        if self._exact:
            return Status(Ending.EXACT, f"the estimate has the observed release, {fit}")
        if self._outcome is Outcome.SECONDS:
            return Status(Ending.BUDGET_SPENT, f"{fit} after {self._settings.seconds:g} seconds", "Raise seconds")
        if self._outcome is Outcome.STATIONARY or self._fits():
            alike = sum(math.isclose(end, self.objective, rel_tol=_ALIKE) for end in self._ends)
            remedy = "" if self._fits() or alike > 1 else "Raise restarts, or start from another attack by warm_start"
            starts = f", {alike} of {len(self._ends)} starts alike" if alike > 1 else ""
            return Status(Ending.CONVERGED, f"{fit}{starts}", remedy)
        if self._outcome is Outcome.STALLED:
            return Status(Ending.BUDGET_SPENT, f"{fit}, {self._outcome.value}", "Raise inner_iterations or restarts")
        return Status(Ending.BUDGET_SPENT, f"{fit} after {self._settings.iterations} iterations", "Raise iterations")

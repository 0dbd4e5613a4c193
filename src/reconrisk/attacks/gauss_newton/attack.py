"""Maximum likelihood by damped Gauss-Newton: the records whose release fits the observed one best.

:class:`Search` runs one start after the other until one fits the release; :func:`gauss_newton` configures the attack.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from reconrisk.attacks.gauss_newton import laplace as gauss_newton_laplace
from reconrisk.attacks.gauss_newton.descent import ROUNDING, BoundedDescent, Descent, Outcome
from reconrisk.attacks.gauss_newton.problem import GaussianPrior, Likelihood, Point, working_precision
from reconrisk.attacks.labels.infer import labels_for, stated_labels
from reconrisk.core.observation import Attack, Observation
from reconrisk.core.reconstruction import ZERO_RELEASE, Account, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows, ThreatModel
from reconrisk.core.validation import (
    check_all_finite,
    check_callable,
    check_nonnegative,
    check_positive,
    check_whole,
    invalid_input,
)

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
        if self._observation.is_zero:
            return ZERO_RELEASE
        self._begun = begun
        try:
            for turn in range(self._settings.restarts):
                outcome, objective = self._descend(self._start(turn), f"Gauss-Newton, start {turn + 1}")
                self._ends.append(objective)
                if self._fits() or outcome in (Outcome.ITERATIONS, Outcome.SECONDS):
                    break
        except KeyboardInterrupt:
            if self._descent is not None:
                self._keep(self._descent.point.inputs, Outcome.ITERATIONS)
            return Status(Ending.INTERRUPTED, "stopped by the user", "Run again for the full strength")
        return self._status()

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


@dataclass(frozen=True, eq=False)
class GaussNewton:
    """The configured attack that :func:`gauss_newton` returns."""

    iterations: int = 50
    inner_iterations: int = 150
    restarts: int = 3
    seconds: float | None = None
    tolerance: float = 1e-4
    prior_mean: Tensor | float | None = None
    prior_std: Tensor | float | None = None
    warm_start: Attack | None = None

    def __post_init__(self) -> None:
        for name in ("iterations", "inner_iterations", "restarts"):
            check_whole(name, getattr(self, name))
        if self.seconds is not None:
            check_positive("seconds", self.seconds)
        if self.warm_start is not None:
            check_callable("warm_start", self.warm_start, "Pass an attack, such as rr.attacks.inverting_gradients().")
        check_nonnegative("tolerance", self.tolerance)
        if (self.prior_mean is None) != (self.prior_std is None):
            raise invalid_input("prior_mean", self.prior_mean, "and prior_std to be given together")
        if self.prior_mean is not None:
            check_all_finite("prior_mean", torch.as_tensor(self.prior_mean))
            check_all_finite("prior_std", torch.as_tensor(self.prior_std))
            if not bool((torch.as_tensor(self.prior_std) > 0).all()):
                raise invalid_input("prior_std", self.prior_std, "> 0")

    @property
    def needs(self) -> ThreatModel:
        """One update; the prior if there is one, and what the warm start needs."""
        weakest = HONEST_BUT_CURIOUS if self.warm_start is None else self.warm_start.needs
        return weakest if self.prior_mean is None else weakest.knowing(Knows.PRIOR)

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Estimate the records behind ``observation``, from noise around the middle of the range or the warm start."""
        begun = time.monotonic()
        observation.check_covers(self.needs)
        labels = labels_for(observation)
        settings = Settings(self.iterations, self.inner_iterations, self.restarts, self.seconds, self.tolerance)
        search = Search(settings, observation, labels, self._prior(observation), self.warm_start, rng)
        status = search.run(begun)
        estimates, objective, evaluations = search.estimates, search.objective, search.evaluations
        if observation.has_laplacian_noise and not status.is_failure:

            def solve(weighted: Observation, start: Attack) -> Tensor:
                nonlocal evaluations
                again = Search(replace(settings, restarts=1), weighted, labels, self._prior(observation), start, rng)
                again.run(begun)
                evaluations += again.evaluations
                return again.estimates

            estimates, objective = gauss_newton_laplace.refined(observation, labels, estimates, solve)
        account = Account(
            attack=repr(self),
            status=status,
            objective=(objective,) * observation.batch_size,
            cost=Cost(time.monotonic() - begun, evaluations),
            labels=stated_labels(labels),
        )
        return Reconstruction(estimates.to(torch.get_default_dtype()), account)

    def _prior(self, observation: Observation) -> GaussianPrior | None:
        if self.prior_mean is None or self.prior_std is None:
            return None
        shape = (observation.batch_size, *observation.input_shape)
        both = [torch.as_tensor(value, dtype=torch.float64) for value in (self.prior_mean, self.prior_std)]
        try:
            mean, std = (value.expand(shape) for value in both)
        except RuntimeError as error:
            shapes = tuple(tuple(value.shape) for value in both)
            remedy = "Pass numbers or tensors shaped as a record."
            raise invalid_input(
                "prior_mean and prior_std", shapes, f"to expand to the records, {shape}", remedy
            ) from error
        return GaussianPrior(mean, std)

    def __repr__(self) -> str:
        """Every setting; tensors by their shape."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        for name in ("prior_mean", "prior_std"):
            if isinstance(given[name], Tensor):
                given[name] = f"tensor of shape {tuple(given[name].shape)}"
        return f"gauss_newton({', '.join(f'{name}={value}' for name, value in given.items())})"


def gauss_newton(
    *,
    iterations: int = 50,
    inner_iterations: int = 150,
    restarts: int = 3,
    seconds: float | None = None,
    tolerance: float = 1e-4,
    prior_mean: Tensor | float | None = None,
    prior_std: Tensor | float | None = None,
    warm_start: Attack | None = None,
) -> GaussNewton:
    r"""Rebuild records from any smooth release by maximum likelihood, in damped Gauss-Newton steps.

    .. math:: \hat x = \arg\min_x \; (y - f(x))^T \Sigma^{-1} (y - f(x)) \; [+ (x - m)^T S^{-1} (x - m)]

    Where the threat knows the defense, Sigma is the variance of its noise and values that were not sent do not count;
    otherwise what is released is taken as exact up to rounding, and if no record fits it so, as carrying equal noise.
    Noise that is known to be Laplacian is fitted by least absolute values. ``prior_mean`` m and ``prior_std``, of each
    coordinate, make it the maximum a posteriori. The minimum is that within the data range.

    Assumes: a forward map that is differentiable twice in the records. Networks that are piecewise linear need a
    ``warm_start``, an attack whose estimates are the first start, such as ``inverting_gradients()``.
    Notation: each of at most ``iterations`` steps takes up to ``inner_iterations`` of conjugate gradients, and all
    together at most ``seconds``. Without noise it ends once steps are below ``tolerance`` of the data range, root mean
    square. A start that does not fit the release is followed by another, ``restarts`` in all. The lowest objective
    wins: the negative log posterior up to a constant, or without known noise the squared residual relative to the
    release.
    Guarantee: no step raises the misfit. At small noise, where the Fisher information I is nonsingular and the record
    inside the data range, the mean squared error is the Cramer-Rao bound tr(I^-1)/d.
    Edge cases: interrupted, it returns the best records so far; a start whose release is not finite cannot win; without
    known noise a prior decides only what the release leaves open.
    Reference: Chapter 10.3, Nocedal and Wright (2006), Numerical Optimization; `Nielsen (1999)
    <https://orbit.dtu.dk/en/publications/damping-parameter-in-marquardts-method>`_ for the damping.

    >>> forward = lambda inputs, labels: {"y": inputs[0].exp()}
    >>> threat = HONEST_BUT_CURIOUS.knowing(Knows.LABELS)
    >>> released = {"y": torch.tensor([0.25, 0.5]).exp()}
    >>> observation = Observation(released, forward, threat, (2,), (0.0, 1.0), labels=torch.tensor([0]))
    >>> gauss_newton()(observation, rng=torch.Generator().manual_seed(0)).estimates.round(decimals=3)
    tensor([[0.2500, 0.5000]])
    """
    return GaussNewton(iterations, inner_iterations, restarts, seconds, tolerance, prior_mean, prior_std, warm_start)

"""Maximum likelihood by damped Gauss-Newton: find the records whose release fits the observed one best.

:class:`Search` runs one start after the other until one fits the release. :func:`gauss_newton` configures the attack.
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
from reconrisk.attacks.labels.infer import class_labels_or_none, labels_for
from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Attack, Observation
from reconrisk.core.reconstruction import ZERO_RELEASE, AttackReport, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows, ThreatModel
from reconrisk.core.validation import (
    check_all_finite,
    check_callable,
    check_nonnegative,
    check_positive,
    check_whole,
    invalid_input,
)
from reconrisk.releases.derivative_check import check_attacked_model

_SPREAD = 0.1  # standard deviation of starts, as a share of the data range, around its middle or the warm start
_BEYOND = 1e-9  # share of the data range by which records may exceed it without a second descent inside
_BOUNDED_ITERATIONS = 25  # enough to identify the values at the ends of the range
_TINY = 1e-8  # relative squared residual below which no further start is needed
_SURPRISE = 5.0  # standard deviations of chi-square beyond which the fit cannot be that of the true record
_ALIKE = 0.01  # relative difference of objectives up to which two starts found the same minimum


@dataclass(frozen=True)
class Settings:
    """Budget and stopping rule of a search.

    Attributes:
        iterations: Largest number of Gauss-Newton steps per start.
        inner_iterations: Largest number of conjugate gradient steps per Gauss-Newton step.
        restarts: Largest number of starts.
        seconds: Time limit in seconds; None for no limit.
        tolerance: Step size at which a search without noise ends, as a share of the data range (root mean square).
    """

    iterations: int
    inner_iterations: int
    restarts: int
    seconds: float | None
    tolerance: float


class Search:
    """Search over several starts; ``estimates`` are the best records so far, with their ``objective``."""

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
        # Double precision where possible: the normal equations square the condition number.
        dtype = working_precision(observation, labels, self.estimates)
        self._likelihood = Likelihood(observation, labels, prior, dtype)

    @property
    def evaluations(self) -> int:
        """Number of evaluated releases and products with their derivative."""
        return self._likelihood.evaluations

    def run(self, begun: float) -> Status:
        """Run starts until one fits or the budget is spent, and return the status."""
        if self._observation.is_zero:
            return ZERO_RELEASE
        self._begun = begun
        try:
            for turn in range(self._settings.restarts):
                outcome, objective = self._descend(self._start(turn), f"Gauss-Newton, start {turn + 1}")
                self._ends.append(objective)
                # Another start helps only after a descent that converged to a poor fit.
                if self._fits() or outcome in (Outcome.ITERATIONS, Outcome.SECONDS):
                    break
        except KeyboardInterrupt:
            if self._descent is not None:
                self._keep(self._descent.point.inputs, Outcome.ITERATIONS)
            return Status(Ending.INTERRUPTED, "stopped by the user", "Run again without interruption")
        return self._status()

    def _start(self, turn: int) -> Tensor:
        """Return noise around the middle of the range, or the warm start, first without noise and then with it."""
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
        """Descend from one start; if rounding does not account for the residual, repeat with equal errors."""
        likelihood = self._likelihood
        outcome, objective, end = self._fit(start.to(likelihood.dtype), label)
        # Stationary but far from the release: the error is larger than rounding.
        unexplained = outcome in (Outcome.STATIONARY, Outcome.STALLED) and objective > _TINY
        if unexplained and not likelihood.knows_noise:
            likelihood.weigh(equally=True)
            outcome, objective, _ = self._fit(end, f"{label}, equal errors")
            likelihood.weigh(equally=False)
        return outcome, objective

    def _fit(self, start: Tensor, label: str) -> tuple[Outcome, float, Tensor]:
        """Descend to the best fit, then within the data range if the fit left it."""
        low, high = self._observation.data_range
        settings = self._settings
        check_attacked_model(self._observation.forward, start.clamp(low, high), self._likelihood.labels)
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
        # The unconstrained fit left the range: search again within it, from the clipped records.
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
        """Return True if clipping to the range would change nothing, or would keep the fit exact."""
        low, high = self._observation.data_range
        clipped = inputs.clamp(low, high)
        if bool((clipped - inputs).abs().max() < _BEYOND * (high - low)):
            return True
        rounding_only = self._likelihood.rounding_only
        return rounding_only and self._likelihood.chi_square(clipped) <= ROUNDING**2 / 4 * self._likelihood.rows

    def _in_time(self) -> bool:
        return self._settings.seconds is None or time.monotonic() - self._begun < self._settings.seconds

    def _keep(self, inputs: Tensor, outcome: Outcome) -> float:
        """Record these records if they are the best so far, and return their objective."""
        low, high = self._observation.data_range
        clipped = inputs.detach().clamp(low, high)
        if not bool(clipped.isfinite().all()):
            return math.inf
        likelihood = self._likelihood
        chi_square = likelihood.chi_square(clipped)
        # Negative log posterior with known noise; otherwise a residual whose scale does not depend on weights.
        objective = chi_square / 2 if likelihood.knows_noise else likelihood.relative_residual(clipped)
        if objective < self.objective:
            self.estimates, self.objective, self._outcome = clipped, objective, outcome
            self._exact = likelihood.rounding_only and chi_square <= ROUNDING**2 * likelihood.rows
        return objective

    def _fits(self) -> bool:
        """Return True if the best records fit as well as the true ones would."""
        if not self._likelihood.knows_noise:
            return self._exact or self.objective < _TINY
        rows = self._likelihood.rows
        # Chi-square with n degrees of freedom has mean n and variance 2n.
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
            remedy = "Other records may fit as well, since fewer values were sent than are unknown"
            return Status(Ending.CONVERGED, f"the estimate reproduces the observed release, {fit}", remedy)
        if self._exact:
            return Status(Ending.EXACT, f"the estimate reproduces the observed release, {fit}")
        if self._outcome is Outcome.SECONDS:
            return Status(Ending.BUDGET_SPENT, f"{fit} after {self._settings.seconds:g} seconds", "Raise seconds")
        if self._outcome is Outcome.STATIONARY or self._fits():
            alike = sum(math.isclose(end, self.objective, rel_tol=_ALIKE) for end in self._ends)
            remedy = "" if self._fits() or alike > 1 else "Raise restarts, or pass another attack as warm_start"
            starts = f", {alike} of {len(self._ends)} starts agree" if alike > 1 else ""
            return Status(Ending.CONVERGED, f"{fit}{starts}", remedy)
        if self._outcome is Outcome.STALLED:
            return Status(Ending.BUDGET_SPENT, f"{fit}, {self._outcome.value}", "Raise inner_iterations or restarts")
        return Status(Ending.BUDGET_SPENT, f"{fit} after {self._settings.iterations} iterations", "Raise iterations")


@dataclass(frozen=True, eq=False)
class GaussNewton:
    """Attack configured by :func:`gauss_newton`."""

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
            missing = "prior_std" if self.prior_std is None else "prior_mean"
            raise InvalidInput(f"{missing} is missing. Pass prior_mean and prior_std together, or neither.")
        if self.prior_mean is not None:
            check_all_finite("prior_mean", torch.as_tensor(self.prior_mean))
            check_all_finite("prior_std", torch.as_tensor(self.prior_std))
            if not bool((torch.as_tensor(self.prior_std) > 0).all()):
                raise invalid_input("min(prior_std)", float(torch.as_tensor(self.prior_std).min()), "> 0")

    @property
    def needs(self) -> ThreatModel:
        """Weakest threat model: one update, the prior if there is one, and the needs of the warm start."""
        weakest = HONEST_BUT_CURIOUS if self.warm_start is None else self.warm_start.needs
        return weakest if self.prior_mean is None else weakest.with_knowledge(Knows.PRIOR)

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Estimate the records of ``observation``, starting from noise around mid-range or from the warm start."""
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
                # Each reweighted round starts from the estimates of the last one.
                again = Search(replace(settings, restarts=1), weighted, labels, self._prior(observation), start, rng)
                again.run(begun)
                evaluations += again.evaluations
                return again.estimates

            estimates, objective = gauss_newton_laplace.refine_laplace(observation, labels, estimates, solve)
        account = AttackReport(
            attack=repr(self),
            status=status,
            objective=(objective,) * observation.batch_size,
            cost=Cost(time.monotonic() - begun, evaluations),
            labels=class_labels_or_none(labels),
        )
        return Reconstruction(estimates.to(torch.get_default_dtype()), account)

    def _prior(self, observation: Observation) -> GaussianPrior | None:
        """Return the prior expanded to the shape of the records, or None."""
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
                "prior_mean and prior_std", shapes, f"to expand to the shape of the records, {shape}", remedy
            ) from error
        return GaussianPrior(mean, std)

    def __repr__(self) -> str:
        """Return the call with every setting; tensors are shown by shape."""
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
    r"""Reconstruct records from any smooth release by maximum likelihood, in damped Gauss-Newton steps.

    .. math:: \hat x = \arg\min_x \; (y - f(x))^T \Sigma^{-1} (y - f(x)) \; [+ (x - m)^T S^{-1} (x - m)]

    Here y is the observed release, f(x) the release of the records x, and m and S are mean and covariance of the prior.
    If the threat model knows the defense, :math:`\Sigma` is the variance of its noise, and values that were not sent
    are ignored. Otherwise the release is taken as exact up to rounding; if no record fits it then, equal noise on all
    values is assumed. Known Laplacian noise is fitted by least absolute values. The minimum is taken over the data
    range. Starts are tried in turn until one fits the release, and the lowest objective wins: the negative log
    posterior up to a constant, or without known noise the squared residual relative to the release.

    Args:
        iterations: Largest number of Gauss-Newton steps per start.
        inner_iterations: Largest number of conjugate gradient steps per Gauss-Newton step.
        restarts: Largest number of starts.
        seconds: Time limit in seconds for all starts; None for no limit.
        tolerance: Without noise the search ends once steps are below this share of the data range (root mean square).
        prior_mean: Prior mean m, a number or a tensor that expands to the records. With ``prior_std`` the estimate is
            the maximum a posteriori.
        prior_std: Prior standard deviation of each coordinate, a number or a tensor that expands to the records.
        warm_start: Attack whose estimates are the first start, such as ``inverting_gradients()``. None starts from
            noise.

    Returns:
        The configured attack.

    Raises:
        InvalidInput: If a setting is out of its domain, or only one of ``prior_mean`` and ``prior_std`` is given.

    Assumes: a forward map that is twice differentiable in the records. Piecewise linear networks need a ``warm_start``.
    Guarantee: no step raises the objective. At small noise, where the Fisher information I is nonsingular and the
    record is inside the data range, the mean squared error is the Cramer-Rao bound tr(I^-1)/d for d values.
    Edge cases: on interruption it returns the best records so far. A start whose release is not finite cannot win.
    Without known noise a prior only decides what the release leaves undetermined.
    Reference: Chapter 10.3, Nocedal and Wright (2006), Numerical Optimization; `Nielsen (1999)
    <https://orbit.dtu.dk/en/publications/damping-parameter-in-marquardts-method>`_ for the damping.

    >>> forward = lambda inputs, labels: {"y": inputs[0].exp()}
    >>> threat = HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS)
    >>> released = {"y": torch.tensor([0.25, 0.5]).exp()}
    >>> observation = Observation(released, forward, threat, (2,), (0.0, 1.0), labels=torch.tensor([0]))
    >>> gauss_newton()(observation, rng=torch.Generator().manual_seed(0)).estimates.round(decimals=3)
    tensor([[0.2500, 0.5000]])
    """
    return GaussNewton(iterations, inner_iterations, restarts, seconds, tolerance, prior_mean, prior_std, warm_start)

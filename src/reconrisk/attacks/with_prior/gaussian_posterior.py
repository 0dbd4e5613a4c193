"""Posterior mean of records under a Gaussian prior, by Gauss-Newton in the whitened coordinates of the prior."""

from __future__ import annotations

import math
import time as clock
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from reconrisk.attacks.gauss_newton.descent import Descent, Outcome
from reconrisk.attacks.gauss_newton.problem import GaussianPrior as CoordinatePrior
from reconrisk.attacks.gauss_newton.problem import Likelihood, Point, working_precision
from reconrisk.attacks.labels.infer import class_labels_or_none, labels_for
from reconrisk.attacks.with_prior.unknown_noise import assume_noise, reweight_by_noise, run_warm_start, squared_residual
from reconrisk.core.observation import Attack, Observation
from reconrisk.core.reconstruction import ZERO_RELEASE, AttackReport, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows, ThreatModel
from reconrisk.core.validation import check_callable, check_positive, check_whole, invalid_input
from reconrisk.priors.gaussian import GaussianPrior

_SPAN = 6.0  # width of a standard normal coordinate, six standard deviations, as the scale of first steps
_ROUNDS = 3  # rounds with unknown noise, each with the noise level of the last residual
_LAPLACE_ROUNDS = 5  # rounds under Laplacian noise, each weighted by the last residuals


@dataclass(frozen=True, eq=False)
class GaussianPosterior:
    """Attack configured by :func:`gaussian_posterior`."""

    prior: GaussianPrior
    iterations: int = 30
    inner_iterations: int = 60
    warm_start: Attack | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        prior: object = self.prior
        if not isinstance(prior, GaussianPrior):
            remedy = "Pass rr.priors.gaussian(...) or rr.priors.fit_gaussian(...)."
            raise invalid_input("prior", type(prior).__name__, "to be a Gaussian prior", remedy)
        for name in ("iterations", "inner_iterations"):
            check_whole(name, getattr(self, name))
        if self.seconds is not None:
            check_positive("seconds", self.seconds)
        if self.warm_start is not None:
            check_callable("warm_start", self.warm_start, "Pass an attack, such as rr.attacks.inverting_gradients().")

    @property
    def needs(self) -> ThreatModel:
        """Weakest threat model: one update, the prior, and the needs of the warm start."""
        weakest = HONEST_BUT_CURIOUS if self.warm_start is None else self.warm_start.needs
        return weakest.with_knowledge(Knows.PRIOR)

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Estimate the records behind ``observation``."""
        begun = clock.monotonic()
        observation.check_covers(self.needs)
        self.prior.check_fits(observation.input_shape, observation.data_range)
        labels = labels_for(observation)
        search = _Search(self, observation, labels, rng, begun)
        status = search.run()
        records = search.records.clamp(*observation.data_range)
        account = AttackReport(
            attack=repr(self),
            status=ZERO_RELEASE if observation.is_zero else status,
            objective=(squared_residual(observation, records, labels),) * observation.batch_size,
            cost=Cost(clock.monotonic() - begun, search.evaluations + 1),
            labels=class_labels_or_none(labels),
        )
        return Reconstruction(records.to(torch.get_default_dtype()), account)

    def __repr__(self) -> str:
        """Return the call with every setting; the prior is shown by name."""
        names = ("iterations", "inner_iterations", "warm_start", "seconds")
        given = ", ".join(f"{name}={getattr(self, name)}" for name in names)
        return f"gaussian_posterior({self.prior.name}, {given})"


def gaussian_posterior(
    prior: GaussianPrior,
    *,
    iterations: int = 30,
    inner_iterations: int = 60,
    warm_start: Attack | None = None,
    seconds: float | None = None,
) -> GaussianPosterior:
    r"""Reconstruct records by their posterior mean under a Gaussian prior, given the release.

    .. math:: \hat x = m + L \hat u, \qquad \hat u = \arg\min_u |\Sigma^{-1/2} (y - f(m + L u))|^2 + |u|^2,
        \qquad L L^T = S

    Here y is the observed release, f(x) the release of records x, :math:`\Sigma` the covariance of the noise, and m and
    S are mean and covariance of the prior.

    Unknown noise is assumed equal on all values and as large as the residual. Laplacian noise is treated by reweighting
    with the residuals, in rounds.

    Args:
        prior: Gaussian prior of the shape and range of the records, such as ``rr.priors.fit_gaussian(public_records)``.
        iterations: Largest number of Gauss-Newton steps per round.
        inner_iterations: Largest number of conjugate gradient steps per Gauss-Newton step.
        warm_start: Attack whose estimates are the start; None starts from the prior mean.
        seconds: Time limit in seconds; None for no limit.

    Returns:
        The configured attack.

    Raises:
        InvalidInput: If ``prior`` is not Gaussian or a setting is out of its domain; when the attack is called, if the
            prior does not fit the records.

    Assumes: a prior of the shape and range of the records.
    Guarantee: for a linear release with known Gaussian noise it is the exact posterior mean, and no adversary with the
    same prior has a smaller expected squared error. Otherwise it is the maximum of the posterior, which is close to the
    mean where the posterior is nearly Gaussian.
    Edge cases: on interruption, or when ``seconds`` are spent, it returns the best so far.
    Reference: posterior mean, ours; Theorem 3.2 of chen2025 bounds its accuracy.

    >>> from reconrisk.priors.gaussian import gaussian
    >>> prior = gaussian(torch.full((2,), 0.5), 0.05 * torch.eye(2))
    >>> threat = HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS, Knows.PRIOR, Knows.DEFENSE)
    >>> observation = Observation(
    ...     {"y": torch.tensor([0.25, 0.5])}, lambda records, labels: {"y": records[0]}, threat, (2,), (0.0, 1.0),
    ...     labels=torch.tensor([0]), noise_std={"y": torch.full((2,), 0.05**0.5)},
    ... )
    >>> gaussian_posterior(prior)(observation, rng=torch.Generator()).estimates
    tensor([[0.3750, 0.5000]])
    """
    return GaussianPosterior(prior, iterations, inner_iterations, warm_start, seconds)


class _Search:
    """Search for coordinates of the prior, each standard normal a priori, that fit the release."""

    def __init__(
        self,
        attack: GaussianPosterior,
        observation: Observation,
        labels: Tensor,
        rng: torch.Generator,
        begun: float,
    ) -> None:
        self._attack, self._seen, self._labels, self._rng, self._begun = attack, observation, labels, rng, begun
        prior = attack.prior
        middle = prior.mean.to(observation.device).expand(observation.batch_size, *observation.input_shape)
        self._dtype = working_precision(observation, labels, middle)
        self._mean, self._root = (each.to(observation.device, self._dtype) for each in (prior.mean, prior.root))
        self._coordinates = self._root.new_zeros(observation.batch_size, self._root.shape[1])
        self.evaluations = 0

    def run(self) -> Status:
        """Descend until no step improves the posterior, and return the status."""
        outcome = Outcome.ITERATIONS
        try:
            self._begin()
            for _ in range(1 if self._seen.noise_std is not None else _ROUNDS):
                outcome = self._descend(assume_noise(self._seen, self.records, self._labels))
            for _ in range(_LAPLACE_ROUNDS if self._seen.has_laplacian_noise else 0):
                outcome = self._descend(reweight_by_noise(self._seen, self.records, self._labels))
        except KeyboardInterrupt:
            return Status(Ending.INTERRUPTED, "stopped by the user", "Run again without interruption")
        if outcome is Outcome.NOT_FINITE:
            return Status(Ending.DIVERGED, outcome.value, "Check the forward map and the prior")
        if outcome is Outcome.SECONDS:
            return Status(Ending.BUDGET_SPENT, f"{self._attack.seconds:g} seconds", "Raise seconds")
        if outcome is Outcome.ITERATIONS:
            return Status(Ending.BUDGET_SPENT, f"{self._attack.iterations} iterations", "Raise iterations")
        return Status(Ending.CONVERGED, outcome.value)

    @property
    def records(self) -> Tensor:
        """Records at the current coordinates."""
        return self._decode(self._coordinates)

    def _begin(self) -> None:
        """Run the warm start and convert its estimates to coordinates."""
        if self._attack.warm_start is None:
            return
        seconds = self._attack.seconds
        left = None if seconds is None else seconds - (clock.monotonic() - self._begun)
        warm = run_warm_start(self._attack.warm_start, self._seen, seconds_left=left, rng=self._rng)
        self.evaluations += warm.account.cost.evaluations
        offset = (warm.estimates.to(self._dtype) - self._mean).flatten(1)
        # Coordinates whose records are nearest to the warm start.
        self._coordinates = torch.linalg.lstsq(self._root, offset.T).solution.T.contiguous()
        if warm.status.ending is Ending.INTERRUPTED:
            raise KeyboardInterrupt

    def _descend(self, weighted: Observation) -> Outcome:
        """Run one descent in the coordinates of the prior."""
        decoded = replace(
            weighted,
            forward=lambda inputs, labels: self._seen.forward(self._decode(inputs), labels),
            input_shape=tuple(self._coordinates.shape[1:]),
        )
        prior = CoordinatePrior(torch.zeros_like(self._coordinates), torch.ones_like(self._coordinates))
        likelihood = Likelihood(decoded, self._labels, prior, self._dtype)
        settings = (self._attack.iterations, self._attack.inner_iterations, 0.0, _SPAN)
        # Most of the residual is noise that no step can fit, so the first damping is that of the prior.
        descent = Descent(Point(likelihood, self._coordinates), *settings, self._rng, self._in_time, 1.0)
        try:
            return descent.run("posterior mean")
        finally:  # keep the best so far on Ctrl-C
            self._coordinates = descent.point.inputs.detach()
            self.evaluations += likelihood.evaluations + 1

    def _in_time(self) -> bool:
        seconds = math.inf if self._attack.seconds is None else self._attack.seconds
        return clock.monotonic() - self._begun < seconds

    def _decode(self, coordinates: Tensor) -> Tensor:
        made: Tensor = self._mean + (coordinates @ self._root.T).unflatten(1, self._seen.input_shape)
        return made

"""Maximum a posteriori under any denoiser: steps toward the release and steps toward plausible records in turn.

The attack refines guided samples by Gauss-Newton and a denoiser, and returns the mean of the results.
"""

from __future__ import annotations

import math
import time as clock
from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from reconrisk.attacks.gauss_newton.descent import Descent
from reconrisk.attacks.gauss_newton.problem import GaussianPrior as CoordinatePrior
from reconrisk.attacks.gauss_newton.problem import Likelihood, Point, working_precision
from reconrisk.attacks.labels.infer import class_labels_or_none, labels_for
from reconrisk.attacks.with_prior.gaussian_posterior import gaussian_posterior
from reconrisk.attacks.with_prior.guided_diffusion import GuidedSampling, ggss_r
from reconrisk.attacks.with_prior.unknown_noise import (
    count_sent_values,
    reweight_by_noise,
    run_warm_start,
    squared_residual,
)
from reconrisk.core.observation import Attack, Observation
from reconrisk.core.progress import ProgressBar
from reconrisk.core.reconstruction import ZERO_RELEASE, AttackReport, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import Knows, ThreatModel
from reconrisk.core.validation import check_callable, check_positive, check_whole, invalid_input
from reconrisk.priors.diffusion import DiffusionPrior
from reconrisk.priors.gaussian import GaussianPrior


@dataclass(frozen=True, eq=False)
class PlugAndPlay:
    """Attack configured by :func:`plug_and_play`."""

    prior: DiffusionPrior
    starts: int = 3
    levels: int = 10
    first_level: float = 0.3
    last_level: float = 0.03
    iterations: int = 1
    last_iterations: int = 20
    inner_iterations: int = 15
    warm_start: Attack | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        prior: object = self.prior
        if not isinstance(prior, DiffusionPrior):
            remedy = "Pass rr.priors.denoiser(...), rr.priors.diffusion(...) or rr.priors.gaussian(...)."
            raise invalid_input("prior", type(prior).__name__, "to be a denoiser, diffusion or Gaussian prior", remedy)
        for name in ("starts", "levels", "iterations", "last_iterations", "inner_iterations"):
            check_whole(name, getattr(self, name))
        if not check_positive("last_level", self.last_level) < check_positive("first_level", self.first_level):
            raise invalid_input("last_level", self.last_level, f"< first_level={self.first_level}")
        if self.seconds is not None:
            check_positive("seconds", self.seconds)
        if self.warm_start is not None:
            check_callable("warm_start", self.warm_start, "Pass an attack, such as rr.attacks.inverting_gradients().")

    @property
    def initial_attack(self) -> Attack:
        """Attack that provides the starts."""
        return ggss_r(self.prior) if self.warm_start is None else self.warm_start

    @property
    def needs(self) -> ThreatModel:
        """Weakest threat model: the prior, and the needs of the initial attack."""
        return self.initial_attack.needs.with_knowledge(Knows.PRIOR)

    @property
    def prior_calls(self) -> int:
        """Number of calls of the prior, including the guided runs that provide the starts."""
        begin = self.initial_attack
        guided = begin.steps if isinstance(begin, GuidedSampling) else 0
        return self.starts * (guided + self.levels)

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Estimate the records behind ``observation``."""
        begun = clock.monotonic()
        observation.check_covers(self.needs)
        self.prior.check_fits(observation.input_shape, observation.data_range)
        labels = labels_for(observation)
        search = _Search(self, observation, labels, rng, lambda: clock.monotonic() - begun)
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

    def noise_levels(self) -> tuple[float, ...]:
        """Return the assumed distances from plausible records, as shares of the data range, evenly on a log scale."""
        ratio = self.last_level / self.first_level
        return tuple(self.first_level * ratio ** (each / max(1, self.levels - 1)) for each in range(self.levels))

    def __repr__(self) -> str:
        """Return the call with every setting; the prior is shown by name."""
        names = ("starts", "levels", "first_level", "last_level", "iterations", "last_iterations", "inner_iterations")
        given = ", ".join(f"{name}={getattr(self, name)}" for name in (*names, "warm_start", "seconds"))
        return f"plug_and_play({self.prior.name}, {given})"


def plug_and_play(
    prior: DiffusionPrior | GaussianPrior,
    *,
    starts: int = 3,
    levels: int = 10,
    first_level: float = 0.3,
    last_level: float = 0.03,
    iterations: int = 1,
    last_iterations: int = 20,
    inner_iterations: int = 15,
    warm_start: Attack | None = None,
    seconds: float | None = None,
) -> PlugAndPlay:
    r"""Reconstruct the most plausible records that match the release, by fitting and denoising in turn.

    .. math:: x \leftarrow \arg\min_x \tfrac12 |\Sigma^{-1/2} (y - f(x))|^2 + |x - z|^2 / (2 s^2), \qquad
        z \leftarrow E[x_0 \mid x_0 + s \epsilon = x]

    Here y is the observed release, f(x) the release of records x, :math:`\Sigma` the covariance of the noise, z the
    denoised records, :math:`x_0` a record of the prior, and :math:`\epsilon` standard normal noise.

    The level s falls from ``first_level`` to ``last_level`` of the data range. Unknown noise is assumed equal on all
    values and as large as the residual. The result is the mean over the starts, which is closer to the posterior mean,
    and so has a smaller squared error, than any single sample. Results whose squared residual exceeds the best by more
    than one squared unit of noise per value of the records are left out.

    Args:
        prior: Diffusion or Gaussian prior of the shape and range of the records.
        starts: Number of starts, each a run of ``warm_start``.
        levels: Number of noise levels.
        first_level: First noise level, as a share of the data range.
        last_level: Last noise level, as a share of the data range.
        iterations: Largest number of Gauss-Newton steps at each level but the last.
        last_iterations: Largest number of Gauss-Newton steps at the last level.
        inner_iterations: Largest number of conjugate gradient steps per Gauss-Newton step.
        warm_start: Attack that provides the starts. None is :func:`ggss_r` with the same prior; for a Gaussian prior,
            :func:`gaussian_posterior` started from there.
        seconds: Time limit in seconds; None for no limit.

    Returns:
        The configured attack.

    Raises:
        InvalidInput: If ``prior`` is not a denoiser or a setting is out of its domain; when the attack is called, if
            the prior does not fit the records.

    Assumes: a prior of the shape and range of the records.
    Guarantee: none. For a Gaussian prior and a linear release, a fixed point at level s is the posterior mean under the
    covariance :math:`S + s^2 I`. Where noise leaves much of the records undetermined, the levels change the starts
    little, and the result is as good as the start.
    Edge cases: on interruption, or when ``seconds`` are spent, it returns the best so far. The records of a batch are
    matched to the order of the best result before averaging.
    Reference: half-quadratic splitting with a denoiser, `Zhang et al. (2021) <https://arxiv.org/abs/2008.13751>`_; the
    data step by Gauss-Newton and the mean of several ends are ours.

    >>> from reconrisk.core.threat import HONEST_BUT_CURIOUS
    >>> from reconrisk.priors.gaussian import gaussian
    >>> prior = gaussian(torch.full((2,), 0.5), 0.05 * torch.eye(2))
    >>> threat = HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS, Knows.PRIOR)
    >>> released = {"y": torch.tensor([0.25, 0.5]).exp()}
    >>> forward = lambda records, labels: {"y": records[0].exp()}
    >>> observation = Observation(released, forward, threat, (2,), (0.0, 1.0), labels=torch.tensor([0]))
    >>> plug_and_play(prior)(observation, rng=torch.Generator().manual_seed(0)).estimates.round(decimals=2)
    tensor([[0.2500, 0.5000]])
    """
    settings = (starts, levels, first_level, last_level, iterations, last_iterations, inner_iterations)
    if not isinstance(prior, GaussianPrior):
        return PlugAndPlay(prior, *settings, warm_start, seconds)
    begin = warm_start or gaussian_posterior(prior, warm_start=ggss_r(prior))
    return PlugAndPlay(prior.diffusion, *settings, begin, seconds)


class _Search:
    """Refinement of one start after the other, and the mean of the results."""

    def __init__(
        self,
        attack: PlugAndPlay,
        observation: Observation,
        labels: Tensor,
        rng: torch.Generator,
        spent: Callable[[], float],
    ) -> None:
        self._attack, self._observation, self._labels, self._rng = attack, observation, labels, rng
        self._spent = spent
        low, high = observation.data_range
        self._width = high - low
        shape = (observation.batch_size, *observation.input_shape)
        self._middle = torch.full(shape, (low + high) / 2, device=observation.device)
        self._dtype = working_precision(observation, labels, self._middle)
        self._ends = list[Tensor]()
        self.evaluations = 0

    def run(self) -> Status:
        """Refine all starts, or as many as the time allows, and return the status."""
        attack = self._attack
        bar = ProgressBar("fitting and denoising", total=attack.starts * attack.levels)
        try:
            for _ in range(attack.starts):
                if not self._in_time():
                    break
                self._refine(bar)
        except KeyboardInterrupt:
            return Status(Ending.INTERRUPTED, "stopped by the user", "Run again without interruption")
        finally:
            bar.close()
        if not self._in_time():
            return Status(Ending.BUDGET_SPENT, f"{len(self._ends)} of {attack.starts} starts", "Raise seconds")
        if not math.isfinite(min(self._residuals())):
            return Status(Ending.DIVERGED, "no result has a finite residual", "Check the forward map and the prior")
        return Status(Ending.CONVERGED, f"{attack.starts} starts at {attack.levels} levels")

    @property
    def records(self) -> Tensor:
        """Mean of the results that fit the release about as well as the best one."""
        if not self._ends:
            return self._middle
        residuals = self._residuals()
        best = min(range(len(residuals)), key=residuals.__getitem__)
        lowest, first = residuals[best], self._ends[best]
        # One squared unit of noise: known noise is whitened to 1, else the mean squared residual of the best result.
        unit = 1.0 if self._observation.noise_std is not None else lowest / max(1, count_sent_values(self._observation))
        # At the true records the residual exceeds that of the best fit by about one unit per value.
        allowed = lowest + unit * first.numel()
        ends = [end for end, residual in zip(self._ends, residuals, strict=True) if residual <= allowed]
        return torch.stack([_match_order(first, end) for end in ends or [first]]).mean(0)

    def _residuals(self) -> list[float]:
        return [squared_residual(self._observation, end, self._labels) for end in self._ends]

    def _in_time(self) -> bool:
        return self._attack.seconds is None or self._spent() < self._attack.seconds

    def _refine(self, bar: ProgressBar) -> None:
        """Refine one start at all levels; its latest records count as a result at any time."""
        seconds = self._attack.seconds
        left = None if seconds is None else seconds - self._spent()
        warm = run_warm_start(self._attack.initial_attack, self._observation, seconds_left=left, rng=self._rng)
        self.evaluations += warm.account.cost.evaluations
        self._ends.append(warm.estimates.to(self._dtype))
        if warm.status.ending is Ending.INTERRUPTED:
            raise KeyboardInterrupt
        levels = [level * self._width for level in self._attack.noise_levels()]
        # Half-quadratic splitting: denoise, fit near the denoised records, lower the level.
        plausible = self._denoise(levels[0])
        for place, level in enumerate(levels, start=1):
            if not self._in_time():
                return
            last = place == len(levels)
            self._fit(plausible, level, self._attack.last_iterations if last else self._attack.iterations)
            plausible = plausible if last else self._denoise(level)
            bar.advance()

    def _denoise(self, level: float) -> Tensor:
        with torch.no_grad():
            found = self._attack.prior.denoise(self._ends[-1].to(torch.get_default_dtype()), level)
        return found.to(self._dtype)

    def _fit(self, plausible: Tensor, level: float, iterations: int) -> None:
        """Fit the release from the current records, penalising the distance from plausible ones."""
        start = self._ends[-1]
        weighted = reweight_by_noise(self._observation, start, self._labels)
        near_plausible = CoordinatePrior(plausible, torch.full_like(plausible, level))
        likelihood = Likelihood(weighted, self._labels, near_plausible, self._dtype)
        settings = (iterations, self._attack.inner_iterations, 0.0, self._width)
        # Most of the residual is noise that no step can fit, so the first damping is that of the penalty.
        descent = Descent(Point(likelihood, start), *settings, self._rng, self._in_time, 1 / level**2)
        try:
            descent.run("fitting")
        finally:  # keep the best so far on Ctrl-C
            self._ends[-1] = descent.point.inputs.detach()
            self.evaluations += likelihood.evaluations + 1


def _match_order(first: Tensor, other: Tensor) -> Tensor:
    """Return the records of ``other`` in the order that is closest to ``first``."""
    # A batch has no order: match records by the assignment of least squared distance.
    distances = torch.cdist(first.flatten(1), other.flatten(1)).square()
    _, places = linear_sum_assignment(distances.cpu().numpy())
    return other[torch.as_tensor(places, device=other.device)]

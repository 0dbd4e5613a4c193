"""Maximum a posteriori under any denoiser: steps toward the release and steps toward plausible records in turn."""

from __future__ import annotations

import math
import time as clock
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from reconrisk.attacks.gauss_newton_descent import Descent
from reconrisk.attacks.gauss_newton_likelihood import GaussianPrior as Pull
from reconrisk.attacks.gauss_newton_likelihood import Likelihood, working_precision
from reconrisk.attacks.gauss_newton_point import Point
from reconrisk.attacks.labels import labels_for
from reconrisk.core.observation import Attack, Observation
from reconrisk.core.progress import ProgressBar
from reconrisk.core.reconstruction import Account, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows, ThreatModel
from reconrisk.core.validation import check_positive, check_whole, refuse
from reconrisk.priors.diffusion_prior import DiffusionPrior
from reconrisk.priors.gaussian import GaussianPrior

_LEAST_ERROR = 1e-6  # of the release, root mean square: what float32 leaves where there is no noise


@dataclass(frozen=True, eq=False)
class PlugAndPlay:
    """The configured attack that :func:`plug_and_play` returns."""

    prior: DiffusionPrior
    levels: int = 40
    first_level: float = 0.5
    last_level: float = 0.01
    rounds: int = 1
    iterations: int = 2
    inner_iterations: int = 40
    warm_start: Attack | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        prior: object = self.prior
        if not isinstance(prior, DiffusionPrior):
            remedy = "Pass rr.priors.denoiser(...), rr.priors.diffusion(...) or rr.priors.gaussian(...)."
            raise refuse("prior", type(prior).__name__, "to be one that removes noise", remedy)
        for name in ("levels", "rounds", "iterations", "inner_iterations"):
            check_whole(name, getattr(self, name))
        if not check_positive("last_level", self.last_level) < check_positive("first_level", self.first_level):
            raise refuse("last_level", self.last_level, f"< first_level={self.first_level}")
        if self.seconds is not None:
            check_positive("seconds", self.seconds)

    @property
    def needs(self) -> ThreatModel:
        """One update and the prior, and what the warm start needs."""
        weakest = HONEST_BUT_CURIOUS if self.warm_start is None else self.warm_start.needs
        return weakest.knowing(Knows.PRIOR)

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Estimate the records behind ``observation``."""
        begun = clock.monotonic()
        observation.check_covers(self.needs)
        self.prior.check_fits(observation.input_shape, observation.data_range)
        labels = labels_for(observation)
        alternation = _Alternation(self, observation, labels, rng, self._in_time(begun))
        status = alternation.run()
        account = Account(
            attack=repr(self),
            status=status,
            objective=(alternation.misfit,) * observation.batch_size,
            cost=Cost(clock.monotonic() - begun, alternation.evaluations),
            labels=None if labels.is_floating_point() or labels.ndim > 1 else tuple(int(label) for label in labels),
        )
        low, high = observation.data_range
        return Reconstruction(alternation.records.clamp(low, high).to(torch.get_default_dtype()), account)

    def _in_time(self, begun: float) -> Callable[[], bool]:
        return lambda: self.seconds is None or clock.monotonic() - begun < self.seconds

    def noise_levels(self) -> tuple[float, ...]:
        """How far records are believed to be from plausible ones, of the data range, evenly on a logarithmic scale."""
        ratio = self.last_level / self.first_level
        return tuple(self.first_level * ratio ** (each / max(1, self.levels - 1)) for each in range(self.levels))

    def __repr__(self) -> str:
        """Every setting; the prior by its name."""
        names = ("levels", "first_level", "last_level", "rounds", "iterations", "inner_iterations")
        given = ", ".join(f"{name}={getattr(self, name)}" for name in (*names, "warm_start", "seconds"))
        return f"plug_and_play({self.prior.name}, {given})"


def plug_and_play(
    prior: DiffusionPrior | GaussianPrior,
    *,
    levels: int = 40,
    first_level: float = 0.5,
    last_level: float = 0.01,
    rounds: int = 1,
    iterations: int = 2,
    inner_iterations: int = 40,
    warm_start: Attack | None = None,
    seconds: float | None = None,
) -> PlugAndPlay:
    r"""Rebuild the most plausible records that explain the release, by fitting and denoising in turn.

    .. math:: x \leftarrow \arg\min_x \tfrac12 |\Sigma^{-1/2} (y - f(x))|^2 + |x - z|^2 / (2 s^2), \qquad
        z \leftarrow E[x_0 \mid x_0 + s \epsilon = x]

    The level s falls from ``first_level`` to ``last_level`` of the data range in so many ``levels``, with ``rounds`` of
    both steps at each; the first takes at most ``iterations`` of Gauss-Newton with ``inner_iterations`` of conjugate
    gradients. Where the noise is not known, it is taken as equal on all values, as large as the residual. The search
    begins at what the prior makes of nothing, or at ``warm_start``.

    Assumes: a prior of the shape and range of the records. Networks that are piecewise linear may need a warm start.
    Guarantee: for a Gaussian prior and a linear release a fixed point at level s is the posterior mean under the
    covariance :math:`S + s^2 I`, so that the end comes near the exact one.
    Edge cases: interrupted, or out of ``seconds``, it returns the records of the last level.
    Reference: half-quadratic splitting with a denoiser, `Zhang et al. (2021) <https://arxiv.org/abs/2008.13751>`_; the
    data step by Gauss-Newton is ours.

    >>> from reconrisk.priors.gaussian import gaussian
    >>> prior = gaussian(torch.full((2,), 0.5), 0.05 * torch.eye(2))
    >>> threat = HONEST_BUT_CURIOUS.knowing(Knows.LABELS, Knows.PRIOR)
    >>> released = {"y": torch.tensor([0.25, 0.5]).exp()}
    >>> forward = lambda records, labels: {"y": records[0].exp()}
    >>> observation = Observation(released, forward, threat, (2,), (0.0, 1.0), labels=torch.tensor([0]))
    >>> plug_and_play(prior)(observation, rng=torch.Generator().manual_seed(0)).estimates.round(decimals=2)
    tensor([[0.2500, 0.5000]])
    """
    wrapped = prior.diffusion if isinstance(prior, GaussianPrior) else prior
    settings = (levels, first_level, last_level, rounds, iterations, inner_iterations)
    return PlugAndPlay(wrapped, *settings, warm_start, seconds)


class _Alternation:
    """Records that explain the release and their plausible neighbours, at a falling distance."""

    def __init__(
        self,
        attack: PlugAndPlay,
        observation: Observation,
        labels: Tensor,
        rng: torch.Generator,
        in_time: Callable[[], bool],
    ) -> None:
        self._attack, self._observation, self._labels, self._rng = attack, observation, labels, rng
        self._in_time = in_time
        low, high = observation.data_range
        self._width = high - low
        shape = (observation.batch_size, *observation.input_shape)
        middle = torch.full(shape, (low + high) / 2, dtype=torch.float64)
        self._dtype = working_precision(observation, labels, middle)
        self.records = middle.to(self._dtype)
        self.misfit, self.evaluations = math.inf, 0

    def run(self) -> Status:
        """All levels, or as many as time allows."""
        attack = self._attack
        bar = ProgressBar("fitting and denoising", total=attack.levels)
        try:
            self._begin()
            for count, level in enumerate(attack.noise_levels()):
                if not self._in_time():
                    return Status(Ending.BUDGET_SPENT, f"{count} of {attack.levels} levels", "Allow more seconds")
                for _ in range(attack.rounds):
                    self._fit(level * self._width)
                    self._plausible = self._denoised(level * self._width)
                bar.advance()
        except KeyboardInterrupt:
            return Status(Ending.INTERRUPTED, "stopped by the user", "Run again for the full strength")
        finally:
            bar.close()
        if not math.isfinite(self.misfit):
            return Status(Ending.DIVERGED, "no records explain the release", "Check the forward map and the prior")
        return Status(Ending.CONVERGED, f"{attack.levels} levels")

    def _begin(self) -> None:
        """Where the prior ends when all it gets is the middle of the range, or the warm start."""
        if self._attack.warm_start is not None:
            warm = self._attack.warm_start(self._observation, rng=self._rng)
            self.evaluations += warm.account.cost.evaluations
            self.records = warm.estimates.to(self._dtype)
        self._plausible = self._denoised(self._attack.first_level * self._width)

    def _denoised(self, level: float) -> Tensor:
        with torch.no_grad():
            found = self._attack.prior.denoised(self.records.to(torch.get_default_dtype()), level)
        return found.to(self._dtype)

    def _fit(self, level: float) -> None:
        spread = torch.full_like(self._plausible, level)
        likelihood = Likelihood(self._weighted(), self._labels, Pull(self._plausible, spread), self._dtype)
        settings = (self._attack.iterations, self._attack.inner_iterations, 0.0, self._width)
        descent = Descent(Point(likelihood, self.records), *settings, self._rng, self._in_time)
        descent.run("fitting")
        self.records, self.misfit = descent.point.inputs.detach(), descent.point.loss
        self.evaluations += likelihood.evaluations

    def _weighted(self) -> Observation:
        """The observation with its noise: as known, or as large as what the records leave unexplained."""
        seen = self._observation
        if seen.noise_std is not None:
            return seen
        with torch.no_grad():
            caused = seen.forward(self.records, self._labels)
        self.evaluations += 1
        left = torch.cat([(caused[name] - value).double().flatten() for name, value in seen.released.items()])
        whole = torch.cat([value.double().flatten() for value in seen.released.values()])
        least = _LEAST_ERROR * float(whole.square().mean().sqrt())
        size = float(left.square().mean().sqrt())
        error = max(size if math.isfinite(size) else 0.0, least, torch.finfo(torch.float64).tiny)
        noise = {name: torch.full_like(value, error) for name, value in seen.released.items()}
        return replace(seen, noise_std=noise, threat=seen.threat.knowing(Knows.DEFENSE))

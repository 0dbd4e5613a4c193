"""What a prior achieves by itself: the baseline that keeps a plausible record from being taken for a leaked one."""

from __future__ import annotations

import math
import time as clock
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from reconrisk.attacks.baselines import check_knows
from reconrisk.attacks.latents import NEEDS
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import Account, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import ThreatModel
from reconrisk.core.validation import check_whole, refuse
from reconrisk.priors.diffusion_prior import DiffusionPrior
from reconrisk.priors.gaussian import GaussianPrior
from reconrisk.priors.generator import GeneratorPrior
from reconrisk.priors.reverse_diffusion import draw_records
from reconrisk.priors.units import check_fits

Guess = Literal["mean", "draw"]
Prior = DiffusionPrior | GaussianPrior | GeneratorPrior


@dataclass(frozen=True, eq=False)
class PriorAlone:
    """The configured attack that :func:`prior_alone` returns."""

    prior: Prior
    guess: Guess = "mean"
    draws: int = 64
    steps: int = 50
    needs: ThreatModel = NEEDS

    def __post_init__(self) -> None:
        prior: object = self.prior
        if not isinstance(prior, Prior):
            raise refuse("prior", type(prior).__name__, "to be a prior", "Pass one of rr.priors.")
        if self.guess not in get_args(Guess):
            raise refuse("guess", self.guess, 'to be "mean" or "draw"')
        check_whole("draws", self.draws)
        check_whole("steps", self.steps)

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """The same guess for every record, or a draw for each."""
        begun = clock.monotonic()
        check_knows(observation, self.needs)
        check_fits(self.prior.shape, self.prior.data_range, observation.input_shape, observation.data_range)
        count = observation.batch_size
        made = self._mean(rng).expand(count, *self.prior.shape) if self.guess == "mean" else self._drawn(count, rng)
        cause = "every record is the prior's mean" if self.guess == "mean" else "every record is drawn from the prior"
        account = Account(
            repr(self),
            Status(Ending.CONVERGED, f"a guess, {cause}"),
            (math.inf,) * count,
            Cost(clock.monotonic() - begun, 0),
        )
        estimates = made.clamp(*observation.data_range).to(torch.get_default_dtype()).contiguous()
        return Reconstruction(estimates, account)

    def _mean(self, rng: torch.Generator) -> Tensor:
        known = None if isinstance(self.prior, GeneratorPrior) else self.prior.mean
        if known is not None:
            return known
        return self._drawn(self.draws, rng).mean(0)

    def _drawn(self, count: int, rng: torch.Generator) -> Tensor:
        if isinstance(self.prior, DiffusionPrior):
            return draw_records(self.prior, count, steps=self.steps, rng=rng)
        return self.prior.draw(count, rng).clamp(*self.prior.data_range)

    def __repr__(self) -> str:
        """Every setting; the prior by its name."""
        return f"prior_alone({self.prior.name}, guess={self.guess!r}, draws={self.draws}, steps={self.steps})"


def prior_alone(prior: Prior, *, guess: Guess = "mean", draws: int = 64, steps: int = 50) -> PriorAlone:
    r"""Guess records from the prior, without any look at the release.

    .. math:: \hat x = \mathrm E[X] \quad \text{or} \quad \hat x \sim X

    "mean" is the best guess in squared error, "draw" is a plausible record, as far from the target as two records are
    from each other. The mean is exact for a Gaussian prior, also where an attack has it as a denoiser; of others it is
    that of ``draws`` records, whose squared error is larger by the variance of a record, divided by ``draws``.
    ``steps`` are those of a diffusion.

    Assumes: a prior of the shape and range of the records: the threat knows the prior.
    Guarantee: of the observation it reads shape, range and number of the records, and nothing that was released: every
    threat that knows the prior covers it, whatever it sees. What this guess has as well, no attack has leaked.
    Edge cases: a prior of another shape or range is refused. The objective is inf: nothing speaks for the guess.
    Reference: the mean has the smallest mean squared error of all constants, chapter 1.5, Bishop (2006).

    >>> from reconrisk.priors.gaussian import gaussian
    >>> observation = Observation({"y": torch.ones(1)}, lambda inputs, labels: {}, NEEDS, (2,), (0.0, 1.0))
    >>> attack = prior_alone(gaussian(torch.tensor([0.25, 0.75]), 0.01 * torch.eye(2)))
    >>> attack(observation, rng=torch.Generator()).estimates
    tensor([[0.2500, 0.7500]])
    """
    return PriorAlone(prior, guess, draws, steps)

"""Priors in the plan of an audit: what each achieves alone, and how long it takes to ask it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from reconrisk.attacks.prior_alone import Prior, PriorAlone, prior_alone
from reconrisk.core.observation import Attack, Observation
from reconrisk.core.reconstruction import Cost, Reconstruction
from reconrisk.core.threat import ThreatModel
from reconrisk.priors.diffusion_prior import DiffusionPrior
from reconrisk.priors.gaussian import GaussianPrior
from reconrisk.priors.generator import GeneratorPrior

_SEED = 0
_STEPS = 20  # of a diffusion: the mean of draws needs no more


@dataclass(frozen=True, eq=False)
class AloneOnce:
    """The mean of a prior as a guess for every trial, of draws that are made once: they take longer than an attack."""

    attack: PriorAlone

    @property
    def needs(self) -> ThreatModel:
        """The prior."""
        return self.attack.needs

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """The same for every observation of as many records; ``rng`` is not used."""
        del rng
        begun, key = time.monotonic(), (observation.batch_size, *observation.input_shape)
        if key not in self._made:
            self._made[key] = self.attack(observation, rng=torch.Generator().manual_seed(_SEED))
        made = self._made[key]
        return replace(made, account=replace(made.account, cost=Cost(time.monotonic() - begun, 0)))

    @cached_property
    def _made(self) -> dict[tuple[int, ...], Reconstruction]:
        return {}

    def __repr__(self) -> str:
        """Every setting."""
        return repr(self.attack)


def alone(prior: Prior) -> AloneOnce:
    """The guess that an attack with a prior has to beat."""
    return AloneOnce(prior_alone(prior, steps=_STEPS))


def seconds_of_a_prior(prior: Prior, attack: Attack, evaluations: int) -> float:
    """How long an attack waits for its prior: as often as it says, or once for each evaluation, backward too."""
    asked = prior.diffusion if isinstance(prior, GaussianPrior) else prior
    calls = getattr(attack, "prior_calls", evaluations)
    seconds = min(_seconds_of_a_pass(asked) for _ in range(2))  # the first one may warm up
    return seconds * float(calls)


def _seconds_of_a_pass(prior: DiffusionPrior | GeneratorPrior) -> float:
    begun = time.monotonic()
    if isinstance(prior, DiffusionPrior):
        asked = torch.zeros(1, *prior.shape, requires_grad=True)
        answer = prior.noise(asked, 0)
    else:
        asked = torch.zeros(1, prior.latent_size, requires_grad=True)
        answer = prior.decode(asked)
    if answer.requires_grad:
        torch.autograd.grad(answer.sum(), asked, allow_unused=True)
    return time.monotonic() - begun

"""Gradient inversion by tuning the weights of a diffusion model until its samples match the release."""

from __future__ import annotations

import math
import time as clock
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from reconrisk.attacks.matching.distances import Cosine, Distance, check_distance
from reconrisk.attacks.matching.loop import GradientMatching
from reconrisk.attacks.matching.optimizers import Adam
from reconrisk.attacks.with_prior.latents import NEEDS, GeneratorWeights
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import Cost, Reconstruction
from reconrisk.core.threat import ThreatModel
from reconrisk.core.validation import check_positive, check_whole, invalid_input
from reconrisk.priors.diffusion import DiffusionPrior
from reconrisk.priors.generator import GeneratorPrior


@dataclass(frozen=True, eq=False)
class FinetunedDiffusion:
    """Attack configured by :func:`finetuned_diffusion`."""

    prior: DiffusionPrior
    steps: int = 200
    sampling_steps: int = 6
    learning_rate: float = 1e-4
    distance: Distance = field(default_factory=Cosine)
    seconds: float | None = None
    needs: ThreatModel = NEEDS

    def __post_init__(self) -> None:
        prior: object = self.prior
        if not isinstance(prior, DiffusionPrior) or not isinstance(prior.predict_noise, nn.Module):
            remedy = "Pass rr.priors.diffusion(...), or a denoiser that is an nn.Module."
            raise invalid_input("prior", type(prior).__name__, "to be a diffusion prior with weights", remedy)
        check_whole("steps", self.steps)
        self.prior.schedule.times(self.sampling_steps)
        check_positive("learning_rate", self.learning_rate)
        check_distance(self.distance)
        if self.seconds is not None:
            check_positive("seconds", self.seconds)

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Estimate the records behind ``observation``."""
        begun, prior = clock.monotonic(), self.prior
        prior.check_fits(observation.input_shape, observation.data_range)
        size = math.prod(prior.shape)
        sampler = Sampler(prior, self.sampling_steps)
        generator = GeneratorPrior(prior.name, prior.shape, size, sampler, prior.data_range, prior.units)
        # The noise is the only random input, drawn once and kept.
        latents = torch.randn(observation.batch_size, size, generator=rng, device=rng.device).to(observation.device)
        search = GradientMatching(
            name="tuning a diffusion",
            distance=self.distance,
            update=Adam(self.learning_rate, schedule="cosine"),
            steps=self.steps,
            parametrization=GeneratorWeights(generator, latents),
            seconds=self.seconds,
            needs=self.needs,
            can_restart=False,  # the noise is drawn once
        )
        match = search.match(observation, rng=rng)
        return match.reconstruction(repr(self), Cost(clock.monotonic() - begun, match.evaluations))

    def __repr__(self) -> str:
        """Return the call with every setting; the prior is shown by name."""
        names = ("steps", "sampling_steps", "learning_rate", "distance", "seconds")
        given = ", ".join(f"{name}={getattr(self, name)}" for name in names)
        return f"finetuned_diffusion({self.prior.name}, {given})"


class Sampler(nn.Module):
    """Deterministic DDIM as a generator: maps noise (n, d) to records in the units of the prior.

    Reference: equation 12 with sigma = 0, `Song et al. (2021) <https://arxiv.org/abs/2010.02502>`_.
    """

    def __init__(self, prior: DiffusionPrior, steps: int) -> None:
        super().__init__()
        self._prior, self._times = prior, prior.schedule.times(steps)
        self.noise = prior.predict_noise

    def forward(self, latents: Tensor) -> Tensor:
        """Run all sampling steps, differentiable in the weights."""
        values, signal = latents.unflatten(1, self._prior.shape), self._prior.schedule.signal
        for time, following in zip(self._times, (*self._times[1:], None), strict=True):
            share = float(signal[time])
            noise = self.noise(values, torch.full((len(values),), time, dtype=torch.int64, device=values.device))
            # Predicted clean record, then the deterministic step to the next noise level.
            clean = (values - (1 - share) ** 0.5 * noise) / share**0.5
            left = 1.0 if following is None else float(signal[following])
            values = left**0.5 * clean + (1 - left) ** 0.5 * noise
        found: Tensor = values
        return found


def finetuned_diffusion(
    prior: DiffusionPrior,
    *,
    steps: int = 200,
    sampling_steps: int = 6,
    learning_rate: float = 1e-4,
    distance: Distance | None = None,
    seconds: float | None = None,
) -> FinetunedDiffusion:
    r"""Reconstruct records by tuning a diffusion model until its samples from fixed noise match the release.

    .. math:: \hat w = \arg\min_w D(f(g_w(z)), y), \qquad \hat x = g_{\hat w}(z)

    D is the distance between the release f(x) of records x and the observed release y.

    Here :math:`g_w` is deterministic DDIM from noise z that is drawn once. Each record has its own copy of the weights.

    Args:
        prior: Diffusion prior with weights.
        steps: Steps of Adam on the weights.
        sampling_steps: Sampling steps of DDIM.
        learning_rate: Initial learning rate of the weights.
        distance: Distance D of releases; None is the cosine distance.
        seconds: Time limit in seconds; None for no limit.

    Returns:
        The configured attack.

    Raises:
        InvalidInput: If ``prior`` has no weights or a setting is out of its domain; when the attack is called, if the
            prior does not fit the records.

    Assumes: a prior with weights, of the shape and range of the records.
    Guarantee: the prior itself is not changed.
    Edge cases: on interruption it returns the best so far.
    Reference: `Meng et al. (2024) <https://arxiv.org/abs/2406.09484>`_, a baseline of meng2025.

    >>> from reconrisk.priors.diffusion import denoiser
    >>> finetuned_diffusion(denoiser(nn.Bilinear(2, 1, 2), (2,)), steps=50)
    finetuned_diffusion(denoiser, steps=50, sampling_steps=6, learning_rate=0.0001, distance=Cosine(), seconds=None)
    """
    return FinetunedDiffusion(
        prior, steps, sampling_steps, learning_rate, Cosine() if distance is None else distance, seconds
    )

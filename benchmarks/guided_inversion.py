"""Guided diffusion (GGSS-R), 100 steps at 3 x 32 x 32 on the CNN of meng2025: one image, eight, and eight in a loop.

Asked for are less than 60 seconds for one image, and less than three times that for a batch of eight. The naive
version runs network and gradient for each image by itself and averages, as a loop over records would; all contenders
have one thread and a network of the size of the shipped priors, whose weights do not change the time. The result names
the processor time of a step and the first residual, which batch and loop have in common but for rounding.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from reconrisk.attacks.with_prior.guided_diffusion import ggss_r
from reconrisk.attacks.with_prior.latents import NEEDS
from reconrisk.core.observation import ForwardMap, Observation
from reconrisk.core.threat import Knows
from reconrisk.models import meng2025_cnn
from reconrisk.priors.diffusion import DiffusionPrior, PredictNoise, denoiser
from reconrisk.priors.train.diffusion import DiffusionTraining, new_network
from reconrisk.releases.observe import observe
from reconrisk.releases.updates.gradient import GradientRelease

SHAPE = (3, 32, 32)
CLASSES = 10
STEPS = 100
SEED = 0


def prior() -> DiffusionPrior:
    """An untrained network of the size of those that are shipped."""
    torch.manual_seed(SEED)
    network = new_network(SHAPE, DiffusionTraining().channels).eval().requires_grad_(False)
    return denoiser(lambda noisy, times: network(noisy, times).sample, SHAPE)


def observation(count: int) -> Observation:
    """The mean gradient of so many random pictures."""
    rng = torch.Generator().manual_seed(SEED)
    model = meng2025_cnn(SHAPE, CLASSES, rng=rng).eval()
    release = GradientRelease(
        model, nn.functional.cross_entropy, torch.rand(count, *SHAPE, generator=rng), torch.arange(count) % CLASSES
    )
    return observe(release, threat=NEEDS.with_knowledge(Knows.LABELS))


def one_by_one(predict_noise: PredictNoise) -> PredictNoise:
    """The same noise, found for one record after the other."""

    def found(noisy: Tensor, times: Tensor) -> Tensor:
        return torch.cat([predict_noise(noisy[[row]], times[[row]]) for row in range(len(noisy))])

    return found


def averaged(forward: ForwardMap) -> ForwardMap:
    """The same gradient, as the mean of those of single records."""

    def found(inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        each = [forward(inputs[[row]], labels[[row]]) for row in range(len(inputs))]
        return {name: torch.stack([one[name] for one in each]).mean(0) for name in each[0]}

    return found


def sampled(believed: DiffusionPrior, seen: Observation, steps: int = STEPS) -> str:
    """One attack, as the time of a step and the first residual."""
    begun = time.process_time()
    trajectory = ggss_r(believed, steps=steps).trace(seen, rng=torch.Generator().manual_seed(SEED))
    return f"{(time.process_time() - begun) / steps:.4f} s a step, residual {float(trajectory.residuals[0]):.4g}"


def batched(count: int) -> Callable[[], Callable[[], str]]:
    """As the attack is."""

    def prepare() -> Callable[[], str]:
        """So many images at once."""
        torch.set_num_threads(1)
        believed, seen = prior(), observation(count)
        return lambda: sampled(believed, seen)

    return prepare


def naive() -> Callable[[], str]:
    """Eight images, each by itself wherever it can be."""
    torch.set_num_threads(1)
    believed, seen = prior(), observation(8)
    looped = replace(believed, predict_noise=one_by_one(believed.predict_noise))
    return lambda: sampled(looped, replace(seen, forward=averaged(seen.forward)))


CONTENDERS = {"ours, one image": batched(1), "ours, batch of eight": batched(8), "naive, eight in a loop": naive}

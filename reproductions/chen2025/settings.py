"""Networks, records and defenses of chen2025's experiments (appendix C), at the paper's scale and at a small one.

The global forms, which the paper proves and does not run, take their moments from public records (another split than
the attacked ones) at the network that is attacked or trained. For noise there are two of them: ``euclidean`` clips as
the paper does and has no guarantee; ``guaranteed`` clips in the norm that matches the noise, a Gaussian mechanism.
"""

from __future__ import annotations

import math

from torch import nn

from reconrisk.data import load_dataset
from reconrisk.defenses import (
    clip,
    gaussian_noise,
    local_optimal_noise,
    local_optimal_pruning,
    optimal_noise,
    optimal_pruning,
    prune,
)
from reconrisk.models import chen2025_cifar10, chen2025_mnist
from reproductions.frame import Scale
from reproductions.optimal_defenses import ClippedFirst, Family, Setting, Trial

CLIP = 1.0
PROBES = 10


def mnist(scale: Scale, *, learning_rate: float = 1e-3) -> Setting:
    """SimpleConvNet, attacked in batches of 16 (small: 4), 4 clients with 16 digits each."""
    small = scale == "small"
    return Setting(
        build=lambda rng: chen2025_mnist(rng=rng),
        private=load_dataset("mnist-full", split="test"),
        public=load_dataset("mnist-full", split="train").subset(range(4096, 8192)),
        batch=4 if small else 16,  # 150 updates rebuild little of 16 digits even without a defense
        client_batch=16,
        attack_steps=150 if small else 2000,
        learning_rate=learning_rate,
        seeds=4 if small else 16,
        references=64 if small else 512,
        said="MNIST, SimpleConvNet",
    )


def cifar10(scale: Scale, *, learning_rate: float) -> Setting:
    """The ConvNet of 2.9M parameters (small: an eighth of its width), 2 images at a time, 4 clients with 2 each."""
    small = scale == "small"
    width = 8 if small else 64
    return Setting(
        build=lambda rng: chen2025_cifar10(width=width, rng=rng),
        private=load_dataset("cifar-10", split="test"),
        public=load_dataset("cifar-10", split="train").subset(range(4096)),
        batch=2,
        client_batch=2,
        attack_steps=40 if small else 1000,
        learning_rate=learning_rate,
        seeds=4 if small else 16,
        references=16 if small else 256,
        said="CIFAR-10, ConvNet"
        + (" of width 8 (49k parameters)" if small else ", 2.9M parameters")
        + ", batch norm in evaluation mode",
    )


def pruning() -> dict[str, Family]:
    """By the share of values that are dropped."""
    return {
        "magnitude pruning": lambda trial, share: prune(share),
        "optimal pruning, local": lambda trial, share: local_optimal_pruning(share=share, probes=PROBES),
        "optimal pruning, global": lambda trial, share: optimal_pruning(trial.moments, share=share),
    }


def noise() -> dict[str, Family]:
    """By the Frobenius norm of the covariance, after clipping."""
    return {
        "equal noise": lambda trial, norm: clip(CLIP) >> gaussian_noise(equal_std(trial.model, norm)),
        "optimal noise, local": lambda trial, norm: local_noise(norm),
        "optimal noise, global, euclidean": _euclidean,
        "optimal noise, global, guaranteed": lambda trial, norm: (
            clip(CLIP) >> optimal_noise(trial.moments, noise_norm=norm)
        ),
    }


def local_noise(norm: float) -> ClippedFirst:
    """The paper's optimal noise: chosen by the client's own records, after clipping in the Euclidean norm."""
    return ClippedFirst(clip(CLIP), local_optimal_noise(noise_norm=norm, probes=PROBES))


def equal_std(model: nn.Module, norm: float) -> float:
    """The standard deviation of equal noise whose covariance has this Frobenius norm."""
    count = sum(parameter.numel() for parameter in model.parameters())
    return math.sqrt(norm / math.sqrt(count))


def _euclidean(trial: Trial, norm: float) -> ClippedFirst:
    return ClippedFirst(clip(CLIP), optimal_noise(trial.moments, noise_norm=norm))

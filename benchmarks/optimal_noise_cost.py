"""Optimal noise by ten probes against thirty ordinary gradients: chen2025's 120k network, a batch of 16.

At most 30 gradients is what it may cost; the matrix of all derivatives would take 375 MB for one record alone. The
layer-wise form needs one probe. "Local" is chosen by the batch itself, as the paper does.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from reconrisk.defenses import local_optimal_noise, optimal_noise
from reconrisk.models import chen2025_mnist
from reconrisk.releases.sensitivity.moments import reference_moments
from reconrisk.releases.updates.gradient import GradientRelease

GRADIENTS = 30
LOSS = nn.functional.cross_entropy


def problem() -> tuple[nn.Module, Tensor, Tensor]:
    """The network of the paper with its initial weights, and sixteen pictures of noise."""
    rng = torch.Generator().manual_seed(0)
    return chen2025_mnist(rng=rng), torch.rand(16, 1, 28, 28, generator=rng), torch.arange(16) % 10


def by_moments() -> Callable[[], float]:
    """The global form, taken from sixteen reference records."""
    model, inputs, labels = problem()
    return lambda: optimal_noise(reference_moments(model, LOSS, inputs, labels, probes=10), like=0.1).scales.unit


def by_layer() -> Callable[[], float]:
    """The layer-wise form with a single probe."""
    model, inputs, labels = problem()
    return lambda: (
        optimal_noise(reference_moments(model, LOSS, inputs, labels, probes=1).by_layer(), like=0.1).scales.unit
    )


def local() -> Callable[[], float]:
    """The form of the paper, chosen by the batch that is sent."""
    model, inputs, labels = problem()
    release = GradientRelease(model, LOSS, inputs, labels)
    return lambda: local_optimal_noise(like=0.1).for_release(release).scales.unit


def ordinary() -> Callable[[], None]:
    """What a training step computes, thirty times."""
    model, inputs, labels = problem()

    def run() -> None:
        for _ in range(GRADIENTS):
            model.zero_grad()
            LOSS(model(inputs), labels).backward()

    return run


CONTENDERS = {
    "global, 10 probes (ours)": by_moments,
    "layer-wise, 1 probe (ours)": by_layer,
    "local, 10 probes": local,
    "30 ordinary gradients": ordinary,
}

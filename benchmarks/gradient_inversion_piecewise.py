"""Inverting Gradients at equal time: chen2025's LeakyReLU network with max-pooling, one CIFAR-10 image, 20 times.

The result is the mean PSNR after 10, 30 and 60 seconds with its 95 % interval over images. Ours is told the seconds and
runs once for each; breaching runs once, as its schedule does not depend on them, and is read off at these times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import nn

from benchmarks.breaching_peer import invert, psnr_over_time
from reconrisk.attacks.matching.published import inverting_gradients
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows
from reconrisk.data import load_dataset
from reconrisk.metrics import psnr
from reconrisk.models import chen2025_cifar10
from reconrisk.releases.observe import observe
from reconrisk.releases.updates.gradient import GradientRelease

IMAGES = 20
SECONDS = (10.0, 30.0, 60.0)
UNIT = (0.0, 1.0)


def releases() -> list[GradientRelease]:
    """The gradients of a network as it is before training, one for each image; needs CIFAR-10 (see docs/data.md)."""
    data = load_dataset("cifar-10", split="test")
    model = chen2025_cifar10(rng=torch.Generator().manual_seed(0)).eval()
    loss = nn.functional.cross_entropy
    rows = [slice(place, place + 1) for place in range(IMAGES)]
    return [GradientRelease(model, loss, data.inputs[row], data.class_labels[row]) for row in rows]


def summary(scores: Sequence[Sequence[float]]) -> str:
    """For each time the mean over images, and half the width of its interval."""
    parts = []
    for seconds, column in zip(SECONDS, torch.tensor(scores, dtype=torch.float64).T, strict=True):
        half = 1.96 * float(column.std()) / math.sqrt(len(column)) if len(column) > 1 else math.nan
        parts.append(f"{seconds:g} s: {float(column.mean()):.1f} +- {half:.1f} dB")
    return ", ".join(parts)


def ours() -> Callable[[], str]:
    """Signed Adam whose schedules follow the clock, once for each number of seconds."""
    cases = releases()

    def one(release: GradientRelease, seconds: float) -> float:
        observation = observe(release, threat=HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS))
        attack = inverting_gradients(steps=100_000, seconds=seconds)
        estimate = attack(observation, rng=torch.Generator().manual_seed(0)).estimates
        return float(psnr(data_range=1.0)(estimate, release.inputs)[0])

    return lambda: summary([[one(release, seconds) for seconds in SECONDS] for release in cases])


def breaching() -> Callable[[], str]:
    """The package breaching with its own settings, read off at the same times."""
    cases = releases()

    def one(release: GradientRelease) -> list[float]:
        model, labels, shape = release.model, release.labels, tuple(release.inputs.shape[1:])
        found = invert(model, release.loss_fn, release.value(), shape, labels, UNIT, SECONDS[-1])
        curve = psnr_over_time(found, release.inputs, UNIT)
        return [_last_before(curve, seconds) for seconds in SECONDS]

    return lambda: summary([one(release) for release in cases])


def _last_before(curve: Sequence[Sequence[float]], seconds: float) -> float:
    return next((value for time, value in reversed(curve) if time <= seconds), curve[0][1])


CONTENDERS = {"ours": ours, "breaching": breaching}

"""What the reproductions of gradient inversion share: attack groups of records, score every record."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import torch
from scipy.stats import t
from torch import Tensor, nn

from reconrisk.core.defense import Defense
from reconrisk.core.guarantee import Estimate
from reconrisk.core.observation import Attack, Observation
from reconrisk.core.progress import track
from reconrisk.core.reconstruction import Reconstruction
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows
from reconrisk.metrics import mse, psnr, score
from reconrisk.releases.observe import observe
from reconrisk.releases.release import Release
from reconrisk.releases.updates.gradient import GradientRelease


def attacked(
    attack: Attack,
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    batch: int,
    name: str,
    defense: Defense | None = None,
) -> Tensor:
    """PSNR of every record, attacked in groups of ``batch``, labels known, matched within the group."""
    scores = []
    threat = HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS)
    for first in track(range(0, len(inputs) - batch + 1, batch), name):
        rows = slice(first, first + batch)
        rng = torch.Generator().manual_seed(zlib.crc32(f"{name} {first}".encode()))
        release = GradientRelease(model, nn.functional.cross_entropy, inputs[rows], labels[rows])
        observation = observe(release, defense=defense, threat=threat, rng=rng)
        scores.append(score(attack(observation, rng=rng), inputs[rows], psnr(data_range=1.0))["psnr"])
    return torch.cat(scores)


def inverted(
    attack: Attack, model: nn.Module, inputs: Tensor, labels: Tensor, *, batch: int, defense: Defense, seed: int = 0
) -> dict[str, Tensor]:
    """MSE and PSNR of every record under ``defense``, by an attacker who knows the labels and not the defense.

    Records are attacked in groups of ``batch`` and matched within them. Starts of the attack and draws of the noise
    depend on ``seed`` and the group alone: two defenses, or two attacks, are compared at the same ones.
    """
    found: list[dict[str, Tensor]] = []
    for first in range(0, len(inputs) - batch + 1, batch):
        rows = slice(first, first + batch)
        release = GradientRelease(model, nn.functional.cross_entropy, inputs[rows], labels[rows])
        observation = observed(release, defense, aware=False, seed=seed + first)
        found.append(scored(attack(observation, rng=generator("start", seed + first)), inputs[rows]))
    return {name: torch.cat([each[name] for each in found]) for name in found[0]}


def observed(release: Release, defense: Defense, *, aware: bool, seed: int) -> Observation:
    """What is sent under ``defense``, the same draws for either attacker; labels are known."""
    threat = HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS, *([Knows.DEFENSE] if aware else []))
    return observe(release, defense=defense, threat=threat, rng=generator("draws", seed))


def generator(what: str, seed: int) -> torch.Generator:
    """A generator of its own for ``what`` is drawn."""
    return torch.Generator().manual_seed(zlib.crc32(f"{what} {seed}".encode()))


def scored(found: Reconstruction, inputs: Tensor) -> dict[str, Tensor]:
    """MSE and PSNR of every record."""
    metrics = [mse(), psnr(data_range=1.0)]
    scores = score(found, inputs, metrics)
    return {metric.name: scores[metric.name] for metric in metrics}


def mean_over(values: Tensor, what: str) -> Estimate:
    """The mean with a 95 % t interval, over groups of records, seeds or paired differences: say ``what`` they are."""
    count, value = len(values), float(values.mean())
    half = float(t.ppf(0.975, count - 1) * values.std()) / math.sqrt(count) if count > 1 else math.inf
    return Estimate(value, value - half, value + half, 0.95, count, f"t interval over {what}")


def mean_decibels(scores: Tensor, groups: int) -> Estimate:
    """The mean over records with a 95 % interval; records of one group are not independent, groups are."""
    value = float(scores.mean())
    by_group: Sequence[Tensor] = scores.view(groups, -1).mean(1)
    half = 1.96 * float(torch.as_tensor(by_group).std()) / math.sqrt(groups) if groups > 1 else math.inf
    return Estimate(value, value - half, value + half, 0.95, len(scores), "normal interval over groups, dB")

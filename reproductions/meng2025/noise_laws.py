"""Gaussian against Laplacian noise of equal variance on meng2025's CNN: its Tables 2 and 7.

The paper attacks CelebA at 256 x 256 by diffusion (GGSS-R) and finds that the law of the noise hardly matters. Here DLG
and Inverting Gradients, which know neither law, attack Olivetti faces at 32 (small) or 64 pixels, and so do two that
match by the likelihood of one law each: least squares (Gaussian) and least absolute values (Laplacian), without a
prior. At equal variance Laplacian noise has twice the Fisher information of Gaussian noise about where it is centred:
who knows the law should gain up to 3 dB from it, and nothing in the paper's comparison shows that.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reconrisk.attacks.matching.distances import Distance, SquaredError
from reconrisk.attacks.matching.loop import GradientMatching
from reconrisk.attacks.matching.optimizers import Adam
from reconrisk.attacks.matching.published import dlg, inverting_gradients
from reconrisk.core.defense import Defense
from reconrisk.core.observation import Attack
from reconrisk.defenses import gaussian_noise, laplace_noise
from reconrisk.models import meng2025_cnn
from reproductions.frame import Finding, Scale, need_data, reproduce
from reproductions.gradient_inversion import inverted, mean_over
from reproductions.meng2025.baselines import CLASSES, faces

LAWS: Mapping[str, Callable[[float], Defense]] = {"Gaussian": gaussian_noise, "Laplacian": laplace_noise}
PAPER = {1e-4: (28.0343, 27.9395), 1e-3: (24.0567, 24.2073), 1e-2: (14.9784, 15.1657), 1e-1: (9.0236, 8.5697)}


@dataclass(frozen=True)
class AbsoluteError:
    """Sum of absolute differences: minus the log-likelihood of Laplacian noise, up to scale."""

    def __call__(self, candidate: Mapping[str, Tensor], observed: Mapping[str, Tensor]) -> Tensor:
        """The sum over all values."""
        return torch.stack([(candidate[name] - value).abs().sum() for name, value in observed.items()]).sum()


def run(scale: Scale) -> Sequence[Finding]:
    """Mean PSNR under both laws by variance and attack, and the difference for the same faces."""
    need_data()
    return compared(side=32, steps=40, count=6) if scale == "small" else compared(side=64, steps=1000, count=32)


def compared(*, side: int, steps: int, count: int, variances: Sequence[float] = tuple(PAPER)) -> list[Finding]:
    """One row per attack and variance, for the first ``count`` faces, one per batch."""
    images, rng = faces(side)[:count], torch.Generator().manual_seed(0)
    model = meng2025_cnn((1, side, side), CLASSES, rng=rng).eval()
    labels = torch.randint(CLASSES, (count,), generator=rng)
    remark = f"{side}x{side} faces, {count} of one each, {steps} steps, label known, untrained"
    findings = []
    for name, attack in attacks(steps).items():
        for variance in variances:
            found = {
                law: _decibels(attack, model, images, labels, defense(math.sqrt(variance)))
                for law, defense in LAWS.items()
            }
            what = f"PSNR of {name}, noise of variance {variance:g}, Gaussian (Table 2) / Laplacian (Table 7)"
            gaussian, laplacian = PAPER[variance]
            means = " / ".join(f"{float(values.mean()):.2f}" for values in found.values())
            difference = mean_over(found["Laplacian"] - found["Gaussian"], "faces, dB")
            ours = f"{means}; Laplacian minus Gaussian {difference}"
            findings.append(Finding(what, f"{gaussian} / {laplacian} dB by GGSS-R", ours, remark))
    return findings


def attacks(steps: int) -> dict[str, Attack]:
    """Two that know neither law, and the likelihood of either."""
    return {
        "DLG": dlg(steps=steps, restarts=1),
        "IG": inverting_gradients(steps=steps),
        "least squares": _matching(SquaredError(), steps),
        "least absolute values": _matching(AbsoluteError(), steps),
    }


def _matching(distance: Distance, steps: int) -> GradientMatching:
    update = Adam(0.1, signed=False, schedule="cosine")
    return GradientMatching(name=type(distance).__name__, distance=distance, update=update, steps=steps)


def _decibels(attack: Attack, model: nn.Module, images: Tensor, labels: Tensor, defense: Defense) -> Tensor:
    return inverted(attack, model, images, labels, batch=1, defense=defense)["psnr"]


if __name__ == "__main__":
    sys.exit(reproduce(run))

"""Figure 2 of riess2025: what more neurons do for the attacker at one and the same privacy.

The paper shows four pictures of CelebA and iNaturalist at 224 x 224, and no number; here are the first four bundled
crops for which 1000 neurons make clipping bind. At the small scale they keep their 64 x 64: the clip norm shrinks and
the noise multiplier grows with the side, so that noise on a pixel is the paper's. Its caption says that clipping is
triggered where M < (C/|x|)^2; it is where M >= (C/|x|)^2.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from reconrisk.attacks import neurons_for_clipping, optimal_analytic
from reconrisk.core.guarantee import psnr_from_mse
from reconrisk.core.mechanism import Gaussian
from reconrisk.core.progress import track
from reconrisk.data import load_dataset
from reconrisk.defenses import clip_and_noise
from reconrisk.releases.observe import observe
from reconrisk.releases.updates.gradient import GradientRelease
from reproductions.frame import Drawing, Finding, Scale, reproduce

NOISE, CLIP_NORM, SIDE = 5e-4, 5e3, 224
NEURONS = (1, 1000)
PICTURES = 4
_WIDE, _UNIT = (-1e6, 1e6), (0.0, 1.0)


@dataclass(frozen=True, eq=False)
class Shown:
    """Estimates of every picture with so many neurons, as they are and cut to [0, 1], and how the attack ended."""

    neurons: int
    plain: Tensor
    cut: Tensor
    endings: tuple[str, ...]


def attacked(pictures: Tensor, neurons: int, mechanism: Gaussian) -> Shown:
    """The attack on every picture, twice: with and without the public range of values."""
    attack = optimal_analytic(neurons=neurons)
    planted = attack.plant(pictures.shape[1:])
    defense = clip_and_noise(noise_multiplier=mechanism.noise_multiplier, clip_norm=mechanism.clip_norm)
    found: dict[tuple[float, float], list[Tensor]] = {_WIDE: [], _UNIT: []}
    endings = []
    for picture in track(pictures, f"{neurons} neurons"):
        release = GradientRelease(planted.module, planted.loss_fn, picture[None], torch.tensor([0]))
        for data_range, estimates in found.items():
            rng = torch.Generator().manual_seed(0)
            observation = observe(release, defense=defense, threat=attack.needs, data_range=data_range, rng=rng)
            reconstruction = attack(observation, rng=rng)
            estimates.append(reconstruction.estimates)
        endings.append(str(reconstruction.status))
    return Shown(neurons, torch.cat(found[_WIDE]), torch.cat(found[_UNIT]), tuple(endings))


def run(scale: Scale) -> Sequence[Finding | Drawing]:
    """Pictures rebuilt through 1 and through 1000 neurons under one clip norm and noise, and what the law expects."""
    pictures = load_dataset("crops").inputs
    if scale == "paper":
        pictures = interpolate(pictures, size=(SIDE, SIDE), mode="bilinear").clamp(0, 1)
    shrunk = pictures.shape[-1] / SIDE
    mechanism = Gaussian(NOISE / shrunk, CLIP_NORM * shrunk)
    bright = NEURONS[-1] ** 0.5 * pictures.flatten(1).norm(dim=1) > mechanism.clip_norm
    pictures = pictures[bright][:PICTURES]
    shown = [attacked(pictures, neurons, mechanism) for neurons in NEURONS]
    return [
        *(finding for each in shown for finding in _findings(each, pictures, mechanism)),
        Drawing("figure2.png", partial(draw, [pictures, *(each.cut for each in shown)])),
    ]


def _findings(shown: Shown, pictures: Tensor, mechanism: Gaussian) -> list[Finding]:
    norms = pictures.flatten(1).norm(dim=1).tolist()
    binding = sum("clipping does not bind" not in ending for ending in shown.endings)
    # The least variance of Theorem IV.1, and that of equation 15 where clipping does not bind.
    least = mechanism.noise_std**2 / shown.neurons
    expected = [max((mechanism.noise_multiplier * norm) ** 2, least) for norm in norms]
    plain, cut = ((each - pictures).double().square().mean().item() for each in (shown.plain, shown.cut))
    name = f"Figure 2, M {shown.neurons}"
    side = pictures.shape[-1]
    remark = f"sigma {mechanism.noise_multiplier:g}, C {mechanism.clip_norm:.4g}, {len(norms)} crops of {side}x{side}"
    needed = neurons_for_clipping(mechanism.clip_norm, smallest_norm=min(norms))
    caption = "clipped (reversed in the caption)" if shown.neurons == 1 else "not clipped (reversed in the caption)"
    law = sum(expected) / len(expected)
    return [
        Finding(f"{name}: clipping binds", caption, f"{binding} of {len(norms)}; all from M {needed} on", remark),
        Finding(
            f"{name}: mean MSE",
            "obscured" if shown.neurons == 1 else "clearer",
            f"{plain:.4g}, expected {law:.4g}; cut to [0, 1] {cut:.4g}",
            remark,
        ),
        Finding(
            f"{name}: PSNR of the mean MSE",
            "-",
            f"{psnr_from_mse(plain, data_range=1.0):.1f} dB; cut to [0, 1] {psnr_from_mse(cut, data_range=1.0):.1f} dB",
            remark,
        ),
    ]


def draw(columns: Sequence[Tensor], path: Path) -> None:
    """Pictures and their estimates side by side, one picture in a row."""
    rows = torch.cat(list(columns), 3)
    grid = torch.cat(list(rows), 1).clamp(0, 1)
    pixels = (255 * grid).round().byte().movedim(0, -1).numpy()
    image = Image.fromarray(pixels)
    factor = max(1, math.ceil(160 * len(columns) / image.width))
    image.resize((factor * image.width, factor * image.height), Image.Resampling.NEAREST).save(path)


if __name__ == "__main__":
    sys.exit(reproduce(run))

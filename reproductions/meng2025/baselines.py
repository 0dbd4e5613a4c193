"""DLG and Inverting Gradients against meng2025's CNN: its baselines in Tables 3, 4 and 5.

The paper's images are CelebA at 256 x 256; here they are the 400 Olivetti faces at 32 (small) or 64 pixels, one
channel. It does not say how long the baselines run, how many classes there are, or whether the network is trained: two
classes and torch's untrained initialisation are taken, as its RV values suggest. Noise of variance 0.01 is on every
value of the gradient.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from scipy.io import loadmat
from torch import Tensor, nn

from reconrisk.attacks.matching.published import dlg, inverting_gradients
from reconrisk.core.errors import InvalidInput
from reconrisk.data import data_folders
from reconrisk.defenses import gaussian_noise
from reconrisk.models import meng2025_cnn
from reproductions.frame import Finding, Scale, need_data, reproduce
from reproductions.gradient_inversion import attacked, mean_decibels

CLASSES = 2
FACES, PEOPLE = "faces/olivettifaces.mat", 40
ORIGINAL = {
    "DLG": {1: 13.1835, 2: 11.0356, 4: 9.9452, 8: 8.3562},
    "IG": {1: 17.0756, 2: 15.2562, 4: 11.3003, 8: 9.5382},
}
NOISY = {"DLG": 6.5871, "IG": 11.2677}


def run(scale: Scale) -> Sequence[Finding]:
    """Mean PSNR of both attacks without noise by batch size, and with noise for single records."""
    side, steps, groups = (32, 60, 2) if scale == "small" else (64, 1000, 8)
    images = faces(side)
    rng = torch.Generator().manual_seed(0)
    model = meng2025_cnn((1, side, side), CLASSES, rng=rng).eval()
    attacks = {"DLG": dlg(steps=steps, restarts=1), "IG": inverting_gradients(steps=steps)}
    remark = f"{side}x{side} faces, {groups} batches, {steps} steps, labels known"
    findings = []
    for name, attack in attacks.items():
        for batch, paper in ORIGINAL[name].items():
            some, labels = images[: groups * batch], _labels(groups * batch, rng)
            found = attacked(attack, model, some, labels, batch=batch, name=f"{name}, batch of {batch}")
            what = f"PSNR of {name}, batch of {batch} (Tables 3 and 5)"
            findings.append(Finding(what, f"{paper} dB", mean_decibels(found, groups), remark))
        some, labels = images[:groups], _labels(groups, rng)
        noise = gaussian_noise(0.1)
        found = attacked(attack, model, some, labels, batch=1, name=f"{name} with noise", defense=noise)
        what = f"PSNR of {name}, noise of variance 0.01 (Table 4)"
        findings.append(Finding(what, f"{NOISY[name]} dB", mean_decibels(found, groups), remark))
    return findings


def faces(side: int) -> Tensor:
    """The Olivetti faces, one of each person after the other, at so many pixels."""
    need_data()
    path = next((place for folder in data_folders() if (place := Path(folder.path) / FACES).is_file()), None)
    if path is None:
        raise InvalidInput(f"Expected {FACES} in the folder that RECONRISK_DATA names. See docs/data.md.")
    values = torch.from_numpy(loadmat(path)["faces"].T.reshape(PEOPLE, 10, 1, 64, 64)).float() / 255
    upright = values.transpose(0, 1).reshape(400, 1, 64, 64).transpose(2, 3)
    return nn.functional.interpolate(upright, size=(side, side), mode="bilinear", antialias=True).clamp(0, 1)


def _labels(count: int, rng: torch.Generator) -> Tensor:
    return torch.randint(CLASSES, (count,), generator=rng)


if __name__ == "__main__":
    sys.exit(reproduce(run))

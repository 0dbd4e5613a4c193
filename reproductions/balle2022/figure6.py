"""Figure 6 of balle2022: shadow targets that are not drawn as the target is.

The paper attacks CIFAR-10 models with shadow targets from CIFAR-100 and sees a negligible difference. Here digits are
attacked with shadow targets that are digits, mirrored digits, natural images in grey, and chest X-rays; what has no
digit for a label gets one at random.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from reconrisk.attacks.informed.reconstructor.shadow_knowledge import ShadowKnowledge
from reconrisk.data import load_dataset
from reproductions.balle2022.table2 import LARGE, QUICK, finding, models_of, oracle, pool, rebuilt, rows_of, training
from reproductions.frame import Finding, Scale, need_data, reproduce


def run(scale: Scale) -> Sequence[Finding]:
    """Mean squared error on digits, by where shadow targets are from."""
    need_data()
    setting = QUICK if scale == "small" else LARGE
    inputs, labels = pool()
    targets, fixed, shadows = rows_of(setting, 0)
    learned = training(setting, inputs[fixed], labels[fixed])
    digits, answers = inputs[shadows], labels[shadows]
    sources = {
        "digits": digits,
        "mirrored digits": digits.flip(-1),
        "natural images in grey": natural(setting.shadows),
        "chest X-rays": chests(setting.shadows),
    }
    findings: list[Finding] = []
    for name, images in sources.items():
        own = "digits" in name
        drawn = torch.randint(10, (len(images),), generator=torch.Generator().manual_seed(0))
        knowledge = ShadowKnowledge(learned, images, answers if own else drawn, in_distribution=name == "digits")
        outcome = rebuilt(models_of(knowledge, inputs[targets], labels[targets], 0), setting)
        findings += [] if findings else [oracle(outcome, setting)]
        paper = "curve" if name == "digits" else "curve, negligible difference (CIFAR-100 for CIFAR-10)"
        findings.append(finding(f"shadow targets: {name}", paper, outcome, setting))
        print(f"{name}: {findings[-1].ours}, {findings[-1].remark}", file=sys.stderr)
    return findings


def natural(count: int) -> Tensor:
    """The middle of CIFAR-10 images, in grey."""
    return load_dataset("cifar-10", split="train").inputs[:count].mean(1, keepdim=True)[..., 2:30, 2:30]


def chests(count: int) -> Tensor:
    """Chest X-rays; those that are few come again upside down and mirrored."""
    images = load_dataset("pneumoniamnist", split="train").inputs
    return torch.cat([images, images.flip(-1), images.flip(-2), images.flip(-1, -2)])[:count]


if __name__ == "__main__":
    sys.exit(reproduce(run))

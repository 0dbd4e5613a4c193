"""Inverting Gradients in chen2025's setting: its networks on MNIST and CIFAR-10, batches of 1, 2, 4 and 16.

The paper attacks untrained networks with a budget of 2000 (MNIST) and 1000 (CIFAR-10) updates and prints curves only,
no table. The small scale takes 300 and 60 updates; CIFAR-10 in batches of 16 is left to the paper's scale.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

from reconrisk.attacks.matching.published import inverting_gradients
from reconrisk.data import load_dataset
from reconrisk.models import chen2025_cifar10, chen2025_mnist
from reproductions.frame import Finding, Scale, need_data, reproduce
from reproductions.gradient_inversion import attacked, mean_decibels

PRINTED = "curves only (Figures 2 to 11)"


def run(scale: Scale) -> Sequence[Finding]:
    """Mean PSNR of undefended gradients by batch size."""
    need_data()
    rng = torch.Generator().manual_seed(0)
    small = scale == "small"
    digits, images = load_dataset("mnist-full", split="test"), load_dataset("cifar-10", split="test")
    mnist, cifar = chen2025_mnist(rng=rng).eval(), chen2025_cifar10(rng=rng).eval()
    findings = []
    for name, data, model, steps, batches, groups in (
        ("MNIST", digits, mnist, 300 if small else 2000, (1, 2, 4, 16), 4 if small else 16),
        ("CIFAR-10", images, cifar, 60 if small else 1000, (1, 2, 4) if small else (1, 2, 4, 16), 2 if small else 8),
    ):
        for batch in batches:
            some = data.subset(range(groups * batch))
            title = f"{name}, batch of {batch}"
            found = attacked(
                inverting_gradients(steps=steps), model, some.inputs, some.class_labels, batch=batch, name=title
            )
            remark = f"{steps} updates, {groups} batches, labels known, untrained network in evaluation mode"
            findings.append(Finding(f"PSNR of {title}", PRINTED, mean_decibels(found, groups), remark))
    return findings


if __name__ == "__main__":
    sys.exit(reproduce(run))

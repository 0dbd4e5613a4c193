"""Pruning on CIFAR-10: chen2025's Figure 2, training loss on 8 images against the MSE of Inverting Gradients.

The paper attacks the 2.9M ConvNet, 2 images at a time, with 1000 updates. The small scale takes an eighth of its width
and 40 updates. The paper gives a picture only, and in words: 70 % optimal pruning outperforms 90 % magnitude pruning.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from reproductions.chen2025.settings import cifar10, pruning
from reproductions.frame import Drawing, Finding, Scale, need_data, reproduce
from reproductions.optimal_defenses import compared

SHARES = (0.5, 0.7, 0.9)
CLAIMS = (
    "curves only; 70 % optimal above 90 % magnitude",
    "curves only; 70 % optimal below 90 % magnitude",
    "optimal pruning dominates",
)


def run(scale: Scale) -> Sequence[Finding | Drawing]:
    """MSE, PSNR and training loss by pruning ratio, for attackers who ignore and who use the mask."""
    need_data()
    return compared(
        cifar10(scale, learning_rate=5e-5),
        pruning(),
        SHARES,
        strength="pruning ratio",
        leakage="Figure 2",
        scatter="Figure 2",
        claims=CLAIMS,
        plot="chen2025_figure2.png",
    )


if __name__ == "__main__":
    sys.exit(reproduce(run))

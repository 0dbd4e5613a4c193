"""Noise on CIFAR-10: chen2025's Figure 4 (scatter), 12 (training loss by noise scale) and 13 (MSE by noise scale).

The paper attacks the 2.9M ConvNet, 2 images at a time, with 1000 updates, after clipping to norm 1. The small scale
takes an eighth of its width and 40 updates. The paper gives pictures only.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from reproductions.chen2025.settings import cifar10, noise
from reproductions.frame import Drawing, Finding, Scale, need_data, reproduce
from reproductions.optimal_defenses import compared

SCALES = (0.01, 0.1, 1.0)
CLAIMS = (
    "optimal slightly above equal noise at large scales (curves only)",
    "optimal below equal noise at large scales (curves only)",
    "optimal noise dominates",
)


def run(scale: Scale) -> Sequence[Finding | Drawing]:
    """MSE, PSNR and training loss by noise scale, for attackers who ignore and who use the covariance."""
    need_data()
    return compared(
        cifar10(scale, learning_rate=1e-4),
        noise(),
        SCALES,
        strength="noise scale",
        leakage="Figure 13",
        scatter="Figures 4 and 12",
        claims=CLAIMS,
        plot="chen2025_figure4.png",
    )


if __name__ == "__main__":
    sys.exit(reproduce(run))

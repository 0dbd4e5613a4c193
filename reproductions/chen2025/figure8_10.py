"""Noise on MNIST: chen2025's Figure 8 (reconstruction by noise scale) and Figure 10 (scatter with training loss).

The noise scale is the Frobenius norm of the covariance; everything is clipped to norm 1 before. The
paper attacks 4 batches of 16 with 2000 updates; the small scale takes batches of 4 and 150 updates. Curves only.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from reproductions.chen2025.settings import mnist, noise
from reproductions.frame import Drawing, Finding, Scale, need_data, reproduce
from reproductions.optimal_defenses import compared

SCALES = (0.01, 0.1, 1.0)
CLAIMS = (
    "comparable at the same noise scale (curves only)",
    "curves only",
    "optimal noise dominates",
)


def run(scale: Scale) -> Sequence[Finding | Drawing]:
    """MSE, PSNR and training loss by noise scale, for attackers who ignore and who use the covariance."""
    need_data()
    return compared(
        mnist(scale),
        noise(),
        SCALES,
        strength="noise scale",
        leakage="Figure 8",
        scatter="Figure 10",
        claims=CLAIMS,
        plot="chen2025_figure10.png",
    )


if __name__ == "__main__":
    sys.exit(reproduce(run))

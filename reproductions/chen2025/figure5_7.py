"""Pruning on MNIST: chen2025's Figure 5 (reconstruction by pruning ratio) and Figure 7 (scatter with training loss).

The paper attacks 4 batches of 16 with 2000 updates; the small scale takes batches of 4 and 150 updates. Curves only.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from reproductions.chen2025.settings import mnist, pruning
from reproductions.frame import Drawing, Finding, Scale, need_data, reproduce
from reproductions.optimal_defenses import compared

SHARES = (0.5, 0.8, 0.9)
CLAIMS = (
    "optimal has the higher MSE at high ratios (curves only)",
    "curves only",
    "optimal pruning dominates",
)


def run(scale: Scale) -> Sequence[Finding | Drawing]:
    """MSE, PSNR and training loss by pruning ratio, for attackers who ignore and who use the mask."""
    need_data()
    return compared(
        mnist(scale),
        pruning(),
        SHARES,
        strength="pruning ratio",
        leakage="Figure 5",
        scatter="Figure 7",
        claims=CLAIMS,
        plot="chen2025_figure7.png",
    )


if __name__ == "__main__":
    sys.exit(reproduce(run))

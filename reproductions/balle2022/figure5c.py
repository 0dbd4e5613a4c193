"""Figure 5c of balle2022: the error of reconstructors by the number of shadow models.

The paper draws a curve: reconstructions beat the nearest-neighbour oracle from 8,000 shadow models on, with 10,000
fixed records. Here each number of shadow models is attacked by the closed form.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from reproductions.balle2022.table2 import DEFAULT, attacked, finding, oracle
from reproductions.frame import Finding, Scale, need_data, reproduce


def run(scale: Scale) -> Sequence[Finding]:
    """Mean squared error by the number of shadow models, beside the oracle that has the same records."""
    need_data()
    small = (100, 300, 1_000, 2_000)
    findings = []
    for shadows in small if scale == "small" else (100, 300, 1_000, 3_000, 10_000, 30_000):
        setting = replace(DEFAULT, shadows=shadows, fixed=100 if scale == "small" else 1_000)
        outcome = attacked(setting)
        findings += [
            replace(oracle(outcome, setting), paper="curve"),
            finding(f"{shadows:,} shadow models", "curve", outcome, setting),
        ]
    return findings


if __name__ == "__main__":
    sys.exit(reproduce(run))

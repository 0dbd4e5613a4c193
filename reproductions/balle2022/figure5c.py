"""Figures 5c and 5d of balle2022: the error of reconstructors by the number of shadow models they learn from.

The paper draws curves from 100 to 59,000 shadow models with 10,000 fixed records: on average reconstructions beat the
nearest-neighbour oracle (0.0232) from 8,000 shadow models on. Here each number of shadow models is attacked by the
closed form, and the oracle has only the records that the attack has.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from reproductions.balle2022.table2 import LARGE, QUICK, attacked, finding, oracle, other_scores
from reproductions.frame import Finding, Scale, need_data, reproduce

COUNTS = {"small": (100, 300, 1_000, 2_000), "paper": (100, 300, 1_000, 3_000, 10_000, 30_000)}


def run(scale: Scale) -> Sequence[Finding]:
    """MSE and KL by the number of shadow models, beside the oracle that has the same records."""
    need_data()
    sizes = replace(QUICK if scale == "small" else LARGE, shadows=max(COUNTS[scale]))
    findings = []
    for count in COUNTS[scale]:
        setting = replace(sizes, learned_from=count)
        outcome = attacked(setting)
        findings += [
            replace(oracle(outcome, setting), paper="0.0232 (69,000 known records)"),
            finding(f"{count:,} shadow models", "curve, below 0.0232 from 8,000 on", outcome, setting),
        ]
        for name, ours in other_scores(outcome).items():
            what = f"reconstructor, MNIST, {count:,} shadow models, mean {name}"
            findings.append(Finding(what, "curve", ours, setting.sizes))
    return findings


if __name__ == "__main__":
    sys.exit(reproduce(run))

"""Figure 7 of balle2022: batches whose order the adversary knows or does not know, by batch size and learning rate.

The paper draws curves: with the order known the attack succeeds even with small batches, with the order unknown it does
so at the small learning rate. Without momentum, learning rates 0.01 and 0.2; 100 epochs, at the small scale 30.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import replace

from reproductions.balle2022.table2 import LARGE, QUICK, attacked, finding
from reproductions.frame import Finding, Scale, need_data, reproduce


def run(scale: Scale) -> Sequence[Finding]:
    """Mean squared error by batch size, learning rate and knowledge of the order."""
    need_data()
    sizes = replace(QUICK, shadows=500) if scale == "small" else LARGE
    batch_sizes = (32,) if scale == "small" else (32, 128, 512)
    findings = []
    for rate, batch_size, known in itertools.product((0.01, 0.2), batch_sizes, (True, False)):
        steps = (30 if scale == "small" else 100) * -(-(sizes.fixed + 1) // batch_size)
        training = {"batch_size": batch_size, "known_order": known, "learning_rate": rate, "momentum": 0.0}
        setting = replace(sizes, **training, steps=steps)
        what = f"batches of {batch_size}, learning rate {rate}, order {'known' if known else 'unknown'}"
        findings.append(finding(what, "curve", attacked(setting), setting))
        print(f"{what}: {findings[-1].ours}, {findings[-1].remark}", file=sys.stderr)
    return findings


if __name__ == "__main__":
    sys.exit(reproduce(run))

"""Table IV and Figure 16 of balle2022: the width of the released model, and its second layer alone.

The paper has 10,000 fixed records and 59,000 shadow models; here are fewer, attacked by the closed form.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from reproductions.balle2022.table2 import LARGE, QUICK, attacked, finding, other_scores
from reproductions.frame import Finding, Scale, need_data, reproduce

PAPER: dict[tuple[int, tuple[str, ...] | None], tuple[str, str, str]] = {
    (1, None): ("0.0079", "0.0325", "0.0448"),
    (10, None): ("0.0089", "0.0392", "0.0516"),
    (100, None): ("0.0079", "0.0338", "0.0258"),
    (100, ("layers.2",)): ("0.0124", "0.0477", "0.0840"),
}
"""Width of the hidden layer, layers that are read: MSE, LPIPS, KL."""


def run(scale: Scale) -> Sequence[Finding]:
    """MSE, LPIPS and KL by the width of the hidden layer."""
    need_data()
    sizes = replace(QUICK, shadows=500) if scale == "small" else LARGE
    findings = []
    for (hidden, parameters), (squared, perceptual, divergence) in PAPER.items():
        setting = replace(sizes, hidden=hidden, parameters=parameters)
        what = f"hidden {hidden}{', second layer alone' if parameters else ''}"
        outcome = attacked(setting)
        findings.append(finding(what, squared, outcome, setting))
        print(f"{what}: {findings[-1].ours}, {findings[-1].remark}", file=sys.stderr)
        papers = {"LPIPS": perceptual, "KL": divergence}
        for name, ours in other_scores(outcome).items():
            findings.append(Finding(f"reconstructor, MNIST, {what}, mean {name}", papers[name], ours, setting.sizes))
    return findings


if __name__ == "__main__":
    sys.exit(reproduce(run))

"""Table III of balle2022: known and unknown initialisation, by learning rate and momentum of the released model.

The paper has 10,000 fixed records and 59,000 shadow models; sizes here are those of Table II's reproduction.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from reproductions.balle2022.table2 import LARGE, QUICK, attacked, estimate, finding, oracle, other_scores
from reproductions.frame import Finding, Scale, need_data, reproduce

PAPER = {
    (False, 0.01, 0.0): ("0.0693", "0.3342", "5.2477"),
    (False, 0.01, 0.9): ("0.0691", "0.3326", "5.2218"),
    (False, 0.20, 0.0): ("0.0692", "0.3326", "5.3599"),
    (False, 0.20, 0.9): ("0.0695", "0.3226", "5.5261"),
    (True, 0.01, 0.0): ("0.0041", "0.0197", "0.0140"),
    (True, 0.01, 0.9): ("0.0049", "0.0225", "0.0179"),
    (True, 0.20, 0.0): ("0.0063", "0.0286", "0.0357"),
    (True, 0.20, 0.9): ("0.0089", "0.0382", "0.0414"),
}
"""Whether the start is known, learning rate, momentum: MSE, LPIPS, KL."""


def run(scale: Scale) -> Sequence[Finding]:
    """MSE, LPIPS and KL of reconstructors with and without knowledge of the initialisation."""
    need_data()
    sizes = replace(QUICK, shadows=500) if scale == "small" else LARGE
    findings: list[Finding] = []
    for (known, rate, momentum), (squared, perceptual, divergence) in PAPER.items():
        setting = replace(sizes, known_start=known, learning_rate=rate, momentum=momentum)
        outcome = attacked(setting)
        what = f"{'known' if known else 'unknown'} start, learning rate {rate}, momentum {momentum}"
        findings += [] if findings else [oracle(outcome, setting)]
        findings.append(finding(what, squared, outcome, setting))
        papers = {"LPIPS": perceptual, "KL": divergence}
        for name, ours in other_scores(outcome).items():
            findings.append(Finding(f"reconstructor, MNIST, {what}, mean {name}", papers[name], ours, setting.sizes))
    constant = outcome.known.mean(0).expand_as(outcome.targets)
    guess = estimate((constant - outcome.targets).square().flatten(1).mean(1).double())
    return [
        *findings,
        Finding("mean of the known records as a guess, MNIST, mean MSE", "not given", guess, sizes.sizes),
    ]


if __name__ == "__main__":
    sys.exit(reproduce(run))

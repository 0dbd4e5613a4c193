"""Table 5 of meng2025: guided sampling and its rivals on the CNN by the number of images behind one gradient.

Images of a batch have different classes, which are known; estimates of the rivals are matched to the targets, those of
guided sampling stand in the order of the labels. Intervals are over batches.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import reconrisk as rr
from reconrisk.core.observation import Attack
from reproductions.frame import Finding, Scale
from reproductions.meng2025.guided import Outcome, attacked, guided, words
from reproductions.meng2025.settings import (
    Study,
    network,
    observations,
    parts_of,
    reproduce_with_prior,
    rivals,
    study,
    tell,
)

PAPER = {
    "GGSS-R": (41.1229, 24.4602, 17.4791, 12.1425),
    "DLG": (13.1835, 11.0356, 9.9452, 8.3562),
    "IG": (17.0756, 15.2562, 11.3003, 9.5382),
    "GI": (16.5109, 14.8351, 11.0352, 9.2350),
    "GIAS": (13.3885, 11.4684, 10.2465, 8.9462),
    "GGL": (17.4923, 15.5526),
    "GIFD": (20.0534, 18.3562, 13.9636, 10.3425),
    "FinetunedDiff": (29.4490, 21.4583, 15.6387, 11.4570),
}
BATCHES = (1, 2, 4, 8)
OURS = "plug-and-play"
LEFT_OUT = ("Gauss-Newton", "Gaussian posterior")
"""Rivals that Table 5 has not; Tables 3 and 4 show them."""


@dataclass(frozen=True)
class Sizes:
    """Images for guided sampling, batches for ours and for the rivals, and steps of guided sampling."""

    images: int
    ours: int
    rivals: int
    steps: int


SIZES = {"small": Sizes(8, 0, 1, 100), "paper": Sizes(40, 5, 5, 1000)}


def run(scale: Scale, prior: str, only: Sequence[str] = ()) -> Sequence[Finding]:
    """PSNR, MSE, SSIM and LPIPS of all attacks on the CNN's clean gradient by batch size."""
    believed = study(prior)
    findings = list[Finding]()
    for batch in parts_of(BATCHES, only):
        outcomes = attacked_in(batch, believed, SIZES[scale], rivals(believed, scale))
        found = [_row(name, batch, outcome, believed) for name, outcome in outcomes.items()]
        findings += found
        tell(found)
    return findings


def attacked_in(batch: int, believed: Study, sizes: Sizes, others: dict[str, Attack]) -> dict[str, Outcome]:
    """All attacks on gradients of ``batch`` images; the rivals meet the first of them."""
    usable = sizes.images // batch * batch
    inputs, labels = believed.inputs[:usable], believed.labels[:usable]
    parts = observations(network("CNN", believed.shape), inputs, labels, batch=batch)
    outcomes = {"GGSS-R": guided(rr.attacks.ggss_r(believed.prior, steps=sizes.steps), parts, inputs)}
    for name, attack in others.items():
        count = min(sizes.ours if name == OURS else sizes.rivals, len(parts))
        if name in LEFT_OUT or not count:
            continue
        outcomes[name] = attacked(attack, parts[:count], inputs[: count * batch], f"{name}, batch of {batch}")
    return outcomes


def _row(name: str, batch: int, outcome: Outcome, believed: Study) -> Finding:
    place, targets = BATCHES.index(batch), believed.inputs[: len(outcome.estimates)]
    paper = PAPER.get(name, ())
    stated = f"PSNR {paper[place]} dB" if place < len(paper) else "not given"
    remark = f"{believed.said}, {outcome.batches} batches, labels known, untrained"
    return Finding(f"{name} on CNN, batch of {batch} (Table 5)", stated, words(outcome, targets), remark)


if __name__ == "__main__":
    sys.exit(reproduce_with_prior(run))

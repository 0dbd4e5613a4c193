"""Nearest-neighbour oracle of balle2022 (Section V-B, Table II): what guessing a known record reaches."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import torch

from reconrisk.core.guarantee import Estimate
from reconrisk.data import load_dataset
from reconrisk.metrics import nearest_neighbour_oracle
from reproductions.frame import Finding, Scale, need_data, reproduce

PAPER = {"mnist-full": "0.0232", "cifar-10": "0.0291"}
SMALL = 20_000
WHOLE = {"mnist-full": 70_000, "cifar-10": 60_000}
TARGETS = 1_000


def run(scale: Scale) -> Sequence[Finding]:
    """Mean squared error between 1,000 targets and their nearest neighbours among all other records."""
    need_data()
    return [_finding(name, scale) for name in PAPER]


def _finding(name: str, scale: Scale) -> Finding:
    pool = torch.cat([load_dataset(name, split=split).inputs for split in ("train", "test")])
    order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(0))[: SMALL if scale == "small" else None]
    targets, known = pool[order[:TARGETS]], pool[order[TARGETS:]]
    errors = nearest_neighbour_oracle(targets, known).scores.numpy()
    mean, half = float(errors.mean()), 1.96 * float(errors.std(ddof=1)) / np.sqrt(len(errors))
    ours = Estimate(mean, mean - half, mean + half, 0.95, len(errors), "normal interval of the mean")
    remark = f"{len(known):,} known records"
    if scale == "paper" and len(pool) < WHOLE[name]:
        remark += f", incomplete: the data folder holds {len(pool):,} of {WHOLE[name]:,}"
    return Finding(f"nearest-neighbour oracle, {name}, mean MSE", PAPER[name], ours, remark)


if __name__ == "__main__":
    sys.exit(reproduce(run))

"""Nearest-neighbour oracle of balle2022 (Section V-B, Table II): what guessing a known record reaches."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import torch

from reconrisk.core.guarantee import Estimate
from reconrisk.data import load_dataset
from reconrisk.metrics import nearest_neighbour_oracle
from reproductions.frame import Finding, Scale, data_folder, reproduce

PAPER = {"mnist-full": "0.0232", "cifar-10": "0.0291"}
POOL = {"small": 20_000, "paper": 70_000}
TARGETS = 1_000


def run(scale: Scale) -> Sequence[Finding]:
    """Mean squared error between 1,000 targets and their nearest neighbours among all other records."""
    data_folder()
    return [_finding(name, scale) for name in PAPER]


def _finding(name: str, scale: Scale) -> Finding:
    pool = torch.cat([load_dataset(name, split=split).inputs for split in ("train", "test")])
    order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(0))[: POOL[scale]]
    targets, known = pool[order[:TARGETS]], pool[order[TARGETS:]]
    errors = nearest_neighbour_oracle(targets, known).scores.numpy()
    mean, half = float(errors.mean()), 1.96 * float(errors.std(ddof=1)) / np.sqrt(len(errors))
    ours = Estimate(mean, mean - half, mean + half, 0.95, len(errors), "normal interval of the mean")
    return Finding(f"nearest-neighbour oracle, {name}, mean MSE", PAPER[name], ours, f"{len(known):,} known records")


if __name__ == "__main__":
    sys.exit(reproduce(run))

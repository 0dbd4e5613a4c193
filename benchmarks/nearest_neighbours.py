"""Nearest-neighbour oracle: 50 targets among 4,000 known digits; the result is the mean error."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from reconrisk.data import load_dataset
from reconrisk.metrics import mse, nearest_neighbour_oracle

TARGETS = 50


def _records() -> tuple[Tensor, Tensor]:
    return load_dataset("mnist", split="test").inputs[:TARGETS], load_dataset("mnist", split="train").inputs


def ours() -> Callable[[], object]:
    """Matrix products in blocks."""
    targets, known = _records()
    return lambda: float(nearest_neighbour_oracle(targets, known).scores.mean())


def naive() -> Callable[[], object]:
    """A loop over targets that scores every known record."""
    targets, known = _records()
    metric = mse()
    return lambda: float(torch.stack([metric(known, target.expand_as(known)).min() for target in targets]).mean())


def cdist() -> Callable[[], object]:
    """All distances at once by torch."""
    targets, known = _records()
    values = targets[0].numel()
    return lambda: float((torch.cdist(targets.flatten(1), known.flatten(1)).amin(1) ** 2 / values).mean())


CONTENDERS = {"reconrisk": ours, "loop over targets": naive, "torch.cdist": cdist}

"""Eight probes of the Fisher trace of 600 clipped records against eight ordinary gradients (guo2022's MNIST network).

A probe's cost in ordinary gradients is one over the number in the column "times ours".
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from benchmarks.fisher_trace import CLIP, RECORDS, problem
from reconrisk.releases.clipped_gradient import probe_clipped_gradients

PROBES = 8


def ours() -> Callable[[], float]:
    """Backward passes through the gradient of the batch."""
    model, inputs, labels = problem()
    rng = torch.Generator().manual_seed(0)

    def probes(records: int) -> float:
        return float(
            probe_clipped_gradients(
                model,
                nn.functional.cross_entropy,
                inputs[:records],
                labels[:records],
                clip=CLIP,
                probes=PROBES,
                rng=rng,
            ).squares.mean()
        )

    probes(2)  # what is loaded on first use is not memory of the method
    return lambda: probes(RECORDS)


def ordinary() -> Callable[[], None]:
    """What a training step computes."""
    model, inputs, labels = problem()

    def gradients(records: int) -> None:
        for _ in range(PROBES):
            model.zero_grad()
            nn.functional.cross_entropy(model(inputs[:records]), labels[:records]).backward()

    gradients(2)
    return lambda: gradients(RECORDS)


CONTENDERS = {"8 probes (ours)": ours, "8 ordinary gradients": ordinary}

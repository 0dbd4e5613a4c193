"""Eight probes of the Fisher trace of 600 clipped records against eight ordinary gradients (guo2022's MNIST network).

A probe's cost in ordinary gradients is one over the number in the column "times ours".
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.fisher_trace import CLIP, problem
from reconrisk.releases.updates.clipped_gradient import probe_clipped_gradients

PROBES = 8

Problem = Callable[[], tuple[nn.Module, Tensor, Tensor]]


def probing(problem: Problem, probes: int) -> Callable[[], float]:
    """Backward passes through the gradient of the batch, ``probes`` times."""
    model, inputs, labels = problem()
    rng = torch.Generator().manual_seed(0)

    def run(records: int) -> float:
        some = (inputs[:records], labels[:records])
        found = probe_clipped_gradients(model, nn.functional.cross_entropy, *some, clip=CLIP, probes=probes, rng=rng)
        return float(found.squares.mean())

    run(2)  # what is loaded on first use is not memory of the method
    return lambda: run(len(inputs))


def training(problem: Problem, steps: int) -> Callable[[], None]:
    """What a training step computes, ``steps`` times."""
    model, inputs, labels = problem()

    def run(records: int) -> None:
        for _ in range(steps):
            model.zero_grad()
            nn.functional.cross_entropy(model(inputs[:records]), labels[:records]).backward()

    run(2)
    return lambda: run(len(inputs))


def ours() -> Callable[[], float]:
    """Backward passes through the gradient of the batch."""
    return probing(problem, PROBES)


def ordinary() -> Callable[[], None]:
    """What a training step computes."""
    return training(problem, PROBES)


CONTENDERS = {"8 probes (ours)": ours, "8 ordinary gradients": ordinary}

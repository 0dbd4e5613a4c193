"""Training 64 shadow models (784-10-10 perceptron, 1,000 fixed digits, 100 full-batch steps) against a loop and gemm.

Result: billions of operations a second of the two large products of a step, at their full shape.
What the products alone take, "times ours", is the share of the processor's rate that ours reaches; it leaves out the
features that are zero in all fixed records. Measure on a quiet machine: threads that wait for each other distort it.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from reconrisk.data.load import load_dataset
from reconrisk.models.balle2022 import balle2022_mlp
from reconrisk.releases.shadow.training import ShadowTraining

MODELS, FIXED, STEPS = 64, 1000, 100
OPERATIONS = 4 * MODELS * STEPS * (FIXED + 1) * 784 * 10 / 1e9  # forward and gradient of the first layer


def problem() -> tuple[nn.Module, Tensor, Tensor]:
    """The network, and digits of which the first are fixed."""
    digits = load_dataset("mnist")
    return balle2022_mlp(rng=torch.Generator().manual_seed(0)), digits.inputs, digits.class_labels


def timed(work: Callable[[], object]) -> Callable[[], float]:
    """The work, which says at what rate it went."""

    def run() -> float:
        begun = time.perf_counter()
        work()
        return OPERATIONS / (time.perf_counter() - begun)

    return run


def ours() -> Callable[[], float]:
    """All models at once."""
    model, inputs, labels = problem()
    training = ShadowTraining(model, inputs[:FIXED], labels[:FIXED], steps=STEPS)
    targets = slice(FIXED, FIXED + MODELS)
    return timed(lambda: training.train(inputs[targets], labels[targets]))


def loop() -> Callable[[], float]:
    """One model after the other, as one writes it in PyTorch."""
    model, inputs, labels = problem()

    def train(target: int) -> nn.Module:
        own = copy.deepcopy(model)
        records = torch.cat([inputs[:FIXED], inputs[target : target + 1]])
        answers = torch.cat([labels[:FIXED], labels[target : target + 1]])
        optimizer = torch.optim.SGD(own.parameters(), lr=0.2, momentum=0.9)
        for _ in range(STEPS):
            optimizer.zero_grad()
            nn.functional.cross_entropy(own(records), answers).backward()
            optimizer.step()
        return own

    return timed(lambda: [train(target) for target in range(FIXED, FIXED + MODELS)])


def products() -> Callable[[], float]:
    """The two large products of each step, with all models in the rows, and nothing else."""
    rng = torch.Generator().manual_seed(0)
    records = torch.rand(FIXED + 1, 784, generator=rng)
    weights = torch.rand(MODELS * 10, 784, generator=rng)
    units = torch.empty(MODELS * 10, FIXED + 1)

    def work() -> None:
        for _ in range(STEPS):
            torch.mm(weights, records.T, out=units)
            torch.mm(units, records, out=weights)
            weights.fill_(0.5)

    return timed(work)


CONTENDERS = {"64 models at once (ours)": ours, "loop over models": loop, "its matrix products alone": products}

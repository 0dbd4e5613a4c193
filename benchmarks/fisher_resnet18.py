"""Two probes of the Fisher trace of 32 clipped records on ResNet-18 at 32 x 32 against two ordinary gradients.

11 million parameters: the gradients of 32 records alone would need 1.4 GB.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.fisher_trace import CLIP
from reconrisk.models import resnet18
from reconrisk.releases.clipped_gradient import probe_clipped_gradients

RECORDS, PROBES = 32, 2


def problem() -> tuple[nn.Module, Tensor, Tensor]:
    """The network with its running statistics, and random records."""
    rng = torch.Generator().manual_seed(0)
    model = resnet18((3, 32, 32), 10, rng=rng).eval()
    return model, torch.rand(RECORDS, 3, 32, 32, generator=rng), torch.randint(10, (RECORDS,), generator=rng)


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


CONTENDERS = {"2 probes (ours)": ours, "2 ordinary gradients": ordinary}

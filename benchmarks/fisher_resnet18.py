"""Two probes of the Fisher trace of 32 clipped records on ResNet-18 at 32 x 32 against two ordinary gradients.

11 million parameters: the gradients of 32 records alone would need 1.4 GB.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.fisher_probe import probing, training
from reconrisk.models import resnet18

RECORDS, PROBES = 32, 2


def problem() -> tuple[nn.Module, Tensor, Tensor]:
    """The network with its running statistics, and random records."""
    rng = torch.Generator().manual_seed(0)
    model = resnet18((3, 32, 32), 10, rng=rng).eval()
    return model, torch.rand(RECORDS, 3, 32, 32, generator=rng), torch.randint(10, (RECORDS,), generator=rng)


def ours() -> Callable[[], float]:
    """Backward passes through the gradient of the batch."""
    return probing(problem, PROBES)


def ordinary() -> Callable[[], None]:
    """What a training step computes."""
    return training(problem, PROBES)


CONTENDERS = {"2 probes (ours)": ours, "2 ordinary gradients": ordinary}

"""Budgets of global defenses on records that did not choose them: chen2025's 120k network, two sets of initial weights.

One part of MNIST chooses the noise or the mask, another of the same size pays. The result is the second-order utility
that noise of ``utility_loss=1`` costs there, with its standard error, or the share of the first-order utility that a
mask of ``utility=0.5`` keeps, for each network; the time is that of choosing and paying. Each part has 20,000 digits
where RECONRISK_DATA names a folder that holds MNIST, else 1,500 of the bundled ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.data import load_dataset
from reconrisk.data.dataset import Dataset
from reconrisk.defenses import equal_noise, optimal_noise, optimal_pruning
from reconrisk.models import chen2025_mnist
from reconrisk.releases.sensitivity.moments import ReferenceMoments, reference_moments
from reconrisk.releases.updates.gradient import GradientMap

LOSS = nn.functional.cross_entropy
NETWORKS = 2
CHUNK = 100


def digits() -> tuple[Dataset, int]:
    """All digits, and how many choose and pay."""
    try:
        return load_dataset("mnist-full", split="train"), 20_000
    except (InvalidInput, InvalidFile, FileNotFoundError):
        return load_dataset("mnist", split="train"), 1_500


def chosen_by(seed: int, data: Dataset, count: int) -> tuple[nn.Module, ReferenceMoments, Dataset]:
    """A network, its moments on one part of the digits, and the other part."""
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randperm(len(data), generator=rng)
    model = chen2025_mnist(rng=rng)
    first, second = (data.subset(part.tolist()) for part in (rows[:count], rows[count : 2 * count]))
    return model, reference_moments(model, LOSS, first.inputs, first.class_labels, probes=1, chunk=64), second


def squares(model: nn.Module, data: Dataset) -> Iterator[dict[str, Tensor]]:
    """Squared gradients of every record, a chunk at a time."""
    gradient = torch.func.vmap(lambda x, y: GradientMap(model, LOSS)(x[None], y[None]))
    for inputs, labels in zip(data.inputs.split(CHUNK), data.class_labels.split(CHUNK), strict=True):
        yield {name: value.square() for name, value in gradient(inputs, labels).items()}


def paid(model: nn.Module, data: Dataset, prices: dict[str, Tensor]) -> Tensor:
    """The squared gradient of each record, every value at its price."""
    found = [
        sum((each[name] * price).flatten(1).sum(1) for name, price in prices.items()) for each in squares(model, data)
    ]
    return torch.cat([torch.as_tensor(part) for part in found])


def noise_cost(choose: Callable[..., object]) -> Callable[[], str]:
    """What noise of a stated second-order utility costs on the other part."""
    data, count = digits()

    def work() -> str:
        words = []
        for seed in range(NETWORKS):
            model, moments, others = chosen_by(seed, data, count)
            noise = choose(moments, utility_loss=1.0)
            stds = noise.noise_std({name: value.detach() for name, value in model.named_parameters()})
            cost = paid(model, others, {name: std.square() for name, std in stds.items()})
            words.append(f"{float(cost.mean()):.4f} +- {float(cost.std()) / math.sqrt(count):.4f}")
        return f"n={count}: U2 of 1 costs {', '.join(words)}"

    return work


def optimal() -> Callable[[], str]:
    """Optimal noise."""
    return noise_cost(optimal_noise)


def equal() -> Callable[[], str]:
    """Equal noise."""
    return noise_cost(equal_noise)


def pruning() -> Callable[[], str]:
    """Optimal pruning: the share of the first-order utility that is kept."""
    data, count = digits()

    def work() -> str:
        words = []
        for seed in range(NETWORKS):
            model, moments, others = chosen_by(seed, data, count)
            mask = {name: kept.float() for name, kept in optimal_pruning(moments, utility=0.5).mask.items()}
            total = paid(model, others, {name: torch.ones_like(kept) for name, kept in mask.items()})
            words.append(f"{float(paid(model, others, mask).mean() / total.mean()):.4f}")
        return f"n={count}: U1 of 0.5 keeps {', '.join(words)}"

    return work


CONTENDERS = {
    "optimal noise": optimal,
    "equal noise": equal,
    "optimal pruning": pruning,
}

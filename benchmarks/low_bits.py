"""Records named by the last bits of releases: our exactly rounded noise against noise added in floating point.

One of 100 candidates is in each release. The noise multipliers are 1, 3 and 10, and a result counts the releases whose
record was named for each of them. Exact noise must allow no more than the guarantee plus three standard errors, and no
more than the ordinary best candidate. RECONRISK_RELEASES sets other numbers of releases.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

import reconrisk as rr
from reconrisk.attacks.float_noise import count_infeasible
from reconrisk.attacks.informed.step_bits import count_infeasible_steps
from reconrisk.core.mechanism import Gaussian
from reconrisk.releases.updates.gradient import GradientRelease

CANDIDATES, MULTIPLIERS = 100, (1.0, 3.0, 10.0)
LOSS = nn.functional.cross_entropy
SMALL, LARGE = (64, 10), (98, 110)  # inputs and hidden units of networks with 738 and 11,778 parameters

Released = dict[str, Tensor]


def problem(sizes: tuple[int, int], dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Tensor, Tensor]:
    """A network of one hidden layer, the candidates and their labels."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(sizes[0], sizes[1]), nn.Tanh(), nn.Linear(sizes[1], 8)).to(dtype)
    records = torch.rand(CANDIDATES, sizes[0], generator=torch.Generator().manual_seed(0))
    return model, records.to(dtype), torch.arange(CANDIDATES) % 8


def clipped(released: Released) -> Released:
    """The release, clipped to norm 1 in its own precision."""
    norm = torch.cat([value.flatten() for value in released.values()]).norm()
    return {name: value * (1 / norm).clamp(max=1.0) for name, value in released.items()}


def add_floats(noiseless: Released, std: float, rng: torch.Generator, terms: int = 1) -> Released:
    """Normal values, or sums of several as Opacus draws in its secure mode, added in the precision of the tensors."""
    return {
        name: value
        + sum(std * torch.randn(value.shape, generator=rng, dtype=value.dtype) for _ in range(terms)) / terms**0.5
        for name, value in noiseless.items()
    }


def add_exactly(noiseless: Released, std: float, rng: torch.Generator) -> Released:
    """The noise of rr.defenses."""
    return rr.defenses.clip_and_noise(noise_multiplier=std, clip_norm=1.0)(noiseless, rng=rng)


def name_records(means: Sequence[Released], add: Callable[..., Released], releases: int, *, by_bits: bool) -> str:
    """Count the releases whose record is named, for each noise multiplier."""
    releases, counts = int(os.environ.get("RECONRISK_RELEASES", releases)), []
    flat = torch.stack([torch.cat([value.double().flatten() for value in mean.values()]) for mean in means])
    for multiplier in MULTIPLIERS:
        rng, right = torch.Generator().manual_seed(int(multiplier)), 0
        for _ in range(releases):
            row = int(torch.randint(len(means), (1,), generator=rng))
            sent = add(means[row], multiplier, rng)
            distances = (flat - torch.cat([value.double().flatten() for value in sent.values()])).square().sum(1)
            if by_bits:
                infeasible = torch.tensor([count_infeasible(mean, sent) for mean in means])
                distances = distances.masked_fill(infeasible > infeasible.min(), math.inf)
            right += int(distances.argmin()) == row
        counts.append(right)
    bounds = [rr.success_upper_bound(Gaussian(each), prior_success=1 / len(means)).value for each in MULTIPLIERS]
    most = [math.floor(releases * bound + 3 * math.sqrt(releases * bound * (1 - bound))) for bound in bounds]
    return f"{', '.join(map(str, counts))} of {releases}; guarantee and 3 s.e.: {', '.join(map(str, most))}"


def updates(
    sizes: tuple[int, int],
    add: Callable[..., Released],
    releases: int,
    *,
    dtype: torch.dtype = torch.float32,
    others: int = 0,
    by_bits: bool = True,
) -> Callable[[], str]:
    """One update of a record, or the sum of updates with this many known ones before it."""
    model, records, labels = problem(sizes, dtype)
    own = [
        clipped(GradientRelease(model, LOSS, x[None], y[None]).value()) for x, y in zip(records, labels, strict=True)
    ]
    means, known = own[: CANDIDATES - others], own[CANDIDATES - others :]
    if known:
        total = known[0]
        for each in known[1:]:
            total = {name: value + each[name] for name, value in total.items()}
        means = [{name: total[name] + value for name, value in mean.items()} for mean in means]
    return partial(name_records, means, add, releases, by_bits=by_bits)


def weights(sizes: tuple[int, int], rate: float, batch: int, runs: int = 4) -> Callable[[], str]:
    """One SGD step with float32 noise of multiplier 1, seen through the weights; the other records are known."""
    model, records, labels = problem(sizes)
    known = (records[: batch - 1], labels[: batch - 1])
    candidates = (records[batch - 1 :], labels[batch - 1 :])
    start = {name: value.detach() for name, value in model.named_parameters()}
    gradients = [clipped(GradientRelease(model, LOSS, x[None], y[None]).value()) for x, y in zip(*known, strict=True)]

    def work() -> str:
        rng, right, left = torch.Generator().manual_seed(0), 0, []
        for _ in range(runs):
            row = int(torch.randint(len(candidates[0]), (1,), generator=rng))
            own = GradientRelease(model, LOSS, candidates[0][[row]], candidates[1][[row]]).value()
            total = dict(gradients[0])
            for each in (*gradients[1:], clipped(own)):
                total = {name: value + each[name] for name, value in total.items()}
            noisy = add_floats(total, 1.0, rng)
            after = {name: start[name] - rate * (noisy[name] / batch) for name in start}
            counts = count_infeasible_steps(
                model, LOSS, (start, after), candidates, known, clip_norm=1.0, learning_rate=rate, divisor=batch
            )
            left.append(int((counts == counts.min()).sum()))
            right += int(counts[row] == counts.min() and left[-1] == 1)
        return f"{right} of {runs} named; candidates left: {', '.join(map(str, left))}"

    return work


CONTENDERS = {
    "our noise, p = 738": partial(updates, SMALL, add_exactly, 1000),
    "our noise, p = 738, ordinary best candidate": partial(updates, SMALL, add_exactly, 1000, by_bits=False),
    "our noise, p = 11,778": partial(updates, LARGE, add_exactly, 100),
    "our noise, p = 11,778, ordinary best candidate": partial(updates, LARGE, add_exactly, 100, by_bits=False),
    "float32, p = 738": partial(updates, SMALL, add_floats, 300),
    "float64, p = 738": partial(updates, SMALL, add_floats, 300, dtype=torch.float64),
    "four float32 normals, p = 738": partial(updates, SMALL, partial(add_floats, terms=4), 300),
    "float32, p = 11,778": partial(updates, LARGE, add_floats, 100),
    "float32, sum with 7 known records, p = 738": partial(updates, SMALL, add_floats, 60, others=7),
    "float32, weights after a step, p = 11,778, batch 8, rate 1": partial(weights, LARGE, 1.0, 8),
    "float32, weights after a step, p = 11,778, batch 8, rate 0.1": partial(weights, LARGE, 0.1, 8),
    "float32, weights after a step, p = 738, batch 8, rate 1": partial(weights, SMALL, 1.0, 8, runs=12),
}

"""Exactly rounded noise against float32 noise of torch: cost per 1e6 and 1e7 values, clipped norms, and its law.

One scale and a seeded generator may cost at most 6 times float32 noise per 1e6 values and 3 times per 1e7, in processor
time of one thread. "Through a defense" includes the conversion from float32 and back. No rational norm of 10,000
clipped gradients may exceed the norm C. The p-values of 60 chi-square tests must be uniform.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from fractions import Fraction
from functools import partial

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from reconrisk.defenses import gaussian_noise
from reconrisk.releases.float_safe_noise import SystemGenerator, add_noise, clip_rows, lattice_step

NORM = 0.7


def exact(
    count: int, *, law: str = "gaussian", system: bool = False, per_value: bool = False
) -> Callable[[], float | str]:
    """The noise of this package on clipped values in float64."""
    rng = SystemGenerator() if system else torch.Generator().manual_seed(0)
    std = torch.linspace(0.5, 3.0, count, dtype=torch.float64) if per_value else 1.0
    return partial(_ratio, count, lambda values: add_noise(values.double(), std, rng, law=law), dtype=torch.float64)


def defended(count: int) -> Callable[[], float | str]:
    """The same noise as a defense adds it to float32 values."""
    rng, defense = torch.Generator().manual_seed(0), gaussian_noise(1.0)
    return partial(_ratio, count, lambda values: defense({"w": values}, rng=rng)["w"], dtype=torch.float32)


def _ratio(count: int, work: Callable[[Tensor], Tensor], *, dtype: torch.dtype) -> str:
    """Processor time of the noise, relative to float32 normals that are added in float32."""
    torch.set_num_threads(1)
    rng, single = torch.Generator().manual_seed(0), torch.zeros(count)
    values = single.to(dtype)
    pairs = [
        (_cpu_seconds(lambda: work(values)), _cpu_seconds(lambda: single + torch.randn(count, generator=rng)))
        for _ in range(3)
    ]
    ours, plain = (min(times) for times in zip(*pairs, strict=True))  # other programs only add time
    return f"{ours:.3g} s, {ours / plain:.1f} times float32"


def _cpu_seconds(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def norms() -> Callable[[], float | str]:
    """Clip 10,000 gradients of 50 values and count the rational norms above the limit."""
    rng = torch.Generator().manual_seed(0)
    scales = 10.0 ** torch.randint(-3, 6, (10_000, 1), generator=rng)
    rows = torch.randn(10_000, 50, generator=rng) * scales

    def run() -> str:
        longer = sum(_is_longer(row) for row in clip_rows(rows, NORM, records=256))
        return f"{longer} of {len(rows)} longer than C"

    return run


def _is_longer(row: Tensor) -> bool:
    return sum(Fraction(value) ** 2 for value in row.tolist()) > Fraction(NORM) ** 2


def uniformity(law: str) -> Callable[[], float | str]:
    """Kolmogorov-Smirnov test of the p-values of 60 chi-square tests, each with another value and scale."""

    def run() -> str:
        rng = np.random.default_rng(0)
        found = [
            _chi_square(float(rng.normal()), float(rng.uniform(0.1, 10)), law, int(rng.integers(2**31)))
            for _ in range(60)
        ]
        return f"KS p = {stats.kstest(found, 'uniform').pvalue:.2f}, least p = {min(found):.4f}"

    return run


def _chi_square(value: float, std: float, law: str, seed: int) -> float:
    """P-value of 200,000 draws in bins of several lattice steps, whose probabilities are exact."""
    count, step = 200_000, float(lattice_step(torch.tensor(std)))
    rng = torch.Generator().manual_seed(seed)
    sent = add_noise(torch.full((count,), value, dtype=torch.float64), std, rng, law=law).numpy() / step
    ideal = stats.norm(value, std) if law == "gaussian" else stats.laplace(value, std / math.sqrt(2))
    # boundaries of cells, near the quantiles of equal probability
    edges = np.unique(np.round(ideal.ppf(np.linspace(0, 1, 101)[1:-1]) / step)) + 0.5
    seen = np.bincount(np.searchsorted(edges, sent), minlength=len(edges) + 1)
    expected = count * np.diff(np.concatenate([[0.0], ideal.cdf(edges * step), [1.0]]))
    return float(stats.chisquare(seen, expected).pvalue)


_WAYS: dict[str, Callable[[int], Callable[[], float | str]]] = {
    "one scale (ours)": exact,
    "through a defense": defended,
    "scale per value": partial(exact, per_value=True),
    "operating system": partial(exact, system=True),
    "Laplace": partial(exact, law="laplace"),
}

CONTENDERS = {
    **{f"1e{digits}, {name}": partial(way, 10**digits) for digits in (6, 7) for name, way in _WAYS.items()},
    "rational norms": norms,
    "law, Gaussian": partial(uniformity, "gaussian"),
    "law, Laplace": partial(uniformity, "laplace"),
}

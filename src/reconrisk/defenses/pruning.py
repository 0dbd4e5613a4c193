"""Sending only part of a release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from reconrisk.core.validation import check_real, refuse
from reconrisk.defenses.sending import SendingDefense


@dataclass(frozen=True)
class Pruning(SendingDefense):
    """The configured defense that :func:`prune` returns."""

    share: float
    only_drops: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_share(self.share)

    @property
    def mechanism(self) -> None:
        """None: leaving values out has no guarantee."""

    def _sent(self, released: Mapping[str, Tensor], rng: torch.Generator) -> dict[str, Tensor]:
        """The release with its smallest values set to zero; ``rng`` is not used."""
        del rng
        sizes = torch.cat([tensor.detach().abs().flatten() for tensor in released.values()])
        dropped = dropped_of(len(sizes), self.share)
        least = sizes.sort().values[dropped] if dropped else sizes.new_zeros(())
        return {name: tensor * (tensor.abs() >= least) for name, tensor in released.items()}

    def replay(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Everything: which values are kept shows in what was sent."""
        return dict(released)

    def noise_std(self, sent: Mapping[str, Tensor]) -> None:
        """There is no noise."""
        del sent

    def kept(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The values that are not zero."""
        return {name: tensor != 0 for name, tensor in sent.items()}

    def __str__(self) -> str:
        """The call that configures it."""
        return f"prune(share={self.share:g})"


def check_share(share: float, count: int | None = None) -> float:
    """A share of values to drop that leaves something, of ``count`` where that is known."""
    if 0 <= check_real("share", share) < 1:
        return share
    nearest = "0"
    if share >= 1:
        nearest = "1 - 1/n, which sends one of n values"
        if count is not None:
            nearest = f"{1 - 1 / count:.9g}, which sends one value of {count}"
    raise refuse("share", share, "in [0, 1)", f"The nearest possible value is {nearest}.")


def dropped_of(count: int, share: float) -> int:
    """How many of ``count`` values are dropped; at least one is sent."""
    return min(int(share * count + 1e-6), count - 1)  # 0.29 of 100 is 29, though a product of floats is below it


def prune(share: float) -> Pruning:
    """The release with the ``share`` of values that are smallest in size set to zero.

    Assumes: nothing; it is a heuristic, its ``mechanism`` is None.
    Edge cases: share 0 sends everything; values equal to the smallest kept one are kept too.
    Reference: Section 5, `Zhu et al. (2019) <https://arxiv.org/abs/1906.08935>`_.

    >>> prune(0.5)({"w": torch.tensor([1.0, -2.0, 3.0, 0.5])}, rng=torch.Generator())
    {'w': tensor([ 0., -2.,  3.,  0.])}
    """
    return Pruning(share)

"""Sending only part of a release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from reconrisk.core.validation import check_probability, refuse
from reconrisk.defenses.followed import Followed


@dataclass(frozen=True)
class Pruning(Followed):
    """The configured defense that :func:`prune_smallest` returns."""

    share: float

    def __post_init__(self) -> None:
        if check_probability("share", self.share) == 1:
            raise refuse("share", self.share, "< 1", "Something must be sent.")

    @property
    def mechanism(self) -> None:
        """None: leaving values out has no guarantee."""

    def __call__(self, released: Mapping[str, Tensor], *, rng: torch.Generator) -> dict[str, Tensor]:
        """The release with its smallest values set to zero; ``rng`` is not used."""
        del rng
        sizes = torch.cat([tensor.detach().abs().flatten() for tensor in released.values()])
        dropped = int(self.share * len(sizes) + 1e-6)  # 0.29 of 100 is 29, though a product of floats is below it
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
        return f"prune_smallest(share={self.share:g})"


def prune_smallest(share: float) -> Pruning:
    """The release with the ``share`` of values that are smallest in size set to zero.

    Assumes: nothing; it is a heuristic, its ``mechanism`` is None.
    Edge cases: share 0 sends everything; values equal to the smallest kept one are kept too.
    Reference: Section 5, `Zhu et al. (2019) <https://arxiv.org/abs/1906.08935>`_.

    >>> prune_smallest(0.5)({"w": torch.tensor([1.0, -2.0, 3.0, 0.5])}, rng=torch.Generator())
    {'w': tensor([ 0., -2.,  3.,  0.])}
    """
    return Pruning(share)

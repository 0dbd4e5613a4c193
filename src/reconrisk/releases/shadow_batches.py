"""In which order shadow models meet their records: all at once, as known, or each in an order of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reconrisk.core.validation import check_whole


@dataclass(frozen=True)
class RandomBatches:
    """Batches of ``size`` records in an order of its own for each model: shuffled anew whenever all were seen.

    This is how an adversary trains shadow models who does not know the order of the batches.
    Edge cases: what is left at the end of an epoch is a smaller batch; a ``size`` beyond all records means all.
    Reference: section VI-C, balle2022.

    >>> orders = RandomBatches(2).orders(3, [torch.Generator().manual_seed(0)])
    >>> [next(orders).shape[1] for _ in range(3)]
    [2, 1, 2]
    """

    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", check_whole("size", self.size))

    def orders(self, records: int, streams: Sequence[torch.Generator]) -> Iterator[Tensor]:
        """Rows (n, size) of each step without end, drawn for each model from its own stream."""
        while True:
            shuffled = torch.stack([torch.randperm(records, generator=stream) for stream in streams])
            yield from shuffled.split(self.size, dim=1)

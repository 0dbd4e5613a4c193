"""What is done to a release before it leaves the machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from reconrisk.core.mechanism import Mechanism

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Defense(Protocol):
    """A configured change of what is released: settings in the constructor, tensors in the call.

    An adversary who knows the defense uses ``replay`` on candidates, ``noise_std`` and ``kept`` on what was sent.
    """

    @property
    def mechanism(self) -> Mechanism | None:
        """The mechanism it implements for one record, or None for a heuristic without guarantee."""
        ...

    def __call__(self, released: Mapping[str, Tensor], *, rng: torch.Generator) -> dict[str, Tensor]:
        """What is sent instead of ``released``."""
        ...

    def replay(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The part without chance, such as clipping, differentiable: the mean of what would be sent."""
        ...

    def noise_std(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """The standard deviation of the noise on each value; None without noise."""
        ...

    def kept(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """True where a value was sent, as seen from what was sent; None where all are."""
        ...

"""Protocol of a defense: a change of the release before it leaves the machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from reconrisk.core.mechanism import Mechanism

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Defense(Protocol):
    """A configured defense: settings are passed to the constructor, tensors to the call.

    An adversary who knows the defense applies :meth:`replay` to candidate records, and :meth:`noise_std` and
    :meth:`kept` to the release that was sent.
    """

    @property
    def mechanism(self) -> Mechanism | None:
        """Mechanism that the defense implements for one record, or None for a heuristic without guarantee."""
        ...

    def __call__(self, released: Mapping[str, Tensor], *, rng: torch.Generator) -> dict[str, Tensor]:
        """Return the defended release: the tensors that leave the machine instead of ``released``.

        Args:
            released: Tensors by name; they are left unchanged.
            rng: Generator of all random draws.

        Returns:
            New tensors by name, which replace ``released`` in the release.
        """
        ...

    def replay(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the mean of the tensors that would be sent, without any random draw and differentiable.

        For a defense that clips and adds noise, this is the clipped release.
        """
        ...

    def noise_std(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Return the standard deviation of the noise on each value that was sent, or None if there is no noise."""
        ...

    def kept(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Return masks that are True where a value was sent, or None if every value was.

        An adversary computes the masks from the tensors that were sent, so they depend on nothing else.
        """
        ...

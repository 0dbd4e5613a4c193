"""What all defenses have in common: they refuse what is no release, and can be followed by another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from reconrisk.core.mechanism import Mechanism
from reconrisk.core.validation import check_all_finite, check_not_empty, invalid_input

if TYPE_CHECKING:
    from reconrisk.core.defense import Defense
    from reconrisk.defenses.chain import Chain


class SendingDefense(ABC):
    """A defense that checks what it is to send and can be written before another: ``clip(1.0) >> noise``.

    ``only_drops`` says that it sends each value or zero, which makes no release longer in any norm of sizes, and
    ``is_local`` that private records chose it.
    """

    only_drops: ClassVar[bool] = False
    is_local: bool = False

    def __call__(self, released: Mapping[str, Tensor], *, rng: torch.Generator) -> dict[str, Tensor]:
        """What is sent instead of ``released``, which must be finite."""
        _check_released(released)
        if not isinstance(rng, torch.Generator):
            raise invalid_input(
                "rng", rng, "to be a torch.Generator", "Make one with torch.Generator().manual_seed(0)."
            )
        return self._sent(released, rng)

    @property
    @abstractmethod
    def mechanism(self) -> Mechanism | None:
        """The mechanism it implements for one record, or None for a heuristic without guarantee."""

    @abstractmethod
    def replay(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The part without chance, such as clipping, differentiable: the mean of what would be sent."""

    @abstractmethod
    def noise_std(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """The standard deviation of the noise on each value; None without noise."""

    @abstractmethod
    def kept(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """True where a value was sent, as seen from what was sent; None where all are."""

    @abstractmethod
    def _sent(self, released: Mapping[str, Tensor], rng: torch.Generator) -> dict[str, Tensor]:
        """What is sent of a release that was checked."""

    def __rshift__(self, other: Defense) -> Chain:
        """One defense first, then ``other`` on what it sends."""
        from reconrisk.defenses.chain import chain  # it knows the defenses that extend this class

        return chain(self, other)


def _check_released(released: Any) -> None:
    """Refuse what is no mapping from names to dense, finite tensors of real numbers."""
    if not isinstance(released, Mapping):
        remedy = "Pass {name: gradient}, as rr.releases.GradientRelease(...).value() gives it."
        raise invalid_input("released", type(released).__name__, "to be a mapping from names to tensors", remedy)
    check_not_empty("released", list(released))
    for name, tensor in released.items():
        what = f"released[{name!r}]"
        if not isinstance(tensor, Tensor):
            raise invalid_input(what, type(tensor).__name__, "to be a tensor", "Convert with torch.as_tensor.")
        if tensor.layout != torch.strided:
            raise invalid_input(
                what, str(tensor.layout), "to be dense", "Call to_dense() first, or train without sparse=True."
            )
        if not tensor.is_floating_point():
            raise invalid_input(
                what, str(tensor.dtype), "to hold real numbers", "Leave counters out of what is defended."
            )
        check_not_empty(what, tensor.flatten())
        check_all_finite(what, tensor, "Check the loss and the learning rate.")

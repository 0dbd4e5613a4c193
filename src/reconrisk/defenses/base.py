"""Base class of all defenses: validates the release and composes with other defenses."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from reconrisk.core.mechanism import Mechanism
from reconrisk.core.validation import check_all_finite, check_not_empty, invalid_input
from reconrisk.releases.float_safe_noise import SystemGenerator, to_float64

if TYPE_CHECKING:
    from reconrisk.core.defense import Defense
    from reconrisk.defenses.chain import Chain


_NOT_FINITE = "A release with NaN or infinity was replaced by zero. Check the loss and the learning rate."


class BaseDefense(ABC):
    """Base class of defenses: validates its input and composes with ``>>``, as in ``clip(1.0) >> noise``.

    Attributes:
        only_drops: True if the defense sends each value unchanged or as zero. The norm of the sent values is then at
            most the norm of the release.
        is_local: True if private records chose the defense.
        clips: True if the defense bounds the norm of the release. Values that are not finite then become zero.
        exact_noise: True if the floating-point noise has the law of real numbers that guarantees assume. False for a
            defense without noise.
    """

    only_drops: ClassVar[bool] = False
    is_local: bool = False

    @property
    def clips(self) -> bool:
        """True if the defense bounds the norm of the release."""
        return False

    @property
    def exact_noise(self) -> bool:
        """True if noise is added by :mod:`reconrisk.releases.float_safe_noise`."""
        return False

    def __call__(self, released: Mapping[str, Tensor], *, rng: torch.Generator | None = None) -> dict[str, Tensor]:
        """Return the tensors to send instead of ``released``.

        Args:
            released: Gradients or weight changes by parameter name: dense and of a floating-point type.
            rng: Source of the random numbers, for repeatable simulations. None draws bits of the operating system, as
                the protection of real data requires.

        Returns:
            Defended tensors by parameter name, in the precision of ``released``.

        Raises:
            InvalidInput: If ``released`` is not a mapping to such tensors, or ``rng`` is not a generator. If values are
                not finite and the defense does not clip.

        Edge cases: a defense that clips replaces the whole release by zero if a value is not finite, because a
        release with NaN would identify the record.
        """
        _check_released(released)
        if rng is None:
            rng = SystemGenerator()
        if not isinstance(rng, torch.Generator):
            raise invalid_input(
                "rng", rng, "to be a torch.Generator", "Make one with torch.Generator().manual_seed(0)."
            )
        # float64 until after the noise: rounding a clipped release to fewer digits can lengthen it
        wide = {name: to_float64(tensor.detach()) for name, tensor in released.items()}
        if self.clips and not all(bool(tensor.isfinite().all()) for tensor in wide.values()):
            wide = {name: torch.zeros_like(tensor) for name, tensor in wide.items()}
            warnings.warn(_NOT_FINITE, stacklevel=2)  # on the machine that protects the data, not in the release
        for name, tensor in wide.items():
            check_all_finite(f"released[{name!r}]", tensor, "Check the loss and the learning rate.")
        sent = self._apply(wide, rng)
        return {name: value.to(released.get(name, value)) for name, value in sent.items()}

    @property
    @abstractmethod
    def mechanism(self) -> Mechanism | None:
        """Mechanism for one record, or None for a heuristic without guarantee."""

    @abstractmethod
    def replay(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the deterministic part of the defense (such as clipping), which is the mean of the sent values.

        It is differentiable, so attacks can apply it to candidate updates.
        """

    @abstractmethod
    def noise_std(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Return the standard deviation of the noise on each value, or None without noise."""

    @abstractmethod
    def kept(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Return a mask of the values that were sent, inferred from ``sent``, or None if all are."""

    @abstractmethod
    def _apply(self, released: Mapping[str, Tensor], rng: torch.Generator) -> dict[str, Tensor]:
        """Apply the defense to a validated release in float64."""

    def __rshift__(self, other: Defense) -> Chain:
        """Return the chain that applies this defense first and then ``other``."""
        from reconrisk.defenses.chain import chain  # chain.py imports subclasses of this class

        return chain(self, other)


def _check_released(released: Any) -> None:
    """Raise InvalidInput unless ``released`` maps names to dense, floating-point tensors."""
    if not isinstance(released, Mapping):
        remedy = "Pass {name: gradient}, as rr.releases.GradientRelease(...).value() gives it."
        raise invalid_input("type(released)", type(released).__name__, "to be a mapping from names to tensors", remedy)
    check_not_empty("released", list(released))
    for name, tensor in released.items():
        what = f"released[{name!r}]"
        if not isinstance(tensor, Tensor):
            raise invalid_input(
                f"type({what})", type(tensor).__name__, "to be a tensor", "Convert with torch.as_tensor."
            )
        if tensor.layout != torch.strided:
            raise invalid_input(
                what, str(tensor.layout), "to be dense", "Call to_dense() first, or train without sparse=True."
            )
        if not tensor.is_floating_point():
            raise invalid_input(
                what, str(tensor.dtype), "to be of a floating-point type", "Leave counters out of the release."
            )
        check_not_empty(what, tensor.flatten())  # a scalar has no length

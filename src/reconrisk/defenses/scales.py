"""Standard deviations of noise that differ between the values of a release."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from reconrisk.core.validation import check_all_finite, check_not_empty, refuse


@dataclass(frozen=True, eq=False)
class NoiseScales:
    """One standard deviation above zero for each value of a release, by name and shaped as it is."""

    stds: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        check_not_empty("stds", list(self.stds))
        for name, std in self.stds.items():
            check_all_finite(f"stds[{name!r}]", std)
            if not bool((std > 0).all()):
                raise refuse(f"stds[{name!r}]", float(std.min()), "> 0", "Prune what must not be sent.")

    @cached_property
    def unit(self) -> float:
        """The root of the harmonic mean of the variances: the standard deviation where all are equal.

        A release of random direction has the same length in units of its noise, times this one, as it has by itself.
        The root mean square would not do: what few values with large noise make of it, all others are clipped by.
        """
        count = sum(std.numel() for std in self.stds.values())
        return math.sqrt(count / sum(float(std.double().pow(-2).sum()) for std in self.stds.values()))

    def in_units(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The release in units of its noise, times :attr:`unit`: unchanged where all are equal."""
        self.check_fits(released)
        return {name: tensor.double() * (self.unit / self.stds[name].double()) for name, tensor in released.items()}

    def check_fits(self, released: Mapping[str, Tensor]) -> None:
        """Refuse a release of other names or shapes."""
        shapes = {name: tuple(tensor.shape) for name, tensor in released.items()}
        expected = {name: tuple(std.shape) for name, std in self.stds.items()}
        if shapes != expected:
            wrong = next(name for name in {**expected, **shapes} if shapes.get(name) != expected.get(name))
            remedy = "Take the moments of the model whose gradients are defended."
            raise refuse(f"released[{wrong!r}]", shapes.get(wrong), f"of shape {expected.get(wrong)}", remedy)

    def __repr__(self) -> str:
        """Sizes instead of tensors."""
        count = sum(std.numel() for std in self.stds.values())
        return f"NoiseScales({count} values, unit {self.unit:.4g})"


def total_square(tensors: Mapping[str, Tensor]) -> Tensor:
    """The squared Euclidean norm of all values together, differentiable.

    In double precision: squares of half precision overflow or vanish, and then nothing would be clipped.
    """
    return torch.stack([tensor.double().square().sum() for tensor in tensors.values()]).sum()

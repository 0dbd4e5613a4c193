"""How the gradient of one record is bounded before noise is added: a factor that depends on its norm."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from reconrisk.core.validation import check_positive

SMOOTH_OVERSHOOT = 1.1153
"""Largest norm after smooth clipping to 1, rounded up: the maximum of t / (GELU(t - 1) + 1) is 1.11525..."""


@dataclass(frozen=True)
class HardClip:
    """Scale a gradient g to ``g min(1, norm / |g|)``, as DP-SGD does.

    Its derivative jumps where the norm equals ``norm``, which no gradient drawn from a density meets.

    >>> HardClip(2.0).factor(torch.tensor([1.0, 4.0]))
    tensor([1.0000, 0.5000])
    """

    norm: float

    def __post_init__(self) -> None:
        check_positive("norm", self.norm, "Pass the norm used in training.")

    @property
    def largest_norm(self) -> float:
        """No clipped gradient is longer."""
        return self.norm

    def factor(self, norms: Tensor) -> Tensor:
        """By how much gradients of these norms are scaled."""
        return (self.norm / norms).clamp(max=1.0)

    def slope(self, norms: Tensor) -> Tensor:
        """The derivative of :meth:`factor`."""
        return torch.where(norms > self.norm, -self.norm / norms.square(), torch.zeros_like(norms))


@dataclass(frozen=True)
class SmoothClip:
    r"""Scale a gradient g to ``g / (GELU(|g| / norm - 1) + 1)``: differentiable everywhere.

    Guarantee: the result is shorter than ``1.1153 norm``.
    Reference: Algorithm 1, guo2022.

    >>> SmoothClip(2.0).factor(torch.tensor([0.0, 4.0]))
    tensor([1.1886, 0.5431])
    """

    norm: float

    def __post_init__(self) -> None:
        check_positive("norm", self.norm, "Pass the norm used in training.")

    @property
    def largest_norm(self) -> float:
        """No clipped gradient is longer."""
        return SMOOTH_OVERSHOOT * self.norm

    def factor(self, norms: Tensor) -> Tensor:
        """By how much gradients of these norms are scaled."""
        return 1 / (torch.nn.functional.gelu(norms / self.norm - 1) + 1)

    def slope(self, norms: Tensor) -> Tensor:
        """The derivative of :meth:`factor`."""
        excess = norms / self.norm - 1
        density = (-excess.square() / 2).exp() / math.sqrt(2 * math.pi)
        gelu_slope: Tensor = torch.special.ndtr(excess) + excess * density
        return -gelu_slope / self.norm * self.factor(norms).square()


Clip = HardClip | SmoothClip

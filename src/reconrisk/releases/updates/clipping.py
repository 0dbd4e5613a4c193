"""Clipping rules: factors by which the gradient of one record is scaled, depending on its norm."""

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

    Attributes:
        norm: Largest norm of a clipped gradient.

    Edge cases: the derivative jumps at ``|g| = norm``, which has probability zero for gradients with a density. In
    floating point, rounding lets the sum of a batch move by slightly more than ``norm``. A guarantee about noise on a
    sum needs gradients of single records that ``clip_rows`` of :mod:`reconrisk.releases.float_safe_noise` clips.

    >>> HardClip(2.0).factor(torch.tensor([1.0, 4.0]))
    tensor([1.0000, 0.5000])
    """

    norm: float

    def __post_init__(self) -> None:
        check_positive("norm", self.norm, "Pass the norm used in training.")

    @property
    def largest_norm(self) -> float:
        """Upper bound on the norm of a clipped gradient."""
        return self.norm

    def factor(self, norms: Tensor) -> Tensor:
        """Return the factors by which gradients of these norms are scaled."""
        return (self.norm / norms).clamp(max=1.0)  # a zero gradient has inf before the clamp, and keeps factor 1

    def slope(self, norms: Tensor) -> Tensor:
        """Return the derivative of :meth:`factor` with respect to the norm."""
        return torch.where(norms > self.norm, -self.norm / norms.square(), torch.zeros_like(norms))


@dataclass(frozen=True)
class SmoothClip:
    """Scale a gradient g to ``g / (GELU(|g| / norm - 1) + 1)``, which is differentiable everywhere.

    Attributes:
        norm: Scale of the clipping; clipped gradients may be slightly longer.

    Guarantee: a clipped gradient is shorter than ``1.1153 norm``.
    Reference: Algorithm 1, guo2022.

    >>> SmoothClip(2.0).factor(torch.tensor([0.0, 4.0]))
    tensor([1.1886, 0.5431])
    """

    norm: float

    def __post_init__(self) -> None:
        check_positive("norm", self.norm, "Pass the norm used in training.")

    @property
    def largest_norm(self) -> float:
        """Upper bound on the norm of a clipped gradient."""
        return SMOOTH_OVERSHOOT * self.norm

    def factor(self, norms: Tensor) -> Tensor:
        """Return the factors by which gradients of these norms are scaled."""
        return 1 / (torch.nn.functional.gelu(norms / self.norm - 1) + 1)

    def slope(self, norms: Tensor) -> Tensor:
        """Return the derivative of :meth:`factor` with respect to the norm."""
        # d/dt GELU(t) = Phi(t) + t phi(t), with t = norms / norm - 1; the factor is 1 / (GELU(t) + 1).
        excess = norms / self.norm - 1
        density = (-excess.square() / 2).exp() / math.sqrt(2 * math.pi)
        gelu_slope: Tensor = torch.special.ndtr(excess) + excess * density
        return -gelu_slope / self.norm * self.factor(norms).square()


Clip = HardClip | SmoothClip

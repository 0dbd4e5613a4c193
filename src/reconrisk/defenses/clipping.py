"""Clipping of a release to a norm, which bounds the contribution of a record.

The norm is Euclidean, or weighted by the noise that follows (:class:`NoiseScales`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from reconrisk.core.validation import check_all_finite, check_not_empty, check_positive, invalid_input
from reconrisk.defenses.base import BaseDefense
from reconrisk.releases.float_safe_noise import LARGEST_STD, SMALLEST_STD, clip_limit


@dataclass(frozen=True, eq=False)
class NoiseScales:
    """Positive standard deviation of the noise on each value of a release.

    Attributes:
        stds: Standard deviations by parameter name, with the shapes of the release.
    """

    stds: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        check_not_empty("stds", list(self.stds))
        for name, std in self.stds.items():
            check_all_finite(f"stds[{name!r}]", std)
            if not bool((std > 0).all()):
                raise invalid_input(f"min(stds[{name!r}])", float(std.min()), "> 0", "Use pruning to withhold values.")
            for size in (float(std.min()), float(std.max())):
                if not SMALLEST_STD <= size <= LARGEST_STD:  # squares would underflow or overflow
                    raise invalid_input(
                        f"stds[{name!r}]", size, "in [2^-400, 2^400]", "Use another unit for the values."
                    )

    @cached_property
    def unit(self) -> float:
        """Square root of the harmonic mean of the variances: the common standard deviation if all are equal.

        A release of random direction keeps its expected squared length when it is divided by its noise and multiplied
        by this unit. The root mean square is not suitable: a few values with large noise would dominate it, and all
        others would be clipped.
        """
        count = sum(std.numel() for std in self.stds.values())
        return math.sqrt(count / sum(float(std.double().pow(-2).sum()) for std in self.stds.values()))

    def to_noise_units(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the release divided by its noise and multiplied by :attr:`unit`; unchanged if all scales are equal."""
        self.check_fits(released)
        wide = {name: tensor.double() for name, tensor in released.items()}
        return {name: tensor * (self.unit / self.stds[name].to(tensor)) for name, tensor in wide.items()}

    def check_fits(self, released: Mapping[str, Tensor]) -> None:
        """Raise InvalidInput unless ``released`` has the names and shapes of the scales."""
        shapes = {name: tuple(tensor.shape) for name, tensor in released.items()}
        expected = {name: tuple(std.shape) for name, std in self.stds.items()}
        if shapes != expected:
            # the first name that is missing, unexpected or of another shape
            wrong = next(name for name in {**expected, **shapes} if shapes.get(name) != expected.get(name))
            remedy = "Compute the moments with the model whose gradients are defended."
            raise invalid_input(f"released[{wrong!r}].shape", shapes.get(wrong), f"to be {expected.get(wrong)}", remedy)

    def __repr__(self) -> str:
        """Show sizes instead of tensors."""
        count = sum(std.numel() for std in self.stds.values())
        return f"NoiseScales({count} values, unit {self.unit:.4g})"


def total_square(tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the squared Euclidean norm of all values together, differentiable.

    Args:
        tensors: Tensors by name.

    Returns:
        A scalar in double precision.
    """
    # double precision: squares in half precision overflow or underflow, and nothing would be clipped
    return torch.stack([tensor.double().square().sum() for tensor in tensors.values()]).sum()


@dataclass(frozen=True)
class Clip(BaseDefense):
    """Configured clipping, as returned by :func:`clip`.

    Attributes:
        clip_norm: Largest norm that is sent.
        scales: Noise that follows the clip. The norm is then measured in its units, see
            :meth:`NoiseScales.to_noise_units`; for equal scales it is Euclidean. None for the Euclidean norm.
    """

    clip_norm: float
    scales: NoiseScales | None = None

    def __post_init__(self) -> None:
        # the dataclass is frozen; the check turns whole numbers into floats
        object.__setattr__(self, "clip_norm", check_positive("clip_norm", self.clip_norm))

    @property
    def clips(self) -> bool:
        """True: the norm is bounded."""
        return True

    @property
    def mechanism(self) -> None:
        """None: clipping bounds the contribution of a record but hides nothing."""

    def _apply(self, released: Mapping[str, Tensor], rng: torch.Generator) -> dict[str, Tensor]:
        """Scale the release down to the norm if it is longer; ``rng`` is not used."""
        del rng
        return self.replay(released)

    def replay(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the clipped release: clipping is deterministic."""
        return clip_to_norm(
            released, self.clip_norm, released if self.scales is None else self.scales.to_noise_units(released)
        )

    def noise_std(self, sent: Mapping[str, Tensor]) -> None:
        """Return None: there is no noise."""
        del sent

    def kept(self, sent: Mapping[str, Tensor]) -> None:
        """Return None: every value is sent."""
        del sent

    def __str__(self) -> str:
        """Return the call that configures the defense."""
        return f"clip(norm={self.clip_norm:g})"


def clip(norm: float) -> Clip:
    r"""Scale the release down to a norm if it is longer. This bounds the sensitivity of noise that follows.

    .. math:: g \min(1, C / |g|)

    Here g is the release as one vector.

    Args:
        norm: Largest Euclidean norm C that is sent, over all parameters together.

    Returns:
        The configured defense.

    Raises:
        InvalidInput: If ``norm`` is not a finite number above zero.

    Edge cases: before noise that differs between parameters, ``clip(C) >> noise`` measures the norm in units of the
    noise. In the Euclidean norm the noise would hide a record only in some directions.
    Reference: Algorithm 1, `Abadi et al. (2016) <https://arxiv.org/abs/1607.00133>`_.

    >>> clip(1.0)({"w": torch.tensor([3.0, 4.0])}, rng=torch.Generator())
    {'w': tensor([0.6000, 0.8000])}
    """
    return Clip(norm)


def clip_to_norm(released: Mapping[str, Tensor], norm: float, measured: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Scale a release by the factor that brings ``measured`` to at most a given norm; differentiable.

    Args:
        released: Tensors to scale, by name.
        norm: Largest norm of ``measured`` times the common factor.
        measured: Tensors whose norm decides: the release itself, or the release in units of its noise.

    Returns:
        The release times one common factor of at most 1, in its own precision.

    Guarantee: for a release in float64 the norm in real numbers is at most ``norm``.
    """
    limit = clip_limit(norm, sum(tensor.numel() for tensor in measured.values()))
    # clamped before the square root, whose derivative is infinite at zero
    factor = limit / total_square(measured).clamp_min(limit**2).sqrt()
    return {name: (tensor.double() * factor).to(tensor) for name, tensor in released.items()}

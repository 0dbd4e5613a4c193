"""Scaling a release down to a norm, which bounds what a record adds to it; the norm may weigh values by their noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from reconrisk.core.validation import check_all_finite, check_not_empty, check_positive, invalid_input
from reconrisk.defenses.base import SendingDefense


@dataclass(frozen=True, eq=False)
class NoiseScales:
    """One standard deviation above zero for each value of a release, by name and shaped as it is."""

    stds: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        check_not_empty("stds", list(self.stds))
        for name, std in self.stds.items():
            check_all_finite(f"stds[{name!r}]", std)
            if not bool((std > 0).all()):
                raise invalid_input(f"stds[{name!r}]", float(std.min()), "> 0", "Prune what must not be sent.")

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
            raise invalid_input(f"released[{wrong!r}]", shapes.get(wrong), f"of shape {expected.get(wrong)}", remedy)

    def __repr__(self) -> str:
        """Sizes instead of tensors."""
        count = sum(std.numel() for std in self.stds.values())
        return f"NoiseScales({count} values, unit {self.unit:.4g})"


def total_square(tensors: Mapping[str, Tensor]) -> Tensor:
    """The squared Euclidean norm of all values together, differentiable.

    In double precision: squares of half precision overflow or vanish, and then nothing would be clipped.
    """
    return torch.stack([tensor.double().square().sum() for tensor in tensors.values()]).sum()


@dataclass(frozen=True)
class Clip(SendingDefense):
    """The configured defense that :func:`clip` returns.

    With ``scales``, the standard deviations of noise that follows, the norm is that of the release in units of them,
    times :attr:`NoiseScales.unit`: for equal ones the Euclidean norm.
    """

    clip_norm: float
    scales: NoiseScales | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip_norm", check_positive("clip_norm", self.clip_norm))

    @property
    def mechanism(self) -> None:
        """None: clipping alone bounds what a record adds and hides nothing."""

    def _sent(self, released: Mapping[str, Tensor], rng: torch.Generator) -> dict[str, Tensor]:
        """The release scaled down to the norm if it is longer; ``rng`` is not used."""
        del rng
        return self.replay(released)

    def replay(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same: there is no chance in it."""
        return clipped(released, self.clip_norm, released if self.scales is None else self.scales.in_units(released))

    def noise_std(self, sent: Mapping[str, Tensor]) -> None:
        """There is no noise."""
        del sent

    def kept(self, sent: Mapping[str, Tensor]) -> None:
        """Every value is sent."""
        del sent

    def __str__(self) -> str:
        """The call that configures it."""
        return f"clip(norm={self.clip_norm:g})"


def clip(norm: float) -> Clip:
    r"""The release scaled down to ``norm`` if it is longer: what bounds the sensitivity of noise that follows.

    .. math:: g \min(1, C / |g|)

    Edge cases: before noise that differs between parameters, ``clip(C) >> noise`` measures the norm in units of the
    noise: otherwise it would hide a record in some directions only.
    Reference: Algorithm 1, `Abadi et al. (2016) <https://arxiv.org/abs/1607.00133>`_.

    >>> clip(1.0)({"w": torch.tensor([3.0, 4.0])}, rng=torch.Generator())
    {'w': tensor([0.6000, 0.8000])}
    """
    return Clip(norm)


def clipped(released: Mapping[str, Tensor], norm: float, measured: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The release, scaled down so that what is ``measured`` of it has at most this norm; differentiable.

    Computed in double precision: the length is exact but for the rounding of the release to its own.
    """
    # no square root near zero, which could not be differentiated
    factor = norm / total_square(measured).clamp_min(norm**2).sqrt()
    return {name: (tensor.double() * factor).to(tensor) for name, tensor in released.items()}

"""Scaling a release down to a norm, which bounds what a record adds to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from reconrisk.core.validation import check_positive
from reconrisk.defenses.base import SendingDefense
from reconrisk.defenses.scales import NoiseScales, total_square


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

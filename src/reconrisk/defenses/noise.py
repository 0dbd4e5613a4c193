"""Gaussian noise on a release, with or without clipping it first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from reconrisk.core.mechanism import Gaussian
from reconrisk.core.validation import check_positive
from reconrisk.releases.noise import standard_normal


@dataclass(frozen=True)
class NoisyRelease:
    """The configured defense that :func:`gaussian_noise` and :func:`clip_and_noise` return."""

    std: float
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        check_positive("std", self.std)
        if self.clip_norm is not None:
            check_positive("clip_norm", self.clip_norm)

    @property
    def mechanism(self) -> Gaussian | None:
        """The Gaussian mechanism where the sensitivity is held by clipping; None for bare noise."""
        return None if self.clip_norm is None else Gaussian(self.std / self.clip_norm, self.clip_norm)

    def __call__(self, released: Mapping[str, Tensor], *, rng: torch.Generator) -> dict[str, Tensor]:
        """The clipped release plus noise."""
        return {
            name: tensor + self.std * standard_normal(tensor, rng) for name, tensor in self.replay(released).items()
        }

    def replay(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The clipping alone."""
        if self.clip_norm is None:
            return dict(released)
        square = torch.stack([tensor.square().sum() for tensor in released.values()]).sum()
        factor = (
            self.clip_norm / square.clamp_min(self.clip_norm**2).sqrt()
        )  # no square root near zero to differentiate
        return {name: tensor * factor for name, tensor in released.items()}

    def noise_std(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same standard deviation everywhere."""
        return {name: torch.full_like(tensor, self.std) for name, tensor in sent.items()}

    def kept(self, sent: Mapping[str, Tensor]) -> None:
        """Every value is sent."""
        del sent

    def __str__(self) -> str:
        """The call that configures it."""
        if self.clip_norm is None:
            return f"gaussian_noise(std={self.std:g})"
        return f"clip_and_noise(noise_multiplier={self.std / self.clip_norm:g}, clip_norm={self.clip_norm:g})"


def gaussian_noise(std: float) -> NoisyRelease:
    """Independent noise of standard deviation ``std`` on every released value, nothing else.

    Assumes: nothing; without clipping it bounds no sensitivity, so ``mechanism`` is None. For DP-SGD let the release
    clip each record (``clip=HardClip(C), reduction="sum"``) and take ``std = noise_multiplier * C``.

    >>> sent = gaussian_noise(0.1)({"w": torch.zeros(2)}, rng=torch.Generator().manual_seed(0))
    >>> sent["w"].round(decimals=2)
    tensor([ 0.1500, -0.0300])
    """
    return NoisyRelease(std)


def clip_and_noise(*, noise_multiplier: float, clip_norm: float) -> NoisyRelease:
    r"""The release scaled down to norm ``clip_norm`` if it is longer, plus noise.

    .. math:: g \min(1, C / |g|) + N(0, (\sigma C)^2 I)

    Guarantee: the Gaussian mechanism with sensitivity ``clip_norm`` for the presence of the whole release: of one
    client, or of one record where the batch is that record.
    Reference: Section IV-A, riess2025.

    >>> clip_and_noise(noise_multiplier=2.0, clip_norm=0.5).mechanism
    Gaussian(noise_multiplier=2.0, clip_norm=0.5)
    """
    check_positive("noise_multiplier", noise_multiplier)
    return NoisyRelease(noise_multiplier * check_positive("clip_norm", clip_norm), clip_norm)

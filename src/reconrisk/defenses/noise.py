"""Noise of one scale on a release, with or without clipping it first.

What Gaussian noise of any shape has in common: with clipping in the norm that matches it, it is a mechanism.

Gaussian noise whose scale differs between parameters.

Standard deviations of noise that differ between the values of a release.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from reconrisk.core.mechanism import Gaussian
from reconrisk.core.observation import LAPLACE
from reconrisk.core.validation import check_positive
from reconrisk.defenses.base import SendingDefense
from reconrisk.defenses.clipping import Clip, NoiseScales, clipped
from reconrisk.defenses.families import rounded_level
from reconrisk.releases.noise_scale import standard_normal

if TYPE_CHECKING:
    from reconrisk.core.defense import Defense
    from reconrisk.defenses.families import Reference


class GaussianNoise(SendingDefense):
    """A defense that adds independent Gaussian noise."""

    @abstractmethod
    def mechanism_after(self, clip: Clip) -> Gaussian | None:
        """The mechanism that this noise is on what ``clip``, in the norm that matches, bounds; None if it is none."""

    @abstractmethod
    def matching(self, clip: Clip) -> Clip:
        """The clip in the norm in which this noise hides every direction equally well."""


@dataclass(frozen=True, eq=False)
class ParameterNoise(GaussianNoise):
    """Independent Gaussian noise with a standard deviation of its own on every released value.

    ``is_local`` says that the scales were chosen by the private record itself: then they leak about it.
    """

    scales: NoiseScales
    name: str
    is_local: bool = False

    @property
    def mechanism(self) -> None:
        """None: without clipping nothing bounds the sensitivity. Write ``clip(C) >> noise`` for a guarantee."""

    def mechanism_after(self, clip: Clip) -> Gaussian | None:
        """The Gaussian mechanism: in units of the noise a record adds at most the norm over their unit.

        None for a clip in another norm, and for noise that the records chose, which the mechanism does not cover.
        """
        if self.is_local or clip.scales is not self.scales:
            return None
        return Gaussian(self.scales.unit / clip.clip_norm, clip.clip_norm)

    def matching(self, clip: Clip) -> Clip:
        """The clip of the release in units of the noise; as it is before noise that the records chose."""
        return clip if self.is_local else replace(clip, scales=self.scales)

    def _sent(self, released: Mapping[str, Tensor], rng: torch.Generator) -> dict[str, Tensor]:
        """The release plus noise."""
        self.scales.check_fits(released)
        return {
            name: tensor + self.scales.stds[name].to(tensor) * standard_normal(tensor, rng)
            for name, tensor in released.items()
        }

    def replay(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Everything: all there is to it is chance."""
        return dict(released)

    def noise_std(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The standard deviation of each value."""
        self.scales.check_fits(sent)
        return {name: self.scales.stds[name].to(tensor) for name, tensor in sent.items()}

    def kept(self, sent: Mapping[str, Tensor]) -> None:
        """Every value is sent."""
        del sent

    def __str__(self) -> str:
        """How it was chosen."""
        return self.name


@dataclass(frozen=True)
class NoisyRelease(GaussianNoise):
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

    def mechanism_after(self, clip: Clip) -> Gaussian | None:
        """The Gaussian mechanism of a clip in the Euclidean norm; its own if it clips itself."""
        if self.clip_norm is not None:
            return self.mechanism
        # a clip in another norm than the Euclidean one bounds nothing here
        return None if clip.scales is not None else Gaussian(self.std / clip.clip_norm, clip.clip_norm)

    def matching(self, clip: Clip) -> Clip:
        """The clip in the Euclidean norm, which equal noise goes with."""
        return clip if clip.scales is None else replace(clip, scales=None)

    def _sent(self, released: Mapping[str, Tensor], rng: torch.Generator) -> dict[str, Tensor]:
        """The clipped release plus noise."""
        return {
            name: tensor + self.std * standard_normal(tensor, rng) for name, tensor in self.replay(released).items()
        }

    def replay(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The clipping alone."""
        if self.clip_norm is None:
            return dict(released)
        return clipped(released, self.clip_norm, released)

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


def dp_sgd_noise(*, noise_multiplier: float, clip_norm: float) -> NoisyRelease:
    """The noise of one DP-SGD step on the update of one record or client: another name of :func:`clip_and_noise`.

    Reference: Algorithm 1, `Abadi et al. (2016) <https://arxiv.org/abs/1607.00133>`_.

    >>> print(dp_sgd_noise(noise_multiplier=1.0, clip_norm=1.0))
    clip_and_noise(noise_multiplier=1, clip_norm=1)
    """
    return clip_and_noise(noise_multiplier=noise_multiplier, clip_norm=clip_norm)


@dataclass(frozen=True)
class LaplaceNoise(SendingDefense):
    """The configured defense that :func:`laplace_noise` returns."""

    std: float
    noise_law: ClassVar[str] = LAPLACE

    def __post_init__(self) -> None:
        check_positive("std", self.std)

    @property
    def mechanism(self) -> None:
        """None: no bound on what a record adds."""

    def _sent(self, released: Mapping[str, Tensor], rng: torch.Generator) -> dict[str, Tensor]:
        """The release plus noise."""
        return {name: tensor + self.std * _standard_laplace(tensor, rng) for name, tensor in released.items()}

    def replay(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Everything: all there is to it is chance."""
        return dict(released)

    def noise_std(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same standard deviation everywhere."""
        return {name: torch.full_like(tensor, self.std) for name, tensor in sent.items()}

    def kept(self, sent: Mapping[str, Tensor]) -> None:
        """Every value is sent."""
        del sent

    def __str__(self) -> str:
        """The call that configures it."""
        return f"laplace_noise(std={self.std:g})"


def laplace_noise(std: float) -> LaplaceNoise:
    r"""Independent Laplacian noise of standard deviation ``std`` on every released value.

    .. math:: p(z) = \frac1{2b} e^{-|z|/b}, \qquad b = \mathrm{std}/\sqrt2

    Assumes: nothing; it is a heuristic here, since the Laplace mechanism needs a bound in the sum of absolute values.
    Reference: Tables 2 and 7, meng2025, which compare it with Gaussian noise of equal variance.

    >>> sent = laplace_noise(0.1)({"w": torch.zeros(100_000)}, rng=torch.Generator().manual_seed(0))
    >>> round(float(sent["w"].std()), 3)
    0.1
    """
    return LaplaceNoise(std)


def _standard_laplace(like: Tensor, rng: torch.Generator) -> Tensor:
    """Laplacian values of variance one: the difference of two exponential ones, over the root of two."""
    first, second = (
        torch.empty(like.shape, dtype=like.dtype, device=rng.device).exponential_(generator=rng).to(like.device)
        for _ in range(2)
    )
    return (first - second) / 2**0.5


def gaussian_noise_at(reference: Reference, level: float) -> tuple[Defense, str]:
    """Build Gaussian noise of standard deviation ``level``, and the call that makes it."""
    del reference
    return gaussian_noise(level), f"rr.defenses.gaussian_noise({level:g})"


def laplace_noise_at(reference: Reference, level: float) -> tuple[Defense, str]:
    """Build Laplacian noise of standard deviation ``level``, and the call that makes it."""
    del reference
    return laplace_noise(level), f"rr.defenses.laplace_noise({level:g})"


def dp_sgd_noise_at(reference: Reference, level: float) -> tuple[Defense, str]:
    """Build a clip to the median norm of public updates with noise of standard deviation ``level``, and its call."""
    norm = reference.clip_norm
    multiplier = rounded_level(level / norm)
    code = f"rr.defenses.dp_sgd_noise(noise_multiplier={multiplier:g}, clip_norm={norm:g})"
    return dp_sgd_noise(noise_multiplier=multiplier, clip_norm=norm), code

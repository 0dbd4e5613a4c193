"""Gaussian and Laplacian noise on a release, with or without clipping it first.

:class:`GaussianNoise` is the base class of Gaussian noise of any shape: with clipping in the matching norm it is a
mechanism. :class:`NoisyRelease` has one scale, :class:`ParameterNoise` one per value; :class:`LaplaceNoise` is a
heuristic.
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
from reconrisk.defenses.base import BaseDefense
from reconrisk.defenses.clipping import Clip, NoiseScales, clip_to_norm
from reconrisk.defenses.families import round_level_up
from reconrisk.releases.float_safe_noise import add_noise_by_name

if TYPE_CHECKING:
    from reconrisk.core.defense import Defense
    from reconrisk.defenses.families import Reference


class GaussianNoise(BaseDefense):
    """Base class of defenses that add independent Gaussian noise."""

    @property
    def exact_noise(self) -> bool:
        """True: the noise is rounded exactly."""
        return True

    @abstractmethod
    def mechanism_after(self, clip: Clip) -> Gaussian | None:
        """Return the mechanism of this noise after ``clip``; None if the clip does not bound the sensitivity."""

    @abstractmethod
    def match_clip(self, clip: Clip) -> Clip:
        """Return ``clip`` in the norm in which this noise hides every direction equally well."""


@dataclass(frozen=True, eq=False)
class ParameterNoise(GaussianNoise):
    """Independent Gaussian noise with its own standard deviation on every released value.

    Attributes:
        scales: Standard deviations by parameter name.
        name: Name of the defense as shown in reports: the call that made it.
        is_local: True if the private record chose the scales. Then they leak about it.
    """

    scales: NoiseScales
    name: str
    is_local: bool = False

    @property
    def mechanism(self) -> None:
        """None: without clipping nothing bounds the sensitivity. Write ``clip(C) >> noise`` for a guarantee."""

    def mechanism_after(self, clip: Clip) -> Gaussian | None:
        """Return the Gaussian mechanism: in units of the noise, a record contributes at most clip norm / unit.

        None for a clip in another norm, and for noise that private records chose, which the mechanism does not cover.
        """
        # identity, not equality: chain() gave the clip these very scales if the norm matches
        if self.is_local or clip.scales is not self.scales:
            return None
        return Gaussian(self.scales.unit / clip.clip_norm, clip.clip_norm)

    def match_clip(self, clip: Clip) -> Clip:
        """Return the clip measured in units of the noise; unchanged before noise that private records chose."""
        return clip if self.is_local else replace(clip, scales=self.scales)

    def _apply(self, released: Mapping[str, Tensor], rng: torch.Generator) -> dict[str, Tensor]:
        """Add the noise."""
        self.scales.check_fits(released)
        return add_noise_by_name(released, self.scales.stds, rng)

    def replay(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the release unchanged: the defense only adds noise."""
        return dict(released)

    def noise_std(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the standard deviation of each value."""
        self.scales.check_fits(sent)
        return {name: self.scales.stds[name].to(tensor) for name, tensor in sent.items()}

    def kept(self, sent: Mapping[str, Tensor]) -> None:
        """Return None: every value is sent."""
        del sent

    def __str__(self) -> str:
        """Return the call that made the noise."""
        return self.name


@dataclass(frozen=True)
class NoisyRelease(GaussianNoise):
    """Configured defense, as returned by :func:`gaussian_noise` and :func:`clip_and_noise`.

    Attributes:
        std: Standard deviation of the noise on every value.
        clip_norm: Euclidean norm to which the release is clipped first; None for no clipping.
    """

    std: float
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        check_positive("std", self.std)
        if self.clip_norm is not None:
            check_positive("clip_norm", self.clip_norm)

    @property
    def clips(self) -> bool:
        """True with a clip norm."""
        return self.clip_norm is not None

    @property
    def mechanism(self) -> Gaussian | None:
        """Gaussian mechanism if clipping bounds the sensitivity; None for noise alone."""
        return None if self.clip_norm is None else Gaussian(self.std / self.clip_norm, self.clip_norm)

    def mechanism_after(self, clip: Clip) -> Gaussian | None:
        """Return the Gaussian mechanism after a Euclidean clip, or its own mechanism if it clips itself."""
        if self.clip_norm is not None:
            return self.mechanism
        # equal noise needs a Euclidean bound; a clip in units of other noise gives none
        return None if clip.scales is not None else Gaussian(self.std / clip.clip_norm, clip.clip_norm)

    def match_clip(self, clip: Clip) -> Clip:
        """Return the clip in the Euclidean norm, which matches equal noise."""
        return clip if clip.scales is None else replace(clip, scales=None)

    def _apply(self, released: Mapping[str, Tensor], rng: torch.Generator) -> dict[str, Tensor]:
        """Clip the release and add the noise."""
        return add_noise_by_name(self.replay(released), self.std, rng)

    def replay(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the clipped release."""
        if self.clip_norm is None:
            return dict(released)
        return clip_to_norm(released, self.clip_norm, released)

    def noise_std(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the same standard deviation for every value."""
        return {name: torch.full_like(tensor, self.std) for name, tensor in sent.items()}

    def kept(self, sent: Mapping[str, Tensor]) -> None:
        """Return None: every value is sent."""
        del sent

    def __str__(self) -> str:
        """Return the call that configures the defense."""
        if self.clip_norm is None:
            return f"gaussian_noise(std={self.std:g})"
        return f"clip_and_noise(noise_multiplier={self.std / self.clip_norm:g}, clip_norm={self.clip_norm:g})"


def gaussian_noise(std: float) -> NoisyRelease:
    """Add independent Gaussian noise to every released value.

    Args:
        std: Standard deviation of the noise, in units of the release.

    Returns:
        The configured defense. Its ``mechanism`` is None: without clipping the sensitivity is unbounded.

    Raises:
        InvalidInput: If ``std`` is not a finite number above zero.

    Assumes: nothing. For DP-SGD let the release clip each record (``clip=HardClip(C), reduction="sum"``) and pass
    ``std = noise_multiplier * C``. See :class:`reconrisk.releases.updates.clipping.HardClip` for the rounding of sums.

    >>> sent = gaussian_noise(0.1)({"w": torch.zeros(2)}, rng=torch.Generator().manual_seed(0))
    >>> sent["w"].round(decimals=2)
    tensor([-0.2000,  0.0900])
    """
    return NoisyRelease(std)


def clip_and_noise(*, noise_multiplier: float, clip_norm: float) -> NoisyRelease:
    r"""Clip the whole release to a norm, then add Gaussian noise.

    .. math:: g \min(1, C / |g|) + N(0, (\sigma C)^2 I)

    Here g is the release as one vector.

    Args:
        noise_multiplier: Standard deviation of the noise divided by the clip norm (:math:`\sigma`).
        clip_norm: Largest Euclidean norm of the release (:math:`C`).

    Returns:
        The configured defense.

    Raises:
        InvalidInput: If an argument is not a finite number above zero.

    Guarantee: the Gaussian mechanism with sensitivity ``clip_norm`` for the presence of the whole release: of one
    client, or of one record if the batch is that record.
    Reference: Section IV-A, riess2025.

    >>> clip_and_noise(noise_multiplier=2.0, clip_norm=0.5).mechanism
    Gaussian(noise_multiplier=2.0, clip_norm=0.5)
    """
    check_positive("noise_multiplier", noise_multiplier)
    return NoisyRelease(noise_multiplier * check_positive("clip_norm", clip_norm), clip_norm)


def dp_sgd_noise(*, noise_multiplier: float, clip_norm: float) -> NoisyRelease:
    """Noise of one DP-SGD step on the update of one record or client: another name of :func:`clip_and_noise`.

    Args:
        noise_multiplier: Standard deviation of the noise divided by the clip norm.
        clip_norm: Largest Euclidean norm of the update.

    Returns:
        The configured defense.

    Raises:
        InvalidInput: If an argument is not a finite number above zero.

    Reference: Algorithm 1, `Abadi et al. (2016) <https://arxiv.org/abs/1607.00133>`_.

    >>> print(dp_sgd_noise(noise_multiplier=1.0, clip_norm=1.0))
    clip_and_noise(noise_multiplier=1, clip_norm=1)
    """
    return clip_and_noise(noise_multiplier=noise_multiplier, clip_norm=clip_norm)


@dataclass(frozen=True)
class LaplaceNoise(BaseDefense):
    """Configured defense, as returned by :func:`laplace_noise`.

    Attributes:
        std: Standard deviation of the noise on every value.
        noise_law: Name of the distribution of the noise, for attacks that use its likelihood.
    """

    std: float
    noise_law: ClassVar[str] = LAPLACE

    def __post_init__(self) -> None:
        check_positive("std", self.std)

    @property
    def exact_noise(self) -> bool:
        """True: the noise is rounded exactly."""
        return True

    @property
    def mechanism(self) -> None:
        """None: the contribution of a record is unbounded."""

    def _apply(self, released: Mapping[str, Tensor], rng: torch.Generator) -> dict[str, Tensor]:
        """Add the noise."""
        return add_noise_by_name(released, self.std, rng, law=LAPLACE)

    def replay(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the release unchanged: the defense only adds noise."""
        return dict(released)

    def noise_std(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the same standard deviation for every value."""
        return {name: torch.full_like(tensor, self.std) for name, tensor in sent.items()}

    def kept(self, sent: Mapping[str, Tensor]) -> None:
        """Return None: every value is sent."""
        del sent

    def __str__(self) -> str:
        """Return the call that configures the defense."""
        return f"laplace_noise(std={self.std:g})"


def laplace_noise(std: float) -> LaplaceNoise:
    r"""Add independent Laplacian noise to every released value.

    .. math:: p(z) = \frac1{2b} e^{-|z|/b}, \qquad b = \mathrm{std}/\sqrt2

    Here p is the density of the noise z on one value.

    Args:
        std: Standard deviation of the noise, in units of the release.

    Returns:
        The configured defense. Its ``mechanism`` is None.

    Raises:
        InvalidInput: If ``std`` is not a finite number above zero.

    Assumes: nothing. It is a heuristic here, because the Laplace mechanism needs a bound on the sum of absolute values.
    Reference: Tables 2 and 7, meng2025, which compare it with Gaussian noise of equal variance.

    >>> sent = laplace_noise(0.1)({"w": torch.zeros(100_000)}, rng=torch.Generator().manual_seed(0))
    >>> round(float(sent["w"].std()), 3)
    0.1
    """
    return LaplaceNoise(std)


def gaussian_noise_at(reference: Reference, level: float) -> tuple[Defense, str]:
    """Build the Gaussian noise of a level.

    Args:
        reference: Not used: the level is the standard deviation itself.
        level: Standard deviation of the noise.

    Returns:
        The defense and the call that makes it.
    """
    del reference
    return gaussian_noise(level), f"rr.defenses.gaussian_noise({level:g})"


def laplace_noise_at(reference: Reference, level: float) -> tuple[Defense, str]:
    """Build the Laplacian noise of a level.

    Args:
        reference: Not used: the level is the standard deviation itself.
        level: Standard deviation of the noise.

    Returns:
        The defense and the call that makes it.
    """
    del reference
    return laplace_noise(level), f"rr.defenses.laplace_noise({level:g})"


def dp_sgd_noise_at(reference: Reference, level: float) -> tuple[Defense, str]:
    """Build a clip to the median norm of public updates with noise of a level.

    Args:
        reference: Public updates, whose median norm is the clip norm.
        level: Standard deviation of the noise.

    Returns:
        The defense and the call that makes it. The noise multiplier is rounded up to three digits.
    """
    norm = reference.clip_norm
    multiplier = round_level_up(level / norm)
    code = f"rr.defenses.dp_sgd_noise(noise_multiplier={multiplier:g}, clip_norm={norm:g})"
    return dp_sgd_noise(noise_multiplier=multiplier, clip_norm=norm), code

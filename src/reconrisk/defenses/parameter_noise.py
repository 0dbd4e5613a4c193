"""Gaussian noise whose scale differs between parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from reconrisk.core.mechanism import Gaussian
from reconrisk.defenses.clipping import Clip
from reconrisk.defenses.gaussian import GaussianNoise
from reconrisk.defenses.scales import NoiseScales
from reconrisk.releases.noise import standard_normal


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

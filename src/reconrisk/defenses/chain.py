"""Defenses one after the other, written ``clip(1.0) >> gaussian_noise(0.5)``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reconrisk.core.defense import Defense
from reconrisk.core.mechanism import Mechanism
from reconrisk.core.observation import GAUSSIAN, LAPLACE
from reconrisk.core.validation import invalid_input
from reconrisk.defenses.base import SendingDefense
from reconrisk.defenses.clipping import Clip
from reconrisk.defenses.noise import GaussianNoise, LaplaceNoise, NoisyRelease
from reconrisk.releases.observe import chosen_for
from reconrisk.releases.release import Release


@dataclass(frozen=True, eq=False)
class Chain(SendingDefense):
    """Defenses in the order in which they act, as :func:`chain` returns them."""

    parts: tuple[Defense, ...]

    @property
    def mechanism(self) -> Mechanism | None:
        """That of noise on what a clip before it bounds; what comes after it is post-processing.

        None where private records choose a part: wherever it stands, its choice is not hidden by the noise.
        """
        if any(getattr(part, "is_local", False) for part in self.parts):
            return None
        for place, part in enumerate(self.parts):
            clip = _clip_before(self.parts, place)
            found = part.mechanism_after(clip[1]) if isinstance(part, GaussianNoise) and clip else part.mechanism
            if found is not None:
                return found
        return None

    @property
    def clip_norm(self) -> float | None:
        """The smallest Euclidean norm that a part clips to; None where none does."""
        norms = [
            part.clip_norm
            for part in self.parts
            if (isinstance(part, Clip) and part.scales is None) or isinstance(part, NoisyRelease)
        ]
        return min((norm for norm in norms if norm is not None), default=None)

    def for_release(self, release: Release) -> Chain:
        """The chain whose parts are those that the records of ``release`` choose."""
        return self.changed(lambda part: chosen_for(part, release))

    def changed(self, change: Callable[[Defense], Defense]) -> Chain:
        """The chain of what ``change`` makes of every part."""
        return chain(*(change(part) for part in self.parts))

    def _sent(self, released: Mapping[str, Tensor], rng: torch.Generator) -> dict[str, Tensor]:
        """What the last defense sends of what the one before it does."""
        sent = dict(released)
        for part in self.parts:
            sent = part(sent, rng=rng)
        return sent

    def replay(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The parts without chance, one after the other."""
        sent = dict(released)
        for part in self.parts:
            sent = part.replay(sent)
        return sent

    def noise_std(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """That of the part that adds noise; two add up."""
        found = [std for std in (part.noise_std(sent) for part in self.parts) if std is not None]
        if not found:
            return None
        return {name: torch.stack([std[name] for std in found]).square().sum(0).sqrt() for name in sent}

    def kept(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Where every part sends a value."""
        found = [mask for mask in (part.kept(sent) for part in self.parts) if mask is not None]
        if not found:
            return None
        return {name: torch.stack([mask[name] for mask in found]).all(0) for name in sent}

    @property
    def noise_law(self) -> str:
        """That of its noise; of several that add up the nearest is the normal one."""
        noisy = [part for part in self.parts if isinstance(part, (GaussianNoise, LaplaceNoise))]
        return LAPLACE if len(noisy) == 1 and isinstance(noisy[0], LaplaceNoise) else GAUSSIAN

    def __str__(self) -> str:
        """The parts as they are written."""
        return " >> ".join(str(part) for part in self.parts)


def chain(*defenses: Defense) -> Chain:
    """Defenses that act one after the other.

    Guarantee: noise after clipping, with nothing but pruning in between, implements a Gaussian mechanism; before noise
    that differs between parameters the clip is in the norm that matches it. What follows cannot weaken that.
    Edge cases: clipping after noise is refused, since nobody could say how large the noise then is.

    >>> from reconrisk.defenses.clipping import clip
    >>> from reconrisk.defenses.noise import gaussian_noise
    >>> chain(clip(0.5), gaussian_noise(1.0)).mechanism
    Gaussian(noise_multiplier=2.0, clip_norm=0.5)
    >>> print(clip(0.5) >> gaussian_noise(1.0))
    clip(norm=0.5) >> gaussian_noise(std=1)
    """
    parts: list[Defense] = []
    for defense in defenses:
        if not hasattr(defense, "replay"):
            raise invalid_input(
                "chain", defense, "to hold defenses", "Write clip(1.0) >> gaussian_noise(0.5), for instance."
            )
        parts += defense.parts if isinstance(defense, Chain) else (defense,)
    noisy = False
    for place, part in enumerate(parts):
        if noisy and (isinstance(part, Clip) or getattr(part, "clip_norm", None) is not None):
            raise invalid_input("chain", str(part), "to come before the noise", "Write clip(...) >> noise.")
        if isinstance(part, GaussianNoise) and (before := _clip_before(parts, place)) is not None:
            parts[before[0]] = part.matching(before[1])
        noisy = noisy or isinstance(part, (GaussianNoise, LaplaceNoise))
    return Chain(tuple(parts))


def _clip_before(parts: Sequence[Defense], place: int) -> tuple[int, Clip] | None:
    """The clip whose bound still holds at ``place``, and its place: nothing but dropped values in between."""
    for earlier in range(place - 1, -1, -1):
        part = parts[earlier]
        if isinstance(part, Clip):
            return earlier, part
        if not getattr(part, "only_drops", False):
            return None
    return None

"""Several defenses in a row, written ``clip(1.0) >> gaussian_noise(0.5)``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reconrisk.core.defense import Defense
from reconrisk.core.mechanism import Mechanism
from reconrisk.core.observation import GAUSSIAN, LAPLACE
from reconrisk.core.validation import invalid_input
from reconrisk.defenses.base import BaseDefense
from reconrisk.defenses.clipping import Clip
from reconrisk.defenses.noise import GaussianNoise, LaplaceNoise, NoisyRelease
from reconrisk.releases.observe import resolve_defense
from reconrisk.releases.release import Release


@dataclass(frozen=True, eq=False)
class Chain(BaseDefense):
    """Defenses in the order in which they act, as returned by :func:`chain`.

    Attributes:
        parts: The defenses, first to last. Nested chains are flattened.
    """

    parts: tuple[Defense, ...]

    @property
    def mechanism(self) -> Mechanism | None:
        """Mechanism of the first part that has one; for noise after a clip, the sensitivity is the clip norm.

        Later parts are post-processing and cannot weaken the guarantee. None if private records
        choose any part, at any position: the noise does not hide that choice.
        """
        if any(getattr(part, "is_local", False) for part in self.parts):
            return None
        return None if (found := self._find_mechanism()) is None else found[1]

    def _find_mechanism(self) -> tuple[Defense, Mechanism] | None:
        """Return the first part that has a mechanism, with that mechanism."""
        for place, part in enumerate(self.parts):
            # noise without a norm of its own takes its sensitivity from the clip before it
            clip = _find_clip_before(self.parts, place)
            mechanism = part.mechanism_after(clip[1]) if isinstance(part, GaussianNoise) and clip else part.mechanism
            if mechanism is not None:
                return part, mechanism
        return None

    @property
    def clips(self) -> bool:
        """True if a part bounds the norm of the release."""
        return any(getattr(part, "clips", False) for part in self.parts)

    @property
    def exact_noise(self) -> bool:
        """True if the noise of the mechanism is exact; without a mechanism, if any part adds exact noise."""
        found = self._find_mechanism()
        return any(getattr(part, "exact_noise", False) for part in (self.parts if found is None else found[:1]))

    @property
    def clip_norm(self) -> float | None:
        """Smallest Euclidean norm that any part clips to; None if no part clips in that norm."""
        # a clip in units of the noise (scales) bounds another norm
        norms = [
            part.clip_norm
            for part in self.parts
            if (isinstance(part, Clip) and part.scales is None) or isinstance(part, NoisyRelease)
        ]
        return min((norm for norm in norms if norm is not None), default=None)

    def for_release(self, release: Release) -> Chain:
        """Return the chain with each part configured for ``release``."""
        return self.map_parts(lambda part: resolve_defense(part, release))

    def map_parts(self, change: Callable[[Defense], Defense]) -> Chain:
        """Return the chain with ``change`` applied to every part."""
        return chain(*(change(part) for part in self.parts))

    def _apply(self, released: Mapping[str, Tensor], rng: torch.Generator) -> dict[str, Tensor]:
        """Apply the parts in order."""
        sent = dict(released)
        for part in self.parts:
            sent = part(sent, rng=rng)
        return sent

    def replay(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Apply the deterministic parts in order."""
        sent = dict(released)
        for part in self.parts:
            sent = part.replay(sent)
        return sent

    def noise_std(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Return the standard deviation of the summed noise of all parts; None without noise."""
        stds = [std for std in (part.noise_std(sent) for part in self.parts) if std is not None]
        if not stds:
            return None
        # variances of independent noises add up
        return {name: torch.stack([std[name] for std in stds]).square().sum(0).sqrt() for name in sent}

    def kept(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Return True for values that every part sends; None if no part drops values."""
        masks = [mask for mask in (part.kept(sent) for part in self.parts) if mask is not None]
        if not masks:
            return None
        return {name: torch.stack([mask[name] for mask in masks]).all(0) for name in sent}

    @property
    def noise_law(self) -> str:
        """Law of the noise: Laplace for one Laplacian part, otherwise Gaussian.

        The sum of several noises is treated as Gaussian, the closest of the known laws.
        """
        noisy = [part for part in self.parts if isinstance(part, (GaussianNoise, LaplaceNoise))]
        return LAPLACE if len(noisy) == 1 and isinstance(noisy[0], LaplaceNoise) else GAUSSIAN

    def __str__(self) -> str:
        """Return the chain as it is written in code."""
        return " >> ".join(str(part) for part in self.parts)


def chain(*defenses: Defense) -> Chain:
    """Combine defenses that act one after the other.

    Args:
        *defenses: Defenses in the order in which they act. Chains among them are flattened.

    Returns:
        The combined defense.

    Raises:
        InvalidInput: If an argument is not a defense, or a clip comes after noise.

    Guarantee: noise after clipping, with only pruning in between, implements a Gaussian mechanism. Before noise that
    differs between parameters, the clip is changed to the norm that matches the noise. Later parts cannot weaken the
    guarantee of the mechanism.
    Edge cases: clipping after noise is refused, because the size of the resulting noise is unknown.

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
                "defenses",
                defense,
                "to be configured defenses",
                "Pass clip(1.0) and gaussian_noise(0.5), for instance.",
            )
        parts += defense.parts if isinstance(defense, Chain) else (defense,)
    noisy = False
    for place, part in enumerate(parts):
        if noisy and (isinstance(part, Clip) or getattr(part, "clip_norm", None) is not None):
            raise invalid_input("defenses", str(part), "to come before the noise", "Write clip(...) >> noise.")
        if isinstance(part, GaussianNoise) and (before := _find_clip_before(parts, place)) is not None:
            parts[before[0]] = part.match_clip(before[1])  # replaced in place: the clip adopts the norm of the noise
        noisy = noisy or isinstance(part, (GaussianNoise, LaplaceNoise))
    return Chain(tuple(parts))


def _find_clip_before(parts: Sequence[Defense], place: int) -> tuple[int, Clip] | None:
    """Return position and value of the clip that bounds the input of ``parts[place]``; None if there is none."""
    for earlier in range(place - 1, -1, -1):
        part = parts[earlier]
        if isinstance(part, Clip):
            return earlier, part
        if not getattr(part, "only_drops", False):  # any other part may lengthen the release
            return None
    return None

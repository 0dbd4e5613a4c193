"""Families of defenses with one strength each: what a search for the cheapest defense chooses from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from reconrisk.core.defense import Defense
from reconrisk.core.validation import check_not_empty, check_positive, did_you_mean, refuse
from reconrisk.defenses.clipping import clip, total_square
from reconrisk.defenses.noise import dp_sgd_noise, gaussian_noise, laplace_noise
from reconrisk.defenses.optimal_noise import optimal_noise
from reconrisk.defenses.pruning import optimal_pruning, optimal_pruning_and_noise, prune
from reconrisk.releases.sensitivity.moments import ReferenceMoments

_DIGITS = 3
_WEAKEST, _STRONGEST = 1e-4, 100.0  # noise on a value, of the size of a value, and of the norm of all of them
_KEPT = 0.9


@dataclass(frozen=True, eq=False)
class Reference:
    """What families are configured by: public records only, seen through the moments and updates that they give.

    ``find_moments`` computes the moments when a family first asks for them. ``updates`` are the releases of some public
    records, whose size says what noise is little or much, and at which norm to clip: their median.
    """

    find_moments: Callable[[], ReferenceMoments]
    updates: tuple[Mapping[str, Tensor], ...]

    def __post_init__(self) -> None:
        check_not_empty("updates", self.updates, "Pass updates of public records.")
        check_positive("size of the updates of public records", self.scale, "Check the model and its loss.")

    @cached_property
    def moments(self) -> ReferenceMoments:
        """Moments of the public records."""
        return self.find_moments()

    @cached_property
    def size(self) -> int:
        """Number of values in an update."""
        return sum(value.numel() for value in self.updates[0].values())

    @cached_property
    def scale(self) -> float:
        """Root mean square of the values of updates: equal noise of this standard deviation is as large as they are."""
        squares = [float(total_square(update)) / self.size for update in self.updates]
        return math.sqrt(sum(squares) / len(squares))

    @cached_property
    def clip_norm(self) -> float:
        """The median norm of updates, to three digits."""
        return _rounded(_median_norm(self.updates))

    @cached_property
    def matching_clip_norm(self) -> float:
        """The median norm of updates in units of optimal noise, which is what a clip before it measures."""
        scales = optimal_noise(self.moments, like=1.0).scales
        return _rounded(_median_norm([scales.in_units(update) for update in self.updates]))


@dataclass(frozen=True, eq=False)
class Family:
    """A defense for every ``level`` above zero, the stronger the higher.

    The level of noise is the standard deviation of equal noise of the same second-order utility U2, so that families
    can be compared; that of pruning is the inverse of the share of values that is sent.
    """

    name: str
    sentence: str
    build: Callable[[Reference, float], tuple[Defense, str]] = field(repr=False)
    prunes: bool = False

    def levels(self, reference: Reference) -> tuple[float, float]:
        """The weakest and the strongest level that are worth trying."""
        if self.prunes:
            return 1.0, float(max(2, reference.size))
        return _WEAKEST * reference.scale, _STRONGEST * math.sqrt(reference.size) * reference.scale

    def start(self, reference: Reference) -> float:
        """A level in the middle: noise a tenth as large as the update, or a tenth of the values sent."""
        return min(10.0, float(max(2, reference.size))) if self.prunes else 0.1 * reference.scale

    def defense(self, reference: Reference, level: float) -> tuple[Defense, str]:
        """The defense of this level, and the call that makes it, in which ``moments`` are those of the reference."""
        return self.build(reference, check_positive("level", level))


def family_by_name(name: str) -> Family:
    """The family of this name.

    >>> family_by_name("optimal_noise").sentence
    'Noise shaped by public records: the most protection for its variance.'
    >>> family_by_name("optimal_nois")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidInput: Expected family='optimal_nois' to be one of ... Did you mean optimal_noise?
    """
    if name not in FAMILIES:
        raise refuse("family", name, f"to be one of {', '.join(FAMILIES)}", did_you_mean(name, FAMILIES).strip())
    return FAMILIES[name]


def rounded_level(level: float) -> float:
    """The level to three digits, not below: so that the call that is printed is the defense that was tried.

    >>> rounded_level(0.012341), rounded_level(12.0)
    (0.0124, 12.0)
    """
    unit = 10.0 ** (math.floor(math.log10(check_positive("level", level))) + 1 - _DIGITS)
    return _rounded(math.ceil(level / unit * (1 - 1e-12)) * unit)


def _gaussian(reference: Reference, level: float) -> tuple[Defense, str]:
    del reference
    return gaussian_noise(level), f"rr.defenses.gaussian_noise({level:g})"


def _laplace(reference: Reference, level: float) -> tuple[Defense, str]:
    del reference
    return laplace_noise(level), f"rr.defenses.laplace_noise({level:g})"


def _optimal_noise(reference: Reference, level: float) -> tuple[Defense, str]:
    return optimal_noise(reference.moments, like=level), f"rr.defenses.optimal_noise(moments, like={level:g})"


def _dp_sgd(reference: Reference, level: float) -> tuple[Defense, str]:
    norm = reference.clip_norm
    multiplier = rounded_level(level / norm)
    code = f"rr.defenses.dp_sgd_noise(noise_multiplier={multiplier:g}, clip_norm={norm:g})"
    return dp_sgd_noise(noise_multiplier=multiplier, clip_norm=norm), code


def _clip_and_optimal(reference: Reference, level: float) -> tuple[Defense, str]:
    norm = reference.matching_clip_norm
    code = f"rr.defenses.clip({norm:g}) >> rr.defenses.optimal_noise(moments, like={level:g})"
    return clip(norm) >> optimal_noise(reference.moments, like=level), code


def _prune(reference: Reference, level: float) -> tuple[Defense, str]:
    share = _share(reference, level)
    return prune(share), f"rr.defenses.prune({share:.10g})"


def _optimal_pruning(reference: Reference, level: float) -> tuple[Defense, str]:
    share = _share(reference, level)
    code = f"rr.defenses.optimal_pruning(moments, share={share:.10g})"
    return optimal_pruning(reference.moments, share=share), code


def _optimal_pruning_and_noise(reference: Reference, level: float) -> tuple[Defense, str]:
    code = f"rr.defenses.optimal_pruning_and_noise(moments, utility={_KEPT:g}, like={level:g})"
    return optimal_pruning_and_noise(reference.moments, utility=_KEPT, like=level), code


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family("gaussian_noise", "Equal Gaussian noise on every value.", _gaussian),
        Family("laplace_noise", "Equal Laplacian noise on every value.", _laplace),
        Family(
            "optimal_noise", "Noise shaped by public records: the most protection for its variance.", _optimal_noise
        ),
        Family("dp_sgd_noise", "Clip to the median norm of public updates, then equal noise: has a proof.", _dp_sgd),
        Family(
            "clip_and_optimal_noise", "Clip in the matching norm, then shaped noise: has a proof.", _clip_and_optimal
        ),
        Family("prune", "Send the largest values only.", _prune, prunes=True),
        Family(
            "optimal_pruning",
            "Send only values that tell little of a record, by public records.",
            _optimal_pruning,
            prunes=True,
        ),
        Family(
            "optimal_pruning_and_noise",
            f"Optimal pruning that keeps {_KEPT:.0%} of the decrease of a step, then shaped noise.",
            _optimal_pruning_and_noise,
        ),
    )
}
"""The families that a search for a defense chooses from, by name."""


def _share(reference: Reference, level: float) -> float:
    """The share that is dropped where one in ``level`` is sent: at least one value is."""
    kept = max(1.0 / max(level, 1.0), 1.0 / reference.size)
    return 1.0 - float(f"{kept:.{_DIGITS}g}") if kept < 1 else 0.0


def _median_norm(updates: Sequence[Mapping[str, Tensor]]) -> float:
    return float(torch.stack([total_square(update) for update in updates]).sqrt().median())


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")

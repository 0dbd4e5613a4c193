"""Defenses and families of defenses by name: one row each; plugins by the entry points ``reconrisk.defenses``.

Importing this module loads no defense and no torch. A new defense is one file, one row here and one line in the stub.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from reconrisk.core.defense import Defense
from reconrisk.core.mechanism import Composed, Gaussian, Mechanism, PoissonSampled, Repeated
from reconrisk.core.registry import Info, Plugin, Registry, summary_of
from reconrisk.core.validation import check_positive, check_settings, invalid_input

if TYPE_CHECKING:
    from reconrisk.defenses.families import Reference

_WEAKEST, _STRONGEST = 1e-4, 100.0  # noise on a value, of the size of a value, and of the norm of all of them


@dataclass(frozen=True)
class FamilyInfo(Info):
    """A row for a family: a defense for every ``level`` above zero, stronger with the level.

    The level of noise is the standard deviation of equal noise of the same second-order utility U2, so that families
    can be compared; that of pruning is the inverse of the share of values that is sent.

    Args:
        name: The name of the family.
        where: A function of a :class:`~reconrisk.defenses.families.Reference` and a level that returns the defense and
            the call that makes it.
        summary: One sentence in plain English.
        prunes: True if the level counts values that are not sent; otherwise it is a level of noise.
    """

    prunes: bool = False

    def levels(self, reference: Reference) -> tuple[float, float]:
        """Return the weakest and the strongest level that are worth trying."""
        if self.prunes:
            return 1.0, float(max(2, reference.size))
        return _WEAKEST * reference.scale, _STRONGEST * math.sqrt(reference.size) * reference.scale

    def start(self, reference: Reference) -> float:
        """Return a level in the middle: noise a tenth as large as the update, or a tenth of the values sent."""
        return min(10.0, float(max(2, reference.size))) if self.prunes else 0.1 * reference.scale

    def defense(self, reference: Reference, level: float) -> tuple[Defense, str]:
        """Return the defense of this level and the call that makes it; ``moments`` there are those of the reference."""
        built: tuple[Defense, str] = self.load()(reference, check_positive("level", level))
        return built


@dataclass(frozen=True)
class DefenseInfo(Info):
    """A row for a defense.

    Args:
        name: The name that people write.
        where: The function that configures it.
        summary: One sentence in plain English.
        strength: The setting that a bare number stands for, as in ``reconrisk tradeoff --defense prune:0.5,0.9``.
        needs_moments: True if moments of public records are its first argument.
        family: The family that :func:`reconrisk.recommend_defense` searches with this defense, if there is one.
    """

    strength: str = ""
    needs_moments: bool = False
    family: FamilyInfo | None = None


_NOISE, _SHAPED = "reconrisk.defenses.noise", "reconrisk.defenses.optimal_noise"
_PRUNING, _LOCAL = "reconrisk.defenses.pruning", "reconrisk.defenses.local"

_ROWS = (
    DefenseInfo(
        "gaussian_noise",
        f"{_NOISE}:gaussian_noise",
        "Equal Gaussian noise on every value.",
        "std",
        family=FamilyInfo("gaussian_noise", f"{_NOISE}:gaussian_noise_at", "Equal Gaussian noise on every value."),
    ),
    DefenseInfo(
        "laplace_noise",
        f"{_NOISE}:laplace_noise",
        "Equal Laplacian noise on every value.",
        "std",
        family=FamilyInfo("laplace_noise", f"{_NOISE}:laplace_noise_at", "Equal Laplacian noise on every value."),
    ),
    DefenseInfo(
        "optimal_noise",
        f"{_SHAPED}:optimal_noise",
        "Noise shaped by public records: the most protection for its variance.",
        "like",
        needs_moments=True,
        family=FamilyInfo(
            "optimal_noise",
            f"{_SHAPED}:optimal_noise_at",
            "Noise shaped by public records: the most protection for its variance.",
        ),
    ),
    DefenseInfo(
        "dp_sgd_noise",
        f"{_NOISE}:dp_sgd_noise",
        "Clip and add the noise of one step of DP-SGD.",
        "noise_multiplier",
        family=FamilyInfo(
            "dp_sgd_noise",
            f"{_NOISE}:dp_sgd_noise_at",
            "Clip to the median norm of public updates, then equal noise: has a proof.",
        ),
    ),
    DefenseInfo(
        "clip",
        "reconrisk.defenses.clipping:clip",
        "Scale the update down to a norm if it is longer.",
        "norm",
        family=FamilyInfo(  # a clip alone has no strength to search: what follows it has
            "clip_and_optimal_noise",
            f"{_SHAPED}:clip_and_optimal_noise_at",
            "Clip in the matching norm, then shaped noise: has a proof.",
        ),
    ),
    DefenseInfo(
        "clip_and_noise", f"{_NOISE}:clip_and_noise", "Clip to a norm, then equal Gaussian noise.", "noise_multiplier"
    ),
    DefenseInfo(
        "prune",
        f"{_PRUNING}:prune",
        "Send the largest values only.",
        "share",
        family=FamilyInfo("prune", f"{_PRUNING}:prune_at", "Send the largest values only.", prunes=True),
    ),
    DefenseInfo("random_pruning", f"{_PRUNING}:random_pruning", "Send values at fixed random places only.", "share"),
    DefenseInfo("quantise", "reconrisk.defenses.quantisation:quantise", "Round values to a few levels.", "levels"),
    DefenseInfo("sign", "reconrisk.defenses.quantisation:sign", "Send the sign of each value, times one size."),
    DefenseInfo(
        "optimal_pruning",
        f"{_PRUNING}:optimal_pruning",
        "Send only values that tell little of a record, by public records.",
        "share",
        needs_moments=True,
        family=FamilyInfo(
            "optimal_pruning",
            f"{_PRUNING}:optimal_pruning_at",
            "Send only values that tell little of a record, by public records.",
            prunes=True,
        ),
    ),
    DefenseInfo(
        "optimal_pruning_and_noise",
        f"{_PRUNING}:optimal_pruning_and_noise",
        "Optimal pruning, then shaped noise on what is sent.",
        "like",
        needs_moments=True,
        family=FamilyInfo(
            "optimal_pruning_and_noise",
            f"{_PRUNING}:optimal_pruning_and_noise_at",
            "Optimal pruning that keeps 90% of the decrease of a step, then shaped noise.",
        ),
    ),
    DefenseInfo(
        "equal_noise",
        f"{_SHAPED}:equal_noise",
        "Equal noise with the budget of optimal noise, to compare with.",
        "noise_norm",
        needs_moments=True,
    ),
    DefenseInfo(
        "local_optimal_noise",
        f"{_LOCAL}:local_optimal_noise",
        "Noise shaped by the private records themselves.",
        "like",
    ),
    DefenseInfo(
        "local_optimal_pruning",
        f"{_LOCAL}:local_optimal_pruning",
        "Pruning chosen by the private records themselves.",
        "share",
    ),
)


def _row_from_plugin(plugin: Plugin, build: Callable[..., Any]) -> DefenseInfo:
    """Make a row of a function that configures a defense; a bare number stands for its one setting without default."""
    parameters = dict(inspect.signature(build).parameters)
    needs_moments = parameters.pop("moments", None) is not None
    required = [name for name, each in parameters.items() if each.default is each.empty]
    strength = required[0] if len(required) == 1 else ""
    return DefenseInfo(plugin.name, plugin.where, summary_of(build), strength, needs_moments)


DEFENSES: Registry[DefenseInfo] = Registry("defense", _ROWS, _row_from_plugin)
"""Defenses that words can configure, by name; plugins too."""

FAMILIES: Registry[FamilyInfo] = Registry("family", (row.family for row in _ROWS if row.family is not None))
"""Families that a search for a defense chooses from unless told otherwise, in the order in which they are tried."""


def defense_by_name(name: str, **settings: object) -> Defense:
    """Configure the defense of this name.

    Args:
        name: A name of :data:`DEFENSES`, or of a plugin.
        settings: The arguments of the function that configures it. Noise shaped by public records takes a
            ``noise_multiplier`` with a ``clip_norm`` too, for a clip before it.

    Returns:
        The defense. One that public records choose, such as ``optimal_noise``, is settled by ``with_public``.

    Raises:
        InvalidInput: If the name is unknown, or a setting is unknown or missing.

    >>> defense_by_name("prune", share=0.9)
    Pruning(share=0.9)
    >>> print(defense_by_name("optimal_noise", noise_multiplier=0.1, clip_norm=1.0))
    optimal_noise(noise_multiplier=0.1, clip_norm=1)
    >>> defense_by_name("quantize", levels=3)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidInput: Expected defense='quantize' to be one of gaussian_noise, laplace_noise, ... \
Did you mean quantise?
    """
    row = DEFENSES[name]
    build = row.load()
    parameters = dict(inspect.signature(build).parameters)
    if not row.needs_moments:
        check_settings(name, parameters, settings)
        built: Defense = DEFENSES.configure(name, **settings)
        if not hasattr(built, "replay"):
            raise invalid_input(name, type(built).__name__, "to be a defense", f"{row.where} must return one.")
        return built
    from reconrisk.defenses.deferred import FromMoments  # loads torch, which names alone do not need

    del parameters["moments"]
    if "unit" in parameters:
        for extra in ("noise_multiplier", "clip_norm"):
            parameters[extra] = inspect.Parameter(extra, inspect.Parameter.KEYWORD_ONLY, default=None)
    check_settings(name, parameters, settings)
    return FromMoments(build, settings)


def family_by_name(name: str) -> FamilyInfo:
    """Return the row of a family; that of a plugin is in the row of its defense.

    Args:
        name: A name of :data:`FAMILIES`, or of a defense of another distribution whose row states a family.

    Raises:
        InvalidInput: If the name is unknown, or the plugin states no family.

    >>> family_by_name("optimal_noise").summary
    'Noise shaped by public records: the most protection for its variance.'
    >>> family_by_name("optimal_nois")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidInput: Expected family='optimal_nois' to be one of ... Did you mean optimal_noise?
    """
    if name in FAMILIES or name not in (plugin.name for plugin in DEFENSES.plugins):
        return FAMILIES[name]
    family = DEFENSES[name].family
    if family is None:
        remedy = "The plugin must offer a DefenseInfo with family=FamilyInfo(...)."
        raise invalid_input("family", name, "to have a strength that can be searched", remedy)
    return replace(family, name=name)  # by which it is looked up again


def defense_of_one_step(mechanism: Mechanism) -> Defense | None:
    """Return the defense that one step of a run applies to the update of a sampled record.

    Args:
        mechanism: The mechanism of the run. Of several phases the one with the least noise counts.

    Returns:
        The defense; None for a mechanism that does not state a noise and a clip.

    >>> from reconrisk.core.mechanism import dp_sgd
    >>> print(defense_of_one_step(dp_sgd(noise_multiplier=2.0, sampling_probability=0.01, steps=100)))
    clip_and_noise(noise_multiplier=2, clip_norm=1)
    """
    phases = mechanism.mechanisms if isinstance(mechanism, Composed) else (mechanism,)
    found: list[Gaussian] = []
    for phase in phases:
        step = phase
        while isinstance(step, (Repeated, PoissonSampled)):
            step = step.mechanism
        if isinstance(step, Gaussian):
            found.append(step)
    if not found:
        return None
    least = min(found, key=lambda each: each.noise_multiplier)
    return defense_by_name("clip_and_noise", noise_multiplier=least.noise_multiplier, clip_norm=least.clip_norm)

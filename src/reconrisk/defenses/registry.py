"""Defenses and families of defenses by name, one row each; plugins from the entry points ``reconrisk.defenses``.

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
from reconrisk.core.registry import Info, Plugin, Registry, summary_from_docstring
from reconrisk.core.validation import check_positive, check_settings, invalid_input

if TYPE_CHECKING:
    from reconrisk.defenses.families import Reference

# range of noise to search: from 1e-4 of the size of a value to 100 times the norm of the whole update
_WEAKEST, _STRONGEST = 1e-4, 100.0


@dataclass(frozen=True)
class FamilyInfo(Info):
    """Row of a family: a defense for every ``level`` above zero, stronger at higher levels.

    The level of noise is the standard deviation of equal noise with the same second-order utility U2, so that families
    are comparable. The level of pruning is the inverse of the share of values that are sent.

    Attributes:
        name: Name of the family.
        where: Function of a :class:`~reconrisk.defenses.families.Reference` and a level that returns the defense and
            the call that makes it.
        summary: One sentence in plain English.
        prunes: True if the level counts values that are not sent; otherwise it is a level of noise.
    """

    prunes: bool = False

    def levels(self, reference: Reference) -> tuple[float, float]:
        """Return the weakest and the strongest level worth trying."""
        if self.prunes:
            # level 1 sends everything, the number of values sends one of them
            return 1.0, float(max(2, reference.size))
        return _WEAKEST * reference.scale, _STRONGEST * math.sqrt(reference.size) * reference.scale

    def start(self, reference: Reference) -> float:
        """Return a level in the middle: noise a tenth as large as the update, or a tenth of the values sent."""
        return min(10.0, float(max(2, reference.size))) if self.prunes else 0.1 * reference.scale

    def defense(self, reference: Reference, level: float) -> tuple[Defense, str]:
        """Return the defense of a level and the call that makes it.

        Args:
            reference: Public records. The name ``moments`` in the call means their moments.
            level: Strength, above zero.

        Returns:
            The configured defense, and the text of the call that makes it.
        """
        built: tuple[Defense, str] = self.load()(reference, check_positive("level", level))
        return built


@dataclass(frozen=True)
class DefenseInfo(Info):
    """Row of a defense.

    Attributes:
        name: Name that users write.
        where: Import path of the function that configures the defense.
        summary: One sentence in plain English.
        strength: Setting that a number without a name sets, as in ``reconrisk tradeoff --defense prune:0.5,0.9``.
        needs_moments: True if the first argument of that function is moments of public records.
        family: Family that :func:`reconrisk.recommend_defense` searches with this defense, if there is one.
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
        family=FamilyInfo(  # a clip alone has no strength to search; the noise after it has
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
        "Send only values that reveal little about a record, chosen from public records.",
        "share",
        needs_moments=True,
        family=FamilyInfo(
            "optimal_pruning",
            f"{_PRUNING}:optimal_pruning_at",
            "Send only values that reveal little about a record, chosen from public records.",
            prunes=True,
        ),
    ),
    DefenseInfo(
        "optimal_pruning_and_noise",
        f"{_PRUNING}:optimal_pruning_and_noise",
        "Optimal pruning, then shaped noise on the sent values.",
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
    """Build the row of a plugin function; a number without a name sets its only parameter without default."""
    parameters = dict(inspect.signature(build).parameters)
    needs_moments = parameters.pop("moments", None) is not None
    required = [name for name, each in parameters.items() if each.default is each.empty]
    strength = required[0] if len(required) == 1 else ""
    return DefenseInfo(plugin.name, plugin.where, summary_from_docstring(build), strength, needs_moments)


DEFENSES: Registry[DefenseInfo] = Registry("defense", _ROWS, _row_from_plugin)
"""Defenses that can be configured by name, plugins included."""

FAMILIES: Registry[FamilyInfo] = Registry("family", (row.family for row in _ROWS if row.family is not None))
"""Families that ``recommend_defense`` searches by default, in the order in which they are tried."""


def defense_by_name(name: str, **settings: object) -> Defense:
    """Configure the defense of a given name.

    Args:
        name: A name in :data:`DEFENSES`, or the name of a plugin.
        **settings: Arguments of the function that configures it. Noise whose scales follow from public
            records also takes ``noise_multiplier`` with ``clip_norm``, for a clip before the noise.

    Returns:
        The defense. If it needs public records, as ``optimal_noise`` does, call its ``with_public`` method before use.

    Raises:
        InvalidInput: If the name is unknown, or a setting is unknown or missing.

    >>> defense_by_name("prune", share=0.9)
    Pruning(share=0.9)
    >>> print(defense_by_name("optimal_noise", noise_multiplier=0.1, clip_norm=1.0))
    optimal_noise(noise_multiplier=0.1, clip_norm=1)
    >>> defense_by_name("quantize", levels=3)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidInput: Expected defense='quantize' to be one of ... Did you mean quantise?
    """
    row = DEFENSES[name]
    build = row.load()
    parameters = dict(inspect.signature(build).parameters)
    if not row.needs_moments:
        check_settings(name, parameters, settings)
        built: Defense = DEFENSES.configure(name, **settings)
        if not hasattr(built, "replay"):
            raise invalid_input(
                f"type({name}(...))", type(built).__name__, "to be a defense", f"Let {row.where} return a defense."
            )
        return built
    from reconrisk.defenses.deferred import MomentsDefense  # imported here: it loads torch

    del parameters["moments"]
    # noise with a unit can also be stated as a mechanism: MomentsDefense turns the two numbers into clip and unit
    if "unit" in parameters:
        for extra in ("noise_multiplier", "clip_norm"):
            parameters[extra] = inspect.Parameter(extra, inspect.Parameter.KEYWORD_ONLY, default=None)
    check_settings(name, parameters, settings)
    return MomentsDefense(build, settings)


def family_by_name(name: str) -> FamilyInfo:
    """Return the row of a family; a plugin states its family in the row of its defense.

    Args:
        name: A name in :data:`FAMILIES`, or the name of a plugin defense whose row states a family.

    Returns:
        The row, with ``name`` as its name.

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
        remedy = "Let the plugin offer a DefenseInfo with family=FamilyInfo(...)."
        raise invalid_input("family", name, "to have a strength that can be searched", remedy)
    return replace(family, name=name)  # results look the family up by this name


def defense_of_one_step(mechanism: Mechanism) -> Defense | None:
    """Return the defense that one training step applies to the update of a sampled record.

    Args:
        mechanism: Mechanism of the whole run. Among several phases, the one with the least noise counts.

    Returns:
        The defense; None for a mechanism that does not state a noise and a clip.

    >>> from reconrisk.core.mechanism import dp_sgd
    >>> print(defense_of_one_step(dp_sgd(noise_multiplier=2.0, sampling_probability=0.01, steps=100)))
    clip_and_noise(noise_multiplier=2, clip_norm=1)
    """
    phases = mechanism.mechanisms if isinstance(mechanism, Composed) else (mechanism,)
    steps: list[Gaussian] = []
    for phase in phases:
        step = phase
        # sampling and repetition do not change the update of a record that takes part
        while isinstance(step, (Repeated, PoissonSampled)):
            step = step.mechanism
        if isinstance(step, Gaussian):
            steps.append(step)
    if not steps:
        return None
    least = min(steps, key=lambda each: each.noise_multiplier)
    return defense_by_name("clip_and_noise", noise_multiplier=least.noise_multiplier, clip_norm=least.clip_norm)

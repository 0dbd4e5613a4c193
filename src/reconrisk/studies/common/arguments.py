"""Validation and normalisation of study arguments: goals, limits, seeds, budgets, defenses and public records."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from reconrisk.core.defense import Defense
from reconrisk.core.digest import describe_settings
from reconrisk.core.mechanism import Mechanism
from reconrisk.core.metric import Goal, Limit, Metric
from reconrisk.core.registry import Choice
from reconrisk.core.threat import Knows, ThreatModel
from reconrisk.core.validation import (
    check_callable,
    check_not_empty,
    check_positive,
    check_probability,
    check_whole,
    invalid_input,
)
from reconrisk.data.dataset import Dataset
from reconrisk.defenses.deferred import needs_public_records, set_public_records
from reconrisk.defenses.registry import defense_by_name, defense_of_one_step
from reconrisk.metrics.goals import check_goal, goal_from_text, limit_from_text, mse_at_most, psnr_at_least
from reconrisk.metrics.registry import METRICS, fitting_metrics
from reconrisk.studies.common.plan import UNDEFENDED
from reconrisk.studies.common.population import Population
from reconrisk.studies.common.subjects.subject import KnownRecords, Records, as_dataset

# Metrics that every trial stores. They are cheap, and a resumed audit can then state other goals.
_KEPT = ("psnr", "mse", "ncc", "ssim")


def metrics_for(dataset: Dataset, goals: Iterable[Goal] = ()) -> tuple[Metric, ...]:
    """Return the metrics that every trial computes.

    Args:
        dataset: Records; metrics that do not fit their shape are left out.
        goals: Goals whose metrics are added to the usual ones.

    Returns:
        The metrics, configured for the range of the records.
    """
    names = (*_KEPT, *(goal.metric for goal in goals))
    return fitting_metrics(names, dataset.shape, dataset.data_range)


def check_goals(
    goals: Sequence[Goal | str] | Goal | str | None, limits: Sequence[Limit], dataset: Dataset
) -> tuple[Goal, ...]:
    """Return the stated goals and the goals of the limits, without duplicates.

    Args:
        goals: One goal or several, as values or texts such as ``"psnr>=20"``. None stands for 20 dB and a mean squared
            error of 0.05 of the squared range.
        limits: Limits whose goals are added.
        dataset: Records that the metrics of the goals must fit.

    Returns:
        The goals, those of the limits last.

    Raises:
        InvalidInput: If there is no goal, or the metric of a goal does not fit the records.
    """
    width = dataset.data_range[1] - dataset.data_range[0]
    stated: Sequence[Goal | str] = (psnr_at_least(20), mse_at_most(0.05 * width * width))
    if goals is not None:
        if not isinstance(goals, (Goal, str, Sequence)):
            raise invalid_input("goals", goals, "to be goals", "Pass goals='psnr>=20', or a list of such texts.")
        stated = (goals,) if isinstance(goals, (Goal, str)) else tuple(goals)
    found = [goal if isinstance(goal, Goal) else goal_from_text(goal) for goal in stated]
    found += [limit.goal for limit in limits]
    check_not_empty("goals", found, "State one such as 'psnr>=20'.")
    fitting = [row.name for row in METRICS.values() if row.is_goal and row.fits(dataset.shape)]
    for goal in found:
        if not check_goal(goal).fits(dataset.shape):
            raise invalid_input(
                "goals", str(goal), f"to use one of {', '.join(fitting)} for records of shape {dataset.shape}"
            )
    return tuple(dict.fromkeys(found))


def check_limits(limits: Sequence[Limit | str] | Limit | str) -> tuple[Limit, ...]:
    """Return limits as values.

    Args:
        limits: One limit or several, as values or texts such as ``"psnr>=20: 5%"``.

    Returns:
        The limits in their order.

    Raises:
        InvalidInput: If a text is not a goal and a share.
    """
    if not isinstance(limits, (Limit, str, Sequence)):
        raise invalid_input(
            "max_risk", limits, "to be limits", "Pass max_risk='psnr>=20: 5%', or a list of such texts."
        )
    several = (limits,) if isinstance(limits, (Limit, str)) else tuple(limits)
    return tuple(limit if isinstance(limit, Limit) else limit_from_text(limit) for limit in several)


Defenses: TypeAlias = Defense | str | Sequence[Defense | str | None] | Mapping[str, Defense | None] | None

_TIME_UNITS = {"s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
_FEWEST = 30  # smallest group whose mean reveals little about any single record in it
_MOST_PUBLIC = 256  # public records used to choose a defense; more would take longer than the trials
_SEEDS = 2**63  # torch.Generator takes seeds below this
_OWN = "A defense of your own extends reconrisk.defenses.base.BaseDefense, as docs/plugins.md shows."
_DEFENSE = "Pass one such as rr.defenses.clip_and_noise(noise_multiplier=1.0, clip_norm=1.0), or None for no defense."


def check_seed(seed: Any) -> int:
    """Return a seed that torch generators accept.

    Args:
        seed: Whole number in [0, 2^63).

    Returns:
        The seed as an int.

    Raises:
        InvalidInput: If ``seed`` is not a whole number or out of range.
    """
    if check_whole("seed", seed, minimum=0) >= _SEEDS:
        raise invalid_input("seed", seed, "< 2^63")
    return int(seed)


def seconds_from_budget(budget: float | str | None) -> float | None:
    """Return a time budget in seconds.

    Args:
        budget: Seconds, a time such as ``"2min"``, ``"90s"`` or ``"1.5 h"``, or None or ``"none"`` for no limit.

    Returns:
        The seconds, or None for no limit.

    Raises:
        InvalidInput: If a text is not a time, or the time is not positive.

    >>> seconds_from_budget("2min"), seconds_from_budget(30), seconds_from_budget("1.5 h")
    (120.0, 30.0, 5400.0)
    """
    if budget is None or budget == "none":
        return None
    if not isinstance(budget, str):
        return check_positive("budget", budget)
    found = re.fullmatch(r"\s*([0-9.]+)\s*([a-z]*)\s*", budget.lower())
    try:
        if found is not None:
            return check_positive("budget", float(found[1]) * _TIME_UNITS[found[2] or "s"])
    except (KeyError, ValueError):
        pass
    raise invalid_input("budget", budget, "to be a time such as '2min', '90s' or '1h'")


def defense_from_choice(choice: Choice) -> Defense | None:
    """Return the defense for a choice such as ``prune(share=0.9)``.

    Args:
        choice: The name of a defense and its settings.

    Returns:
        The configured defense, or None for the name ``none``.

    Raises:
        InvalidInput: If the name or a setting is unknown.
    """
    return None if choice == Choice(UNDEFENDED) else defense_by_name(choice.name, **dict(choice.settings))


def label_defenses(defenses: Any, training: Mechanism | None, *, of_updates: bool = True) -> dict[str, Defense | None]:
    """Return the defenses of a study by their name in reports.

    Args:
        defenses: One defense or several, as values or texts, or a mapping from names for reports; None in a list stands
            for no defense. If nothing is stated, the defense of one step of ``training`` is used.
        training: Mechanism of the training run, if known.
        of_updates: True if the releases are updates. One step of the training defends updates only.

    Returns:
        Defenses by their name in reports; None under the name ``none``.

    Raises:
        InvalidInput: If a value is no defense, two defenses have the same name, or there is no defense.
    """
    if defenses is None:
        step = None if training is None or not of_updates else defense_of_one_step(training)
        return {UNDEFENDED if step is None else str(step): step}
    listed = isinstance(defenses, Sequence) and not isinstance(defenses, str)
    several = [
        defense_from_choice(Choice.read("defenses", each)) if isinstance(each, str) else each
        for each in (defenses if listed else [defenses])
    ]
    if isinstance(defenses, Mapping):
        found = dict(defenses)
    else:
        found = {UNDEFENDED if each is None else describe_settings(each, text=str(each)): each for each in several}
        if len(found) < len(several):
            raise invalid_input(
                "defenses", [str(each) for each in several], "to differ from each other", "Remove the repeated defense."
            )
    if not found:
        raise invalid_input(
            "defenses", defenses, "to have at least one entry", "Leave it out to audit the undefended release."
        )
    for label, defense in found.items():
        # A factory such as rr.defenses.prune, passed without a call, is a routine.
        if defense is not None and (inspect.isroutine(defense) or not hasattr(defense, "replay")):
            raise invalid_input(f"defenses[{label!r}]", defense, "to be a configured defense", f"{_DEFENSE} {_OWN}")
        if label == UNDEFENDED and defense is not None:
            raise invalid_input("name in defenses", label, "to be used for None only", "Give the defense another name.")
    return found


def resolve_deferred_defenses(
    defenses: Mapping[str, Defense | None], population: Population, public: Dataset | None
) -> dict[str, Defense | None]:
    """Choose the settings of deferred defenses, such as optimal noise, from public records.

    Args:
        defenses: Defenses by their name in reports.
        population: Records that targets are drawn from.
        public: Public records; by default the records of the data set outside the population.

    Returns:
        The defenses under the same names. Defenses that need no public records are unchanged.

    Raises:
        InvalidInput: If a defense needs public records with labels and there are none.

    Guarantee: no record that may be attacked is used.
    """
    waiting = [label for label, defense in defenses.items() if defense is not None and needs_public_records(defense)]
    if not waiting:
        return dict(defenses)
    if public is None:
        others = sorted(set(range(len(population.dataset))) - set(population.rows))
        public = population.dataset.subset(others) if others else None
    if public is None or public.labels is None:
        remedy = (
            "Pass public= in the options, or attack fewer records= (--records 0-9, for instance) and use the others."
        )
        raise invalid_input("defenses", waiting[0], "to be used with public records that have labels", remedy)
    every = slice(None, None, -(-len(public) // _MOST_PUBLIC))  # evenly spaced: sorted classes stay represented
    inputs, labels = public.inputs[every], public.labels[every]
    return {
        label: None if defense is None else set_public_records(defense, inputs, labels)
        for label, defense in defenses.items()
    }


def public_records(
    population: Population, public: Dataset | None, threat: ThreatModel, known: KnownRecords | None = None
) -> Dataset | None:
    """Return the records that baselines and priors may use.

    Args:
        population: Records that targets are drawn from.
        public: Stated public records; they are returned as they are.
        threat: Abilities of the adversary; known labels split the population into classes.
        known: Fixed records of a trained model, which its adversary knows.

    Returns:
        The stated records, the known ones, or the records outside the population. If there are none of these, the
        whole data set, provided that each group has at least 30 records: the mean of a few records that include the
        target would nearly be the target. Otherwise None.
    """
    if public is not None:
        return public
    dataset = population.dataset
    fixed = None if known is None else known.dataset(dataset)
    if fixed is not None:
        return fixed
    others = sorted(set(range(len(dataset))) - set(population.rows))
    if others:
        return dataset.subset(others)
    groups = [len(dataset)]
    if Knows.LABELS in threat.knows and dataset.labels is not None:
        groups = dataset.labels.unique(return_counts=True, dim=0)[1].tolist()
    return dataset if min(groups) >= _FEWEST else None  # a guess is the mean of a group


_PUBLIC = "Pass an rr.data.Dataset, the name of one, a file, or a pair of tensors: records in [0, 1] and labels."


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """Settings of a study that most calls leave at their defaults.

    Attributes:
        seed: Seed of every random choice. The same seed repeats the same trials.
        confidence: Probability that all intervals of the result contain their true values together, in (0, 1).
        public: Records that anybody may have, none of them a target. Baselines, priors and data-dependent defenses
            use them. By default, records of ``data`` that are not attacked are used.
        name: Name of the audited model in reports; by default its class.
        show_plan: Function that receives the plan as text before the first trial; by default the plan is printed if
            standard error is a terminal.

    Raises:
        InvalidInput: If a value is out of range or of the wrong kind.

    >>> StudyOptions(seed=3).confidence
    0.95
    >>> StudyOptions(confidence=1.0)
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidInput: Expected confidence=1.0 in (0, 1). Pass 0.95, for instance.
    """

    seed: int = 0
    confidence: float = 0.95
    public: Records | None = None
    name: str | None = None
    show_plan: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", check_seed(self.seed))
        if not 0 < check_probability("confidence", self.confidence) < 1:
            raise invalid_input("confidence", self.confidence, "in (0, 1)", "Pass 0.95, for instance.")
        if self.public is not None and not isinstance(self.public, (Dataset, str, Path, tuple)):
            raise invalid_input("type(public)", type(self.public).__name__, "to be public records", _PUBLIC)
        if self.name is not None and not isinstance(self.name, str):
            raise invalid_input("name", self.name, "to be a text")
        if self.show_plan is not None:
            check_callable("show_plan", self.show_plan, "Pass print, for instance.")

    def public_dataset(self) -> Dataset | None:
        """Return the public records as a data set; None if none are stated."""
        return None if self.public is None else as_dataset(self.public, name="public")


Options = TypeVar("Options", bound=StudyOptions)


def check_options(options: object, kind: type[Options]) -> Options:
    """Return ``options`` if they are of the kind that the study takes.

    Args:
        options: Value of the argument ``options``.
        kind: Class of the options of this study.

    Returns:
        The same value.

    Raises:
        InvalidInput: If ``options`` is anything else, such as a mapping.

    >>> check_options({"seed": 1}, StudyOptions)
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidInput: Expected options={'seed': 1} to be StudyOptions. Pass rr.StudyOptions(seed=1)...
    """
    if not isinstance(options, kind):
        remedy = f"Pass rr.{kind.__name__}(seed=1), for instance."
        raise invalid_input("options", options, f"to be {kind.__name__}", remedy)
    return options

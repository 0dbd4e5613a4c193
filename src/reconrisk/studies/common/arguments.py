"""Arguments of studies, checked and normalised: goals, limits, seeds, defenses and public records."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from reconrisk.core.defense import Defense
from reconrisk.core.digest import describe_settings
from reconrisk.core.mechanism import Mechanism
from reconrisk.core.metric import Goal, Limit, Metric
from reconrisk.core.registry import Choice
from reconrisk.core.threat import Knows, ThreatModel
from reconrisk.core.validation import check_not_empty, check_positive, check_whole, invalid_input
from reconrisk.data.dataset import Dataset
from reconrisk.defenses.deferred import chosen_by_public, waits_for_public
from reconrisk.defenses.registry import defense_by_name, defense_of_one_step
from reconrisk.metrics.goals import check_goal, goal_from_text, limit_from_text, mse_at_most, psnr_at_least
from reconrisk.metrics.registry import METRICS, fitting_metrics
from reconrisk.studies.common.plan import UNDEFENDED
from reconrisk.studies.common.population import Population
from reconrisk.studies.common.subjects.subject import KnownRecords

_KEPT = ("psnr", "mse", "ncc", "ssim")  # scores that every trial keeps: they cost little, and goals can change later


def metrics_for(dataset: Dataset, goals: Iterable[Goal] = ()) -> tuple[Metric, ...]:
    """Return the metrics of a trial: the usual ones that fit the records, and those in which goals are stated."""
    names = (*_KEPT, *(goal.metric for goal in goals))
    return fitting_metrics(names, dataset.shape, dataset.data_range)


def checked_goals(
    goals: Sequence[Goal | str] | Goal | str | None, limits: Sequence[Limit], dataset: Dataset
) -> tuple[Goal, ...]:
    """Goals as values, those of the limits included; by default 20 dB and a mean squared error of 0.05 of the range.

    Guarantee: a goal in a metric that does not fit the records is refused.
    """
    width = dataset.data_range[1] - dataset.data_range[0]
    stated: Sequence[Goal | str] = (psnr_at_least(20), mse_at_most(0.05 * width * width))
    if goals is not None:
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


def checked_limits(limits: Sequence[Limit | str] | Limit | str) -> tuple[Limit, ...]:
    """Limits as values."""
    several = (limits,) if isinstance(limits, (Limit, str)) else tuple(limits)
    return tuple(limit if isinstance(limit, Limit) else limit_from_text(limit) for limit in several)


Defenses: TypeAlias = Defense | str | Sequence[Defense | str | None] | Mapping[str, Defense | None] | None

_TIME_UNITS = {"s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
_FEWEST = 30  # records of which a mean says what people are like, and little of any of them
_MOST_PUBLIC = 256  # records that choose a defense: more would cost more than trials do
_SEEDS = 2**63
_DEFENSE = (
    "Pass configured ones such as rr.defenses.clip_and_noise(noise_multiplier=1.0, clip_norm=1.0), or None, or 'none'."
)


def checked_seed(seed: Any) -> int:
    """A seed that generators take."""
    if check_whole("seed", seed, minimum=0) >= _SEEDS:
        raise invalid_input("seed", seed, "< 2^63")
    return int(seed)


def seconds_from_budget(budget: float | str | None) -> float | None:
    """Return the seconds of a budget; None for no limit.

    Args:
        budget: Seconds, a time such as ``"2min"``, ``"90s"`` or ``"1.5 h"``, or None or ``"none"`` for no limit.

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
    """Return the defense that a choice such as ``prune(share=0.9)`` states; None for ``none``.

    Args:
        choice: The name of a defense and its settings.
    """
    return None if choice == Choice(UNDEFENDED) else defense_by_name(choice.name, **dict(choice.settings))


def labelled_defenses(
    defenses: Any, training: Mechanism | None, *, of_updates: bool = True
) -> dict[str, Defense | None]:
    """Defenses by label; where none was stated, that of one step of the training, else the release as it is."""
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
            raise invalid_input("defenses", [str(each) for each in several], "to differ")
    if not found:
        raise invalid_input("defenses", defenses, "to hold at least one", "Leave them out for the update as it is.")
    for label, defense in found.items():
        if defense is not None and (inspect.isroutine(defense) or not hasattr(defense, "replay")):
            raise invalid_input("defenses", label, "to be defenses", _DEFENSE)
        if label == UNDEFENDED and defense is not None:
            raise invalid_input("defenses", label, "to be the label of None only", "Rename the defense.")
    return found


def settled_by_public(
    defenses: Mapping[str, Defense | None], population: Population, public: Dataset | None
) -> dict[str, Defense | None]:
    """The defenses, those that public records choose with such records: never with one that may be attacked."""
    waiting = [label for label, defense in defenses.items() if defense is not None and waits_for_public(defense)]
    if not waiting:
        return dict(defenses)
    if public is None:
        others = sorted(set(range(len(population.dataset))) - set(population.rows))
        public = population.dataset.subset(others) if others else None
    if public is None or public.labels is None:
        remedy = "Pass public=, or attack fewer records= (--records 0-9, for instance), so that others are public."
        raise invalid_input("defenses", waiting[0], "to have public records with labels", remedy)
    every = slice(None, None, -(-len(public) // _MOST_PUBLIC))
    inputs, labels = public.inputs[every], public.labels[every]
    return {
        label: None if defense is None else chosen_by_public(defense, inputs, labels)
        for label, defense in defenses.items()
    }


def public_records(
    population: Population, public: Dataset | None, threat: ThreatModel, known: KnownRecords | None = None
) -> Dataset | None:
    """Records that no target is drawn from; else the population, if there are so many that a mean tells of none.

    Whoever sees a trained model has the fixed records, ``known`` to them, for that.

    A mean over few records, the target among them, is no guess but the target itself.
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
    return dataset if min(groups) >= _FEWEST else None

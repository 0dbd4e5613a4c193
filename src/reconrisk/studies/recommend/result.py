"""Result of a search for a defense: one row per family, the recommended defense and the second best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from reconrisk.core.guarantee import Estimate, format_rounded_down, format_rounded_up
from reconrisk.core.metric import Limit
from reconrisk.core.storage.result import Result, Row
from reconrisk.core.storage.serialization import NOT_IN_JSON, serializable
from reconrisk.core.storage.text_table import align_columns
from reconrisk.core.threat import ThreatModel
from reconrisk.core.validation import invalid_input
from reconrisk.metrics.goals import mean_squared_error_at


class TargetStatus(Enum):
    """Evidence that a defense meets the target, or the reason why there is none."""

    PROVED = "proved"
    CONFIRMED = "measured on fresh records"
    ESTIMATED = "by the estimated bound"
    SEARCHED = "in the search only"
    FAILED = "no: fresh records were rebuilt too often"
    NEVER = "no"
    UNSETTLED = "not known: the search did not end"
    UNTRIED = "not tried"

    @property
    def is_shown(self) -> bool:
        """True if the evidence suffices for a recommendation."""
        return self in (TargetStatus.PROVED, TargetStatus.CONFIRMED, TargetStatus.ESTIMATED)


@serializable("training-cost")
@dataclass(frozen=True)
class TrainingCost:
    """Test accuracy and loss after training under a defense, as means over seeds with intervals.

    Attributes:
        accuracy: Accuracy on test records; None for real-valued labels or without finite values.
        loss: Training loss function on test records; None if it is not finite.
        steps: Training steps.
        seeds: Number of runs.
    """

    accuracy: Estimate | None
    loss: Estimate | None
    steps: int
    seeds: int

    @property
    def rank(self) -> tuple[float, float]:
        """Sort key, larger is better: accuracy first, then loss."""
        accuracy = -1.0 if self.accuracy is None else self.accuracy.value
        return accuracy, float("-inf") if self.loss is None else -self.loss.value

    def __str__(self) -> str:
        """Format the accuracy, or without one the loss, with its interval."""
        if self.accuracy is not None:
            return f"accuracy {_format_interval(self.accuracy)}"
        return "diverged" if self.loss is None else f"loss {_format_interval(self.loss)}"


@serializable("defense-option")
@dataclass(frozen=True)
class DefenseOption:
    """The weakest defense of a family that meets the target, or the strongest that was tried if none does.

    Attributes:
        family: Name of the family; ``"none"`` is no defense.
        code: Call that builds the defense; empty if nothing was tried.
        strength: Level of the defense (``FamilyInfo`` in ``defenses/registry.py``); None if nothing was tried.
        met: Evidence that the target is met.
        risks: Share of records that any attack or guess reconstructed, for each limit. It is measured on fresh records
            if ``met`` is confirmed or failed, otherwise on the records of the search.
        proved: Upper bound on each share by the mechanism; 1 without one.
        mse_bound: Estimated Bayesian bound; None if nothing was tried.
        utility_kept: Share of the first-order decrease that a step keeps (U1).
        utility_deviation: Standard deviation of that share, the root of -U2.
        training: Cost in training; None without training.
        tried: Number of strengths tried in the search.
        remark: Deviations from the planned search, as text; empty if there are none.
    """

    family: str
    code: str
    strength: float | None
    met: TargetStatus
    risks: tuple[Estimate, ...]
    proved: tuple[float, ...]
    mse_bound: Estimate | None
    utility_kept: float | None
    utility_deviation: float | None
    training: TrainingCost | None = None
    tried: int = 0
    remark: str = ""

    @property
    def step_utility(self) -> float:
        """Decrease that a step keeps minus one standard deviation; it ranks families before training."""
        if self.utility_kept is None or self.utility_deviation is None:
            return float("-inf")
        return self.utility_kept - self.utility_deviation

    @property
    def rank(self) -> tuple[bool, tuple[float, float], float]:
        """Sort key, larger is cheaper: training cost if measured, then step utility."""
        trained = self.training is not None
        return trained, self.training.rank if self.training is not None else (0.0, 0.0), self.step_utility


@serializable("recommendation")
@dataclass(frozen=True)
class Recommendation(Result):
    """The recommended defense, its cost, the second best, and a row for every family that was tried.

    The Bayesian bound refers to the smoothest prior on the range of the data. It assumes that the gradient is a
    continuous function of the record.

    Attributes:
        subject: Name of the model.
        data: Name of the data set.
        accept: Limits on the share of reconstructed records.
        mse_bound: Smallest accepted Bayesian bound; None for no such target.
        evidence: "measured" or "proved": the evidence that was required for a limit.
        threat: Threat model of the adversary.
        attacks: Names of the attacks; empty if limits were proved.
        options: One row for no defense and one for every family.
        best: Family of the recommended defense; None if none was shown to meet the target.
        runner_up: Family of the second best defense; None without one.
        undefended: Cost of training without a defense; None without training.
        guess: Share of public records that guesses reconstruct, for each limit. No defense reduces risks below it.
        is_smooth: True if the gradient is known to be a smooth function of the record.
        prior_information: Fisher information of the prior that the Bayesian bound refers to.
        data_range: Smallest and largest value of a record.
        reference_records: Number of public records.
        search_trials: Updates attacked at each strength of the search.
        confirm_trials: Fresh updates attacked in confirmation.
        confidence: Joint confidence of all intervals from fresh records.
        seed: Seed of all draws.
        seconds: Duration of the search.
        ended: "complete", "out of time" or "interrupted".
        defenses: Configured defenses by family. They hold moments of public records and are not stored in JSON.
    """

    subject: str
    data: str
    accept: tuple[Limit, ...]
    mse_bound: float | None
    evidence: str
    threat: ThreatModel
    attacks: tuple[str, ...]
    options: tuple[DefenseOption, ...]
    best: str | None
    runner_up: str | None
    undefended: TrainingCost | None
    guess: tuple[float, ...]
    is_smooth: bool
    prior_information: float
    data_range: tuple[float, float]
    reference_records: int
    search_trials: int
    confirm_trials: int
    confidence: float
    seed: int
    seconds: float
    ended: str
    defenses: Any = field(default=None, metadata=NOT_IN_JSON, compare=False, repr=False)

    def __post_init__(self) -> None:
        names = [option.family for option in self.options]
        for name in (self.best, self.runner_up):
            if name is not None and name not in names:
                raise invalid_input("best", name, f"to be one of {', '.join(names)}")

    @property
    def meets(self) -> bool:
        """True if some defense was shown to meet the target."""
        return self.best is not None

    @property
    def defense(self) -> Any:
        """Recommended defense, configured; None without one or after reading JSON."""
        return None if self.best is None or self.defenses is None else self.defenses.get(self.best)

    def option(self, family: str) -> DefenseOption:
        """Return the row of a family; ``"none"`` is the row without a defense."""
        for option in self.options:
            if option.family == family:
                return option
        raise invalid_input("family", family, f"to be one of {', '.join(option.family for option in self.options)}")

    @property
    def target(self) -> str:
        """Description of the target."""
        words = [str(limit) for limit in self.accept]
        return " and ".join(
            [*words, *([] if self.mse_bound is None else [f"estimated Bayesian bound >= {self.mse_bound:g}"])]
        )

    @property
    def sentence(self) -> str:
        """Recommendation with its evidence and cost, and the second best."""
        if self.best is None:
            return f"No defense was shown to meet {self.target}: {_describe_nearest(self)}{_describe_ending(self)}"
        best = self.option(self.best)
        words = [
            f"Use {best.code}: {_describe_evidence(self, best)}, {_describe_cost(self, best)}.",
            *_describe_caution(self, best),
        ]
        if not all(value >= 1 for value in best.proved):
            words.append(
                "Family and strength were chosen with private records; the guarantee does not cover this choice."
            )
        if self.runner_up is not None:
            second = self.option(self.runner_up)
            words.append(f"Second best is {second.code}: {_describe_cost(self, second)}.")
            if _training_overlaps(best, second):
                words.append("Their training intervals overlap.")
        else:
            words.append("No other defense was shown to meet the target.")
        return " ".join(words) + _describe_ending(self)

    def table(self) -> str:
        """Return one line for each family; an arrow marks the recommended one."""
        rows = [tuple(f"{head}?" if head == "est. MSE bound" and not self.is_smooth else head for head in _HEADER)]
        marks = {self.best: "->", self.runner_up: "2."}
        for option in self.options:
            kept, deviation, bound = option.utility_kept, option.utility_deviation, option.mse_bound
            rows.append(
                (
                    marks.get(option.family, ""),
                    option.family,
                    option.met.value,
                    ", ".join(_format_share(risk) for risk in option.risks) or "-",
                    ", ".join("-" if value >= 1 else f"<= {format_rounded_up(value)}" for value in option.proved)
                    or "-",
                    "-" if bound is None or not bound.low else f">= {format_rounded_down(bound.low)}",
                    "-" if kept is None else f"{kept:.3g}",
                    "-" if deviation is None else f"{deviation:.3g}",
                    "-" if option.training is None else str(option.training),
                    option.code + (f"  ({option.remark})" if option.remark else ""),
                )
            )
        lines = align_columns(rows)
        if self.undefended is not None:
            lines.append(f"training without a defense: {self.undefended}")
        return "\n".join(lines)

    def to_rows(self) -> tuple[Row, ...]:
        """Return one row for each family."""
        rows = []
        ranks = {self.best: "best", self.runner_up: "runner-up"}
        for option in self.options:
            row: Row = {"family": option.family, "defense": option.code, "strength": option.strength}
            row |= {"rank": ranks.get(option.family), "met": option.met.value}
            for place, limit in enumerate(self.accept):
                risk = option.risks[place] if place < len(option.risks) else None
                row[f"rebuilt {limit.goal}"] = None if risk is None else risk.value
                row[f"rebuilt {limit.goal} high"] = None if risk is None else risk.high
                row[f"proved {limit.goal}"] = option.proved[place] if place < len(option.proved) else None
            row["mse_bound"] = None if option.mse_bound is None else option.mse_bound.low
            row |= {"utility_kept": option.utility_kept, "utility_deviation": option.utility_deviation}
            row["training"] = None if option.training is None else str(option.training)
            rows.append({**row, "tried": option.tried, "remark": option.remark})
        return tuple(rows)


def _format_interval(estimate: Estimate) -> str:
    return f"{estimate.value:.3g} [{estimate.low:.3g}, {estimate.high:.3g}]"


_HEADER = ("", "family", "meets", "rebuilt", "proved", "est. MSE bound", "U1 kept", "U2 dev.", "training", "defense")


def _describe_evidence(found: Recommendation, option: DefenseOption) -> str:
    words: list[str] = []
    if option.met in (TargetStatus.PROVED, TargetStatus.ESTIMATED) and found.accept:
        pairs = zip(found.accept, option.proved, strict=True)
        words += [f"{limit.goal} succeeds with at most {format_rounded_up(value)}, proved" for limit, value in pairs]
    elif found.accept:
        words += [
            f"{100 * risk.value:.3g}% of the records of {risk.samples} fresh updates reached {limit.goal} by any "
            f"attack ({', '.join(found.attacks)}), at most {format_rounded_up(100 * risk.high)}% with "
            f"{100 * found.confidence:.4g}% confidence"
            for limit, risk in zip(found.accept, option.risks, strict=True)
        ]
    if found.mse_bound is not None and option.mse_bound is not None:
        prior = f"for a prior of information {found.prior_information:.4g}"
        evidence = f"estimated bound, not a proof: {option.mse_bound.samples} draws"
        least = format_rounded_down(option.mse_bound.low)
        words.append(f"no attack has a mean squared error below {least} {prior} ({evidence})")
    return "; ".join(words)


def _describe_caution(found: Recommendation, option: DefenseOption) -> list[str]:
    """Return a warning if the estimated bound does not exclude that better attacks reach a goal."""
    if option.met is TargetStatus.PROVED or option.mse_bound is None:
        return []
    goals = (limit.goal for limit in found.accept)
    bound = option.mse_bound.low
    below = [goal for goal in goals if bound < (mean_squared_error_at(goal, found.data_range) or 0.0)]
    if not below:
        return []
    error = mean_squared_error_at(below[0], found.data_range)
    return [
        f"This holds for the attacks that were tried: the estimated bound on the error of any attack, "
        f"{format_rounded_down(bound)}, is below the {error:.3g} of {below[0]}, so better attacks are not excluded."
    ]


def _describe_cost(found: Recommendation, option: DefenseOption) -> str:
    if option.training is not None:
        against = "" if found.undefended is None else f" against {found.undefended} without a defense"
        return f"{option.training}{against}"
    if option.utility_kept is None:
        return "cost not measured"
    return f"a step keeps {option.utility_kept:.3g} +- {option.utility_deviation:.2g} of its decrease"


def _training_overlaps(first: DefenseOption, second: DefenseOption) -> bool:
    """Return True if the training intervals of two defenses overlap."""
    if first.training is None or second.training is None:
        return False
    one, two = first.training.accuracy or first.training.loss, second.training.accuracy or second.training.loss
    return one is not None and two is not None and one.low <= two.high and two.low <= one.high


def _describe_nearest(found: Recommendation) -> str:
    beyond = [
        f"guesses alone reach {limit.goal} for {100 * guess:.3g}% of records, so accept a larger share than that"
        for limit, guess in zip(found.accept, found.guess, strict=False)
        if guess > limit.at_most
    ]
    if beyond:
        return "; ".join(beyond) + "."
    tried = [option for option in found.options if option.strength is not None]
    if not tried:
        return "nothing was tried."
    nearest = min(tried, key=lambda option: _distance_to_target(found, option))
    words = [
        f"{limit.goal} for {_format_share(risk)} of records"
        for limit, risk in zip(found.accept, nearest.risks, strict=False)
    ]
    if found.evidence == "proved" and found.accept:
        words = [
            f"{limit.goal} with at most {format_rounded_up(value)}"
            for limit, value in zip(found.accept, nearest.proved, strict=False)
        ]
    if found.mse_bound is not None and nearest.mse_bound is not None:
        words.append(f"an estimated Bayesian bound of {format_rounded_down(nearest.mse_bound.low)}")
    return f"the nearest is {nearest.code} with {' and '.join(words) or 'nothing measured'} ({nearest.met.value})."


def _distance_to_target(found: Recommendation, option: DefenseOption) -> tuple[float, float]:
    shares: Sequence[float] = option.proved if found.evidence == "proved" else [risk.value for risk in option.risks]
    bound = 0.0 if found.mse_bound is None or option.mse_bound is None else -option.mse_bound.low
    return max(shares, default=0.0), bound


def _format_share(risk: Estimate) -> str:
    if (risk.low, risk.high) == (0.0, 1.0):  # no interval: the method holds the reason
        return f"{100 * risk.value:.3g}% of {risk.samples} ({risk.method})"
    return f"{100 * risk.value:.3g}% [{100 * risk.low:.3g}, {100 * risk.high:.3g}]"


def _describe_ending(found: Recommendation) -> str:
    if found.ended == "complete":
        return ""
    remedy = " Increase the budget." if found.ended == "out of time" else ""
    return f" The search ended before it was complete: {found.ended}.{remedy}"

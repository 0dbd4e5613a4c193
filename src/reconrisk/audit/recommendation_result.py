"""What a search for a defense found: one row for every family, the cheapest that meets the target and the second."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from reconrisk.core.goal import Limit
from reconrisk.core.guarantee import Estimate
from reconrisk.core.serialization import NOT_IN_JSON, serializable
from reconrisk.core.threat import ThreatModel
from reconrisk.core.validation import refuse


class Met(Enum):
    """Whether a defense meets the target, and what says so."""

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
        """Whether it may be recommended."""
        return self in (Met.PROVED, Met.CONFIRMED, Met.ESTIMATED)


@serializable
@dataclass(frozen=True)
class TrainingCost:
    """What training under a defense came to: means over ``seeds`` with intervals; None where there is nothing finite.

    ``accuracy`` is of test records, None for labels that are no classes; ``loss`` of them too.
    """

    accuracy: Estimate | None
    loss: Estimate | None
    steps: int
    seeds: int

    @property
    def rank(self) -> tuple[float, float]:
        """The larger the better: accuracy first, then loss."""
        accuracy = -1.0 if self.accuracy is None else self.accuracy.value
        return accuracy, float("-inf") if self.loss is None else -self.loss.value

    def __str__(self) -> str:
        """Accuracy, or else the loss, with its interval."""
        if self.accuracy is not None:
            return f"accuracy {_interval(self.accuracy)}"
        return "diverged" if self.loss is None else f"loss {_interval(self.loss)}"


@serializable
@dataclass(frozen=True)
class DefenseOption:
    """The weakest defense of a family that meets the target, or the strongest that was tried, if none does.

    ``code`` is the call that makes it, ``strength`` its level (:class:`reconrisk.defenses.families.Family`); None and
    empty where nothing was tried. ``risks`` are the shares of records that any attack or guess rebuilt, one for each
    limit: from fresh records if ``met`` says so, else from those of the search. ``proved`` are bounds on these shares
    by the mechanism, 1 without one. ``mse_bound`` is the Bayesian bound, estimated. ``utility_kept`` (U1) is the share
    of the first-order decrease that is kept, ``utility_deviation`` its standard deviation, the root of -U2.
    ``remark`` says what went otherwise than planned.
    """

    family: str
    code: str
    strength: float | None
    met: Met
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
        """The decrease that a step keeps, less one standard deviation: what families are ranked by before training."""
        if self.utility_kept is None or self.utility_deviation is None:
            return float("-inf")
        return self.utility_kept - self.utility_deviation

    @property
    def rank(self) -> tuple[bool, tuple[float, float], float]:
        """The larger the cheaper: training where it was done, else one step."""
        trained = self.training is not None
        return trained, self.training.rank if self.training is not None else (0.0, 0.0), self.step_utility


@serializable
@dataclass(frozen=True)
class Recommendation:
    """Which defense to use, what it costs, what is second best, and what was tried.

    ``accept`` are limits on how often records may be rebuilt, ``mse_bound`` the least Bayesian bound asked for.
    ``evidence`` is "measured" or "proved": what counts as meeting a limit. ``options`` has a row for every family;
    ``best`` and ``runner_up`` name two of them. ``undefended`` is training without a defense. ``guess`` are the shares
    of public records that guesses rebuild, without any update: no defense brings risks below them. The Bayesian bound
    is for the smoothest prior on the range of the data, of ``prior_information``; it assumes that gradients do not jump
    as the record moves: ``is_smooth`` if that is known. ``ended`` is "complete", "out of time" or "interrupted".

    ``defense`` and ``defenses`` are the configured defenses; they hold moments of public records, and are not in JSON.
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
                raise refuse("best", name, f"to be one of {', '.join(names)}")

    @property
    def meets(self) -> bool:
        """Whether any defense was shown to meet the target."""
        return self.best is not None

    @property
    def defense(self) -> Any:
        """The recommended defense, configured; None where none is, or after reading JSON."""
        return None if self.best is None or self.defenses is None else self.defenses.get(self.best)

    def option(self, family: str) -> DefenseOption:
        """The row of a family."""
        for option in self.options:
            if option.family == family:
                return option
        raise refuse("family", family, f"to be one of {', '.join(option.family for option in self.options)}")

    @property
    def target(self) -> str:
        """What was asked for, in words."""
        words = [str(limit) for limit in self.accept]
        return " and ".join(
            [*words, *([] if self.mse_bound is None else [f"estimated Bayesian bound >= {self.mse_bound:g}"])]
        )

    @property
    def sentence(self) -> str:
        """What to do, on what evidence, at which cost, and what is second best."""
        from reconrisk.audit.recommendation_words import sentence_of  # which reads this file

        return sentence_of(self)

    @property
    def table(self) -> str:
        """Every family in a line."""
        from reconrisk.audit.recommendation_words import table_of  # which reads this file

        return table_of(self)

    def __str__(self) -> str:
        """Sentence and table."""
        return f"{self.sentence}\n\n{self.table}"


def _interval(estimate: Estimate) -> str:
    return f"{estimate.value:.3g} [{estimate.low:.3g}, {estimate.high:.3g}]"

"""The result of an audit: measured success with its guarantees, guesses and limits.

:class:`AuditResult` is the contract with ``reports/``, which compute nothing again. Pictures are in it, but not in its
JSON.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from reconrisk.bounds.corridor import RiskCorridor
from reconrisk.core.guarantee import Estimate, Guarantee, Quantity
from reconrisk.core.mechanism import Mechanism
from reconrisk.core.metric import Goal, Limit
from reconrisk.core.storage.result import Result, Row
from reconrisk.core.storage.serialization import NOT_IN_JSON, serializable
from reconrisk.core.threat import ThreatModel
from reconrisk.studies.common.runs import Environment

NOTICE = (
    "Scores, numbers of records and norms depend on private records: publish the verdict, not this file "
    "(guo2022, footnote 2)."
)


class Verdict(Enum):
    """What a line of the audit comes to."""

    CONTRADICTION = "an attack beats a bound that covers it"
    LEAKS = "attacks rebuild more than guesses do"
    NO_GAIN = "no attack that was tried does better than guessing"
    NOTHING_RUN = "no attack was run to its end"


class Standing(Enum):
    """How a risk stands to its limit."""

    ABOVE = "above the limit"
    PROVED = "within the limit, proved"
    MEASURED = "within the limit, by the attacks that were tried"
    NOT_SHOWN = "not above the limit, but too few trials to show it"


def measured_columns(name: str, share: Estimate) -> Row:
    """Return a measured share and its interval as columns, all None where nothing was run.

    >>> measured_columns("success", Estimate(0.0, 0.0, 1.0, 0.95, 0, "not run"))
    {'success': None, 'success_low': None, 'success_high': None}
    """
    found = share.columns(name)
    return found if share.samples else dict.fromkeys(found)


@serializable("audit-subject")
@dataclass(frozen=True)
class Subject:
    """What is audited: a model by name and hash of its weights, the records by name and hash, and what is released.

    ``population`` is the number of records that targets are drawn from, each with equal probability. ``is_bundled``
    says that the records are public ones that come with the package.
    """

    model: str
    model_hash: str
    data: str
    data_hash: str
    population: int
    shape: tuple[int, ...]
    data_range: tuple[float, float]
    release: str
    batch_size: int
    is_bundled: bool


@serializable("defense-summary")
@dataclass(frozen=True)
class DefenseSummary:
    """A defense by its label, its settings, the mechanism that it implements or None, and its cost.

    ``distortion`` is the mean of :attr:`Trial.distortion`.
    """

    label: str
    settings: str
    mechanism: Mechanism | None
    distortion: float


@serializable("prior-use")
@dataclass(frozen=True)
class PriorUse:
    """The generative prior of an attack, by name and hash, and what it achieves without any update.

    ``source`` says in words where it comes from. ``alone`` is the median score, by ``metric``, of the guess
    ``baseline``, which has nothing but the prior; None if it was not run. ``reached`` are medians of the attack under
    each defense, by its label.
    """

    name: str
    source: str
    hash: str
    baseline: str
    metric: str
    alone: float | None
    reached: tuple[tuple[str, float], ...] = ()

    @property
    def said(self) -> str:
        """What the prior achieves alone, and the attack with it under each defense."""
        alone = "not run" if self.alone is None else f"{self.metric} {self.alone:.3g}"
        attack = "".join(f"; attack under {defense}: {value:.3g}" for defense, value in self.reached)
        return f"alone: {alone}{attack}"

    def __str__(self) -> str:
        """In words, with what it achieves alone."""
        return f"prior {self.name} ({self.source}; {self.said})"


@serializable("attack-summary")
@dataclass(frozen=True)
class AttackSummary:
    """An attack by its label, and how its trials went.

    A ``is_baseline`` attack does not look at the update. ``failed`` trials diverged or did not apply; they count as not
    rebuilt. ``remark`` is the cause and remedy of the first of them, or of the first that left its model unexplained.
    ``prior`` is the generative one that it has, if any.
    """

    label: str
    settings: str
    is_baseline: bool
    planned: int
    done: int
    failed: int
    seconds: float
    evaluations: int
    remark: str = ""
    prior: PriorUse | None = None


@serializable("attack-outcome")
@dataclass(frozen=True)
class Outcome:
    """How often one attack reached a goal under one defense."""

    attack: str
    is_baseline: bool
    success: Estimate


@serializable("bound-comparison")
@dataclass(frozen=True)
class Comparison:
    """A guarantee beside what was measured.

    ``is_compared`` is False where it does not cover this threat, these records or this kind of number; ``why`` says so.
    ``tightness`` is the measured success over the bound, None where it is not compared. ``highest_attack`` and
    ``highest`` are the attack with the largest lower limit and its estimate at the confidence of such comparisons.
    """

    guarantee: Guarantee
    is_compared: bool
    why: str
    tightness: float | None = None
    is_contradicted: bool = False
    highest_attack: str = ""
    highest: Estimate | None = None


@serializable("limit-check")
@dataclass(frozen=True)
class LimitCheck:
    """A limit on a goal and how the risk stands to it."""

    limit: Limit
    standing: Standing


@serializable("audit-line")
@dataclass(frozen=True)
class AuditLine:
    """One goal under one defense.

    ``success`` is that of ``best_attack``, ``baseline`` that of the best guess without the update, both with intervals
    that hold for all attacks at once. ``worst_record`` is the record that any attack came nearest to, with its score.
    """

    defense: str
    goal: Goal
    verdict: Verdict
    success: Estimate
    best_attack: str
    worst_record: int
    worst_score: float
    baseline: Estimate
    best_baseline: str
    outcomes: tuple[Outcome, ...]
    comparisons: tuple[Comparison, ...]
    limits: tuple[LimitCheck, ...] = ()

    def unmet(self, *, strict: bool = False) -> tuple[LimitCheck, ...]:
        """Limits that are not kept: exceeded, or not proved where no attack worked; with ``strict``, not shown."""
        bad = (Standing.ABOVE, Standing.NOT_SHOWN) if strict else (Standing.ABOVE,)
        nothing = self.verdict is Verdict.NOTHING_RUN
        return tuple(
            check
            for check in self.limits
            if check.standing in bad or (nothing and check.standing is not Standing.PROVED)
        )

    @property
    def bound(self) -> Guarantee | None:
        """The smallest bound on success that is compared with the attacks, None if there is none."""
        found = [each.guarantee for each in self.comparisons if each.is_compared]
        found = [guarantee for guarantee in found if guarantee.quantity is Quantity.SUCCESS_PROBABILITY]
        return min(found, key=lambda guarantee: guarantee.value, default=None)

    def to_row(self) -> Row:
        """Return the line as values by name; what was not run or does not exist is None."""
        return {
            "goal": str(self.goal),
            "defense": self.defense,
            **measured_columns("success", self.success),
            "best_attack": self.best_attack or None,
            **measured_columns("guess", self.baseline),
            "best_guess": self.best_baseline or None,
            "bound": None if self.bound is None else self.bound.value,
            "worst_record": None if self.worst_record < 0 else self.worst_record,
            "worst_score": None if self.worst_record < 0 else self.worst_score,
            "verdict": self.verdict.value,
            "limits": "; ".join(f"{check.limit} ({check.standing.value})" for check in self.limits),
        }


@serializable("exposure")
@dataclass(frozen=True)
class Exposure:
    """The best estimate of one record under one defense: by the first goal's metric, whichever attack made it.

    ``draw`` and ``place`` say which update and which of its records; a report finds the picture by them.
    """

    defense: str
    record: int
    attack: str
    draw: int
    place: int
    score: float
    reached: tuple[bool, ...]


@dataclass(frozen=True, eq=False)
class Picture:
    """A record beside an estimate of it, as NumPy arrays of the shape of a record."""

    exposure: Exposure
    target: Any
    estimate: Any


@serializable("leakage-histogram")
@dataclass(frozen=True)
class LeakageHistogram:
    """How the Fisher information leakage tr(I)/d is spread over the records of a training run.

    ``counts`` are of the records between consecutive ``edges``, ``not_positive`` of the rest. Unbiased estimates of the
    most exposed record have a mean squared error of ``least_mse_lower_bound``, with this ``confidence``.
    """

    records: int
    steps: int
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    not_positive: int
    median: float
    maximum: float
    least_mse_lower_bound: float
    confidence: float


@serializable("training-audit")
@dataclass(frozen=True)
class TrainingAudit:
    """A finished DP-SGD run by its settings: the corridor at the first goal, the account of its records."""

    mechanism: Mechanism
    corridor: RiskCorridor | None = None
    leakage: LeakageHistogram | None = None


@serializable("audit-result")
@dataclass(frozen=True)
class AuditResult(Result):
    """The result of an audit: a line for each goal and defense, the verdict, and the ``signature`` that repeats it.

    ``left_out`` names attacks with a prior that could not be run, and why. ``warnings`` say why numbers may speak of
    somebody else than the stated adversary. ``pictures`` show private records; they are
    left out of JSON.
    """

    run: str
    created: str
    subject: Subject
    threat: ThreatModel
    goals: tuple[Goal, ...]
    confidence: float
    defenses: tuple[DefenseSummary, ...]
    attacks: tuple[AttackSummary, ...]
    lines: tuple[AuditLine, ...]
    exposures: tuple[Exposure, ...]
    seed: int
    planned: int
    done: int
    seconds: float
    environment: Environment
    signature: str
    assumptions: tuple[str, ...] = ()
    training: TrainingAudit | None = None
    left_out: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notice: str = NOTICE
    pictures: tuple[Picture, ...] = field(default=(), repr=False, compare=False, metadata=NOT_IN_JSON)

    @property
    def is_complete(self) -> bool:
        """Whether every planned trial was run."""
        return self.done == self.planned

    @property
    def contradictions(self) -> tuple[tuple[AuditLine, Comparison], ...]:
        """Bounds that an attack beats although they cover it: the mechanism or the code is wrong."""
        return tuple((line, each) for line in self.lines for each in line.comparisons if each.is_contradicted)

    @property
    def exceeded(self) -> tuple[tuple[AuditLine, LimitCheck], ...]:
        """Limits that the measured risk is above."""
        return tuple((line, each) for line in self.lines for each in line.limits if each.standing is Standing.ABOVE)

    def failures(self, *, strict: bool = False) -> tuple[str, ...]:
        """Why the audit does not pass: contradicted bounds, limits that are exceeded or that nothing was run for.

        With ``strict`` also limits that too few trials were run to show.
        """
        found = [contradiction_of(line, each) for line, each in self.contradictions]
        for line in self.lines:
            reached = f"is reached with probability {line.success}"
            if line.verdict is Verdict.NOTHING_RUN:
                reached = "was attacked by nothing that worked"
            limit = f"LIMIT: {line.goal} under {line.defense} {reached}, the limit is"
            found += [f"{limit} {check.limit}: {check.standing.value}." for check in line.unmet(strict=strict)]
        return tuple(found)

    def line(self, defense: str, goal: Goal) -> AuditLine:
        """The line of a goal under a defense."""
        return next(line for line in self.lines if line.defense == defense and line.goal == goal)

    @property
    def sentence(self) -> str:
        """The verdict in one sentence, for somebody who reads nothing else."""
        from reconrisk.studies.audit.words import sentence_of

        return sentence_of(self)

    def table(self) -> str:
        """Return a line for each goal and defense, the guarantees, what was left out, and warnings."""
        from reconrisk.studies.audit.words import table_of

        return table_of(self)

    def to_rows(self) -> tuple[Row, ...]:
        """Return one row for each goal and defense."""
        return tuple(line.to_row() for line in self.lines)

    @property
    def is_private(self) -> bool:
        """True unless the records are public ones that come with the package."""
        return not self.subject.is_bundled

    def _repr_html_(self) -> str:
        """The table with marks that notebooks show."""
        from reconrisk.studies.audit.words import notebook_html

        return notebook_html(self)


def contradiction_of(line: AuditLine, each: Comparison) -> str:
    """An attack that beats a bound that covers it, with both numbers."""
    return (
        f"CONTRADICTION: {each.highest_attack} reaches {line.goal} under {line.defense} with probability "
        f"{each.highest}, but the bound that covers it is {each.guarantee}: the mechanism does not do what it says, "
        "or the code is wrong."
    )

"""The result of an audit: measured success with guarantees, baselines and limits.

:class:`AuditResult` is the contract with ``reports/``, which recompute nothing. It holds pictures, which are not part
of its JSON.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from reconrisk.bounds.corridor import RiskCorridor
from reconrisk.core.guarantee import Estimate, Guarantee, Quantity, format_rounded_down, format_rounded_up
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


_WRONG = (
    "the mechanism is not implemented as stated, or the code is wrong. Find the error with rr.verify_mechanism, or use "
    "a defense of rr.defenses."
)
_LOW_BITS = (
    "the last bits of the release show which record was used, because the noise was added in floating point. Add it "
    "with rr.defenses, and never in the precision of a tensor; more noise does not help."
)


class Verdict(Enum):
    """Verdict of a line of the audit."""

    CONTRADICTION = "the guarantee is contradicted"
    LEAKS = "attacks rebuild more than guesses do"
    NO_GAIN = "no attack that was tried does better than guessing"
    NOTHING_RUN = "no attack was run to its end"


class Standing(Enum):
    """Position of a risk relative to its limit."""

    ABOVE = "above the limit"
    PROVED = "within the limit, proved"
    MEASURED = "within the limit, by the attacks that were tried"
    NOT_SHOWN = "not above the limit, but too few trials to show it"


def measured_columns(name: str, share: Estimate) -> Row:
    """Return a measured share and its interval as columns.

    Args:
        name: Name of the first column and prefix of the others.
        share: The measured share.

    Returns:
        Values by column; all None if nothing was run.

    >>> measured_columns("success", Estimate(0.0, 0.0, 1.0, 0.95, 0, "not run"))
    {'success': None, 'success_low': None, 'success_high': None}
    """
    found = share.columns(name)
    return found if share.samples else dict.fromkeys(found)


@serializable("audit-subject")
@dataclass(frozen=True)
class Subject:
    """The audited object in a report.

    Attributes:
        model: Name of the model.
        model_hash: Digest of the model and its weights.
        data: Name of the data set.
        data_hash: Digest of the records.
        population: Number of records that targets are drawn from, each equally likely.
        shape: Shape of a record.
        data_range: Smallest and largest value of a record.
        release: Description of the release.
        batch_size: Records that share one update.
        is_bundled: True if the records are public ones that the package contains.
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
    """A defense in a report.

    Attributes:
        label: Name as shown in reports.
        settings: Description of the settings.
        mechanism: Privacy mechanism that the defense implements; None if it implements none.
        distortion: Mean over trials of :attr:`Trial.distortion`, the squared change of the release relative to its
            squared norm.
    """

    label: str
    settings: str
    mechanism: Mechanism | None
    distortion: float


@serializable("prior-use")
@dataclass(frozen=True)
class PriorUse:
    """The generative prior of an attack, with its success alone and together with the update.

    Attributes:
        name: Name of the prior.
        source: Origin of the prior, in words.
        hash: Digest of the prior.
        baseline: Name, as shown in reports, of the baseline that uses nothing but the prior.
        metric: Metric of the scores.
        alone: Median score of the baseline; None if it was not run.
        reached: Median score of the attack under each defense, by label.
    """

    name: str
    source: str
    hash: str
    baseline: str
    metric: str
    alone: float | None
    reached: tuple[tuple[str, float], ...] = ()

    @property
    def scores(self) -> str:
        """Scores of the prior alone, and of the attack with it under each defense, as text."""
        alone = "not run" if self.alone is None else f"{self.metric} {self.alone:.3g}"
        attack = "".join(f"; attack under {defense}: {value:.3g}" for defense, value in self.reached)
        return f"alone: {alone}{attack}"

    def __str__(self) -> str:
        """Describe the prior and its scores."""
        return f"prior {self.name} ({self.source}; {self.scores})"


@serializable("attack-summary")
@dataclass(frozen=True)
class AttackSummary:
    """An attack in a report, with counts of its trials.

    Attributes:
        label: Name as shown in reports.
        settings: Description of the settings.
        is_baseline: True if the attack ignores the update.
        planned: Planned trials.
        done: Finished trials.
        failed: Trials that diverged or did not apply; their records count as not reconstructed.
        seconds: Total time of the trials.
        evaluations: Evaluations of the release in all trials.
        remark: Cause and remedy of the first failed trial, or of the first search that did not match its model.
        prior: Generative prior of the attack, if any.
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
    """Success of one attack for one goal under one defense.

    Attributes:
        attack: Name of the attack as shown in reports.
        is_baseline: True if the attack ignores the update.
        success: Share of records for which the goal was reached.
    """

    attack: str
    is_baseline: bool
    success: Estimate


@serializable("bound-comparison")
@dataclass(frozen=True)
class Comparison:
    """Comparison of a guarantee with the measured success.

    Attributes:
        guarantee: The guarantee.
        is_compared: False if it does not cover this threat, these records or this quantity.
        why: Reason why the guarantee is compared or not.
        tightness: Measured success divided by the bound; None if the guarantee is not compared.
        is_contradicted: True if an attack beats the bound.
        highest_attack: Attack with the largest lower confidence limit.
        highest: Success of that attack, with an interval at the confidence of comparisons with bounds.
    """

    guarantee: Guarantee
    is_compared: bool
    why: str
    tightness: float | None = None
    is_contradicted: bool = False
    highest_attack: str = ""
    highest: Estimate | None = None


@serializable("identification-check")
@dataclass(frozen=True)
class IdentificationCheck:
    """Success of an adversary who names the record behind a release from a list of candidates.

    The check has its own threat and bound. It tests a defense for every goal.

    Attributes:
        defense: Name of the defense as shown in reports.
        attack: Name of the attack: ``best_candidate`` uses the likelihood, ``low_bits`` the last bits.
        threat: Abilities of this adversary, who may know more than the audited one.
        candidates: Records in the list; the record behind the release is each of them with equal probability.
        success: Share of releases whose record was named, with an interval at the confidence of comparisons.
        guarantee: Bound on the success of any adversary with such a list.
        is_contradicted: True if the attack beats the bound.
    """

    defense: str
    attack: str
    threat: ThreatModel
    candidates: int
    success: Estimate
    guarantee: Guarantee
    is_contradicted: bool

    def __str__(self) -> str:
        """Describe the adversary, the success and the bound."""
        count = self.success.samples
        named = f"{round(self.success.value * count)} of {count} releases under {self.defense}"
        adversary = f"an adversary with a list of {self.candidates} records, one of them the target"
        return f"{self.attack} names the record in {named} ({adversary}); {self.guarantee}"

    @property
    def title(self) -> str:
        """Claim that the check tests."""
        return f"{self.attack} does not beat the bound for adversaries with a list of records"

    @property
    def contradiction(self) -> str:
        """Sentence about a contradiction, with its meaning or remedy."""
        return f"CONTRADICTION: {self}: {_LOW_BITS if self.attack == 'low_bits' else _WRONG}"


@serializable("noise-scale-check")
@dataclass(frozen=True)
class NoiseScaleCheck:
    """Scale of the noise on the releases of an audit, which knows the values before the noise.

    Attributes:
        defense: Name of the defense as shown in reports.
        releases: Number of releases.
        values: Number of values of all releases.
        ratio: Measured standard deviation of the noise as a multiple of the claimed one.
        low: Lower end of the interval of the ratio, at the confidence of comparisons.
        high: Upper end of the interval.
        log_evidence: Natural logarithm of the evidence that there is less noise than claimed.
        is_contradicted: True if there is less noise than claimed.
    """

    defense: str
    releases: int
    values: int
    ratio: float
    low: float
    high: float
    log_evidence: float
    is_contradicted: bool

    def __str__(self) -> str:
        """Describe the measured scale."""
        interval = f"[{format_rounded_down(self.low)}, {format_rounded_up(self.high)}]"
        measured = f"the noise is {self.ratio:.4g} {interval} times as large as claimed"
        return f"under {self.defense} {measured}, by {self.releases} releases of known updates"

    @property
    def title(self) -> str:
        """Claim that the check tests."""
        return "the noise is as large as claimed"

    @property
    def contradiction(self) -> str:
        """Sentence about a contradiction."""
        return f"CONTRADICTION: {self}: {_WRONG}"


@serializable("noise-checks")
@dataclass(frozen=True)
class NoiseChecks:
    """Checks of the noise that the guarantees of an audit rely on.

    Attributes:
        identifications: Success of adversaries with a list of candidates.
        scales: Scale of the noise under each defense.
    """

    identifications: tuple[IdentificationCheck, ...] = ()
    scales: tuple[NoiseScaleCheck, ...] = ()

    @property
    def every(self) -> tuple[IdentificationCheck | NoiseScaleCheck, ...]:
        """All checks, the scale of the noise first."""
        return (*self.scales, *self.identifications)

    @property
    def contradicted(self) -> tuple[IdentificationCheck | NoiseScaleCheck, ...]:
        """Checks that contradict the claimed noise."""
        return tuple(each for each in self.every if each.is_contradicted)

    def contradicts(self, defense: str) -> bool:
        """Return True if a check contradicts the noise of a defense."""
        return any(each.defense == defense for each in self.contradicted)


@serializable("limit-check")
@dataclass(frozen=True)
class LimitCheck:
    """A limit on a goal and the position of the risk relative to it.

    Attributes:
        limit: The limit.
        standing: Position of the risk relative to the limit.
    """

    limit: Limit
    standing: Standing


@serializable("audit-line")
@dataclass(frozen=True)
class AuditLine:
    """Result for one goal under one defense. Intervals hold for all attacks together.

    Attributes:
        defense: Name of the defense as shown in reports.
        goal: Success criterion.
        verdict: Verdict of the line.
        success: Success of the best attack.
        best_attack: Name of the best attack as shown in reports; empty if none was run.
        worst_record: Record with the best estimate by any attack; -1 if no attack was run.
        worst_score: Score of that estimate.
        baseline: Success of the best guess without the update.
        best_baseline: Name of that guess as shown in reports; empty if none was run.
        outcomes: Success of every attack.
        comparisons: Guarantees for this goal and defense.
        limits: Limits on this goal, each with the position of the risk relative to it.
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

    def unmet_limits(self, *, strict: bool = False) -> tuple[LimitCheck, ...]:
        """Return the limits that are not met.

        A limit is not met if the risk exceeds it, or if no attack worked and the limit is not proved.

        Args:
            strict: True to include limits that too few trials were run to show.

        Returns:
            The limits that are not met, with the position of the risk; empty if all are met.
        """
        bad = (Standing.ABOVE, Standing.NOT_SHOWN) if strict else (Standing.ABOVE,)
        nothing = self.verdict is Verdict.NOTHING_RUN
        return tuple(
            check
            for check in self.limits
            # Missing evidence is never a pass.
            if check.standing in bad or (nothing and check.standing is not Standing.PROVED)
        )

    @property
    def bound(self) -> Guarantee | None:
        """Smallest bound on the success that is compared with the attacks; None if there is none."""
        found = [each.guarantee for each in self.comparisons if each.is_compared]
        found = [guarantee for guarantee in found if guarantee.quantity is Quantity.SUCCESS_PROBABILITY]
        return min(found, key=lambda guarantee: guarantee.value, default=None)

    def to_row(self) -> Row:
        """Return the line as values by name; None for values that were not measured or do not exist."""
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
    """Best estimate of one record under one defense, by the metric of the first goal.

    Attributes:
        defense: Name of the defense as shown in reports.
        record: Row of the record in the data.
        attack: Name, as shown in reports, of the attack that made the estimate.
        draw: Number of the update.
        place: Position of the record in the update.
        score: Score of the estimate.
        reached: For each goal, True if the estimate reaches it.
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
    """A record and an estimate of it.

    Attributes:
        exposure: Defense, record, attack and score.
        target: The record, as a NumPy array.
        estimate: The estimate, as a NumPy array of the same shape.
    """

    exposure: Exposure
    target: Any
    estimate: Any


@serializable("leakage-histogram")
@dataclass(frozen=True)
class LeakageHistogram:
    """Histogram of the Fisher information leakage tr(I)/d over the records of a training run.

    Attributes:
        records: Number of records.
        steps: Training steps.
        edges: Edges of the bins.
        counts: Records in each bin.
        not_positive: Records with an estimate of zero or less, which are in no bin.
        median: Median leakage.
        maximum: Largest leakage.
        least_mse_lower_bound: Lower bound on the mean squared error of unbiased estimates of the most exposed record.
        confidence: Confidence of that bound.
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
    """Analysis of a finished DP-SGD run.

    Attributes:
        mechanism: Mechanism of the run.
        corridor: Risk corridor at the first goal; None if it does not apply.
        leakage: Leakage of the records according to the Fisher account; None without an account.
    """

    mechanism: Mechanism
    corridor: RiskCorridor | None = None
    leakage: LeakageHistogram | None = None


@serializable("audit-result")
@dataclass(frozen=True)
class AuditResult(Result):
    """Result of an audit.

    Attributes:
        run: Identity of the run.
        created: Time of creation, ISO 8601 in UTC.
        subject: The audited object.
        threat: Abilities of the adversary.
        goals: Success criteria; the first one leads the report.
        confidence: Probability that the intervals of a line hold together.
        defenses: Defenses and their cost.
        attacks: Attacks and counts of their trials.
        lines: Result for every goal and defense.
        exposures: Best estimate of every record under every defense.
        seed: Seed of the audit.
        planned: Planned trials.
        done: Finished trials.
        seconds: Duration of the audit.
        environment: Versions, threads and system.
        signature: Call or command that repeats the audit.
        assumptions: Assumptions behind the numbers.
        training: Analysis of the training run, if it is known.
        left_out: Attacks with a prior that could not be run, with the reason.
        warnings: Reasons why the numbers may not describe the stated adversary.
        notice: Advice on publication.
        noise_checks: Checks of the noise that the guarantees rely on, under threats of their own.
        pictures: Private records and their estimates; they are left out of JSON.
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
    noise_checks: NoiseChecks = NoiseChecks()
    pictures: tuple[Picture, ...] = field(default=(), repr=False, compare=False, metadata=NOT_IN_JSON)

    @property
    def is_complete(self) -> bool:
        """True if every planned trial was run."""
        return self.done == self.planned

    @property
    def contradictions(self) -> tuple[tuple[AuditLine, Comparison], ...]:
        """Lines and bounds that an attack beats although they cover it: the mechanism or the code is wrong."""
        return tuple((line, each) for line in self.lines for each in line.comparisons if each.is_contradicted)

    @property
    def contradiction_sentences(self) -> tuple[str, ...]:
        """One sentence for each contradicted bound and each check that contradicts the claimed noise."""
        lines = (describe_contradiction(line, each) for line, each in self.contradictions)
        return (*lines, *(each.contradiction for each in self.noise_checks.contradicted))

    @property
    def exceeded_limits(self) -> tuple[tuple[AuditLine, LimitCheck], ...]:
        """Lines and limits that the measured risk exceeds."""
        return tuple((line, each) for line in self.lines for each in line.limits if each.standing is Standing.ABOVE)

    def failures(self, *, strict: bool = False) -> tuple[str, ...]:
        """Return the reasons why the audit does not pass: contradicted bounds and limits that are not met.

        Args:
            strict: True to include limits that too few trials were run to show.

        Returns:
            One sentence per reason; empty if the audit passes.
        """
        found = list(self.contradiction_sentences)
        for line in self.lines:
            reached = f"is reached with probability {line.success}"
            if line.verdict is Verdict.NOTHING_RUN:
                reached = "was not tested, because no attack worked"
            limit = f"LIMIT: {line.goal} under {line.defense} {reached}, the limit is"
            found += [f"{limit} {check.limit}: {check.standing.value}." for check in line.unmet_limits(strict=strict)]
        return tuple(found)

    def line(self, defense: str, goal: Goal) -> AuditLine:
        """Return the line of a goal under a defense."""
        return next(line for line in self.lines if line.defense == defense and line.goal == goal)

    @property
    def sentence(self) -> str:
        """Verdict in one sentence."""
        from reconrisk.studies.audit.words import write_sentence  # it imports this module for its types

        return write_sentence(self)

    def table(self) -> str:
        """Return a table of goals and defenses, then guarantees, omitted attacks and warnings."""
        from reconrisk.studies.audit.words import write_table

        return write_table(self)

    def to_rows(self) -> tuple[Row, ...]:
        """Return one row for each goal and defense."""
        return tuple(line.to_row() for line in self.lines)

    @property
    def is_private(self) -> bool:
        """True unless the records are public ones that the package contains."""
        return not self.subject.is_bundled

    def _repr_html_(self) -> str:
        """Return the table with marks for notebooks."""
        from reconrisk.studies.audit.words import notebook_html

        return notebook_html(self)


def describe_contradiction(line: AuditLine, each: Comparison) -> str:
    """Describe an attack that beats a bound that covers it, with both numbers.

    Args:
        line: Goal and defense.
        each: The contradicted comparison.

    Returns:
        One sentence.
    """
    return (
        f"CONTRADICTION: {each.highest_attack} reaches {line.goal} under {line.defense} with probability "
        f"{each.highest}, but the bound that covers it is {each.guarantee}: {_WRONG}"
    )

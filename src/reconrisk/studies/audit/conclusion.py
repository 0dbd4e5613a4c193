"""From trials to the result of an audit.

:func:`build_line` summarises one goal under one defense: the success of every attack with simultaneous intervals,
compared with baselines, limits and the guarantees that cover the threat. The error probability of contradictions is
divided among all comparisons. :func:`_prior_warnings` warns if a prior was trained on audited records, because attacks
with it do better than an outsider could.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

from torch import Tensor

from reconrisk.accounting.phases import has_phases
from reconrisk.attacks.prior_choice import ResolvedPrior
from reconrisk.bounds.corridor import risk
from reconrisk.bounds.for_goal import BoundResult
from reconrisk.core.digest import describe_settings
from reconrisk.core.guarantee import Estimate, Quantity
from reconrisk.core.mechanism import Mechanism
from reconrisk.core.metric import Goal, Limit
from reconrisk.core.reconstruction import Ending
from reconrisk.core.threat import ThreatModel
from reconrisk.data.bundled_sets import SHIPPED, is_bundled
from reconrisk.metrics.goals import mean_squared_error_at
from reconrisk.statistics.intervals import success_interval
from reconrisk.studies.audit.result import (
    AttackSummary,
    AuditLine,
    AuditResult,
    Comparison,
    DefenseSummary,
    Exposure,
    LeakageHistogram,
    LimitCheck,
    NoiseChecks,
    Outcome,
    Picture,
    PriorUse,
    Standing,
    Subject,
    TrainingAudit,
    Verdict,
)
from reconrisk.studies.common.experiment import Experiment
from reconrisk.studies.common.guarantees import GuaranteeFinder
from reconrisk.studies.common.plan import PlannedAttack
from reconrisk.studies.common.population import Population
from reconrisk.studies.common.runs import RunInfo, Trial, TrialKey, current_environment

_TRAIN, _TEST = "train", "test"


def _prior_assumptions(attacks: Sequence[PlannedAttack], population: Population) -> tuple[str, ...]:
    """Return the assumptions about priors: the adversary has them, and they were not trained on audited records.

    Nothing is assumed if the audited records are known to be training records or test records of the prior.
    """
    priors = {each.prior.word: each.prior for each in attacks if each.prior is not None}
    found = [f"the adversary has the prior {each.value.name} ({each.source})" for each in priors.values()]
    found += [
        f"audited records are none of the training records of {name}: otherwise attacks with the prior trained "
        "on these do better than an outsider could"
        for name in _prior_training_sets(attacks)
        if _count_bundled(population, name, _TRAIN) == 0
        and _count_bundled(population, name, _TEST) < len(population.rows)
    ]
    return tuple(dict.fromkeys(found))


def _prior_warnings(attacks: Sequence[PlannedAttack], population: Population) -> tuple[str, ...]:
    """Return warnings about priors that were trained on audited records of the bundled data sets."""
    counts = {name: _count_bundled(population, name, _TRAIN) for name in _prior_training_sets(attacks)}
    return tuple(
        f"{count} of {len(population.rows)} audited records are training records of {name}, which the prior {name} was "
        "trained on: attacks with it may recall them and do better than an outsider could. Audit test records "
        "(--split test)"
        for name, count in counts.items()
        if count
    )


def _prior_training_sets(attacks: Sequence[PlannedAttack]) -> tuple[str, ...]:
    """Return the names of the data sets that shipped priors were trained on."""
    named = (each.prior.trained_on for each in attacks if each.prior is not None)
    return tuple(dict.fromkeys(name for name in named if name))


def _count_bundled(population: Population, name: str, split: str) -> int:
    """Count the audited records that are in a split of a bundled data set."""
    known = _bundled_records(name, split)
    if not known:
        return 0
    rows = population.dataset.inputs[list(population.rows)].flatten(1)
    return sum(row.tobytes() in known for row in rows.numpy())  # bit by bit: bundled records are loaded as they are


@cache  # loading a data set takes longer than a small audit
def _bundled_records(name: str, split: str) -> frozenset[bytes]:
    if name not in SHIPPED:
        return frozenset()
    return frozenset(row.tobytes() for row in SHIPPED[name](split=split).inputs.flatten(1).numpy())


FALSE_ALARMS = 1e-3
"""Largest probability that an audit of sound mechanisms and sound code reports a contradiction."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """Trials under one defense, and the settings of the audit that every line needs.

    Attributes:
        trials: Trials by attack.
        baselines: Names, as shown in reports, of the attacks that ignore the update.
        threats: Threat model of each attack, by the name of the attack; baselines may know more than ``threat``.
        threat: Audited adversary.
        confidence: Probability that all intervals hold together.
        alarm_level: Error probability of one comparison with a bound.
        planned: Planned trials of each attack; fewer may be finished if the budget ended.
    """

    trials: Mapping[str, Sequence[Trial]]
    baselines: frozenset[str]
    threats: Mapping[str, ThreatModel]
    threat: ThreatModel
    confidence: float
    alarm_level: float
    planned: int

    def success(self, attack: str, goal: Goal, error: float) -> Estimate:
        """Estimate the probability that an attack reaches a goal.

        Unknown outcomes widen the interval at both ends. A failed trial might have succeeded if the attack had worked.
        A trial that was cut off might have succeeded too, because the duration of an attack may depend on its success.

        Args:
            attack: Name of the attack as shown in reports.
            goal: Success criterion.
            error: Probability that the interval misses the truth.

        Returns:
            Share of attacked records that reach the goal, with an interval of confidence ``1 - error``.
        """
        trials = self.trials[attack]
        size, cut = len(trials[0].records), int(len(trials) < self.planned)
        reached = sum(goal.is_reached_by(score) for trial in trials for score in trial.values(goal.metric))
        failed = [trial for trial in trials if trial.account.status.is_failure]
        missed = sum(not goal.is_reached_by(score) for trial in failed for score in trial.values(goal.metric))
        level = 1 - max(error, 1e-12)  # the floor keeps the level below 1 in floating point
        # Only the first trial that was cut off can be missing because of its outcome: one unknown trial is added.
        interval = partial(success_interval, trials=len(trials) + cut, per_trial=size, confidence=level)
        least, most = interval(reached), interval(reached + missed + cut * size)
        return replace(least, value=reached / (size * len(trials)), high=most.high, samples=len(trials))

    def outcomes(self, goal: Goal) -> tuple[Outcome, ...]:
        """Return the success of every attack, with intervals that hold for all of them together."""
        error = (1 - self.confidence) / max(1, len(self.trials))  # Bonferroni correction over the attacks
        return tuple(
            Outcome(attack, attack in self.baselines, self.success(attack, goal, error)) for attack in self.trials
        )


def build_line(
    defense: str,
    goal: Goal,
    evidence: Evidence,
    answers: Sequence[BoundResult],
    limits: Sequence[Limit],
    *,
    is_noise_wrong: bool = False,
) -> AuditLine:
    """Summarise one goal under one defense.

    Args:
        defense: Name of the defense as shown in reports.
        goal: Success criterion: a metric with a threshold.
        evidence: Trials under this defense.
        answers: Guarantees for this goal and defense.
        limits: Limits of the audit; those of other goals are ignored.
        is_noise_wrong: True if a check contradicts the noise of the defense. Then no bound proves a limit.

    Returns:
        The line of the result.

    Guarantee: intervals hold together for all attacks with the stated confidence. A guarantee is compared only if it
    covers the threat and bounds the success at these records.
    """
    outcomes = evidence.outcomes(goal)
    best = _best_outcome(outcomes, goal, evidence, is_baseline=False)
    guess = _best_outcome(outcomes, goal, evidence, is_baseline=True)
    comparisons = tuple(_compare_bound(answer, goal, evidence, best) for answer in answers)
    worst_score, worst_record = _most_exposed(goal, evidence)
    return AuditLine(
        defense=defense,
        goal=goal,
        verdict=Verdict.CONTRADICTION if is_noise_wrong else _verdict(best, guess, comparisons, evidence),
        success=best.success,
        best_attack=best.attack,
        worst_record=worst_record,
        worst_score=worst_score,
        baseline=guess.success,
        best_baseline=guess.attack,
        outcomes=outcomes,
        comparisons=comparisons,
        limits=tuple(
            LimitCheck(limit, _check_limit(limit, best, guess, () if is_noise_wrong else comparisons))
            for limit in limits
            if limit.goal == goal
        ),
    )


def rank_exposures(defense: str, goals: Sequence[Goal], evidence: Evidence) -> tuple[Exposure, ...]:
    """Return the best estimate of each record by any attack, the most exposed record first.

    Args:
        defense: Name of the defense as shown in reports.
        goals: Success criteria; the metric of the first one ranks the records.
        evidence: Trials under this defense.

    Returns:
        One entry for each attacked record.
    """
    first, found = goals[0], dict[int, tuple[float, Exposure]]()
    for attack, trials in evidence.trials.items():
        if attack in evidence.baselines:
            continue
        for trial in trials:
            for place, record in enumerate(trial.records):
                score = trial.values(first.metric)[place]
                rank = score if first.higher_is_better else -score  # larger is more exposed
                if record not in found or rank > found[record][0]:
                    reached = tuple(goal.is_reached_by(trial.values(goal.metric)[place]) for goal in goals)
                    shown = Exposure(defense, record, attack, trial.key.draw, place, score, reached)
                    found[record] = (rank, shown)
    return tuple(shown for _, shown in sorted(found.values(), key=lambda pair: -pair[0]))


def _best_outcome(outcomes: Sequence[Outcome], goal: Goal, evidence: Evidence, *, is_baseline: bool) -> Outcome:
    """Return the most successful attack; among equals, the one with the best median score."""
    ranked = [outcome for outcome in outcomes if outcome.is_baseline == is_baseline]
    if not ranked:
        return Outcome("", is_baseline, Estimate(0.0, 0.0, 1.0, evidence.confidence, 0, "nothing was run"))

    def rank(outcome: Outcome) -> tuple[float, float]:
        scores = sorted(score for trial in evidence.trials[outcome.attack] for score in trial.values(goal.metric))
        middle = scores[len(scores) // 2]  # the median: one infinite score would dominate a mean
        return outcome.success.value, middle if goal.higher_is_better else -middle

    return max(ranked, key=rank)


def _most_exposed(goal: Goal, evidence: Evidence) -> tuple[float, int]:
    """Return the best score of any attack, and its record; -1 if no attack was run."""
    scores = [
        (score, record)
        for attack, trials in evidence.trials.items()
        if attack not in evidence.baselines
        for trial in trials
        for score, record in zip(trial.values(goal.metric), trial.records, strict=True)
    ]
    if not scores:
        return (float("-inf") if goal.higher_is_better else float("inf")), -1
    return max(scores, key=lambda pair: pair[0] if goal.higher_is_better else -pair[0])


def _compare_bound(answer: BoundResult, goal: Goal, evidence: Evidence, best: Outcome) -> Comparison:
    guarantee = answer.guarantee
    if not guarantee.threat.covers(evidence.threat):
        return Comparison(guarantee, False, f"it does not cover {evidence.threat}")
    if not guarantee.covers(evidence.threat, release=answer.release):
        return Comparison(guarantee, False, f"it covers {guarantee.release.value}, which this audit does not examine")
    if not answer.is_about_targets or guarantee.quantity is not Quantity.SUCCESS_PROBABILITY:
        return Comparison(guarantee, False, answer.why)
    if not evidence.trials:
        return Comparison(guarantee, True, answer.why)
    covered = [
        attack for attack in evidence.trials if guarantee.covers(evidence.threats[attack], release=answer.release)
    ]
    if not covered:
        return Comparison(guarantee, False, "it does not cover the knowledge of the guesses, and nothing else was run")
    # Twice the level: only the lower end of the two-sided interval can contradict an upper bound.
    estimates = {attack: evidence.success(attack, goal, 2 * evidence.alarm_level) for attack in covered}
    highest = max(estimates, key=lambda attack: estimates[attack].low)
    return Comparison(
        guarantee,
        True,
        answer.why,
        tightness=best.success.value / guarantee.value if guarantee.value > 0 else None,  # 0 / 0 has no meaning
        is_contradicted=guarantee.is_contradicted_by(estimates[highest]),
        highest_attack=highest,
        highest=estimates[highest],
    )


def _verdict(best: Outcome, guess: Outcome, comparisons: Sequence[Comparison], evidence: Evidence) -> Verdict:
    if any(each.is_contradicted for each in comparisons):
        return Verdict.CONTRADICTION
    if best.success.value > guess.success.value:  # a point estimate suffices: a leak is reported on weak evidence
        return Verdict.LEAKS
    attacked = (trials for attack, trials in evidence.trials.items() if attack not in evidence.baselines)
    has_worked = any(not trial.account.status.is_failure for trials in attacked for trial in trials)
    return Verdict.NO_GAIN if has_worked else Verdict.NOTHING_RUN


def _check_limit(limit: Limit, best: Outcome, guess: Outcome, comparisons: Sequence[Comparison]) -> Standing:
    """Compare the risk with a limit. An adversary attacks or guesses, whichever succeeds more often.

    A limit is proved only by a bound that no measured interval contradicts. Otherwise the measured success decides.
    """
    proved = any(each.is_compared and best.success.low <= each.guarantee.value <= limit.at_most for each in comparisons)
    if proved and not any(each.is_contradicted for each in comparisons):
        return Standing.PROVED  # a measured success above the limit is then chance
    run = [each.success for each in (best, guess) if each.success.samples]
    if any(success.value > limit.at_most for success in run):
        return Standing.ABOVE
    # Without any attack, a low success of guesses shows nothing.
    shown = bool(best.success.samples) and all(success.high <= limit.at_most for success in run)
    return Standing.MEASURED if shown else Standing.NOT_SHOWN


LARGEST_GALLERY = 64
"""Most pictures of a result."""

_CHANNELS = (1, 3)  # of images that reports can show: grey and RGB
_DELTA = 1e-5  # of the (epsilon, delta) guarantee in the risk corridor

Estimates = Callable[[TrialKey], Tensor | None]


class ContradictedBound(RuntimeError):
    """An attack beats a bound that covers it: the mechanism is not implemented as stated, or the code is wrong.

    A check of the noise that the bounds rely on may contradict it as well.

    Args:
        result: The result of the audit, with at least one contradicted comparison or check.

    Attributes:
        result: The result of the audit, with the contradicted comparisons and checks.
    """

    def __init__(self, result: AuditResult) -> None:
        self.result = result
        super().__init__(" ".join(result.contradiction_sentences))


@dataclass(frozen=True, eq=False)
class ResultBuilder:
    """Builder of the result of an audit from its trials.

    Attributes:
        experiment: Plan, subject and population of the trials.
        info: Name, time and settings of the run.
        goals: Success criteria: metrics with thresholds.
        limits: Goals with the largest accepted share of records.
        confidence: Probability that all intervals of one goal and defense contain their true values together.
        guarantees: Finder of the guarantees for each goal and defense.
        training: Mechanism of the training run, if known.
        account: Fisher account of the training run, if known.
        checks: Number of checks of the noise.
    """

    experiment: Experiment
    info: RunInfo
    goals: tuple[Goal, ...]
    limits: tuple[Limit, ...]
    confidence: float
    guarantees: GuaranteeFinder
    training: Mechanism | None
    account: Any
    checks: int = 0
    _answers: dict[tuple[Goal, str], tuple[BoundResult, ...]] = field(default_factory=dict, init=False)

    def build(
        self, trials: Sequence[Trial], seconds: float, estimates: Estimates, noise_checks: NoiseChecks
    ) -> AuditResult:
        """Return the result of these trials.

        Args:
            trials: Finished trials.
            seconds: Duration of the audit.
            estimates: Function that returns the estimates of a trial, or None if they are lost.
            noise_checks: Checks of the noise that the guarantees rely on.

        Returns:
            The result, with one line for each goal and defense.
        """
        plan, population = self.experiment.plan, self.experiment.population
        dataset, size = population.dataset, len(plan.updates[0])
        evidence, answers = self._evidence(trials), self.find_guarantees()
        lines = tuple(
            build_line(
                label,
                goal,
                evidence[label],
                answers[goal, label],
                self.limits,
                is_noise_wrong=noise_checks.contradicts(label),
            )
            for goal in self.goals
            for label in plan.defenses
        )
        exposures = tuple(
            shown for label in plan.defenses for shown in rank_exposures(label, self.goals, evidence[label])
        )
        attacks = self._summarise_attacks(trials)
        return AuditResult(
            run=self.info.run,
            created=self.info.created,
            subject=Subject(
                model=self.info.subject,
                model_hash=self.experiment.subject.fingerprint,
                data=dataset.name,
                data_hash=self.info.data,
                population=len(population.rows),
                shape=dataset.shape,
                data_range=dataset.data_range,
                release=self.experiment.subject.describe(plan.attacks[-1].attack),
                batch_size=size,
                is_bundled=dataset.name in SHIPPED and is_bundled(dataset),
            ),
            threat=self.experiment.threat,
            goals=self.goals,
            confidence=self.confidence,
            defenses=self._summarise_defenses(trials),
            attacks=attacks,
            lines=lines,
            exposures=exposures,
            seed=self.experiment.seed,
            planned=sum(attack.planned for attack in attacks),
            done=len(trials),
            seconds=seconds,
            environment=current_environment(),
            signature=self.info.signature,
            assumptions=(
                *_assumptions(lines, len(population.rows)),
                *_prior_assumptions(plan.attacks, population),
                *self.experiment.subject.remarks,
            ),
            training=self._audit_training(),
            left_out=plan.left_out,
            warnings=_prior_warnings(plan.attacks, population),
            noise_checks=noise_checks,
            pictures=self._pictures(exposures, estimates),
        )

    def find_guarantees(self) -> Mapping[tuple[Goal, str], tuple[BoundResult, ...]]:
        """Return the guarantees for every goal under every defense; they are computed once."""
        if not self._answers:
            for goal in self.goals:
                for label, defense in self.experiment.plan.defenses.items():
                    self._answers[goal, label] = self.guarantees.find_bounds(goal, label, defense)
        return self._answers

    @property
    def alarm_level(self) -> float:
        """Error probability of one comparison with a bound, or one check of the noise."""
        compared = sum(answer.is_about_targets for answers in self.find_guarantees().values() for answer in answers)
        # Bonferroni correction over all comparisons and checks
        return FALSE_ALARMS / (max(1, compared) * len(self.experiment.plan.attacks) + self.checks)

    def _evidence(self, trials: Sequence[Trial]) -> Mapping[str, Evidence]:
        """Group trials by defense and attack, without attacks that apply to no update."""
        plan = self.experiment.plan
        baselines = frozenset(planned.label for planned in plan.attacks if planned.is_baseline)
        threats = {planned.label: self.experiment.threat_of(planned) for planned in plan.attacks}
        found: dict[str, Evidence] = {}
        for label in plan.defenses:
            mine: dict[str, list[Trial]] = {}
            for trial in trials:
                if trial.key.defense == label:
                    mine.setdefault(trial.key.attack, []).append(trial)
            applied = {attack: each for attack, each in mine.items() if not all(map(_did_not_apply, each))}
            found[label] = Evidence(
                applied,
                baselines,
                threats,
                self.experiment.threat,
                self.confidence,
                self.alarm_level,
                len(plan.updates),
            )
        return found

    def _summarise_attacks(self, trials: Sequence[Trial]) -> tuple[AttackSummary, ...]:
        plan, found = self.experiment.plan, []
        for planned in plan.attacks:
            mine = [trial for trial in trials if trial.key.attack == planned.label]
            failed = [trial for trial in mine if trial.account.status.is_failure]
            wanted = 0
            for label in plan.defenses:
                under = [trial for trial in mine if trial.key.defense == label]
                # An attack that does not apply under a defense is not tried again there.
                wanted += len(under) if under and all(map(_did_not_apply, under)) else len(plan.updates)
            found.append(
                AttackSummary(
                    label=planned.label,
                    settings=describe_settings(planned.attack),
                    is_baseline=planned.is_baseline,
                    planned=wanted,
                    done=len(mine),
                    failed=len(failed),
                    seconds=sum(trial.account.cost.seconds for trial in mine),
                    evaluations=sum(trial.account.cost.evaluations for trial in mine),
                    remark=self._remark(mine),
                    prior=None if planned.prior is None else self._prior_use(planned, planned.prior, trials),
                )
            )
        return tuple(found)

    def _prior_use(self, planned: PlannedAttack, prior: ResolvedPrior, trials: Sequence[Trial]) -> PriorUse:
        """Return the median score of the prior alone, and of the attack with it under each defense."""
        guesses = (each for each in self.experiment.plan.attacks if each.is_baseline and each.prior is not None)
        baseline = next((each.label for each in guesses if each.prior_hash == planned.prior_hash), "")
        metric = self.goals[0].metric
        alone = _median(metric, (trial for trial in trials if trial.key.attack == baseline))
        mine = () if planned.is_baseline else [trial for trial in trials if trial.key.attack == planned.label]
        by_defense = {
            label: _median(metric, (trial for trial in mine if trial.key.defense == label))
            for label in self.experiment.plan.defenses
        }
        reached = tuple((label, value) for label, value in by_defense.items() if value is not None)
        return PriorUse(prior.value.name, prior.source, planned.prior_hash, baseline, metric, alone, reached)

    def _remark(self, trials: Sequence[Trial]) -> str:
        """Return the reason why trials failed or, for a trained model, why searches ended without a match.

        Some record reproduces the trained model exactly. A search that did not find it is no evidence of privacy.
        """
        failed = [trial.account.status for trial in trials if trial.account.status.is_failure]
        if failed:
            return str(failed[0])
        spent = [trial.account.status for trial in trials if trial.account.status.ending is Ending.BUDGET_SPENT]
        if not spent or self.experiment.subject.trained_model is None:
            return ""
        return f"{len(spent)} of {len(trials)} models were not matched, so the success is a lower bound. {spent[0]}"

    def _summarise_defenses(self, trials: Sequence[Trial]) -> tuple[DefenseSummary, ...]:
        found = []
        for label, defense in self.experiment.plan.defenses.items():
            costs = [t.distortion for t in trials if t.key.defense == label and t.distortion is not None]
            mean = sum(costs) / len(costs) if costs else 0.0
            mechanism = None if defense is None else defense.mechanism
            words = "none" if defense is None else describe_settings(defense)
            found.append(DefenseSummary(label, words, mechanism, mean))
        return tuple(found)

    def _pictures(self, exposures: Sequence[Exposure], estimates: Estimates) -> tuple[Picture, ...]:
        """Return the most exposed records of each defense with their estimates; none if records are not images."""
        dataset = self.experiment.population.dataset
        if len(dataset.shape) != 3 or dataset.shape[0] not in _CHANNELS:
            return ()
        found: list[Picture] = []
        for label in self.experiment.plan.defenses:
            mine = [shown for shown in exposures if shown.defense == label]
            # The same number of pictures for each defense.
            for shown in mine[: LARGEST_GALLERY // len(self.experiment.plan.defenses)]:
                rebuilt = estimates(TrialKey(label, shown.attack, shown.draw))
                if rebuilt is not None:
                    target = dataset.inputs[shown.record].numpy()
                    found.append(Picture(shown, target, rebuilt[shown.place].detach().numpy()))
        return tuple(found)

    def _audit_training(self) -> TrainingAudit | None:
        if self.training is None:
            return None
        finder = self.guarantees
        goal, data = self.goals[0], self.experiment.population.dataset
        prior, mse = finder.prior(goal), mean_squared_error_at(goal, data.data_range)
        corridor = None
        if has_phases(self.training) and prior is not None:
            corridor = risk(
                self.training,
                dimension=data.inputs[0].numel(),
                norm=finder.population.least_norm,
                prior_success=prior.value,
                mse=mse,
                data_range=data.data_range[1] - data.data_range[0],
                delta=_DELTA,
            )
        if self.account is None:
            return TrainingAudit(self.training, corridor, None)
        summary = self.account.summary(data_range=data.data_range)
        leakage = LeakageHistogram(
            records=summary.records,
            steps=summary.steps,
            edges=summary.edges,
            counts=summary.histogram,
            not_positive=summary.not_positive,
            median=summary.median,
            maximum=summary.maximum,
            least_mse_lower_bound=summary.least_mse_lower_bound,
            confidence=summary.confidence,
        )
        return TrainingAudit(self.training, corridor, leakage)


def _assumptions(lines: Sequence[AuditLine], population: int) -> tuple[str, ...]:
    found = [
        f"targets are drawn from {population} records, each equally likely, and intervals refer to such targets",
        "attacks that were not tried may do better; only guarantees cover those",
        *(text for line in lines for each in line.comparisons for text in each.guarantee.assumptions),
    ]
    return tuple(dict.fromkeys(found))  # without duplicates, in the order of the lines


def _did_not_apply(trial: Trial) -> bool:
    return trial.account.status.ending is Ending.NOT_APPLICABLE


def _median(metric: str, trials: Iterable[Trial]) -> float | None:
    scores = sorted(score for trial in trials for score in trial.values(metric))
    return scores[len(scores) // 2] if scores else None  # an element, so that infinite scores cause no NaN

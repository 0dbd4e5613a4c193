"""From trials to lines: how often goals were reached, how that stands to guesses, guarantees and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from reconrisk.accounting.confidence import success_interval
from reconrisk.audit.audit_result import (
    AuditLine,
    Comparison,
    Exposure,
    LimitCheck,
    Outcome,
    Standing,
    Verdict,
)
from reconrisk.audit.trial import Trial
from reconrisk.bounds.for_goal import Answer
from reconrisk.core.goal import Goal, Limit
from reconrisk.core.guarantee import Estimate, Quantity
from reconrisk.core.threat import ThreatModel

FALSE_ALARMS = 1e-3
"""Probability that an audit of sound mechanisms and code reports any contradiction at all."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """The trials of one defense by attack, and what every line needs of the audit.

    ``threats`` are what each attack is run as: guesses may know more than ``threat``, against which it is audited.
    ``planned`` is the number of trials of each attack, some of which time may have cut off.
    """

    trials: Mapping[str, Sequence[Trial]]
    baselines: frozenset[str]
    threats: Mapping[str, ThreatModel]
    threat: ThreatModel
    confidence: float
    alarm_level: float
    planned: int

    def success(self, attack: str, goal: Goal, error: float) -> Estimate:
        """How often an attack reached a goal, with an interval that errs with probability ``error``.

        What is not known counts against both ends: a trial that failed may have succeeded, had the attack worked, and
        so may one that time cut off, since how long an attack takes may depend on whether it succeeds.
        """
        trials = self.trials[attack]
        size, cut = len(trials[0].records), int(len(trials) < self.planned)
        reached = sum(goal.reached(score) for trial in trials for score in trial.values(goal.metric))
        failed = [trial for trial in trials if trial.account.status.is_failure]
        missed = sum(not goal.reached(score) for trial in failed for score in trial.values(goal.metric))
        level = 1 - max(error, 1e-12)
        interval = partial(success_interval, trials=len(trials) + cut, per_trial=size, confidence=level)
        least, most = interval(reached), interval(reached + missed + cut * size)
        return replace(least, value=reached / (size * len(trials)), high=most.high, samples=len(trials))

    def has_worked(self, attack: str) -> bool:
        """Whether any trial of an attack did not fail."""
        return any(not trial.account.status.is_failure for trial in self.trials[attack])

    def outcomes(self, goal: Goal) -> tuple[Outcome, ...]:
        """Every attack that was run, with intervals that hold for all of them at once."""
        error = (1 - self.confidence) / max(1, len(self.trials))
        return tuple(
            Outcome(attack, attack in self.baselines, self.success(attack, goal, error)) for attack in self.trials
        )


def line_of(
    defense: str, goal: Goal, evidence: Evidence, answers: Sequence[Answer], limits: Sequence[Limit]
) -> AuditLine:
    """One goal under one defense.

    Guarantee: intervals hold together for all attacks with the stated confidence. A guarantee is compared only if it
    covers the threat and bounds the success at these records.
    """
    outcomes = evidence.outcomes(goal)
    best = _best(outcomes, goal, evidence, is_baseline=False)
    guess = _best(outcomes, goal, evidence, is_baseline=True)
    comparisons = tuple(_compared(answer, goal, evidence, best) for answer in answers)
    worst_score, worst_record = _worst(goal, evidence)
    return AuditLine(
        defense=defense,
        goal=goal,
        verdict=_verdict(best, guess, comparisons, evidence),
        success=best.success,
        best_attack=best.attack,
        worst_record=worst_record,
        worst_score=worst_score,
        baseline=guess.success,
        best_baseline=guess.attack,
        outcomes=outcomes,
        comparisons=comparisons,
        limits=tuple(
            LimitCheck(limit, _standing(limit, best, guess, comparisons)) for limit in limits if limit.goal == goal
        ),
    )


def exposures_of(defense: str, goals: Sequence[Goal], evidence: Evidence) -> tuple[Exposure, ...]:
    """The best estimate of each record by any attack, most exposed first."""
    first, found = goals[0], dict[int, tuple[float, Exposure]]()
    for attack, trials in evidence.trials.items():
        if attack in evidence.baselines:
            continue
        for trial in trials:
            for place, record in enumerate(trial.records):
                score = trial.values(first.metric)[place]
                rank = score if first.higher_is_better else -score
                if record not in found or rank > found[record][0]:
                    reached = tuple(goal.reached(trial.values(goal.metric)[place]) for goal in goals)
                    shown = Exposure(defense, record, attack, trial.key.draw, place, score, reached)
                    found[record] = (rank, shown)
    return tuple(shown for _, shown in sorted(found.values(), key=lambda pair: -pair[0]))


def _best(outcomes: Sequence[Outcome], goal: Goal, evidence: Evidence, *, is_baseline: bool) -> Outcome:
    """The most successful attack; among equals the one that came nearest on average."""
    ranked = [outcome for outcome in outcomes if outcome.is_baseline == is_baseline]
    if not ranked:
        return Outcome("", is_baseline, Estimate(0.0, 0.0, 1.0, evidence.confidence, 0, "nothing was run"))

    def rank(outcome: Outcome) -> tuple[float, float]:
        scores = sorted(score for trial in evidence.trials[outcome.attack] for score in trial.values(goal.metric))
        middle = scores[len(scores) // 2]  # a mean would be lost to one infinite score
        return outcome.success.value, middle if goal.higher_is_better else -middle

    return max(ranked, key=rank)


def _worst(goal: Goal, evidence: Evidence) -> tuple[float, int]:
    """The best score of any attack, and whose it is."""
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


def _compared(answer: Answer, goal: Goal, evidence: Evidence, best: Outcome) -> Comparison:
    guarantee = answer.guarantee
    if not guarantee.covers(evidence.threat):
        return Comparison(guarantee, False, f"it does not cover {evidence.threat}")
    if not answer.is_about_targets or guarantee.quantity is not Quantity.SUCCESS_PROBABILITY:
        return Comparison(guarantee, False, answer.why)
    if not evidence.trials:
        return Comparison(guarantee, True, answer.why)
    covered = [attack for attack in evidence.trials if guarantee.covers(evidence.threats[attack])]
    if not covered:
        return Comparison(guarantee, False, "it does not cover what the guesses that were run know")
    estimates = {attack: evidence.success(attack, goal, 2 * evidence.alarm_level) for attack in covered}
    highest = max(estimates, key=lambda attack: estimates[attack].low)
    return Comparison(
        guarantee,
        True,
        answer.why,
        tightness=best.success.value / guarantee.value if guarantee.value > 0 else None,
        is_contradicted=guarantee.contradicted_by(estimates[highest]),
        highest_attack=highest,
        highest=estimates[highest],
    )


def _verdict(best: Outcome, guess: Outcome, comparisons: Sequence[Comparison], evidence: Evidence) -> Verdict:
    if any(each.is_contradicted for each in comparisons):
        return Verdict.CONTRADICTION
    if best.success.value > guess.success.value:
        return Verdict.LEAKS
    attacks = [attack for attack in evidence.trials if attack not in evidence.baselines]
    return Verdict.NO_GAIN if any(map(evidence.has_worked, attacks)) else Verdict.NOTHING_RUN


def _standing(limit: Limit, best: Outcome, guess: Outcome, comparisons: Sequence[Comparison]) -> Standing:
    """How the risk stands to its limit: an adversary attacks or guesses, whichever succeeds more often.

    Guarantee: proved only by a bound that no interval lies above. Without that a measured share above the limit is.
    """
    proved = any(each.is_compared and best.success.low <= each.guarantee.value <= limit.at_most for each in comparisons)
    if proved and not any(each.is_contradicted for each in comparisons):
        return Standing.PROVED  # a measured share above it is chance
    run = [each.success for each in (best, guess) if each.success.samples]
    if any(success.value > limit.at_most for success in run):
        return Standing.ABOVE
    shown = bool(best.success.samples) and all(success.high <= limit.at_most for success in run)
    return Standing.MEASURED if shown else Standing.NOT_SHOWN

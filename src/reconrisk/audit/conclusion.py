"""From trials to the result of an audit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from reconrisk.attacks.stated_priors import StatedPrior
from reconrisk.audit.assessment import FALSE_ALARMS, Evidence, exposures_of, line_of
from reconrisk.audit.audit_result import (
    AttackSummary,
    AuditLine,
    AuditResult,
    DefenseSummary,
    Exposure,
    LeakageHistogram,
    Picture,
    PriorUse,
    Subject,
    TrainingAudit,
    contradiction_of,
)
from reconrisk.audit.experiment import Experiment
from reconrisk.audit.fingerprint import environment, in_words, is_bundled
from reconrisk.audit.guarantees import Prover, StatedGuarantee
from reconrisk.audit.plan import PlannedAttack
from reconrisk.audit.remembered import assumptions_of_priors, warnings_of_priors
from reconrisk.audit.run_info import RunInfo
from reconrisk.audit.trial import Trial, TrialKey
from reconrisk.bounds.corridor import risk_corridor
from reconrisk.bounds.for_goal import Answer
from reconrisk.core.goal import Goal, Limit
from reconrisk.core.mechanism import Composed, Gaussian, Mechanism, PoissonSampled, Repeated
from reconrisk.core.reconstruction import Ending

LARGEST_GALLERY = 64
_CHANNELS = (1, 3)
_DELTA = 1e-5

Estimates = Callable[[TrialKey], Tensor | None]


class ContradictedBound(RuntimeError):
    """An attack beats a bound that covers it: the mechanism does not do what it says, or the code is wrong."""

    def __init__(self, result: AuditResult) -> None:
        self.result = result
        super().__init__(" ".join(contradiction_of(line, each) for line, each in result.contradictions))


@dataclass(frozen=True, eq=False)
class Conclusion:
    """All that turns trials into a result."""

    experiment: Experiment
    info: RunInfo
    goals: tuple[Goal, ...]
    limits: tuple[Limit, ...]
    confidence: float
    stated: tuple[StatedGuarantee, ...]
    training: Mechanism | None
    account: object | None

    def result(self, trials: Sequence[Trial], seconds: float, estimates: Estimates) -> AuditResult:
        """The result of these trials."""
        plan, population = self.experiment.plan, self.experiment.population
        dataset, size = population.dataset, len(plan.updates[0])
        evidence, answers = self._evidence(trials), self.prove()
        lines = tuple(
            line_of(label, goal, evidence[label], answers[goal, label], self.limits)
            for goal in self.goals
            for label in plan.defenses
        )
        exposures = tuple(
            shown for label in plan.defenses for shown in exposures_of(label, self.goals, evidence[label])
        )
        attacks = self._attacks(trials)
        return AuditResult(
            run=self.info.run,
            created=self.info.created,
            subject=Subject(
                model=self.info.subject,
                model_hash=self.experiment.sender.fingerprint,
                data=dataset.name,
                data_hash=self.info.data,
                population=len(population.rows),
                shape=dataset.shape,
                data_range=dataset.data_range,
                release=self.experiment.described,
                batch_size=size,
                is_bundled=is_bundled(dataset),
            ),
            threat=self.experiment.threat,
            goals=self.goals,
            confidence=self.confidence,
            defenses=self._defenses(trials),
            attacks=attacks,
            lines=lines,
            exposures=exposures,
            seed=self.experiment.seed,
            planned=sum(attack.planned for attack in attacks),
            done=len(trials),
            seconds=seconds,
            environment=environment(),
            signature=self.info.signature,
            assumptions=(
                *_assumptions(lines, len(population.rows)),
                *assumptions_of_priors(plan.attacks, population),
                *self.experiment.remarks,
            ),
            training=self._training(),
            left_out=plan.left_out,
            warnings=warnings_of_priors(plan.attacks, population),
            pictures=self._pictures(exposures, estimates),
        )

    def prove(self) -> Mapping[tuple[Goal, str], tuple[Answer, ...]]:
        """Every guarantee for every goal under every defense; computed once."""
        if not self._answers:
            for goal in self.goals:
                for label, defense in self.experiment.plan.defenses.items():
                    self._answers[goal, label] = self._prover.answers(goal, label, defense)
        return self._answers

    @cached_property
    def _answers(self) -> dict[tuple[Goal, str], tuple[Answer, ...]]:
        return {}

    @cached_property
    def _prover(self) -> Prover:
        experiment, size = self.experiment, len(self.experiment.plan.updates[0])
        return Prover(experiment.population, experiment.threat, size, self.stated, self.training, experiment.sender)

    def _evidence(self, trials: Sequence[Trial]) -> Mapping[str, Evidence]:
        """Trials by defense and attack, without attacks that applied to no update."""
        plan = self.experiment.plan
        baselines = frozenset(planned.label for planned in plan.attacks if planned.is_baseline)
        threats = {planned.label: self.experiment.threat_of(planned) for planned in plan.attacks}
        compared = sum(answer.is_about_targets for answers in self.prove().values() for answer in answers)
        level = FALSE_ALARMS / (max(1, compared) * len(plan.attacks))
        found: dict[str, Evidence] = {}
        for label in plan.defenses:
            mine: dict[str, list[Trial]] = {}
            for trial in trials:
                if trial.key.defense == label:
                    mine.setdefault(trial.key.attack, []).append(trial)
            applied = {attack: each for attack, each in mine.items() if not all(map(_did_not_apply, each))}
            found[label] = Evidence(
                applied, baselines, threats, self.experiment.threat, self.confidence, level, len(plan.updates)
            )
        return found

    def _attacks(self, trials: Sequence[Trial]) -> tuple[AttackSummary, ...]:
        plan, found = self.experiment.plan, []
        for planned in plan.attacks:
            mine = [trial for trial in trials if trial.key.attack == planned.label]
            failed = [trial for trial in mine if trial.account.status.is_failure]
            found.append(
                AttackSummary(
                    label=planned.label,
                    settings=in_words(planned.attack),
                    is_baseline=planned.is_baseline,
                    planned=sum(self._wanted(label, mine) for label in plan.defenses),
                    done=len(mine),
                    failed=len(failed),
                    seconds=sum(trial.account.cost.seconds for trial in mine),
                    evaluations=sum(trial.account.cost.evaluations for trial in mine),
                    remark=self._remark(mine),
                    prior=None if planned.prior is None else self._prior_use(planned, planned.prior, trials),
                )
            )
        return tuple(found)

    def _prior_use(self, planned: PlannedAttack, prior: StatedPrior, trials: Sequence[Trial]) -> PriorUse:
        """A prior, the median score of the guess that has nothing else, and of the attack under each defense."""
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
        """Why trials failed; of a trained model also that searches ended before they explained it.

        What training led to can be led to again: a search that found no such record is no evidence of privacy.
        """
        failed = [trial.account.status for trial in trials if trial.account.status.is_failure]
        if failed:
            return str(failed[0])
        spent = [trial.account.status for trial in trials if trial.account.status.ending is Ending.BUDGET_SPENT]
        if not spent or not self.experiment.sender.is_trained_model:
            return ""
        return f"{len(spent)} of {len(trials)} models were not explained, so that success is a lower bound. {spent[0]}"

    def _wanted(self, defense: str, trials: Sequence[Trial]) -> int:
        """How many trials of an attack there are to be: no more than were run where it does not apply."""
        mine = [trial for trial in trials if trial.key.defense == defense]
        return len(mine) if mine and all(map(_did_not_apply, mine)) else len(self.experiment.plan.updates)

    def _defenses(self, trials: Sequence[Trial]) -> tuple[DefenseSummary, ...]:
        found = []
        for label, defense in self.experiment.plan.defenses.items():
            costs = [t.distortion for t in trials if t.key.defense == label and t.distortion is not None]
            mean = sum(costs) / len(costs) if costs else 0.0
            mechanism = None if defense is None else defense.mechanism
            found.append(DefenseSummary(label, "none" if defense is None else in_words(defense), mechanism, mean))
        return tuple(found)

    def _pictures(self, exposures: Sequence[Exposure], estimates: Estimates) -> tuple[Picture, ...]:
        """The most exposed records of each defense beside their estimates; none where records are no images."""
        dataset = self.experiment.population.dataset
        if len(dataset.shape) != 3 or dataset.shape[0] not in _CHANNELS:
            return ()
        found: list[Picture] = []
        for label in self.experiment.plan.defenses:
            mine = [shown for shown in exposures if shown.defense == label]
            for shown in mine[: LARGEST_GALLERY // len(self.experiment.plan.defenses)]:
                rebuilt = estimates(TrialKey(label, shown.attack, shown.draw))
                if rebuilt is not None:
                    target = dataset.inputs[shown.record].numpy()
                    found.append(Picture(shown, target, rebuilt[shown.place].detach().numpy()))
        return tuple(found)

    def _training(self) -> TrainingAudit | None:
        if self.training is None:
            return None
        prover = self._prover
        goal, data = self.goals[0], self.experiment.population.dataset
        prior, mse = prover.prior(goal), goal.mean_squared_error(data.data_range)
        corridor = None
        if isinstance(self.training, (Gaussian, PoissonSampled, Repeated, Composed)) and prior is not None:
            corridor = risk_corridor(
                self.training,
                dimension=data.inputs[0].numel(),
                norm=prover.population.least_norm,
                prior_success=prior.value,
                mse=mse,
                data_range=data.data_range[1] - data.data_range[0],
                delta=_DELTA,
            )
        return TrainingAudit(self.training, corridor, _leakage(self.account, data.data_range))


def _leakage(account: Any, data_range: tuple[float, float]) -> LeakageHistogram | None:
    """The spread of leakage over the records of an account."""
    if account is None:
        return None
    summary = account.summary(data_range=data_range)
    return LeakageHistogram(
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


def _assumptions(lines: Sequence[AuditLine], population: int) -> tuple[str, ...]:
    found = [
        f"targets are drawn from {population} records, each equally likely, and intervals speak of such targets",
        "attacks that were not tried may do better; only guarantees speak of those",
        *(text for line in lines for each in line.comparisons for text in each.guarantee.assumptions),
    ]
    return tuple(dict.fromkeys(found))


def _did_not_apply(trial: Trial) -> bool:
    return trial.account.status.ending is Ending.NOT_APPLICABLE


def _median(metric: str, trials: Iterable[Trial]) -> float | None:
    scores = sorted(score for trial in trials for score in trial.values(metric))
    return scores[len(scores) // 2] if scores else None

"""How many records any of several attacks rebuilds under a defense, and how many trials show that it is few."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from reconrisk.attacks.knowledge import PublicKnowledge
from reconrisk.core.defense import Defense
from reconrisk.core.executor import IN_PROCESS, Executor
from reconrisk.core.guarantee import Estimate
from reconrisk.core.metric import Limit
from reconrisk.core.progress import CancelToken
from reconrisk.core.reconstruction import Ending
from reconrisk.core.threat import Knows, ThreatModel
from reconrisk.core.validation import invalid_input
from reconrisk.data.dataset import Dataset
from reconrisk.statistics.intervals import success_interval
from reconrisk.studies.common.arguments import metrics_for
from reconrisk.studies.common.experiment import Experiment
from reconrisk.studies.common.plan import AttackChoice, Plan, PlannedAttack, planned_attacks
from reconrisk.studies.common.population import Population
from reconrisk.studies.common.runs import Trial, TrialKey
from reconrisk.studies.common.subjects.model_updates import ModelUpdates
from reconrisk.studies.common.subjects.subject import DEFAULT_THREAT

_LABEL = "defense"  # the same for all: every defense meets the same noise in the same trial


class OutOfTime(Exception):  # no error: what was found so far is the answer
    """The time for a part of the work is over."""


@contextmanager
def timed(token: CancelToken) -> Iterator[None]:
    """End the work inside with OutOfTime once the token is cancelled; Ctrl-C passes."""
    try:
        with token.active():
            yield
    except KeyboardInterrupt:
        if token.is_cancelled:
            raise OutOfTime from None
        raise


@dataclass(frozen=True)
class Share:
    """Records that any attack or guess rebuilt, for each limit, of ``updates`` with ``per_update`` records.

    ``unknown`` records are of updates on which no attack worked: they may have been rebuilt, had one. ``is_whole``
    unless counting ended at the first record too many.
    """

    updates: int
    per_update: int
    reached: tuple[int, ...]
    unknown: int
    is_whole: bool = True

    def exceeds(self, allowed: Sequence[int]) -> bool:
        """Whether more may have been rebuilt than is allowed for any limit."""
        return any(count + self.unknown > most for count, most in zip(self.reached, allowed, strict=True))

    def estimates(self, confidence: float) -> tuple[Estimate, ...]:
        """The shares with intervals; what is unknown counts against the upper ends."""
        if not self.updates:
            return ()
        found = []
        for count in self.reached:
            least, most = (
                success_interval(each, trials=self.updates, per_trial=self.per_update, confidence=confidence)
                for each in (count, min(count + self.unknown, self.updates * self.per_update))
            )
            found.append(replace(least, high=most.high))
        return tuple(found)

    def without_intervals(self, why: str) -> tuple[Estimate, ...]:
        """The shares alone: anything from 0 to 1 may be the truth."""
        records = self.updates * self.per_update
        return tuple(Estimate(count / records, 0.0, 1.0, 1.0, self.updates, why) for count in self.reached if records)


@dataclass(frozen=True, eq=False)
class Attackers:
    """Attacks and guesses on the updates of private records, under any defense.

    A record counts as rebuilt if any of them reaches the goal: no single adversary does better than that. Who knows the
    defense may ignore it, so that attacks which do not know it count too.
    """

    subject: ModelUpdates
    population: Population
    public: Dataset
    threat: ThreatModel
    choice: str | Sequence[AttackChoice]
    updates: tuple[tuple[int, ...], ...]
    limits: tuple[Limit, ...]
    seed: int
    executor: Executor = IN_PROCESS
    _guessed: dict[int, list[list[bool]]] = field(default_factory=dict, init=False, repr=False)
    _plans: dict[float | None, tuple[PlannedAttack, ...]] = field(default_factory=dict, init=False, repr=False)

    def share(self, defense: Defense | None, draws: Sequence[int], allowed: Sequence[int], token: CancelToken) -> Share:
        """Attack the updates ``draws``, until more records are rebuilt than is allowed for some limit.

        Guarantee: under two defenses, trials of one draw have the same records, the same source of noise and search.
        """
        experiments, size = self._experiments(defense), len(self.updates[0])
        share = Share(0, size, (0,) * len(self.limits), 0)
        attack = partial(self._attacked, experiments)
        for _, (reached, worked) in self.executor.run(attack, draws, token=token):
            counts = tuple(count + sum(flags) for count, flags in zip(share.reached, reached, strict=True))
            updates, unknown = share.updates + 1, share.unknown + (0 if worked else size)
            share = Share(updates, size, counts, unknown, is_whole=updates == len(draws))
            if share.exceeds(allowed):
                return share
        if share.updates < len(draws):
            raise OutOfTime
        return share

    def guessed(self, draws: Sequence[int]) -> Share:
        """Records that any guess rebuilds, without a look at the update: no defense changes that."""
        counts = [0] * len(self.limits)
        for draw in draws:
            counts = [count + sum(flags) for count, flags in zip(counts, self._guesses(draw), strict=True)]
        return Share(len(draws), self.records_per_update, tuple(counts), 0)

    @property
    def records_per_update(self) -> int:
        """Records that share an update."""
        return len(self.updates[0])

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The attacks that the threat allows, guesses left out."""
        return tuple(planned.label for planned in self._planned(None) if not planned.is_baseline)

    def _attacked(self, experiments: Sequence[Experiment], draw: int) -> tuple[list[list[bool]], bool]:
        """For each limit which records of an update were rebuilt, and whether any attack worked.

        Every attack is tried on every update: one without an active neuron says nothing about the next.
        """
        reached, worked = [list(flags) for flags in self._guesses(draw)], False
        tries = ((each, planned) for each in experiments for planned in each.plan.attacks if not planned.is_baseline)
        for experiment, planned in tries:
            if all(map(all, reached)):  # later attacks cannot add to it
                return reached, True
            trial = self._trial(experiment, planned, draw)
            worked = worked or not trial.account.status.is_failure
            self._add(reached, trial)
        return reached, worked

    def _guesses(self, draw: int) -> list[list[bool]]:
        """For each limit which records of an update guesses rebuild: the same under every defense."""
        if draw not in self._guessed:
            experiment = self._undefended
            reached = [[False] * self.records_per_update for _ in self.limits]
            for planned in (each for each in experiment.plan.attacks if each.is_baseline):
                self._add(reached, self._trial(experiment, planned, draw))
            self._guessed[draw] = reached
        return self._guessed[draw]

    def _add(self, reached: list[list[bool]], trial: Trial) -> None:
        for flags, limit in zip(reached, self.limits, strict=True):
            for place, score in enumerate(trial.values(limit.goal.metric)):
                flags[place] = flags[place] or limit.goal.reached(score)

    def _trial(self, experiment: Experiment, planned: PlannedAttack, draw: int) -> Trial:
        trial, _ = experiment.trial(TrialKey(_LABEL, planned.label, draw))
        if trial.account.status.ending is Ending.INTERRUPTED:
            raise KeyboardInterrupt
        return trial

    def _experiment(self, defense: Defense | None) -> Experiment:
        plan = Plan(self._planned(getattr(defense, "clip_norm", None)), {_LABEL: defense}, self.updates, 0.0)
        metrics = metrics_for(self.population.dataset, [limit.goal for limit in self.limits])
        return Experiment(plan, self.subject, self.population, self.threat, metrics, self.seed)

    def _experiments(self, defense: Defense | None) -> tuple[Experiment, ...]:
        """Attacks as the threat states, and those that ignore a defense which it knows."""
        stated = self._experiment(defense)
        if defense is None or Knows.DEFENSE not in self.threat.knows:
            return (stated,)
        attacks = tuple(each for each in self._planned(None) if Knows.DEFENSE not in each.attack.needs.knows)
        unaware = ThreatModel(self.threat.sees, self.threat.knows - {Knows.DEFENSE}, self.threat.controls)
        return stated, replace(stated, plan=replace(stated.plan, attacks=attacks), threat=unaware)

    def _planned(self, clip_norm: float | None) -> tuple[PlannedAttack, ...]:
        """Attacks that know at which norm a known defense clips."""
        if clip_norm not in self._plans:
            dataset = self.population.dataset
            knowledge = PublicKnowledge(
                dataset.shape,
                len(self.updates[0]),
                self.public,
                dataset.subset(list(self.population.rows)),
                dataset.columns,
                clip_norm if Knows.DEFENSE in self.threat.knows else None,
                data_range=dataset.data_range,
            )
            self._plans[clip_norm] = planned_attacks(
                self.choice, self.threat, knowledge, any_prior=self.threat == DEFAULT_THREAT
            )
        return self._plans[clip_norm]

    @cached_property
    def _undefended(self) -> Experiment:
        return self._experiment(None)


def most_allowed(at_most: float, *, trials: int, per_trial: int, confidence: float) -> int | None:
    """The most successes after which the upper end of the interval is within the limit; None if no number is.

    >>> most_allowed(0.05, trials=72, per_trial=1, confidence=0.95)
    0
    >>> most_allowed(0.05, trials=71, per_trial=1, confidence=0.95) is None
    True
    """
    found = None
    for count in range(trials * per_trial + 1):
        if success_interval(count, trials=trials, per_trial=per_trial, confidence=confidence).high > at_most:
            break
        found = count
    return found


def trials_that_show(at_most: float, *, per_trial: int, confidence: float, successes: int = 0) -> int:
    """The fewest trials after which so many successes still show that the share is within the limit.

    >>> trials_that_show(0.05, per_trial=1, confidence=0.95)
    72
    """
    if not 0 < at_most <= 1:
        raise invalid_input("at_most", at_most, "in (0, 1]", "No number of trials shows that something never happens.")

    def shows(trials: int) -> bool:
        interval = success_interval(
            min(successes, trials * per_trial), trials=trials, per_trial=per_trial, confidence=confidence
        )
        return interval.high <= at_most

    high = 1
    while not shows(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if shows(middle) else (middle, high)
    return high


def trials_beyond_guesses(
    at_most: float, guessed: float, *, per_trial: int, confidence: float, available: int
) -> int | None:
    """Trials that forgive a success, and twice as many as guesses have, as far as they are available.

    Edge cases: None where not even trials without any success would show the limit.

    >>> trials_beyond_guesses(0.05, 0.0, per_trial=1, confidence=0.95, available=1000)
    110
    >>> trials_beyond_guesses(0.05, 0.01, per_trial=1, confidence=0.95, available=1000)
    285
    """
    found, successes = None, 0
    while True:
        trials = trials_that_show(at_most, per_trial=per_trial, confidence=confidence, successes=successes)
        if trials > available:
            return found
        found = trials
        if successes >= per_trial + 2 * guessed * trials * per_trial:
            return found
        successes += per_trial

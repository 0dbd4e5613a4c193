"""Count the records that any attack reconstructs under a defense, and the trials needed to show that they are few."""

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
from reconrisk.studies.common.plan import AttackChoice, Plan, PlannedAttack, plan_attacks
from reconrisk.studies.common.population import Population
from reconrisk.studies.common.runs import Trial, TrialKey
from reconrisk.studies.common.subjects.model_updates import ModelUpdates
from reconrisk.studies.common.subjects.subject import DEFAULT_THREAT

_LABEL = "defense"  # one label for every defense: trial seeds derive from it, so all defenses meet the same noise


class OutOfTime(Exception):  # not an error: the results found so far are the answer
    """Signal that the time for a part of the work is over."""


@contextmanager
def time_limit(token: CancelToken) -> Iterator[None]:
    """Raise OutOfTime inside the block once the token is cancelled; Ctrl-C passes through unchanged.

    Args:
        token: Token that is active during the block.

    Yields:
        Nothing.

    Raises:
        OutOfTime: If the token was cancelled.
    """
    try:
        with token.active():
            yield
    except KeyboardInterrupt:
        if token.is_cancelled:
            raise OutOfTime from None
        raise


@dataclass(frozen=True)
class SuccessCounts:
    """Numbers of records that any attack or baseline reconstructed.

    Attributes:
        updates: Number of attacked updates.
        per_update: Records in each update.
        reached: Reconstructed records, one count per limit.
        unknown: Records of updates on which every attack failed. A working attack might have reconstructed them.
        is_complete: False if counting stopped at the first record beyond the allowed number.
    """

    updates: int
    per_update: int
    reached: tuple[int, ...]
    unknown: int
    is_complete: bool = True

    def exceeds(self, allowed: Sequence[int]) -> bool:
        """Return True if the reached and unknown records together exceed the allowed count of any limit."""
        return any(count + self.unknown > most for count, most in zip(self.reached, allowed, strict=True))

    def estimates(self, confidence: float) -> tuple[Estimate, ...]:
        """Return the shares with intervals; unknown records count as reached in the upper ends."""
        if not self.updates:
            return ()
        found = []
        for count in self.reached:
            # two intervals: without and with the unknown records; value and lower end are those of the first
            least, most = (
                success_interval(each, trials=self.updates, per_trial=self.per_update, confidence=confidence)
                for each in (count, min(count + self.unknown, self.updates * self.per_update))
            )
            found.append(replace(least, high=most.high))
        return tuple(found)

    def without_intervals(self, reason: str) -> tuple[Estimate, ...]:
        """Return the shares with the trivial interval [0, 1]; ``reason`` takes the place of the method's name."""
        records = self.updates * self.per_update
        return tuple(
            Estimate(count / records, 0.0, 1.0, 1.0, self.updates, reason) for count in self.reached if records
        )


@dataclass(frozen=True, eq=False)
class AttackEnsemble:
    """Attacks and baselines on the updates of private records, under any defense.

    A record counts as reconstructed if any of them reaches the goal. No single adversary of the ensemble does better.
    An adversary who knows the defense may ignore it, so attacks that do not use this knowledge count too.

    Attributes:
        subject: Model, records and recipe of the updates.
        population: Private records that targets are drawn from.
        public: Records known to the adversary.
        threat: Threat model of the adversary.
        choice: Attacks or the name of a portfolio.
        updates: Rows of the records in each update.
        limits: Goals with the accepted share of records.
        seed: Seed of all trials.
        executor: Executor of the trials.
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
    _guess_cache: dict[int, list[list[bool]]] = field(default_factory=dict, init=False, repr=False)
    _plans: dict[float | None, tuple[PlannedAttack, ...]] = field(default_factory=dict, init=False, repr=False)

    def count_successes(
        self, defense: Defense | None, draws: Sequence[int], allowed: Sequence[int], token: CancelToken
    ) -> SuccessCounts:
        """Attack updates until one limit is exceeded or all updates are attacked.

        Args:
            defense: Defense of the updates; None for none.
            draws: Numbers of the updates to attack.
            allowed: Largest count allowed for each limit; counting stops beyond it.
            token: Token that ends the work when its time is over.

        Returns:
            The number of reconstructed records for each limit.

        Raises:
            OutOfTime: If the token was cancelled before all updates were attacked.

        Guarantee: trials of one update use the same records and random seeds under every defense.
        """
        experiments, size = self._build_experiments(defense), len(self.updates[0])
        counts = SuccessCounts(0, size, (0,) * len(self.limits), 0)
        attack = partial(self._attack_update, experiments)
        for _, (reached, worked) in self.executor.run(attack, draws, token=token):
            total = tuple(count + sum(flags) for count, flags in zip(counts.reached, reached, strict=True))
            updates, unknown = counts.updates + 1, counts.unknown + (0 if worked else size)
            counts = SuccessCounts(updates, size, total, unknown, is_complete=updates == len(draws))
            if counts.exceeds(allowed):
                return counts
        if counts.updates < len(draws):
            raise OutOfTime
        return counts

    def count_guessed(self, draws: Sequence[int]) -> SuccessCounts:
        """Count the records that baselines reconstruct without the update, which no defense changes."""
        counts = [0] * len(self.limits)
        for draw in draws:
            counts = [count + sum(flags) for count, flags in zip(counts, self._guess_update(draw), strict=True)]
        return SuccessCounts(len(draws), self.records_per_update, tuple(counts), 0)

    @property
    def records_per_update(self) -> int:
        """Number of records in each update."""
        return len(self.updates[0])

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Names of the attacks that the threat model allows, without baselines."""
        return tuple(planned.label for planned in self._plan_attacks(None) if not planned.is_baseline)

    def _attack_update(self, experiments: Sequence[Experiment], draw: int) -> tuple[list[list[bool]], bool]:
        """Return flags of the reconstructed records for each limit, and True if any attack worked.

        Every attack is tried on every update: a failure on one (no active neuron) does not imply one on the next.
        """
        reached, worked = [list(flags) for flags in self._guess_update(draw)], False
        tries = ((each, planned) for each in experiments for planned in each.plan.attacks if not planned.is_baseline)
        for experiment, planned in tries:
            if all(map(all, reached)):  # further attacks cannot add successes
                return reached, True
            trial = self._run_trial(experiment, planned, draw)
            worked = worked or not trial.account.status.is_failure
            self._mark_reached(reached, trial)
        return reached, worked

    def _guess_update(self, draw: int) -> list[list[bool]]:
        """Return flags of the records that baselines reconstruct, for each limit; cached for all defenses."""
        if draw not in self._guess_cache:
            experiment = self._undefended_experiment
            reached = [[False] * self.records_per_update for _ in self.limits]
            for planned in (each for each in experiment.plan.attacks if each.is_baseline):
                self._mark_reached(reached, self._run_trial(experiment, planned, draw))
            self._guess_cache[draw] = reached
        return self._guess_cache[draw]

    def _mark_reached(self, reached: list[list[bool]], trial: Trial) -> None:
        for flags, limit in zip(reached, self.limits, strict=True):
            for place, score in enumerate(trial.values(limit.goal.metric)):
                flags[place] = flags[place] or limit.goal.is_reached_by(score)

    def _run_trial(self, experiment: Experiment, planned: PlannedAttack, draw: int) -> Trial:
        trial, _ = experiment.trial(TrialKey(_LABEL, planned.label, draw))
        if trial.account.status.ending is Ending.INTERRUPTED:
            raise KeyboardInterrupt
        return trial

    def _build_experiment(self, defense: Defense | None) -> Experiment:
        # 0 seconds per evaluation: only audits show the expected time of a plan
        plan = Plan(self._plan_attacks(getattr(defense, "clip_norm", None)), {_LABEL: defense}, self.updates, 0.0)
        metrics = metrics_for(self.population.dataset, [limit.goal for limit in self.limits])
        return Experiment(plan, self.subject, self.population, self.threat, metrics, self.seed)

    def _build_experiments(self, defense: Defense | None) -> tuple[Experiment, ...]:
        """Return an experiment under the stated threat, and one that ignores a known defense."""
        stated = self._build_experiment(defense)
        if defense is None or Knows.DEFENSE not in self.threat.knows:
            return (stated,)
        # without the clip norm, and only attacks that can run without knowledge of the defense
        attacks = tuple(each for each in self._plan_attacks(None) if Knows.DEFENSE not in each.attack.needs.knows)
        unaware = ThreatModel(self.threat.sees, self.threat.knows - {Knows.DEFENSE}, self.threat.controls)
        return stated, replace(stated, plan=replace(stated.plan, attacks=attacks), threat=unaware)

    def _plan_attacks(self, clip_norm: float | None) -> tuple[PlannedAttack, ...]:
        """Plan the attacks, given the clip norm of the defense if the threat model knows it."""
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
            # the default threat model admits any public prior; a stated one names its knowledge itself
            self._plans[clip_norm] = plan_attacks(
                self.choice, self.threat, knowledge, any_prior=self.threat == DEFAULT_THREAT
            )
        return self._plans[clip_norm]

    @cached_property
    def _undefended_experiment(self) -> Experiment:
        return self._build_experiment(None)


def largest_allowed_count(at_most: float, *, trials: int, per_trial: int, confidence: float) -> int | None:
    """Return the largest number of successes that still shows a success rate within the limit.

    Args:
        at_most: Accepted success rate.
        trials: Number of independent trials.
        per_trial: Records in each trial, which may depend on each other.
        confidence: Confidence of the interval.

    Returns:
        The largest count with an upper interval end of at most ``at_most``; None if not even 0 successes suffice.

    >>> largest_allowed_count(0.05, trials=72, per_trial=1, confidence=0.95)
    0
    >>> largest_allowed_count(0.05, trials=71, per_trial=1, confidence=0.95) is None
    True
    """
    found = None
    for count in range(trials * per_trial + 1):  # the upper end grows with the count
        if success_interval(count, trials=trials, per_trial=per_trial, confidence=confidence).high > at_most:
            break
        found = count
    return found


def trials_needed(at_most: float, *, per_trial: int, confidence: float, successes: int = 0) -> int:
    """Return the smallest number of trials that shows a success rate within the limit.

    Args:
        at_most: Accepted success rate.
        per_trial: Records in each trial, which may depend on each other.
        confidence: Confidence of the interval.
        successes: Number of observed successes.

    Returns:
        The number of trials after which the upper interval end is at most ``at_most``.

    Raises:
        InvalidInput: If ``at_most`` is not in (0, 1].

    >>> trials_needed(0.05, per_trial=1, confidence=0.95)
    72
    """
    if not 0 < at_most <= 1:
        raise invalid_input(
            "at_most",
            at_most,
            "in (0, 1]",
            "Pass a share above 0: no number of trials can show that something never happens.",
        )

    def shows(trials: int) -> bool:
        interval = success_interval(
            min(successes, trials * per_trial), trials=trials, per_trial=per_trial, confidence=confidence
        )
        return interval.high <= at_most

    high = 1
    while not shows(high):  # doubling, then bisection: the upper end falls with the number of trials
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if shows(middle) else (middle, high)
    return high


def trials_above_guessing(
    at_most: float, guessed: float, *, per_trial: int, confidence: float, available: int
) -> int | None:
    """Return a number of trials that tolerates some successes beyond those of guessing.

    The number tolerates one trial full of successes and twice the expected successes of guessing, if enough trials are
    available. Otherwise it tolerates as many as the available trials permit.

    Args:
        at_most: Accepted success rate.
        guessed: Success rate of guessing.
        per_trial: Records in each trial, which may depend on each other.
        confidence: Confidence of the interval.
        available: Largest possible number of trials.

    Returns:
        The number of trials; None if even ``available`` trials without a success do not show the limit.

    >>> trials_above_guessing(0.05, 0.0, per_trial=1, confidence=0.95, available=1000)
    110
    >>> trials_above_guessing(0.05, 0.01, per_trial=1, confidence=0.95, available=1000)
    285
    """
    found, successes = None, 0
    while True:
        trials = trials_needed(at_most, per_trial=per_trial, confidence=confidence, successes=successes)
        if trials > available:
            return found
        found = trials
        if successes >= per_trial + 2 * guessed * trials * per_trial:
            return found
        successes += per_trial

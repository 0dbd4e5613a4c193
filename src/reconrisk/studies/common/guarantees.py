"""The guarantees that belong to each line of an audit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

from reconrisk.accounting.phases import phases_of
from reconrisk.bounds.for_goal import Answer, Question, guarantees_for
from reconrisk.bounds.prior_success import PriorSuccess
from reconrisk.core.defense import Defense
from reconrisk.core.goal import Goal
from reconrisk.core.guarantee import Guarantee
from reconrisk.core.mechanism import Composed, Gaussian, Mechanism, PoissonSampled, Repeated
from reconrisk.core.threat import ThreatModel
from reconrisk.releases.shadow.release import PrivateModelRelease
from reconrisk.studies.common.plan import Sender
from reconrisk.studies.common.population import Population

StatedGuarantee: TypeAlias = Callable[[Goal, str], Guarantee | None]
"""A guarantee that the caller states for a goal under the defense of this label, None for none."""

_STATED = "stated by the caller for these records"
_SAMPLED = "over whether a record is sampled; the attacked update always holds it"
_WHOLE_RUN = "of the whole run, of which the attacked update, which always holds the record, is one step"
_WITHOUT_NOISE = "of a run with noise, which the attacked model was trained without"
_ONE_IS_LEFT = "of targets that are independent of the known records, which here are all others of the data"


@dataclass(frozen=True, eq=False)
class Prover:
    """Where the lines of an audit get their guarantees from."""

    population: Population
    threat: ThreatModel
    batch_size: int
    stated: tuple[StatedGuarantee, ...] = ()
    training: Mechanism | None = None
    sender: Sender = field(default_factory=Sender)

    def answers(self, goal: Goal, label: str, defense: Defense | None) -> tuple[Answer, ...]:
        """Every guarantee for a goal under a defense: from its mechanism, from the caller, from the whole run."""
        found = [guarantee for guarantee in (source(goal, label) for source in self.stated) if guarantee is not None]
        answers = [Answer(guarantee, True, _STATED) for guarantee in found]
        mechanism = None if defense is None else defense.mechanism
        if mechanism is not None:
            answers += [_of_one_update(each, mechanism) for each in self._from(mechanism, goal)]
        answers += self._of_training(goal)
        if self.sender.fitted is not None:
            answers = [
                each if each.why == _STATED else replace(each, is_about_targets=False, why=_ONE_IS_LEFT)
                for each in answers
            ]
        return tuple(answers)

    def _of_training(self, goal: Goal) -> list[Answer]:
        """Guarantees of the whole run; they are about the attacked model only if it was trained with that noise."""
        private = self.sender.release if isinstance(self.sender.release, PrivateModelRelease) else None
        if private is not None:
            runs = dict.fromkeys(each for each in (private.mechanism, self.training) if each is not None)
            return [_of_one_update(each, run) for run in runs for each in self._from(run, goal)]
        why = _WITHOUT_NOISE if self.sender.is_trained_model else _WHOLE_RUN
        answers = () if self.training is None else self._from(self.training, goal)
        return [Answer(each.guarantee, False, why) for each in answers]

    def prior(self, goal: Goal) -> PriorSuccess | None:
        """The best success of guesses, None for a goal that no mean squared error stands for."""
        if goal not in self._priors:
            mse = goal.mean_squared_error(self.population.dataset.data_range)
            self._priors[goal] = (
                None
                if mse is None
                else self.population.prior_success(mse, knows=self.threat.knows, batch_size=self.batch_size)
            )
        return self._priors[goal]

    @cached_property
    def _priors(self) -> dict[Goal, PriorSuccess | None]:
        return {}

    def _from(self, mechanism: Mechanism, goal: Goal) -> Sequence[Answer]:
        prior, data = self.prior(goal), self.population.dataset
        mse = goal.mean_squared_error(data.data_range)
        if prior is None or mse is None:
            return ()
        dimension = data.inputs[0].numel()
        return guarantees_for(Question(mechanism, mse, dimension, data.data_range, prior, self.population.least_norm))


def _of_one_update(answer: Answer, mechanism: Mechanism) -> Answer:
    """The answer as one about an update that holds the target: chance in who is sampled no longer protects it."""
    if not isinstance(mechanism, (Gaussian, PoissonSampled, Repeated, Composed)):
        return answer
    sampled = not all(phase.is_full_batch for phase in phases_of(mechanism))
    return replace(answer, is_about_targets=False, why=_SAMPLED) if sampled else answer

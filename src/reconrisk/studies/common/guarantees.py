"""The guarantees that belong to each line of an audit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from reconrisk.accounting.phases import has_phases, phases_of
from reconrisk.bounds.for_goal import BoundQuery, BoundResult, guarantees_for
from reconrisk.bounds.prior_success import PriorSuccess
from reconrisk.core.defense import Defense
from reconrisk.core.guarantee import Guarantee
from reconrisk.core.mechanism import Mechanism
from reconrisk.core.metric import Goal
from reconrisk.core.threat import ThreatModel
from reconrisk.metrics.goals import mean_squared_error_at
from reconrisk.studies.common.population import Population
from reconrisk.studies.common.subjects.subject import OF_UPDATES, GuaranteeScope, Subject

StatedGuarantee: TypeAlias = Callable[[Goal, str], Guarantee | None]
"""A guarantee that the caller states for a goal under the defense of this label, None for none."""

_STATED = "stated by the caller for these records"
_SAMPLED = "over whether a record is sampled; the attacked update always holds it"


@dataclass(frozen=True, eq=False)
class GuaranteeFinder:
    """Where the lines of an audit get their guarantees from."""

    population: Population
    threat: ThreatModel
    batch_size: int
    stated: tuple[StatedGuarantee, ...] = ()
    training: Mechanism | None = None
    scope: GuaranteeScope = OF_UPDATES
    trained_with: Mechanism | None = None
    """The mechanism of the noise that an attacked model was trained with."""
    _priors: dict[Goal, PriorSuccess | None] = field(default_factory=dict, init=False, repr=False)

    @staticmethod
    def of(
        subject: Subject,
        population: Population,
        threat: ThreatModel,
        stated: tuple[StatedGuarantee, ...] = (),
        training: Mechanism | None = None,
    ) -> GuaranteeFinder:
        """Return the finder for a subject, with guarantees that the caller states and the mechanism of its run."""
        about = (subject.guarantee_scope, subject.training_mechanism)
        return GuaranteeFinder(population, threat, subject.recipe.batch_size, stated, training, *about)

    def answers(self, goal: Goal, label: str, defense: Defense | None) -> tuple[BoundResult, ...]:
        """Every guarantee for a goal under a defense: from its mechanism, from the caller, from the whole run."""
        stated = [guarantee for guarantee in (source(goal, label) for source in self.stated) if guarantee is not None]
        answers = [BoundResult(guarantee, True, _STATED) for guarantee in stated]
        mechanism = None if defense is None else defense.mechanism
        sources = [] if mechanism is None else [(mechanism, self.scope.of_defenses)]
        runs = dict.fromkeys(each for each in (self.trained_with, self.training) if each is not None)
        sources += [(run, self.scope.of_training) for run in runs]
        for source, reason in sources:  # which says why its guarantees are not about the attacked records
            found = self._from(source, goal)
            answers += [each if reason is None else BoundResult(each.guarantee, False, reason) for each in found]
        return tuple(answers)

    def prior(self, goal: Goal) -> PriorSuccess | None:
        """The best success of guesses, None for a goal that no mean squared error stands for."""
        if goal not in self._priors:
            mse = mean_squared_error_at(goal, self.population.dataset.data_range)
            self._priors[goal] = (
                None
                if mse is None
                else self.population.prior_success(mse, knows=self.threat.knows, batch_size=self.batch_size)
            )
        return self._priors[goal]

    def _from(self, mechanism: Mechanism, goal: Goal) -> Sequence[BoundResult]:
        """Find the guarantees of a mechanism for an update that holds the target.

        Chance in who is sampled does not protect it there.
        """
        prior, data = self.prior(goal), self.population.dataset
        mse = mean_squared_error_at(goal, data.data_range)
        if prior is None or mse is None:
            return ()
        dimension = data.inputs[0].numel()
        question = BoundQuery(mechanism, mse, dimension, data.data_range, prior, self.population.least_norm)
        found = guarantees_for(question)
        if not has_phases(mechanism) or all(phase.is_full_batch for phase in phases_of(mechanism)):
            return found
        return [replace(each, is_about_targets=False, why=_SAMPLED) for each in found]

"""The guarantees that belong to each line of an audit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from reconrisk.accounting.phases import has_phases, phases_of
from reconrisk.bounds.for_goal import BoundQuery, BoundResult, guarantees_for
from reconrisk.bounds.prior_success import PriorSuccess
from reconrisk.core.defense import Defense
from reconrisk.core.guarantee import CoveredRelease, Guarantee
from reconrisk.core.mechanism import Mechanism
from reconrisk.core.metric import Goal
from reconrisk.core.threat import ThreatModel
from reconrisk.core.validation import invalid_input
from reconrisk.metrics.goals import mean_squared_error_at
from reconrisk.studies.common.population import Population
from reconrisk.studies.common.subjects.subject import OF_UPDATES, GuaranteeScope, Subject

StatedGuarantee: TypeAlias = Callable[[Goal, str], Guarantee | None]
"""Function of a goal and the label of a defense that returns a guarantee of the caller, or None."""

_STATED = "stated by the caller for these records"
_SAMPLED = "it averages over the sampling of records, but the attacked update always contains the target"


@dataclass(frozen=True, eq=False)
class GuaranteeFinder:
    """Source of the guarantees for every goal and defense of an audit.

    Attributes:
        population: Records that targets are drawn from.
        threat: Abilities of the adversary.
        batch_size: Records that share one update.
        stated: Functions that return guarantees of the caller.
        training: Mechanism of the whole training run, if known.
        scope: Reasons why guarantees of defenses or of the training do not cover the attacked records.
        trained_with: Mechanism of the noise that the attacked model was trained with.
    """

    population: Population
    threat: ThreatModel
    batch_size: int
    stated: tuple[StatedGuarantee, ...] = ()
    training: Mechanism | None = None
    scope: GuaranteeScope = OF_UPDATES
    trained_with: Mechanism | None = None
    _priors: dict[Goal, PriorSuccess | None] = field(default_factory=dict, init=False, repr=False)

    @staticmethod
    def of(
        subject: Subject,
        population: Population,
        threat: ThreatModel,
        stated: tuple[StatedGuarantee, ...] = (),
        training: Mechanism | None = None,
    ) -> GuaranteeFinder:
        """Return the finder for a subject.

        Args:
            subject: The audited object.
            population: Records that targets are drawn from.
            threat: Abilities of the adversary.
            stated: Functions that return guarantees of the caller.
            training: Mechanism of the training run, if known.

        Returns:
            The finder, with the scope of guarantees and the training mechanism of the subject.
        """
        known = (subject.guarantee_scope, subject.training_mechanism)
        return GuaranteeFinder(population, threat, subject.recipe.batch_size, stated, training, *known)

    def find_bounds(self, goal: Goal, label: str, defense: Defense | None) -> tuple[BoundResult, ...]:
        """Return every guarantee for a goal: stated by the caller, of the defense's mechanism, and of the whole run.

        Args:
            goal: Success criterion.
            label: Name of the defense as shown in reports, which stated guarantees receive.
            defense: The defense; None for none.

        Returns:
            Each guarantee with its applicability to the targets, in this order; empty if there is none.
        """
        returned: list[Any] = [source(goal, label) for source in self.stated]
        stated = [guarantee for guarantee in returned if guarantee is not None]
        for guarantee in stated:
            if not isinstance(guarantee, Guarantee):
                remedy = "Return a Guarantee or None from every function in guarantees."
                raise invalid_input("guarantees(...)", guarantee, "to be a Guarantee or None", remedy)
        answers = [BoundResult(guarantee, True, _STATED, _stated_release(guarantee)) for guarantee in stated]
        mechanism = None if defense is None else defense.mechanism
        is_exact = bool(getattr(defense, "exact_noise", False))  # defenses of plugins may lack the attribute
        sources = [] if mechanism is None else [(mechanism, self.scope.of_defenses, is_exact)]
        # A private training may also be stated as `training`; equal mechanisms count once.
        runs = dict.fromkeys(each for each in (self.trained_with, self.training) if each is not None)
        sources += [(run, self.scope.of_training, False) for run in runs]
        for source, reason, exact in sources:  # a reason says why these guarantees do not cover the attacked records
            found = self._guarantees_from(source, goal)
            if exact:
                found = [replace(each, guarantee=each.guarantee.with_exact_noise()) for each in found]
            answers += [each if reason is None else BoundResult(each.guarantee, False, reason) for each in found]
        return tuple(answers)

    def prior(self, goal: Goal) -> PriorSuccess | None:
        """Return the best success of a guess; None if the goal has no equivalent mean squared error."""
        if goal not in self._priors:
            mse = mean_squared_error_at(goal, self.population.dataset.data_range)
            self._priors[goal] = (
                None
                if mse is None
                else self.population.prior_success(mse, knows=self.threat.knows, batch_size=self.batch_size)
            )
        return self._priors[goal]

    def _guarantees_from(self, mechanism: Mechanism, goal: Goal) -> Sequence[BoundResult]:
        """Return the guarantees of a mechanism for an update that always contains the target.

        Guarantees that rely on the sampling of records do not apply to such an update and are marked so.
        """
        prior, data = self.prior(goal), self.population.dataset
        mse = mean_squared_error_at(goal, data.data_range)
        if prior is None or mse is None:
            return ()
        dimension = data.inputs[0].numel()
        question = BoundQuery(mechanism, mse, dimension, data.data_range, prior, self.population.least_norm)
        found = guarantees_for(question)
        # Full batches contain every record, so nothing relies on sampling.
        if not has_phases(mechanism) or all(phase.is_full_batch for phase in phases_of(mechanism)):
            return found
        return [replace(each, is_about_targets=False, why=_SAMPLED) for each in found]


def _stated_release(guarantee: Guarantee) -> CoveredRelease:
    """Return the kind of release that a caller vouches for by stating a guarantee for an audit.

    The exact bound for the direction of a record is not accepted: no audited update is that release, and the directions
    of the records of a data set are not uniform.
    """
    return CoveredRelease.ANY if guarantee.release is CoveredRelease.DIRECTION else guarantee.release

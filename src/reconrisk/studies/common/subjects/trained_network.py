"""A trained network whose training the adversary knows except for one record."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from reconrisk.attacks.informed.invert_training.problem import ShadowProblem, problem_for
from reconrisk.attacks.registry import TRAINING
from reconrisk.core.digest import short_digest
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import Mechanism
from reconrisk.core.observation import Attack
from reconrisk.core.threat import Knows, Sees, ThreatModel
from reconrisk.data.dataset import Dataset
from reconrisk.releases.release import Release
from reconrisk.releases.shadow.checks import RandomBatches
from reconrisk.releases.shadow.release import PrivateModelRelease
from reconrisk.releases.shadow.training import ShadowTraining
from reconrisk.releases.shadow.trajectory import PrivateTrajectoryRelease
from reconrisk.releases.training.optimizers import StochasticGradientDescent
from reconrisk.releases.training.trained_model import TrainedModelRelease
from reconrisk.studies.common.subjects.subject import (
    WITHOUT_NOISE,
    GuaranteeScope,
    KnownRecords,
    Subject,
    UpdateRecipe,
    as_dataset,
    check_no_recipe,
)

_TOGETHER = 8  # models that are trained together to time one of them


@dataclass(frozen=True, eq=False)
class TrainedNetwork(Subject):
    """A trained model that is trained again for each target. Its fixed records are known and never targets.

    Attributes:
        given: Release of the trained model that the caller passed.
        dataset: Records that targets are drawn from.
        every_step: True if the adversary sees the change of the parameters in every step.
    """

    given: TrainedModelRelease | PrivateModelRelease
    dataset: Dataset
    # The model of the current draw: training it again for every attack may take longer than the attacks.
    _trained: dict[tuple[int, ...], Release] = field(default_factory=dict, init=False, repr=False)
    every_step: bool = False

    unit = "model"
    sees = (Sees.FINAL_MODEL, Sees.EVERY_UPDATE, Sees.ONE_UPDATE)
    trained_model = TRAINING
    default_threat: ClassVar[ThreatModel] = ThreatModel(
        Sees.FINAL_MODEL, knows=frozenset({Knows.OTHER_RECORDS, Knows.INITIALISATION, Knows.DEFENSE})
    )

    @classmethod
    def supports(cls, subject: object) -> bool:
        """Return True for a training or the release of a trained model."""
        return isinstance(subject, (TrainedModelRelease, PrivateModelRelease, ShadowTraining))

    @classmethod
    def of(cls, subject: Any, data: Any, recipe: UpdateRecipe) -> TrainedNetwork:
        """Build the subject from a training or a release, and records; each trial adds one of them to the training."""
        check_no_recipe(recipe)
        if isinstance(subject, ShadowTraining):
            _check_takes_target(subject)
            dataset = as_dataset(data)
            return cls(_release_of_training(subject, dataset), dataset)
        _check_takes_target(subject.training if isinstance(subject, PrivateModelRelease) else subject)
        return cls(subject, as_dataset(data, subject))

    def seen_by(self, threat: ThreatModel) -> TrainedNetwork:
        """Return the subject that releases every step if the threat sees every update."""
        if threat.sees is not Sees.EVERY_UPDATE:
            return self
        if not isinstance(self.given, PrivateModelRelease):
            remedy = "Pass a training with private=, or threat.sees='final-model'."
            raise InvalidInput(f"Expected training with noise for a threat that sees every update. {remedy}")
        rule = self.given.training.optimizer
        if not isinstance(rule, StochasticGradientDescent) or rule.momentum:
            remedy = "Use rr.releases.sgd(rate), or threat.sees='final-model'."
            raise InvalidInput(f"Expected SGD without momentum for a threat that sees every update. {remedy}")
        return replace(self, every_step=True)

    @property
    def name(self) -> str:
        """Class of the network."""
        given = self.given
        return type(given.training.model if isinstance(given, PrivateModelRelease) else given.model).__name__

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the trained model at the records of the release."""
        return short_digest((type(self.given).__qualname__, sorted(self.given.value().items())))

    def describe(self, attack: Attack) -> str:
        """Describe the training in one phrase."""
        del attack
        given = self.given
        training = given.training if isinstance(given, PrivateModelRelease) else given
        rule = type(training.optimizer).__name__
        rule = "SGD" if rule == "StochasticGradientDescent" else rule
        fixed = 0 if training.fixed_inputs is None else len(training.fixed_inputs)
        known = f"on one record and {fixed} other{'' if fixed == 1 else 's'} that are known"
        if isinstance(given, PrivateModelRelease):
            steps = given.training.step_count
            seen = "every update of" if self.every_step else "the model after"
            return f"{seen} {steps} steps of {rule} with clipped gradients and noise {known}"
        steps = given.steps if given.steps is not None else len(given.batches or ())
        seen = "the model" if given.queries is None else "outputs of the model for known queries"
        return f"{seen} after {steps} steps of {rule} {known}"

    def release(self, rows: tuple[int, ...], attack: Attack, rng: torch.Generator | None = None) -> Release:
        """Return the model trained on the fixed records and these rows; without noise, all attacks share one model."""
        del attack
        inputs, labels = self.batch(rows)
        if isinstance(self.given, PrivateModelRelease):
            kind = PrivateTrajectoryRelease if self.every_step else PrivateModelRelease
            private = kind(self.given.training, inputs, labels, self.given.seed)
            return private if rng is None else private.redraw(rng)
        if rows not in self._trained:
            self._trained.clear()  # trials are ordered by draw, so earlier models are not needed again
            self._trained[rows] = TrainedOnce.of(self.given, inputs, labels)
        return self._trained[rows]

    def evaluate(self, release: Release) -> int:
        """Train as attacks do: several models together if that is faster."""
        inner = self.given.training if isinstance(self.given, PrivateModelRelease) else self.given
        problem = problem_for(inner, tuple(release.inputs.shape[1:]))
        count = _TOGETHER if isinstance(problem, ShadowProblem) else 1
        labels = release.labels.expand(count, *release.labels[0].shape)
        problem.values(release.inputs.flatten(1).expand(count, -1), labels)
        return count

    @property
    def known_records(self) -> KnownRecords | None:
        """Fixed records of the training."""
        training = self.given.training if isinstance(self.given, PrivateModelRelease) else self.given
        if training.fixed_inputs is None or training.fixed_labels is None or not len(training.fixed_inputs):
            return None
        return KnownRecords(training.fixed_inputs, training.fixed_labels)

    @property
    def training_mechanism(self) -> Mechanism | None:
        """Mechanism of a private training; None without noise."""
        return self.given.mechanism if isinstance(self.given, PrivateModelRelease) else None

    @property
    def guarantee_scope(self) -> GuaranteeScope:
        """Guarantees of a run cover the model only if it was trained with that noise."""
        return GuaranteeScope(of_training=None if isinstance(self.given, PrivateModelRelease) else WITHOUT_NOISE)


@dataclass(frozen=True, eq=False)
class TrainedOnce(TrainedModelRelease):
    """A trained model whose training is run once and shared by baselines, attacks and defenses."""

    @classmethod
    def of(cls, release: TrainedModelRelease, inputs: Tensor, labels: Tensor) -> TrainedOnce:
        """Return the same training on other private records."""
        given = {each.name: getattr(release, each.name) for each in fields(release) if each.init}
        return cls(**{**given, "inputs": inputs, "labels": labels})

    def value(self) -> dict[str, Tensor]:
        """Return a copy of the release, because defenses may change it in place."""
        return {name: tensor.clone() for name, tensor in self._value.items()}

    @cached_property
    def _value(self) -> dict[str, Tensor]:
        return super().value()


def _release_of_training(training: ShadowTraining, dataset: Dataset) -> TrainedModelRelease | PrivateModelRelease:
    """Return the model trained on the fixed records and the first record of ``dataset``.

    A random start or order of batches is refused: the attacks of an audit must know them.
    """
    if training.draw_start is not None or isinstance(training.batches, RandomBatches):
        remedy = "Set draw_start=None and fixed batches, or use rr.attacks.reconstructor, which needs neither."
        raise InvalidInput(
            f"Expected training without a random start or order: only its noise may be unknown. {remedy}"
        )
    first = dataset.subset([0])
    labels = torch.zeros(1, dtype=torch.int64) if first.labels is None else first.labels
    if training.private is not None:
        return PrivateModelRelease(training, first.inputs, labels)
    return TrainedModelRelease(
        training.model,
        training.loss_fn,
        first.inputs,
        labels,
        fixed_inputs=training.fixed_inputs,
        fixed_labels=training.fixed_labels,
        optimizer=training.optimizer,
        steps=training.steps,
        batches=training.batches,
    )


def _check_takes_target(training: TrainedModelRelease | ShadowTraining) -> None:
    """Refuse a training without the target in any batch: its model does not depend on the target."""
    if training.batches is None or isinstance(training.batches, RandomBatches):
        return
    fixed = 0 if training.fixed_inputs is None else len(training.fixed_inputs)
    if not any(int(torch.as_tensor(rows).max()) >= fixed for rows in training.batches):
        remedy = (
            f"Leave batches out, or add {fixed} to one of them: the target is row {fixed}, after the fixed records."
        )
        raise InvalidInput(f"Expected batches that contain the attacked record. {remedy}")

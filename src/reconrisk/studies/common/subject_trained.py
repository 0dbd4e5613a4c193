"""Trained models as what is audited: the adversary who knows every record but one, and what that excludes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from reconrisk.core.goal import Goal, psnr
from reconrisk.core.threat import Knows, Sees, ThreatModel
from reconrisk.core.validation import refuse
from reconrisk.data.dataset import Dataset
from reconrisk.releases.content_hash import rows_among
from reconrisk.releases.linear.estimator_release import EstimatorRelease
from reconrisk.releases.release import Release
from reconrisk.releases.shadow.checks import RandomBatches
from reconrisk.releases.shadow.release import PrivateModelRelease
from reconrisk.releases.shadow.training import ShadowTraining
from reconrisk.releases.training.trained_model import TrainedModelRelease
from reconrisk.studies.common.subject_estimator import Fitted

INFORMED_THREAT = ThreatModel(
    Sees.FINAL_MODEL, knows=frozenset({Knows.OTHER_RECORDS, Knows.INITIALISATION, Knows.DEFENSE})
)
"""Whoever sees the trained model and knows all of the training but one record."""

OF_ESTIMATORS = ThreatModel(Sees.FINAL_MODEL, knows=frozenset({Knows.OTHER_RECORDS, Knows.DEFENSE}))
"""The same for a fitted estimator, whose solver forgets where it began."""

_TRAINED = (TrainedModelRelease, PrivateModelRelease, EstimatorRelease, Fitted)


def is_trained_model(subject: object) -> bool:
    """Whether what is audited is a model after its training, not an update on the way."""
    return isinstance(subject, _TRAINED)


def informed_threat(subject: object) -> ThreatModel:
    """The adversary of a trained model unless another is stated."""
    return OF_ESTIMATORS if isinstance(subject, (Fitted, EstimatorRelease)) else INFORMED_THREAT


def goals_for(subject: object) -> tuple[Goal, ...] | None:
    """What counts as rebuilt unless stated: of an estimator, errors of a tenth and a hundredth of the range.

    A mean squared error of a twentieth says little of tables, most of whose columns lie close together.
    """
    return (psnr(20), psnr(40)) if isinstance(subject, Fitted) else None


@dataclass(frozen=True, eq=False)
class KnownRecords:
    """The fixed records of a training, which its adversary knows."""

    inputs: Tensor
    labels: Tensor

    def dataset(self, like: Dataset) -> Dataset | None:
        """As public records of the layout of others; None where they do not have it."""
        if tuple(self.inputs.shape[1:]) != like.shape or not len(self.inputs):
            return None
        labels = self.labels.float() if self.labels.is_floating_point() else self.labels.long()
        inputs = self.inputs.detach().float().clamp(*like.data_range)
        return Dataset("known records", inputs, labels, like.data_range, like.classes, like.columns)

    def among(self, dataset: Dataset) -> tuple[int, ...]:
        """Rows of a data set whose record is one of these."""
        return rows_among(dataset.inputs, self.inputs)


def known_records(subject: object) -> KnownRecords | None:
    """The fixed records of a training; None where there are none, or they are all others of the data."""
    training = subject.training if isinstance(subject, PrivateModelRelease) else subject
    if not isinstance(training, (TrainedModelRelease, ShadowTraining)):
        return None
    if training.fixed_inputs is None or training.fixed_labels is None or not len(training.fixed_inputs):
        return None
    return KnownRecords(training.fixed_inputs, training.fixed_labels)


def check_takes_target(subject: object) -> None:
    """Refuse a training none of whose batches holds the record that is attacked: its model says nothing of it."""
    training = subject.training if isinstance(subject, PrivateModelRelease) else subject
    if not isinstance(training, (TrainedModelRelease, ShadowTraining)) or training.batches is None:
        return
    if isinstance(training.batches, RandomBatches):
        return
    fixed = 0 if training.fixed_inputs is None else len(training.fixed_inputs)
    if not any(int(torch.as_tensor(rows).max()) >= fixed for rows in training.batches):
        remedy = f"Its number is {fixed}, after the fixed records: leave batches out, or name it in one of them."
        raise refuse("batches", "without the target", "to hold the record that is attacked", remedy)


@dataclass(frozen=True, eq=False)
class TrainedOnce(TrainedModelRelease):
    """A trained model whose training is run once, however often it is looked at: by guesses, attacks and defenses."""

    @classmethod
    def of(cls, release: TrainedModelRelease, inputs: Tensor, labels: Tensor) -> TrainedOnce:
        """The same training on other private records."""
        given = {each.name: getattr(release, each.name) for each in fields(release) if each.init}
        return cls(**{**given, "inputs": inputs, "labels": labels})

    def value(self) -> dict[str, Tensor]:
        """What is released, a copy: defenses may change theirs."""
        return {name: tensor.clone() for name, tensor in self._value.items()}

    @cached_property
    def _value(self) -> dict[str, Tensor]:
        return super().value()


def release_of_training(training: ShadowTraining, dataset: Dataset) -> Release:
    """The model that a training makes of its fixed records and the first of ``dataset``.

    Edge cases: a start or an order that is drawn is refused: no attack here inverts what it does not know.
    """
    if training.draw_start is not None or isinstance(training.batches, RandomBatches):
        remedy = "State the start and the batches that were drawn, or attack it with rr.attacks.reconstructor."
        raise refuse("training", "with a drawn start or order", "to be known but for its noise", remedy)
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


def what_is_released(release: Release | Fitted) -> str:
    """What is released, for a reader."""
    if isinstance(release, Fitted):
        return f"{type(release.estimator).__name__} fitted to {len(release.dataset)} records, all but one of them known"
    if isinstance(release, EstimatorRelease):
        count = len(release.known_inputs)
        return f"{type(release.estimator).__name__} fitted to one record and {_records(count)} that are known"
    if isinstance(release, PrivateModelRelease):
        training = release.training
        trained = f"{training.step_count} steps of {_rule(training.optimizer)} with clipped gradients and noise"
        return f"the model after {trained} on one record and {_records(len(training.fixed_inputs))} that are known"
    if isinstance(release, TrainedModelRelease):
        count = 0 if release.fixed_inputs is None else len(release.fixed_inputs)
        steps = release.steps if release.steps is not None else len(release.batches or ())
        seen = "the model" if release.queries is None else "what the model says of known queries"
        known = f"on one record and {_records(count)} that are known"
        return f"{seen} after {steps} steps of {_rule(release.optimizer)} {known}"
    return type(release).__name__


def _records(count: int) -> str:
    return f"{count} other{'' if count == 1 else 's'}"


def _rule(rule: Any) -> str:
    name = type(rule).__name__
    return {"StochasticGradientDescent": "SGD"}.get(name, name)

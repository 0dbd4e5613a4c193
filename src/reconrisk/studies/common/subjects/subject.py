"""Base class of everything that can be audited, and the factory that finds the kind of an object."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor

from reconrisk.core.mechanism import Mechanism
from reconrisk.core.metric import Goal
from reconrisk.core.observation import Attack
from reconrisk.core.registry import Info
from reconrisk.core.threat import Knows, Sees, ThreatModel
from reconrisk.core.validation import invalid_input
from reconrisk.data.dataset import Dataset
from reconrisk.data.load import load_dataset
from reconrisk.releases.release import Release, rows_among
from reconrisk.releases.updates.gradient import ONE_GRADIENT as ONE_GRADIENT
from reconrisk.releases.updates.gradient import UpdateRecipe as UpdateRecipe
from reconrisk.releases.updates.gradient import check_recipe

Records: TypeAlias = Dataset | str | Path | tuple[Any, Any] | tuple[Any, Any, Any]

DEFAULT_THREAT = ThreatModel(Sees.ONE_UPDATE, knows=frozenset({Knows.DEFENSE}))
"""Default adversary: sees one update and knows the defense, because its secrecy does not last."""

WITHOUT_NOISE = "it is about a run with noise, but the attacked model was trained without noise"
_WHOLE_RUN = "it is about the whole run, but the attacked update is one step that always contains the target"
_ONE_UPDATE = "Use rr.success_upper_bound for a guarantee about the whole run: trials attack one update."
_DATA = "Pass an rr.data.Dataset, the name of one, a file, or a pair of tensors: records in [0, 1] and labels."
_KINDS = (
    "reconrisk.studies.common.subjects.model_updates:ModelUpdates",
    "reconrisk.studies.common.subjects.fitted_estimator:FittedEstimator",
    "reconrisk.studies.common.subjects.fitted_estimator:OneRecordEstimator",
    "reconrisk.studies.common.subjects.trained_network:TrainedNetwork",
    "reconrisk.studies.common.subjects.given_release:GivenRelease",
)
"""All kinds of subjects; an object belongs to the first kind that supports it."""


@dataclass(frozen=True, eq=False)
class KnownRecords:
    """Records that the adversary knows, such as the other records of a training.

    Attributes:
        inputs: The records.
        labels: Their labels.
    """

    inputs: Tensor
    labels: Tensor

    def dataset(self, like: Dataset) -> Dataset | None:
        """Return the records as a data set with the layout of ``like``; None if the layouts differ."""
        if tuple(self.inputs.shape[1:]) != like.shape or not len(self.inputs):
            return None
        labels = self.labels.float() if self.labels.is_floating_point() else self.labels.long()
        inputs = self.inputs.detach().float().clamp(*like.data_range)
        return Dataset("known records", inputs, labels, like.data_range, like.classes, like.columns)

    def among(self, dataset: Dataset) -> tuple[int, ...]:
        """Return the rows of a data set whose records are known."""
        return rows_among(dataset.inputs, self.inputs)


@dataclass(frozen=True)
class GuaranteeScope:
    """Reasons why guarantees do not cover the attacked records; None if they do.

    Attributes:
        of_defenses: Reason for guarantees from the mechanism of a defense.
        of_training: Reason for guarantees from the mechanism of a whole training run.
    """

    of_defenses: str | None = None
    of_training: str | None = _WHOLE_RUN


OF_UPDATES = GuaranteeScope()


class Subject(ABC):
    """An object that can be audited. Subclasses override what differs from the updates of a model.

    :func:`subject_of` finds and builds a kind through ``supports`` and ``of``. Trials, plans, guarantees and reports
    read the rest.

    Attributes:
        dataset: Records that targets are drawn from.
        recipe: Training of a client before it sends an update.
        unit: Kind of release that an attack sees, ``"update"`` or ``"model"``.
        trained_model: Kind of the trained model, as in ``reads`` of attacks; None if updates are released.
        default_threat: Adversary of audits that state none.
        default_goals: Goals of audits that state none; None for the usual ones.
        sees: Releases that an adversary may see.
        sees_remedy: Last sentence of the message about any other release.
        has_candidates: True if attacks may use the population as candidates. False if all other records are known.
    """

    dataset: Dataset
    recipe: UpdateRecipe = ONE_GRADIENT
    unit: ClassVar[str] = "update"
    trained_model: ClassVar[str | None] = None
    default_threat: ClassVar[ThreatModel] = DEFAULT_THREAT
    default_goals: ClassVar[tuple[Goal, ...] | None] = None
    sees: ClassVar[tuple[Sees, ...]] = (Sees.ONE_UPDATE, Sees.FINAL_MODEL)
    sees_remedy: ClassVar[str] = _ONE_UPDATE
    has_candidates: ClassVar[bool] = True

    @classmethod
    @abstractmethod
    def supports(cls, subject: object) -> bool:
        """Return True if an object is of this kind."""

    @classmethod
    @abstractmethod
    def of(cls, subject: Any, data: Any, recipe: UpdateRecipe) -> Subject:
        """Build the subject of an object.

        Args:
            subject: An object that this kind supports.
            data: Records that targets are drawn from.
            recipe: Training of a client.

        Returns:
            The subject, with its records as a data set.

        Raises:
            InvalidInput: If the data or the recipe do not fit the object.
        """

    @property
    @abstractmethod
    def name(self) -> str:
        """Default name in reports."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Digest of everything except the records that a release depends on."""

    @abstractmethod
    def describe(self, attack: Attack) -> str:
        """Describe the release that this attack sees."""

    @abstractmethod
    def release(self, rows: tuple[int, ...], attack: Attack, rng: torch.Generator | None = None) -> Release:
        """Return the release of these rows, computed with the layer that the attack plants, if any.

        Args:
            rows: Rows of :attr:`dataset`.
            attack: The attack that will see the release.
            rng: Source of the noise of a private training; None if the value of the release is not needed.

        Returns:
            The release, whose private records are those of the rows.
        """

    def evaluate(self, release: Release) -> int:
        """Evaluate a release as attacks do; return the number of evaluations that were run together."""
        derivative = release.linearize()
        derivative.pull({name: torch.ones_like(value) for name, value in release.template().items()})
        return 1

    @property
    def known_records(self) -> KnownRecords | None:
        """Records that the adversary knows and that are never targets; None if there are none."""
        return None

    @property
    def remarks(self) -> tuple[str, ...]:
        """Further facts for the report."""
        return ()

    @property
    def training_mechanism(self) -> Mechanism | None:
        """Mechanism of the noise that the attacked model was trained with; None without noise."""
        return None

    @property
    def guarantee_scope(self) -> GuaranteeScope:
        """Reasons why some guarantees do not cover the attacked records."""
        return OF_UPDATES

    def check_training(self, training: Mechanism | None) -> None:
        """Refuse a mechanism of the training run that this kind cannot have; by default accept all."""
        del training

    def threat(self, stated: Any) -> ThreatModel:
        """Return the stated threat after checking that it sees the release, or the default for None."""
        if stated is None:
            return self.default_threat
        if not isinstance(stated, ThreatModel):
            remedy = "Pass rr.ThreatModel(sees='one-update', knows={'defense'}), for instance."
            raise invalid_input("threat", stated, "to be a ThreatModel", remedy)
        if stated.sees not in self.sees:
            expected = f"to be {' or '.join(each.value for each in self.sees)}"
            raise invalid_input("threat.sees", stated.sees.value, expected, self.sees_remedy)
        return stated

    def seen_by(self, threat: ThreatModel) -> Subject:
        """Return the subject whose releases an adversary with these powers sees; by default the same."""
        del threat
        return self

    def batch(self, rows: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Return the records and labels of these rows; labels are zero if the data have none."""
        batch = self.dataset.subset(list(rows))
        return batch.inputs, torch.zeros(len(batch), dtype=torch.int64) if batch.labels is None else batch.labels


def subject_of(subject: Any, data: Any, recipe: UpdateRecipe = ONE_GRADIENT) -> Subject:
    """Return the :class:`Subject` of an object.

    Args:
        subject: A torch model, a release, a training, or a fitted estimator.
        data: Records that targets are drawn from: a data set, its name, a file, or a pair of records and labels. An
            estimator needs all records of its fit.
        recipe: Training of a client; for models only.

    Returns:
        The object, wrapped in the first subclass of Subject that supports it.

    Raises:
        InvalidInput: If the object is of no known kind, or the data or the recipe do not fit it.
    """
    check_recipe(recipe)
    for where in _KINDS:  # imported one by one: scikit-learn and shadow training load only when needed
        kind: type[Subject] = Info("", where, "").load()
        if kind.supports(subject):
            return kind.of(subject, data, recipe)
    what = f"the class {subject.__name__}" if isinstance(subject, type) else type(subject).__name__
    expected = "to be a torch model, a release or a fitted estimator"
    raise invalid_input("type(subject)", what, expected, "Pass the model itself, with its weights.")


def as_dataset(data: Any, release: Release | None = None, *, name: str = "data") -> Dataset:
    """Return records as a data set.

    Args:
        data: A data set, the name of one, a file, or a pair of records and labels.
        release: Release whose own records are used if ``data`` is None.
        name: Name of the argument, for error messages.

    Returns:
        The data set; a pair of tensors gets the range [0, 1].

    Raises:
        InvalidInput: If ``data`` is anything else.
    """
    if isinstance(data, Dataset):
        return data
    if isinstance(data, (str, Path)):
        return load_dataset(data)
    if data is None and release is not None:
        labels = release.labels if release.labels.dtype == torch.int64 else release.labels.float()
        return Dataset("records of the release", release.inputs.detach().float(), labels)
    if not isinstance(data, tuple) or len(data) != 2:
        found = None if data is None else type(data).__name__
        raise invalid_input(name if data is None else f"type({name})", found, "to hold records and labels", _DATA)
    tensors: list[Tensor] = []
    for part, values in zip(("records", "labels"), data, strict=True):
        if not isinstance(values, (Tensor, np.ndarray, list)):
            raise invalid_input(f"type({part} of {name})", type(values).__name__, "to be a tensor or an array", _DATA)
        tensors.append(values.detach() if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values)))
    inputs, labels = tensors
    # Real labels are targets of a regression, whole ones are classes.
    return Dataset("records", inputs.float(), labels.float() if labels.is_floating_point() else labels.long())


def check_no_recipe(recipe: UpdateRecipe) -> None:
    """Refuse settings of clients for a model that is already trained.

    Args:
        recipe: Training of a client.

    Raises:
        InvalidInput: If a setting differs from its default.
    """
    stated = {"loss_fn": recipe.loss_fn, "local_steps": recipe.local_steps}
    for name, value in stated.items():
        if value is not None:
            raise invalid_input(
                name, value, "to be left out for a trained model", "Remove it: the subject states its own training."
            )
    if recipe.batch_size != 1:
        raise invalid_input(
            "batch_size", recipe.batch_size, "to be 1 for a trained model, which has exactly one unknown record"
        )

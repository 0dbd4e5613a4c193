"""The base class of everything that can be audited, and the factory that finds the kind of an object."""

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
from reconrisk.releases.updates.recipe import ONE_GRADIENT as ONE_GRADIENT
from reconrisk.releases.updates.recipe import UpdateRecipe as UpdateRecipe
from reconrisk.releases.updates.recipe import check_recipe

Records: TypeAlias = Dataset | str | Path | tuple[Any, Any] | tuple[Any, Any, Any]

DEFAULT_THREAT = ThreatModel(Sees.ONE_UPDATE, knows=frozenset({Knows.DEFENSE}))
"""Whoever reads one update and knows how it was defended: secrecy of the defense protects nobody for long."""

WITHOUT_NOISE = "of a run with noise, which the attacked model was trained without"
_WHOLE_RUN = "of the whole run, of which the attacked update, which always holds the record, is one step"
_ONE_UPDATE = "Trials attack one update: guarantees for more are those of rr.success_upper_bound for the whole run."
_DATA = "Pass an rr.data.Dataset, the name of one, a file, or a pair of tensors: records in [0, 1] and labels."
_KINDS = (
    "reconrisk.studies.common.subjects.model_updates:ModelUpdates",
    "reconrisk.studies.common.subjects.fitted_estimator:FittedEstimator",
    "reconrisk.studies.common.subjects.fitted_estimator:OneRecordEstimator",
    "reconrisk.studies.common.subjects.trained_network:TrainedNetwork",
    "reconrisk.studies.common.subjects.given_release:GivenRelease",
)
"""Every kind of subject; the first that supports an object takes it."""


@dataclass(frozen=True, eq=False)
class KnownRecords:
    """Records that the adversary knows, such as the other records of a training."""

    inputs: Tensor
    labels: Tensor

    def dataset(self, like: Dataset) -> Dataset | None:
        """Return them as public records of the layout of others; None where they do not have it."""
        if tuple(self.inputs.shape[1:]) != like.shape or not len(self.inputs):
            return None
        labels = self.labels.float() if self.labels.is_floating_point() else self.labels.long()
        inputs = self.inputs.detach().float().clamp(*like.data_range)
        return Dataset("known records", inputs, labels, like.data_range, like.classes, like.columns)

    def among(self, dataset: Dataset) -> tuple[int, ...]:
        """Return the rows of a data set whose record is one of these."""
        return rows_among(dataset.inputs, self.inputs)


@dataclass(frozen=True)
class GuaranteeScope:
    """Why a guarantee is not about the attacked records; None where it is.

    ``of_defenses`` is about mechanisms of defenses, ``of_training`` about the mechanism of a whole training run.
    """

    of_defenses: str | None = None
    of_training: str | None = _WHOLE_RUN


OF_UPDATES = GuaranteeScope()


class Subject(ABC):
    """Something that is audited. Subclasses overwrite what differs from updates of a model.

    ``supports`` and ``of`` are how :func:`subject_of` finds and builds a kind; everything else is what trials, plans,
    guarantees and reports read. ``dataset`` holds the records that targets are drawn from.
    """

    dataset: Dataset
    recipe: UpdateRecipe = ONE_GRADIENT
    unit: ClassVar[str] = "update"
    """What an attack sees: "update" or "model"."""
    trained_model: ClassVar[str | None] = None
    """Kind of the trained model (``reads`` of attacks); None where updates are released."""
    default_threat: ClassVar[ThreatModel] = DEFAULT_THREAT
    default_goals: ClassVar[tuple[Goal, ...] | None] = None
    sees: ClassVar[tuple[Sees, ...]] = (Sees.ONE_UPDATE, Sees.FINAL_MODEL)
    sees_remedy: ClassVar[str] = _ONE_UPDATE
    has_candidates: ClassVar[bool] = True
    """The records that targets are drawn from may be candidates of an attack; not where all others are known."""

    @classmethod
    @abstractmethod
    def supports(cls, subject: object) -> bool:
        """Return True if an object is of this kind."""

    @classmethod
    @abstractmethod
    def of(cls, subject: Any, data: Any, recipe: UpdateRecipe) -> Subject:
        """Build the subject of an object, its records and the clients' recipe; refuse what does not fit."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What reports call it unless somebody names it."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Digest of everything that a release depends on besides the records."""

    @abstractmethod
    def describe(self, attack: Attack) -> str:
        """Describe what is released where this attack is run."""

    @abstractmethod
    def release(self, rows: tuple[int, ...], attack: Attack, rng: torch.Generator | None = None) -> Release:
        """Return what is released of these rows, with the layer that the attack plants if it plants one.

        Args:
            rows: Rows of :attr:`dataset`.
            attack: The attack that will see it.
            rng: Draws the noise of a private training; None where the value of the release is not needed.
        """

    def evaluate(self, release: Release) -> int:
        """Evaluate a release as attacks do, and return the number of evaluations that this was."""
        derivative = release.linearized()
        derivative.pull({name: torch.ones_like(value) for name, value in release.template().items()})
        return 1

    @property
    def known(self) -> KnownRecords | None:
        """Records that the adversary knows and that are no targets; None without any."""
        return None

    @property
    def remarks(self) -> tuple[str, ...]:
        """Further facts that a reader of the report must know."""
        return ()

    @property
    def training_mechanism(self) -> Mechanism | None:
        """The mechanism of the noise that the attacked model was trained with; None without noise."""
        return None

    @property
    def guarantee_scope(self) -> GuaranteeScope:
        """Which guarantees are about the attacked records."""
        return OF_UPDATES

    def check_training(self, training: Mechanism | None) -> None:
        """Refuse a stated mechanism of a training run that this kind cannot have; by default any is accepted."""
        del training

    def threat(self, stated: Any) -> ThreatModel:
        """Return the stated threat if it sees what is released, or the default one for None."""
        if stated is None:
            return self.default_threat
        if not isinstance(stated, ThreatModel):
            remedy = "Pass rr.ThreatModel(sees='one-update', knows={'defense'}), for instance."
            raise invalid_input("threat", stated, "to be a ThreatModel", remedy)
        if stated.sees not in self.sees:
            expected = f"to be {' or '.join(each.value for each in self.sees)}"
            raise invalid_input("threat.sees", stated.sees.value, expected, self.sees_remedy)
        return stated

    def batch(self, rows: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Return records and labels of these rows; labels are zero where there are none."""
        batch = self.dataset.subset(list(rows))
        return batch.inputs, torch.zeros(len(batch), dtype=torch.int64) if batch.labels is None else batch.labels


def subject_of(subject: Any, data: Any, recipe: UpdateRecipe = ONE_GRADIENT) -> Subject:
    """Return what is audited as a :class:`Subject`.

    Args:
        subject: A torch model, a release, a training, or a fitted estimator.
        data: Records that targets are drawn from: a data set, its name, a file, or a pair of records and labels. An
            estimator comes with all records of its fit.
        recipe: How clients train; for models only.

    Raises:
        InvalidInput: If the object is of no known kind, or the data or the recipe do not fit it.
    """
    check_recipe(recipe)
    for where in _KINDS:
        kind: type[Subject] = Info("", where, "").load()
        if kind.supports(subject):
            return kind.of(subject, data, recipe)
    what = f"the class {subject.__name__}" if isinstance(subject, type) else type(subject).__name__
    expected = "to be a torch model, a release or a fitted estimator"
    raise invalid_input("subject", what, expected, "Pass the model itself, with its weights.")


def records_of(data: Any, release: Release | None = None) -> Dataset:
    """Return records as a data set; those of a release where none are stated."""
    if isinstance(data, Dataset):
        return data
    if isinstance(data, (str, Path)):
        return load_dataset(data)
    if data is None and release is not None:
        labels = release.labels if release.labels.dtype == torch.int64 else release.labels.float()
        return Dataset("records of the release", release.inputs.detach().float(), labels)
    if not isinstance(data, tuple) or len(data) != 2:
        came = None if data is None else type(data).__name__
        raise invalid_input("data", came, "to hold the records that are attacked", _DATA)
    tensors: list[Tensor] = []
    for name, values in zip(("records", "labels"), data, strict=True):
        if not isinstance(values, (Tensor, np.ndarray, list)):
            raise invalid_input(name, type(values).__name__, "to be a tensor or an array", _DATA)
        tensors.append(values.detach() if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values)))
    inputs, labels = tensors
    return Dataset("records", inputs.float(), labels.float() if labels.is_floating_point() else labels.long())


def check_no_recipe(recipe: UpdateRecipe) -> None:
    """Refuse settings of clients where a model is trained already."""
    stated = {"loss_fn": recipe.loss_fn, "local_steps": recipe.local_steps}
    for name, value in stated.items():
        if value is not None:
            raise invalid_input(name, value, "to be left out for a trained model", "Its training is stated with it.")
    if recipe.batch_size != 1:
        raise invalid_input(
            "batch_size", recipe.batch_size, "to be 1", "All records but one of a trained model are known."
        )

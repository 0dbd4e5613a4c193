"""A fitted scikit-learn estimator and the records of its fit; each record in turn is the unknown one."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from reconrisk.attacks.informed.glm.accuracy import leftover_limit
from reconrisk.attacks.informed.glm.arguments import known_records
from reconrisk.attacks.informed.glm.equations import equations
from reconrisk.attacks.registry import ESTIMATOR
from reconrisk.core.digest import short_digest
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import Mechanism
from reconrisk.core.metric import Goal
from reconrisk.core.observation import Attack
from reconrisk.core.threat import Knows, Sees, ThreatModel
from reconrisk.core.validation import invalid_input
from reconrisk.data.dataset import Dataset
from reconrisk.data.load import load_dataset
from reconrisk.metrics.goals import psnr_at_least
from reconrisk.releases.fitted_estimators.estimator_release import (
    EstimatorRelease,
    check_features,
    coefficients,
    read_all_records,
)
from reconrisk.releases.fitted_estimators.estimators import Floats, broadcast_sample_weight, is_estimator
from reconrisk.releases.release import Release
from reconrisk.studies.common.subjects.given_release import GivenRelease
from reconrisk.studies.common.subjects.subject import (
    WITHOUT_NOISE,
    GuaranteeScope,
    Subject,
    UpdateRecipe,
    as_dataset,
    check_no_recipe,
)

_ESTIMATOR_THREAT = ThreatModel(Sees.FINAL_MODEL, knows=frozenset({Knows.OTHER_RECORDS, Knows.DEFENSE}))
"""Adversary who sees the fitted estimator and knows all records but one. The solver's start does not matter."""

_RELEASED = "Use this value: only the fitted estimator is released."
_ONE_IS_LEFT = "it needs targets that are independent of the known records, which here are all others of the data"
# Remaining gradient of the fit, relative to that of a typical record, up to which attacks are not affected.
_SMALL = 0.1
# Factor above the solver's stopping rule beyond which the gradient is no rounding error: the records are other ones.
_FARTHER = 10.0
_DATA = "Pass the (features, labels) of the fit, (features, labels, sample_weight), or an rr.data.Dataset."


@dataclass(frozen=True, eq=False)
class FittedEstimator(Subject):
    """A fitted estimator with all records of its fit.

    Attributes:
        estimator: The fitted estimator.
        dataset: The records with values in a stated range.
        inputs: The records in the units of the estimator, in double precision: ``low + width * dataset.inputs``.
        labels: Indices of classes, or real numbers.
        weights: Weights of the records in the fit.
        low: Smallest value of each column; None if the records are not scaled.
        width: Range of each column; None if the records are not scaled.
    """

    estimator: Any
    dataset: Dataset
    inputs: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)
    weights: Floats = field(repr=False)
    low: Tensor | None = field(default=None, repr=False)
    width: Tensor | None = field(default=None, repr=False)

    unit = "model"
    trained_model = ESTIMATOR
    default_threat = _ESTIMATOR_THREAT
    # The usual goal of 0.05 of the squared range is weak for tables: values of most columns are close together.
    default_goals: ClassVar[tuple[Goal, ...]] = (psnr_at_least(20), psnr_at_least(40))
    sees = (Sees.FINAL_MODEL,)
    sees_remedy = _RELEASED
    has_candidates = False

    @classmethod
    def supports(cls, subject: object) -> bool:
        """Return True for a scikit-learn estimator."""
        return is_estimator(subject) and not isinstance(subject, (type, nn.Module))

    @classmethod
    def of(cls, subject: Any, data: Any, recipe: UpdateRecipe) -> FittedEstimator:
        """Build the subject from an estimator and all records of its fit."""
        check_no_recipe(recipe)
        return attach_records(subject, data)

    @property
    def name(self) -> str:
        """Class of the estimator."""
        return type(self.estimator).__name__

    def describe(self, attack: Attack) -> str:
        """Describe the fit."""
        del attack
        return f"{self.name} fitted to {len(self.dataset)} records, all but one of them known"

    def evaluate(self, release: Release) -> int:
        """Fit once."""
        release.evaluate_predictors()  # type: ignore[attr-defined]  # the release of this subject has it
        return 1

    @property
    def guarantee_scope(self) -> GuaranteeScope:
        """No guarantee covers targets that depend on the known records."""
        return GuaranteeScope(of_defenses=_ONE_IS_LEFT, of_training=_ONE_IS_LEFT)

    def check_training(self, training: Mechanism | None) -> None:
        """Refuse any mechanism."""
        if training is not None:
            raise invalid_input("training", training, "to be None for an estimator, which is fitted without noise")

    @property
    def fingerprint(self) -> str:
        """Digest of the coefficients, the settings and the sample weights."""
        values = sorted(coefficients(self.estimator).items())
        if self.is_weighted:
            values.append(("sample_weight", torch.as_tensor(self.weights.copy())))
        return short_digest((repr(self.estimator), values))

    @property
    def is_weighted(self) -> bool:
        """True if the records have different weights in the fit."""
        return bool((self.weights != 1).any())

    def release(
        self, rows: tuple[int, ...], attack: Attack | None = None, rng: torch.Generator | None = None
    ) -> EstimatorRelease:
        """Return the estimator as the release of one record, with all others known."""
        del attack, rng
        if len(rows) != 1:
            raise invalid_input(
                "batch_size", len(rows), "to be 1 for an estimator, which has exactly one unknown record"
            )
        others = torch.ones(len(self.inputs), dtype=torch.bool)
        others[rows[0]] = False
        return EstimatorRelease(
            self.estimator,
            self.dataset.inputs[list(rows)],
            self.labels[list(rows)],
            known_inputs=self.inputs[others],
            known_labels=self.labels[others],
            known_weights=self.weights[others.numpy()] if self.is_weighted else None,
            target_weight=float(self.weights[rows[0]]),
            low=self.low,
            width=self.width,
        )

    @cached_property
    def remarks(self) -> tuple[str, ...]:
        r"""Accuracy of the fit, which limits every attack: the gradient that the solver left at the coefficients.

        .. math:: \frac{|\sum_i g_i + \lambda\theta|}{\mathrm{median}_i |g_i|}

        Here :math:`g_i` is the gradient of record i at the coefficients :math:`\theta`, and :math:`\lambda` the
        penalty.

        Returns:
            One sentence about the fit, and one about the units of errors if the records were scaled to their column
            ranges.

        Raises:
            InvalidInput: If the gradient is larger than the solver's stopping rule allows. The estimator was then
                fitted to other records.

        Edge cases: if the solver stopped early or has no stopping rule for the gradient, the remark states so instead.
        """
        names = self.release((0,)).forward.names(self.labels)  # labels in the terms of the estimator
        system = equations(read_all_records(self.estimator, names, self.weights), self.inputs, 1.0)
        solver = system.model.optimisation
        left = float((system.moments / system.scales).square().mean().sqrt())
        # Norm of the gradient of each record, in units of the column scales.
        residuals = system.objective.residuals(system.theta) * system.objective.weights[:, None]
        rows = (system.objective.design / system.scales).square().mean(1)
        typical = float((residuals.square().mean(1) * rows).sqrt().median())
        ranges = () if self.low is None else ("errors are in units of the column ranges, which are taken as public",)
        if left <= _SMALL * typical:
            return (
                f"{solver.words}; the remaining gradient is {left / typical:.1e} of that of a typical record",
                *ranges,
            )
        exceeds_rule = left > _FARTHER * leftover_limit(system)
        if solver.gradient_limit is not None and not solver.stopped_early and exceeds_rule:
            raise InvalidInput(
                f"Expected data to be the records that {type(self.estimator).__name__} was fitted to, but at its "
                "coefficients "
                f"the gradient is {left / typical:.2g} times that of a typical record. "
                f"Check that features, labels, sample_weight and penalty (C or alpha) are those of the fit. {_DATA}"
            )
        inexact = (
            f"{solver.words}: the remaining gradient, {left / typical:.2g} times that of a typical record, hides "
            "records from this attack; a longer fit, or knowledge of the solver's path, may reveal them"
        )
        return (inexact, *ranges)


def attach_records(estimator: Any, data: Any) -> FittedEstimator:
    """Return an estimator with the records of its fit as a subject.

    Columns of plain arrays that leave [0, 1] are scaled to their ranges, so that the errors of all columns count alike.

    Args:
        estimator: A fitted linear estimator.
        data: A data set, the name of one, a file, ``(features, labels)`` or ``(features, labels, sample_weight)``.

    Returns:
        The subject.

    Raises:
        InvalidInput: If the estimator is not fitted or not linear, or the records are not those of the fit.
    """
    if isinstance(data, (str, Path)):
        data = load_dataset(data)
    if isinstance(data, Dataset):
        if data.labels is None:
            raise invalid_input("data", data.name, "to have labels", _DATA)
        rows, labels = known_records(data.inputs, data.labels)
        found = FittedEstimator(
            estimator, data, rows, _encode_labels(estimator, labels, data.classes), np.ones(len(rows))
        )
    elif isinstance(data, tuple) and len(data) in (2, 3):
        found = _from_arrays(estimator, *data)
    else:
        raise invalid_input("type(data)", type(data).__name__, "to hold the records of the fit", _DATA)
    check_features(estimator, found.inputs.shape[1])
    if len(found.inputs) < 2:
        raise invalid_input(
            "number of records in data", len(found.inputs), ">= 2: one is attacked, the others are known"
        )
    _ = found.remarks  # computed now, so that records of another fit are refused before any trial
    return found


def _from_arrays(estimator: Any, features: Any, labels: Any, sample_weight: Any = None) -> FittedEstimator:
    rows, names = known_records(features, labels)
    if len(rows) != len(names):
        raise InvalidInput(f"Expected one label per record, got {len(rows)} records and {len(names)} labels.")
    weights = broadcast_sample_weight(sample_weight, len(rows)).copy()
    answers = _encode_labels(estimator, names, None)
    shown = answers if answers.dtype == torch.int64 else answers.float()
    classes = tuple(str(name) for name in estimator.classes_) if answers.dtype == torch.int64 else None
    low, high = rows.min(0).values, rows.max(0).values
    if float(low.min()) >= 0 and float(high.max()) <= 1:
        return FittedEstimator(
            estimator, Dataset("records", rows.float(), shown, classes=classes), rows, answers, weights
        )
    width = torch.where(high > low, high - low, torch.ones_like(high))  # a constant column keeps its unit
    scaled = ((rows - low) / width).clamp(0, 1).float()
    return FittedEstimator(
        estimator, Dataset("records", scaled, shown, classes=classes), rows, answers, weights, low, width
    )


def _encode_labels(estimator: Any, names: NDArray[Any], classes: tuple[str, ...] | None) -> Tensor:
    """Return labels as indices of the estimator's classes, or as real numbers."""
    known = getattr(estimator, "classes_", None)
    if known is None:
        return torch.as_tensor(names.astype(float))
    known = np.asarray(known)
    if classes is not None and known.dtype.kind in "US":  # fitted to names, while data sets hold indices
        names = np.asarray(classes)[names]
    unknown = ~np.isin(names, known)
    if unknown.any():
        remedy = "Pass the labels of the fit."
        raise invalid_input(
            f"labels[{int(unknown.argmax())}]", names[unknown][0], "to be one of estimator.classes_", remedy
        )
    return torch.as_tensor(np.searchsorted(known, names))  # scikit-learn keeps classes_ sorted


@dataclass(frozen=True, eq=False)
class OneRecordEstimator(GivenRelease):
    """The release of a fitted estimator with one unknown record, as the caller passed it."""

    given: EstimatorRelease

    unit = "model"
    trained_model = ESTIMATOR
    default_threat = _ESTIMATOR_THREAT
    sees = (Sees.FINAL_MODEL,)
    sees_remedy = _RELEASED

    @classmethod
    def supports(cls, subject: object) -> bool:
        """Return True for the release of an estimator."""
        return isinstance(subject, EstimatorRelease)

    @classmethod
    def of(cls, subject: Any, data: Any, recipe: UpdateRecipe) -> OneRecordEstimator:
        """Build the subject from the release alone."""
        check_no_recipe(recipe)
        if data is not None:
            remedy = (
                "Pass the estimator itself with all its records, (features, labels): each in turn is the unknown one."
            )
            raise invalid_input("type(data)", type(data).__name__, "to be None for the release of one record", remedy)
        return cls(subject, as_dataset(None, subject))

    def describe(self, attack: Attack) -> str:
        """Describe the fit."""
        del attack
        count = len(self.given.known_inputs)
        known = f"{count} other{'' if count == 1 else 's'}"
        return f"{type(self.given.estimator).__name__} fitted to one record and {known} that are known"

    def evaluate(self, release: Release) -> int:
        """Fit once."""
        release.evaluate_predictors()  # type: ignore[attr-defined]  # the release of this subject has it
        return 1

    @property
    def guarantee_scope(self) -> GuaranteeScope:
        """Guarantees of a training run do not apply: the estimator was fitted without noise."""
        return GuaranteeScope(of_training=WITHOUT_NOISE)

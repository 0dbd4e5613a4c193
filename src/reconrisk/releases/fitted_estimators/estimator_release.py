"""A fitted scikit-learn estimator as a release: its coefficients as a function of the one unknown record."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import check_all_finite, check_not_empty, invalid_input
from reconrisk.releases.fitted_estimators.estimators import (
    Floats,
    LinearModel,
    check_readable,
    is_estimator,
    read_estimator,
)
from reconrisk.releases.release import Linearized, Release, check_records

# Results of a fit that the adversary is assumed to know: classes, numbers of features, and the end of the solver.
_PUBLIC = ("classes_", "n_iter_", "solver_", "n_features_in_", "feature_names_in_")


@dataclass(frozen=True, eq=False)
class EstimatorMap:
    """Forward map from candidate records to the coefficients of the estimator fitted to them and the known records.

    It holds the knowledge of an informed adversary only: no coefficients of the attacked fit.

    Attributes:
        estimator: The estimator without its coefficients: penalties, solver, classes.
        known_inputs: Known records in the units of the estimator, (m, features).
        known_labels: Known labels; class indices for classifiers.
        known_weights: Sample weights of the known records; None for 1.
        target_weight: Sample weight of the unknown record.
        low: Smallest value of each column; a record x is ``low + width * x`` in the units of the estimator.
        width: Range of each column.
    """

    estimator: Any
    known_inputs: Tensor = field(repr=False)
    known_labels: Tensor = field(repr=False)
    known_weights: Floats | None = field(default=None, repr=False)
    target_weight: float = 1.0
    low: Tensor | None = field(default=None, repr=False)
    width: Tensor | None = field(default=None, repr=False)

    def __call__(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the coefficients of the estimator fitted again; they have no derivative."""
        from sklearn.base import clone  # slow to import

        features = torch.cat([self.known_inputs, self.to_estimator_units(inputs.detach())]).numpy()
        names = np.concatenate([self.names(self.known_labels), self.names(labels)])
        weights = None
        if self.known_weights is not None or self.target_weight != 1:
            known = np.ones(len(self.known_inputs)) if self.known_weights is None else self.known_weights
            weights = np.append(known, np.full(len(inputs), self.target_weight))  # known records come first
        return coefficients(clone(self.estimator).fit(features, names, sample_weight=weights))

    def to_estimator_units(self, records: Tensor) -> Tensor:
        """Return records as rows in the units of the estimator, in double precision."""
        rows = records.flatten(1).double()
        return rows if self.low is None or self.width is None else self.low + self.width * rows

    def to_record_units(self, rows: Tensor) -> Tensor:
        """Return rows in the units of the estimator as flat records in units of the column ranges."""
        return rows if self.low is None or self.width is None else (rows - self.low) / self.width

    def names(self, labels: Tensor) -> NDArray[Any]:
        """Return labels as the estimator writes them: classes by name, numbers unchanged."""
        values = labels.detach().cpu().numpy()
        classes = getattr(self.estimator, "classes_", None)
        return values.astype(float) if classes is None else np.asarray(classes)[values]

    def with_coefficients(self, released: Mapping[str, Tensor]) -> Any:
        """Return the estimator with these coefficients, as its users have it."""
        seen = copy.copy(self.estimator)
        seen.coef_ = released["coef"].detach().cpu().numpy()
        seen.intercept_ = released["intercept"].detach().cpu().numpy() if "intercept" in released else 0.0
        return seen


@dataclass(frozen=True, eq=False)
class EstimatorRelease(Release):
    r"""The coefficients of a fitted scikit-learn estimator; the adversary knows all records but one.

    .. math:: f(x) = \arg\min_\theta F(\theta; D_- \cup \{x\})

    Here F is the training objective, :math:`D_-` the known records and x the unknown one.

    Attributes:
        estimator: The fitted estimator.
        inputs: The unknown record, ``(1, *shape)``, in units of the column ranges if ``low`` and ``width`` are given.
        labels: Its label; for classifiers an index of ``estimator.classes_``.
        known_inputs: All other records that ``estimator`` was fitted to, (m, features), in double precision.
        known_labels: Their labels.
        known_weights: Their sample weights; None for 1.
        target_weight: Sample weight of the unknown record.
        low: Smallest value of each column; the estimator was fitted to ``low + width * x``.
        width: Range of each column.

    Assumes: the estimator was fitted to these records and no others.
    Guarantee: the release is the coefficients that the estimator has; nothing is fitted again. ``forward`` holds
    neither the record nor the coefficients, and fits anew.
    Edge cases: estimators that :func:`reconrisk.releases.fitted_estimators.estimators.read_estimator` cannot read are
    refused, as is another number of features than the estimator has. There is no derivative.
    Reference: the released-model adversary of section II, balle2022.

    >>> from sklearn.linear_model import Ridge
    >>> x, y = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]).double(), torch.tensor([0.0, 1.0, 4.0]).double()
    >>> fitted = Ridge().fit(x.numpy(), y.numpy())
    >>> release = EstimatorRelease(fitted, x[2:], y[2:], known_inputs=x[:2], known_labels=y[:2])
    >>> sorted(release.value())
    ['coef', 'intercept']
    """

    estimator: Any
    inputs: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)
    known_inputs: Tensor = field(repr=False, kw_only=True)
    known_labels: Tensor = field(repr=False, kw_only=True)
    known_weights: Floats | None = field(default=None, repr=False, kw_only=True)
    target_weight: float = field(default=1.0, kw_only=True)
    low: Tensor | None = field(default=None, repr=False, kw_only=True)
    width: Tensor | None = field(default=None, repr=False, kw_only=True)
    _map: EstimatorMap = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_records(self.inputs, self.labels)
        known, records = self.known_inputs, len(self.known_inputs)
        if known.ndim != 2 or known.dtype != torch.float64:
            raise invalid_input(
                "(known_inputs.dtype, known_inputs.shape)",
                (known.dtype, tuple(known.shape)),
                "to be (torch.float64, (records, features))",
                "Pass known_inputs.double(), one row per record.",
            )
        check_not_empty("known_inputs", known)
        check_all_finite("known_inputs", known, "Remove or impute missing values.")
        if records != len(self.known_labels):
            raise InvalidInput(
                f"Expected one label per known record, got {records} records with {len(self.known_labels)} labels."
            )
        if len(self.inputs) != 1:
            raise invalid_input("len(inputs)", len(self.inputs), "to be 1", "Pass all other records as known_inputs.")
        if not is_estimator(self.estimator):
            raise invalid_input(
                "type(estimator)",
                type(self.estimator).__name__,
                "to be a fitted estimator of scikit-learn",
                "Call estimator.fit(features, labels) and pass the estimator.",
            )
        check_features(self.estimator, self.inputs[0].numel(), known.shape[1])
        knowledge = (known, self.known_labels, self.known_weights, self.target_weight, self.low, self.width)
        object.__setattr__(self, "_map", EstimatorMap(strip_coefficients(self.estimator), *knowledge))

    @property
    def forward(self) -> EstimatorMap:
        """The fit as a function of the unknown record; it holds the known records only."""
        return self._map

    def value(self) -> dict[str, Tensor]:
        """Return the coefficients that the estimator has."""
        return coefficients(self.estimator)

    def evaluate_predictors(self) -> Tensor:
        """Return the linear predictors of all known records: one evaluation of the objective, for timing."""
        coef = torch.as_tensor(np.atleast_2d(np.asarray(self.estimator.coef_, dtype=float)))
        return self.known_inputs @ coef.T

    def _linearize(self) -> Linearized:
        """Raise InvalidInput: a solver has no derivative; ``rr.bounds.glm_information`` describes the minimiser."""
        raise InvalidInput(
            "The solver of an estimator has no derivative. Use rr.bounds.glm_information for the derivative of "
            "the minimiser."
        )


def coefficients(estimator: Any) -> dict[str, Tensor]:
    """Return the coefficients of a fitted estimator by name.

    Args:
        estimator: A fitted linear estimator of scikit-learn.

    Returns:
        ``coef``, and ``intercept`` if one was fitted.
    """
    found = {"coef": torch.as_tensor(np.array(estimator.coef_))}
    if estimator.fit_intercept:
        found["intercept"] = torch.as_tensor(np.array(estimator.intercept_, dtype=found["coef"].numpy().dtype))
    return found


def strip_coefficients(estimator: Any) -> Any:
    """Return an estimator as an adversary knows it before the release: settings, classes, and the end of its solver.

    Args:
        estimator: The fitted estimator.

    Returns:
        A copy without coefficients.

    Guarantee: no other result of the fit is kept; ranks and singular values, for instance, depend on the record.
    """
    from sklearn.base import clone  # slow to import

    bare = clone(estimator)
    for name in _PUBLIC:
        if hasattr(estimator, name):
            setattr(bare, name, getattr(estimator, name))
    return bare


def read_all_records(estimator: Any, names: NDArray[Any], weights: Floats | None = None) -> LinearModel:
    """Return a fitted estimator as a linear model of all its records.

    Args:
        estimator: The fitted estimator.
        names: Labels of all records, as the estimator writes them.
        weights: Their sample weights; None for 1.

    Returns:
        The linear model.
    """
    return read_estimator(estimator, names, np.ones(len(names)) if weights is None else weights)


def check_features(estimator: Any, *counts: int) -> None:
    """Refuse estimators that cannot be read, and records with another number of features.

    Args:
        estimator: The fitted estimator.
        *counts: Numbers of features that must equal the estimator's.

    Raises:
        InvalidInput: If the estimator is of another kind or not fitted, or a number differs.
    """
    check_readable(estimator)
    features = int(np.atleast_2d(np.asarray(estimator.coef_)).shape[1])
    for count in counts:
        if count != features:
            remedy = "Pass the features that fit() received, after any scaling."
            raise invalid_input(
                "number of features", count, f"to be {features}, as in the fit of the estimator", remedy
            )

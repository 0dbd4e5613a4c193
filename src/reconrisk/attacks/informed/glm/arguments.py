"""Validation of the arguments of :func:`reconrisk.attacks.informed.glm.attack.glm`."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from reconrisk.attacks.informed.glm.equations import TargetEquations, equations
from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import check_nonnegative, check_positive, invalid_input
from reconrisk.releases.fitted_estimators.estimators import (
    LinearModel,
    Optimisation,
    broadcast_sample_weight,
    is_estimator,
    read_estimator,
    read_linear,
)
from reconrisk.releases.fitted_estimators.objective import Family

PENALTIES = "Pass 1 / C, alpha of Ridge, or alpha of PoissonRegressor times the sum of sample weights; 0 for none."
"""Advice that converts penalties of scikit-learn to the penalty of a sum over records; some belong to a mean."""

_OF_COEFFICIENTS = ("family", "penalty", "intercept", "intercept_penalty")
_OF_TORCH_MODEL = ("loss_fn", "weight_decay", "decay_bias")


@dataclass(frozen=True, eq=False)
class LinearObjective:
    r"""Training objective of a linear model that does not carry it, as a sum over records.

    .. math:: \sum_i w_i\,\ell(W x_i + b, y_i) + \tfrac12\lambda|W|^2 + \tfrac12\lambda_0|b|^2

    Here :math:`x_i`, :math:`y_i` and :math:`w_i` are features, label and weight of record i, W and b are coefficients
    and intercept, and :math:`\ell` is the training loss of one record.

    Plain coefficients need ``family`` and ``penalty``. A torch model needs ``loss_fn``. An estimator of scikit-learn
    carries its own objective and takes none of the fields.

    Attributes:
        family: Training loss of plain coefficients: ``squared``, ``logistic``, ``multinomial`` or ``poisson``.
        penalty: :math:`\lambda` of plain coefficients: 1 / C, alpha of ``Ridge``, or alpha of ``PoissonRegressor``
            times the sum of sample weights; 0 for none.
        intercept_penalty: :math:`\lambda_0` of plain coefficients, 0 by default.
        loss_fn: Training loss of a torch model, a function of outputs and labels.
        weight_decay: Weight decay of a torch model, 0 by default.
        decay_bias: False if the weight decay of a torch model does not apply to the bias, True by default.

    >>> LinearObjective("squared", penalty=1.0).penalty
    1.0
    """

    family: Family | None = None
    penalty: float | None = None
    intercept_penalty: float | None = None
    loss_fn: nn.Module | None = None
    weight_decay: float | None = None
    decay_bias: bool | None = None


@dataclass(frozen=True, eq=False)
class GlmArguments:
    """Validated arguments of the attacks on linear models: the released model, the known records and their weights.

    Attributes:
        model: Estimator of scikit-learn, linear torch model, or array of coefficients.
        inputs: Known records (n, features), double precision.
        labels: Known labels, one per record.
        objective: Training objective of a model that does not carry it.
        intercept: Intercept of plain coefficients, None if the model has none.
        sample_weight: Weights of the known records in the fit, None if all are 1.
        target_weight: Weight of the target in the fit.
        input_precision: Relative rounding error of the known records as they were passed, such as 1.2e-7 for float32.
    """

    model: Any
    inputs: Tensor
    labels: NDArray[Any]
    objective: LinearObjective
    intercept: ArrayLike | None
    sample_weight: ArrayLike | None
    target_weight: float
    input_precision: float = float(np.finfo(float).eps)

    def __post_init__(self) -> None:
        accepted: tuple[str, ...] = _OF_COEFFICIENTS
        name = "plain coefficients"
        if self.carries_objective:
            accepted = () if is_estimator(self.model) else _OF_TORCH_MODEL
            name = "an estimator" if is_estimator(self.model) else "a torch model"
        given = {each.name: getattr(self.objective, each.name) for each in fields(self.objective)}
        for key, value in {**given, "intercept": self.intercept}.items():
            if value is not None and key not in accepted:
                remedy = f"Pass only {', '.join(accepted)}." if accepted else f"Remove {key}: the estimator carries it."
                raise invalid_input(key, value, f"to be left out for {name}", remedy)
        if len(self.labels) != len(self.inputs):
            raise invalid_input(
                "len(known_labels)", len(self.labels), f"to be {len(self.inputs)}, the number of known_inputs"
            )
        if not (self.carries_objective or np.ndim(_to_numpy(self.model)) in (1, 2)):
            raise invalid_input(
                "model",
                type(self.model).__name__,
                "to be an estimator, a torch model or coefficients",
                "Pass coefficients as an array (outputs, features).",
            )
        check_positive("target_weight", self.target_weight, "Pass its weight in the fit.")

    @property
    def carries_objective(self) -> bool:
        """Return True if the model carries its own objective or loss; plain coefficients do not."""
        return is_estimator(self.model) or isinstance(self.model, nn.Module)

    @property
    def depends_on_label(self) -> bool:
        """Return True if the weight of the target in the fit depends on its label."""
        return getattr(self.model, "class_weight", None) is not None

    def equations(self, label: object | None) -> TargetEquations:
        """Return the equations for a target with this label; None where its weight does not depend on the label."""
        classes = getattr(self.model, "classes_", None)
        if label is not None and classes is not None and label not in classes:
            raise invalid_input("label", label, f"to be one of the classes {classes.tolist()} of the model")
        # append the target as the last record, so that readers see all weights and classes of the fit
        last = self.labels[:1] if label is None else np.asarray(label).reshape(1, *self.labels.shape[1:])
        weights = np.append(broadcast_sample_weight(self.sample_weight, len(self.labels)), float(self.target_weight))
        whole = self._read_model(np.concatenate([self.labels, last]), weights)
        if whole.weight.shape[1] != self.inputs.shape[1]:
            raise invalid_input(
                "known_inputs.shape",
                tuple(self.inputs.shape),
                f"to be (records, {whole.weight.shape[1]}), as many features as the model has",
                "Pass the features as the model gets them, after any scaling.",
            )
        known = replace(whole, labels=whole.labels[:-1], sample_weights=whole.sample_weights[:-1])
        return equations(known, self.inputs, float(whole.sample_weights[-1]), self.input_precision)

    def without_target(self) -> TargetEquations:
        """Return the equations for a model that was fitted to the known records alone."""
        weights = np.array(broadcast_sample_weight(self.sample_weight, len(self.labels)))
        return equations(self._read_model(self.labels, weights), self.inputs, self.target_weight, self.input_precision)

    def _read_model(self, labels: NDArray[Any], weights: NDArray[np.float64]) -> LinearModel:
        if is_estimator(self.model):
            return read_estimator(self.model, labels, weights)
        if not isinstance(self.model, nn.Module):
            return self._read_coefficients(labels, weights)
        if self.sample_weight is not None or self.target_weight != 1:
            raise InvalidInput(
                "sample_weight and target_weight do not apply to a torch model. Pass its coefficients as an array."
            )
        objective = self.objective
        if objective.loss_fn is None:
            remedy = "Pass objective=rr.attacks.LinearObjective(loss_fn=...)."
            raise invalid_input("loss_fn", None, "to be the loss that the torch model was trained with", remedy)
        return read_linear(
            self.model,
            objective.loss_fn,
            labels,
            weight_decay=0.0 if objective.weight_decay is None else objective.weight_decay,
            decay_bias=objective.decay_bias is not False,  # None means the default of torch, which decays it
        )

    def _read_coefficients(self, labels: NDArray[Any], weights: NDArray[np.float64]) -> LinearModel:
        family, penalty = self.objective.family, self.objective.penalty
        if family is None or family not in get_args(Family):
            remedy = "Pass objective=rr.attacks.LinearObjective(family=..., penalty=...) with plain coefficients."
            raise invalid_input("family", family, f"to be one of {', '.join(get_args(Family))}", remedy)
        if penalty is None:
            raise invalid_input("penalty", None, "to be given with plain coefficients", PENALTIES)
        array = _check_finite("model", np.asarray(_to_numpy(self.model), dtype=float))
        weight, intercept = np.atleast_2d(array), None
        if self.intercept is not None:
            values = np.asarray(_to_numpy(self.intercept), dtype=float)
            intercept = np.atleast_1d(_check_finite("intercept", values))
        if intercept is not None and len(intercept) != len(weight):
            raise invalid_input(
                "intercept.shape", intercept.shape, f"to be {(len(weight),)}, one number per row of the coefficients"
            )
        _check_labels(labels, family, len(weight))
        return LinearModel(
            weight,
            intercept,
            family,
            labels.astype(float),
            weights,
            check_nonnegative("penalty", penalty),
            check_nonnegative("intercept_penalty", self.objective.intercept_penalty or 0.0),
            precision=rounding_unit(self.model),
            optimisation=Optimisation(None, "plain coefficients, whose distance from the minimum is unknown"),
        )


def known_records(known_inputs: Any, known_labels: Any) -> tuple[Tensor, NDArray[Any]]:
    """Validate known records and their labels.

    Args:
        known_inputs: Array or tensor (records, ...) of finite numbers, at least one record.
        known_labels: One label per record: finite numbers, or names of classes.

    Returns:
        The records as rows (records, features) in double precision, and the labels.

    Raises:
        InvalidInput: If the records are sparse, empty or not finite, or the labels are a single value.
    """
    if hasattr(known_inputs, "toarray"):
        raise invalid_input(
            "known_inputs", type(known_inputs).__name__, "to be a dense array", "Pass known_inputs.toarray()."
        )
    values = np.asarray(_to_numpy(known_inputs), dtype=float)
    if values.ndim < 2 or len(values) == 0:
        raise invalid_input("known_inputs.shape", values.shape, "to be (records, features) with at least one record")
    labels = np.asarray(_to_numpy(known_labels))
    if labels.ndim == 0:
        raise invalid_input("known_labels", known_labels, "to be an array of one label per record")
    rows = values.reshape(len(values), -1)
    return torch.as_tensor(_check_finite("known_inputs", rows)), check_finite_labels("known_labels", labels)


def rounding_unit(values: Any) -> float:
    """Return the machine epsilon of values.

    Args:
        values: Array, tensor or list; whole numbers and lists count as double precision.

    Returns:
        The relative distance between neighbouring floating point numbers of their type.
    """
    kind = np.asarray(_to_numpy(values)).dtype
    return float(np.finfo(kind if np.issubdtype(kind, np.floating) else float).eps)


def check_finite_labels(name: str, labels: NDArray[Any]) -> NDArray[Any]:
    """Return labels unchanged if they are finite numbers or names of classes.

    Args:
        name: Name of the argument in error messages.
        labels: Labels, one per record.

    Returns:
        The labels.

    Raises:
        InvalidInput: If a label is NaN or infinite.
    """
    if labels.dtype.kind == "f":
        _check_finite(name, labels)
    return labels


def read_known_features(known_values: ArrayLike | None, features: int) -> Tensor:
    """Validate the known features of the target.

    Args:
        known_values: Features of the target, NaN for unknown ones; None if all are unknown.
        features: Number of features of a record.

    Returns:
        The features (features,) in double precision, NaN for unknown ones.

    Raises:
        InvalidInput: If the number of values is wrong, one is infinite, or none is NaN.
    """
    if known_values is None:
        return torch.full((features,), torch.nan, dtype=torch.float64)
    values = torch.as_tensor(np.asarray(_to_numpy(known_values), dtype=float)).flatten()
    if len(values) != features or bool(values.isinf().any()):
        raise invalid_input(
            "len(known_values)",
            len(values),
            f"to be {features}",
            "Pass one finite number per known feature, and NaN per unknown feature.",
        )
    if not bool(values.isnan().any()):
        raise InvalidInput(
            "known_values has no unknown feature. Pass NaN for each feature that the attack reconstructs."
        )
    return values


def _check_labels(labels: NDArray[Any], family: Family, outputs: int) -> None:
    numbers = _check_finite("known_labels", labels.astype(float))
    if family == "logistic" and not np.isin(numbers, (0, 1)).all():
        raise invalid_input(
            "known_labels", np.unique(numbers)[:5].tolist(), "to be 0 or 1", "Map the two classes to 0 and 1."
        )
    if family == "multinomial" and not np.isin(numbers, np.arange(outputs)).all():
        raise invalid_input(
            "known_labels",
            np.unique(numbers)[:5].tolist(),
            f"to be whole numbers from 0 to {outputs - 1}",
            "Map the classes to these indices.",
        )
    if family == "poisson" and (numbers < 0).any():
        raise invalid_input("min(known_labels)", float(numbers.min()), ">= 0 for a Poisson model", "Pass counts.")


def _check_finite(name: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
    if not np.isfinite(values).all():
        where = tuple(int(index) for index in np.argwhere(~np.isfinite(values))[0])
        place = f"{name}[{', '.join(map(str, where))}]" if where else name
        raise invalid_input(place, float(values[where]), "to be finite", "Remove or impute missing values.")
    return values


def _to_numpy(values: Any) -> Any:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values

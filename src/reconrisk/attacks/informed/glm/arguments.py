"""The arguments of :func:`reconrisk.attacks.informed.glm.attack.glm` as a linear model with a place for the target."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from reconrisk.attacks.informed.glm.equations import TargetEquations, equations
from reconrisk.core.validation import check_nonnegative, check_positive, invalid_input
from reconrisk.releases.fitted_estimators.estimators import (
    LinearModel,
    Optimisation,
    is_estimator,
    read_estimator,
    read_linear,
    weights_of_records,
)
from reconrisk.releases.fitted_estimators.objective import Family

PENALTIES = "Pass 1 / C, alpha of Ridge, or alpha of PoissonRegressor times the sum of sample weights; 0 for none."
"""What the penalty of a sum over records is in the terms of estimators, whose alpha may belong to a mean."""

_STATED = ("family", "penalty", "intercept", "intercept_penalty")
_TORCH = ("loss_fn", "weight_decay", "decay_bias")


@dataclass(frozen=True, eq=False)
class Given:
    """A released model in whichever form it came, the known records, and the weight of the target."""

    model: Any
    inputs: Tensor
    labels: NDArray[Any]
    settings: dict[str, Any]
    sample_weight: ArrayLike | None
    target_weight: float
    input_precision: float = float(np.finfo(float).eps)

    def __post_init__(self) -> None:
        kind = _STATED if not self.reads_itself else () if is_estimator(self.model) else _TORCH
        name = "a plain array" if kind is _STATED else "an estimator" if not kind else "a torch model"
        for key, value in self.settings.items():
            if value is not None and key not in kind:
                raise invalid_input(key, value, f"to be left out for {name}, which takes {', '.join(kind) or 'none'}")
        if len(self.labels) != len(self.inputs):
            raise invalid_input(
                "known_labels", f"of {len(self.labels)} records", f"to be of {len(self.inputs)}, as inputs"
            )
        if not (self.reads_itself or np.ndim(_numpy(self.model)) in (1, 2)):
            raise invalid_input("model", type(self.model).__name__, "to be an estimator, a torch model or coefficients")
        check_positive("target_weight", self.target_weight, "A record of weight zero leaves no trace.")

    @property
    def reads_itself(self) -> bool:
        """Whether the model carries its own conventions, or an array needs them stated."""
        return is_estimator(self.model) or isinstance(self.model, nn.Module)

    @property
    def depends_on_label(self) -> bool:
        """Whether the label of the target decides about weights."""
        return getattr(self.model, "class_weight", None) is not None

    def equations(self, label: object | None) -> TargetEquations:
        """The equations for a target that has this label; None where it decides about nothing."""
        classes = getattr(self.model, "classes_", None)
        if label is not None and classes is not None and label not in classes:
            raise invalid_input("label", label, "to be one of estimator.classes_", f"It knows {classes.tolist()}.")
        last = self.labels[:1] if label is None else np.asarray(label).reshape(1, *self.labels.shape[1:])
        weights = np.append(weights_of_records(self.sample_weight, len(self.labels)), float(self.target_weight))
        whole = self._read(np.concatenate([self.labels, last]), weights)
        if whole.weight.shape[1] != self.inputs.shape[1]:
            raise invalid_input(
                "known_inputs.shape",
                tuple(self.inputs.shape),
                f"to have {whole.weight.shape[1]} features, as the model",
                "Pass the features that reach the model, after any scaling.",
            )
        known = replace(whole, labels=whole.labels[:-1], sample_weights=whole.sample_weights[:-1])
        return equations(known, self.inputs, float(whole.sample_weights[-1]), self.input_precision)

    def alone(self) -> TargetEquations:
        """The equations of a model that was fitted to the known records and nothing else."""
        weights = np.array(weights_of_records(self.sample_weight, len(self.labels)))
        return equations(self._read(self.labels, weights), self.inputs, self.target_weight, self.input_precision)

    def _read(self, labels: NDArray[Any], weights: NDArray[np.float64]) -> LinearModel:
        if is_estimator(self.model):
            return read_estimator(self.model, labels, weights)
        if not isinstance(self.model, nn.Module):
            return self._stated(labels, weights)
        if self.sample_weight is not None or self.target_weight != 1:
            raise invalid_input(
                "sample_weight", "given", "to be None for a torch model", "State its coefficients instead."
            )
        loss_fn, decay = self.settings["loss_fn"], self.settings["weight_decay"]
        if loss_fn is None:
            raise invalid_input("loss_fn", None, "to be the loss that the torch model was trained with")
        bias = self.settings["decay_bias"]
        return read_linear(
            self.model, loss_fn, labels, weight_decay=0.0 if decay is None else decay, decay_bias=bias is not False
        )

    def _stated(self, labels: NDArray[Any], weights: NDArray[np.float64]) -> LinearModel:
        family, penalty = self.settings["family"], self.settings["penalty"]
        if family not in get_args(Family):
            raise invalid_input(
                "family", family, f"to be one of {', '.join(get_args(Family))}", "Coefficients do not say it."
            )
        if penalty is None:
            raise invalid_input("penalty", None, "to be stated", PENALTIES)
        array = _finite("model", np.asarray(_numpy(self.model), dtype=float))
        bias = self.settings["intercept"]
        weight = np.atleast_2d(array)
        intercept = None if bias is None else np.atleast_1d(_finite("intercept", np.asarray(_numpy(bias), dtype=float)))
        if intercept is not None and len(intercept) != len(weight):
            raise invalid_input(
                "intercept.shape", intercept.shape, f"to be {(len(weight),)}, one per row of coefficients"
            )
        _check_labels(labels, family, len(weight))
        return LinearModel(
            weight,
            intercept,
            family,
            labels.astype(float),
            weights,
            check_nonnegative("penalty", penalty),
            check_nonnegative("intercept_penalty", self.settings["intercept_penalty"] or 0.0),
            precision=precision_of(self.model),
            optimisation=Optimisation(None, "coefficients that do not say how near they are to their minimum"),
        )


def known_records(known_inputs: Any, known_labels: Any) -> tuple[Tensor, NDArray[Any]]:
    """Known records as rows of double precision, and their labels."""
    if hasattr(known_inputs, "toarray"):
        raise invalid_input("known_inputs", "sparse", "to be a dense array", "Pass known_inputs.toarray().")
    values = np.asarray(_numpy(known_inputs), dtype=float)
    if values.ndim < 2 or len(values) == 0:
        raise invalid_input("known_inputs.shape", values.shape, "to be (records, features) with at least one record")
    labels = np.asarray(_numpy(known_labels))
    if labels.ndim == 0:
        raise invalid_input("known_labels", known_labels, "to be one label per record")
    rows = values.reshape(len(values), -1)
    return torch.as_tensor(_finite("known_inputs", rows)), finite_labels("known_labels", labels)


def precision_of(values: Any) -> float:
    """The unit of rounding of what is given: that of doubles for whole numbers and lists."""
    kind = np.asarray(_numpy(values)).dtype
    return float(np.finfo(kind if np.issubdtype(kind, np.floating) else float).eps)


def finite_labels(name: str, labels: NDArray[Any]) -> NDArray[Any]:
    """Labels as they are: numbers that must be finite, or names of classes."""
    if labels.dtype.kind == "f":
        _finite(name, labels)
    return labels


def known_features(known_values: ArrayLike | None, features: int) -> Tensor:
    """What is known of the target's features; NaN stands for what is not."""
    if known_values is None:
        return torch.full((features,), torch.nan, dtype=torch.float64)
    values = torch.as_tensor(np.asarray(_numpy(known_values), dtype=float)).flatten()
    if len(values) != features or bool(values.isinf().any()):
        raise invalid_input(
            "known_values", f"{len(values)} values", f"to be {features} numbers, NaN for features that are not known"
        )
    if not bool(values.isnan().any()):
        raise invalid_input("known_values", "complete", "to have a NaN for each feature to be found")
    return values


def _check_labels(labels: NDArray[Any], family: Family, outputs: int) -> None:
    numbers = _finite("known_labels", labels.astype(float))
    if family == "logistic" and not np.isin(numbers, (0, 1)).all():
        raise invalid_input(
            "known_labels", np.unique(numbers)[:5].tolist(), "to be 0 or 1", "Map the two classes to 0 and 1."
        )
    if family == "multinomial" and not np.isin(numbers, np.arange(outputs)).all():
        raise invalid_input("known_labels", np.unique(numbers)[:5].tolist(), f"to be class indices below {outputs}")
    if family == "poisson" and (numbers < 0).any():
        raise invalid_input("known_labels", float(numbers.min()), ">= 0", "A Poisson model describes counts.")


def _finite(name: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
    if not np.isfinite(values).all():
        where = tuple(int(index) for index in np.argwhere(~np.isfinite(values))[0])
        place = f"{name}[{', '.join(map(str, where))}]" if where else name
        raise invalid_input(place, float(values[where]), "to be finite", "Remove or impute what is missing.")
    return values


def _numpy(values: Any) -> Any:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values

"""Linear models as they are released: coefficients, and the objective that scikit-learn or torch minimised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import nn

from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import check_nonnegative, invalid_input
from reconrisk.releases.fitted_estimators.objective import Family

Floats = NDArray[np.float64]

_DIRECT = ("svd", "cholesky", "auto")  # solvers of least squares without iterations
# lbfgs also stops if a step gains less than 64 eps: a gradient of about 2e-7 per unit of feature, rounded up here.
_FLAT = 1e-6
_NONZERO = 1e-300  # keeps a tolerance of 0 out of a denominator


@dataclass(frozen=True)
class Optimisation:
    """The accuracy to which a solver minimised its objective, as far as its stopping rule states it.

    Attributes:
        gradient_limit: Largest entry that the stopping rule leaves in the gradient, summed over records; 0 for solvers
            that are exact up to rounding, None if the rule does not limit the gradient.
        words: Description of the solver's end, for reports.
        stopped_early: True if the solver stopped at its iteration limit.
        objective_limit: Limit on the gradient that follows from a second stopping rule, on the objective, for
            features of unit scale.
    """

    gradient_limit: float | None
    words: str
    stopped_early: bool = False
    objective_limit: float = 0.0


@dataclass(frozen=True, eq=False)
class LinearModel:
    r"""A released linear model and the training objective that it minimises, as a sum over records.

    .. math:: \sum_i w_i\,\ell(W x_i + b, y_i) + \tfrac12\lambda|W|^2 + \tfrac12\lambda_0|b|^2

    Here W is ``weight``, b is ``bias``, and :math:`\ell` is the training loss of record :math:`x_i` with label
    :math:`y_i`.

    Attributes:
        weight: Coefficients, (outputs, features).
        bias: Intercepts, (outputs,), or None.
        family: Training loss: ``squared``, ``logistic``, ``multinomial`` or ``poisson``.
        labels: Labels of the records in the encoding of ``family`` (class indices for ``multinomial``).
        sample_weights: Weights w of the records.
        penalty: Weight :math:`\lambda` of the squared coefficients.
        intercept_penalty: Weight :math:`\lambda_0` of the squared intercept.
        classes: Names of the classes, by index; None for regression.
        precision: Relative rounding error of the released coefficients, such as 1.2e-7 for float32.
        optimisation: Largest gradient that the solver may have left, and the way it ended.
    """

    weight: Floats
    bias: Floats | None
    family: Family
    labels: Floats
    sample_weights: Floats
    penalty: float
    intercept_penalty: float = 0.0
    classes: NDArray[Any] | None = None
    precision: float = float(np.finfo(float).eps)
    optimisation: Optimisation = Optimisation(None, "of unknown origin")


def read_estimator(estimator: Any, labels: NDArray[Any], sample_weights: Floats) -> LinearModel:
    """Return a fitted scikit-learn estimator as a linear model in one convention for penalties and weights.

    Reads ``LogisticRegression`` (binary or multinomial, penalty l2 or none), ``Ridge``, ``LinearRegression`` and
    ``PoissonRegressor``.

    Args:
        estimator: The fitted estimator.
        labels: Labels of all records that the estimator was fitted to.
        sample_weights: Weights of these records in the fit.

    Returns:
        Coefficients, penalties, weights and tolerance, all relative to a sum over records.

    Raises:
        InvalidInput: If the estimator, its penalty or its solver is not supported; the error names it.

    Assumes: ``labels`` and ``sample_weights`` belong to all records that the estimator was fitted to.

    >>> from sklearn.linear_model import Ridge
    >>> labels = np.array([0.0, 1.0, 1.0])
    >>> read_estimator(Ridge(alpha=0.3).fit([[0.0], [1.0], [2.0]], labels), labels, np.ones(3)).penalty
    0.3
    """
    check_readable(estimator)
    return _readers()[type(estimator)](estimator, labels, sample_weights)


def check_readable(estimator: Any) -> None:
    """Refuse estimators that :func:`read_estimator` cannot read: other kinds, and unfitted ones.

    Args:
        estimator: An estimator.

    Raises:
        InvalidInput: If it is of another kind or not fitted.
    """
    name, readers = type(estimator).__name__, _readers()
    if type(estimator) not in readers:
        remedy = "For other models build a release and pass it to rr.sensitivity.fisher_trace."
        if name == "Pipeline":
            remedy = "Pass its last step and the features that reach it; the information is then about these features."
        elif name.endswith("CV"):
            remedy = "Fit the plain estimator with the chosen penalty; choosing it by these records leaks too."
        kinds = ", ".join(kind.__name__ for kind in readers)
        raise invalid_input("type(estimator)", name, f"to be one of {kinds}", remedy)
    if not hasattr(estimator, "coef_"):
        raise InvalidInput(
            f"Expected a fitted estimator, got {name} that is not fitted. Call its fit(features, labels) first."
        )


def is_estimator(model: object) -> bool:
    """Return True if an object follows the protocol of scikit-learn's estimators.

    Args:
        model: Any object.

    Returns:
        True if it has ``fit`` and ``get_params``.
    """
    return hasattr(model, "get_params") and hasattr(model, "fit")


def broadcast_sample_weight(sample_weight: ArrayLike | None, records: int) -> Floats:
    """Return one weight per record.

    Args:
        sample_weight: One weight for all records, one each, or None for 1.
        records: Number of records.

    Returns:
        Weights, (records,), finite and nonnegative.

    Raises:
        InvalidInput: If the shape does not fit, or a weight is negative or not finite.

    >>> broadcast_sample_weight(2.0, 3).tolist()
    [2.0, 2.0, 2.0]
    """
    weights = np.asarray(1.0 if sample_weight is None else sample_weight, dtype=float)
    if weights.ndim > 1 or (weights.ndim and len(weights) != records):
        raise invalid_input("sample_weight.shape", weights.shape, f"to be {(records,)}, one per record")
    if not np.isfinite(weights).all() or (weights < 0).any():
        where = tuple(int(index) for index in np.argwhere(~(np.isfinite(weights) & (weights >= 0)))[0])
        name = f"sample_weight[{', '.join(map(str, where))}]" if where else "sample_weight"
        raise invalid_input(name, float(weights[where]), ">= 0 and finite")
    return np.broadcast_to(weights, (records,))


def _readers() -> dict[type, Callable[[Any, NDArray[Any], Floats], LinearModel]]:
    """Return the function that reads each supported class."""
    from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor, Ridge  # slow to import

    return {
        LogisticRegression: _read_logistic,
        Ridge: _read_squared,
        LinearRegression: _read_squared,
        PoissonRegressor: _read_poisson,
    }


def _read_logistic(estimator: Any, labels: NDArray[Any], weights: Floats) -> LinearModel:
    from sklearn.utils.class_weight import compute_sample_weight

    _check_logistic(estimator)
    unknown = ~np.isin(labels, estimator.classes_)
    if unknown.any():
        raise invalid_input(
            f"labels[{int(unknown.argmax())}]",
            labels[unknown][0],
            "to be one of estimator.classes_",
            "Pass the labels that the estimator was fitted to.",
        )
    count = len(estimator.classes_)
    if estimator.class_weight is not None:
        if estimator.class_weight == "balanced" and (weights != weights[0]).any():
            raise invalid_input(
                "estimator.class_weight",
                "balanced",
                "to be a dict if sample_weight is given",
                "Fit with class_weight as a dict from class to weight.",
            )
        weights = weights * compute_sample_weight(estimator.class_weight, labels)
    penalty = 0.0 if estimator.penalty is None else 1 / float(estimator.C)  # scikit-learn multiplies the loss by C
    intercept_penalty = 0.0
    if estimator.solver == "liblinear":
        if count > 2:
            raise invalid_input(
                "estimator.solver", "liblinear", "to be another solver for several classes", "Use solver='lbfgs'."
            )
        # liblinear penalises the intercept as the weight of a constant feature of size intercept_scaling.
        intercept_penalty = penalty / estimator.intercept_scaling**2
    # These solvers stop by the largest entry of the mean gradient; the others by the change of coefficients.
    smooth = estimator.solver in ("lbfgs", "newton-cg", "newton-cholesky")
    return LinearModel(
        *_coefficients(estimator),
        family="logistic" if count == 2 else "multinomial",
        labels=np.searchsorted(estimator.classes_, labels).astype(float),
        sample_weights=weights,
        penalty=penalty,
        intercept_penalty=intercept_penalty,
        classes=np.asarray(estimator.classes_),
        precision=_precision(estimator),
        optimisation=_optimisation(estimator, estimator.tol * float(weights.sum()) if smooth else None),
    )


def _check_logistic(estimator: Any) -> None:
    """Refuse objectives that are not smooth, or not one model for all classes."""
    smooth = "Use penalty='l2': the Fisher information needs a smooth penalty."
    if estimator.penalty not in ("l2", None, "deprecated"):
        raise invalid_input("estimator.penalty", estimator.penalty, "to be 'l2' or None", smooth)
    if estimator.penalty == "deprecated" and estimator.l1_ratio:
        raise invalid_input("estimator.l1_ratio", estimator.l1_ratio, "to be 0", smooth)
    scheme = getattr(estimator, "multi_class", "deprecated")
    if scheme not in ("auto", "deprecated") and (scheme, len(estimator.classes_) > 2) not in (
        ("multinomial", True),
        ("ovr", False),
    ):
        raise invalid_input(
            "estimator.multi_class", scheme, "to be 'auto'", "Fit one binary model per class and pass them one by one."
        )


def _read_squared(estimator: Any, labels: NDArray[Any], weights: Floats) -> LinearModel:
    alpha = np.unique(np.asarray(getattr(estimator, "alpha", 0.0), dtype=float))  # LinearRegression has no penalty
    if len(alpha) != 1:
        raise invalid_input("estimator.alpha", alpha.tolist(), "to be one number", "Fit one Ridge per target.")
    solver = getattr(estimator, "solver_", getattr(estimator, "solver", "svd"))
    if estimator.positive:
        raise invalid_input(
            "estimator.positive",
            True,
            "to be False",
            "Fit with positive=False: coefficients at zero have no derivative.",
        )
    return LinearModel(
        *_coefficients(estimator),
        family="squared",
        labels=labels.astype(float),
        sample_weights=weights,
        penalty=float(alpha[0]),
        precision=_precision(estimator),
        optimisation=_optimisation(estimator, 0.0 if solver in _DIRECT else None),
    )


def _read_poisson(estimator: Any, labels: NDArray[Any], weights: Floats) -> LinearModel:
    total = float(weights.sum())
    return LinearModel(
        *_coefficients(estimator),
        family="poisson",
        labels=labels.astype(float),
        sample_weights=weights,
        penalty=float(estimator.alpha) * total,  # PoissonRegressor averages the loss over weights
        precision=_precision(estimator),
        optimisation=_optimisation(estimator, estimator.tol * total),
    )


def _coefficients(estimator: Any) -> tuple[Floats, Floats | None]:
    weight = np.atleast_2d(np.asarray(estimator.coef_, dtype=float))
    bias = np.atleast_1d(np.asarray(estimator.intercept_, dtype=float)) if estimator.fit_intercept else None
    return weight, bias


def _precision(estimator: Any) -> float:
    kind = np.asarray(estimator.coef_).dtype
    return float(np.finfo(kind if np.issubdtype(kind, np.floating) else float).eps)


def _optimisation(estimator: Any, limit: float | None) -> Optimisation:
    """Describe the end of a solver whose rule leaves at most ``limit`` in the gradient (None: unknown)."""
    name, most = type(estimator).__name__, getattr(estimator, "max_iter", None)
    if limit == 0.0:
        return Optimisation(0.0, f"{name} solved directly")
    steps = getattr(estimator, "n_iter_", None)
    done = 0 if steps is None else int(np.max(np.asarray(steps)))
    if most is not None and done >= most:
        return Optimisation(None, f"{name} stopped at max_iter={most} before it converged", stopped_early=True)
    second = 0.0 if limit is None or estimator.solver != "lbfgs" else _FLAT * limit / max(estimator.tol, _NONZERO)
    words = f"{name} with solver={estimator.solver!r} converged to tol={estimator.tol:g}"
    return Optimisation(limit, words, objective_limit=second)


_FAMILIES: dict[type[nn.Module], Family] = {
    nn.MSELoss: "squared",
    nn.BCEWithLogitsLoss: "logistic",
    nn.CrossEntropyLoss: "multinomial",
    nn.PoissonNLLLoss: "poisson",
}


def read_linear(
    model: nn.Module,
    loss_fn: nn.Module,
    labels: NDArray[Any],
    *,
    weight_decay: float,
    decay_bias: bool = True,
) -> LinearModel:
    """Return a linear torch model, trained to the minimum of a loss over all records, in the same convention.

    Args:
        model: One ``nn.Linear``, possibly with ``nn.Flatten`` or ``nn.Identity`` around it.
        loss_fn: Loss module that was minimised.
        labels: Labels of all records.
        weight_decay: Weight decay of SGD or Adam. The weight decay of AdamW is not part of the objective.
        decay_bias: True if the weight decay applies to the bias.

    Returns:
        Coefficients and penalties in the convention of sums over records.

    Raises:
        InvalidInput: If the model is not linear or the loss is not supported.

    Assumes: ``labels`` belong to all training records.
    Edge cases: losses with class weights, label smoothing or ignored labels are refused by name.

    >>> read_linear(nn.Linear(2, 1), nn.MSELoss(), np.ones(10), weight_decay=0.1).penalty
    0.5
    """
    layers = list(model) if isinstance(model, nn.Sequential) else [model]
    rest = [layer for layer in layers if not isinstance(layer, (nn.Flatten, nn.Identity))]
    if len(rest) != 1 or not isinstance(rest[0], nn.Linear):
        kinds = [type(layer).__name__ for layer in layers]
        raise invalid_input(
            "layers of model",
            kinds,
            "to be one nn.Linear",
            "For other models pass a release to rr.sensitivity.fisher_trace.",
        )
    layer = rest[0]
    family = _family(loss_fn, layer)
    scale = _scale(loss_fn, family, len(labels), layer.out_features)
    decay = scale * check_nonnegative("weight_decay", weight_decay)
    numbers = labels.astype(float)
    # BCEWithLogitsLoss and PoissonNLLLoss take labels of shape (n, 1) for one output.
    flat = family != "squared" and numbers.ndim == 2 and numbers.shape[1] == 1
    return LinearModel(
        weight=np.asarray(layer.weight.detach().double().cpu().numpy()),
        bias=None if layer.bias is None else np.asarray(layer.bias.detach().double().cpu().numpy()),
        family=family,
        labels=numbers[:, 0] if flat else numbers,
        sample_weights=np.ones(len(labels)),
        penalty=decay,
        intercept_penalty=decay if decay_bias else 0.0,
        precision=float(np.finfo(str(layer.weight.dtype).removeprefix("torch.")).eps),
        optimisation=Optimisation(None, "a torch model trained to an unknown accuracy"),
    )


def _family(loss_fn: nn.Module, layer: nn.Linear) -> Family:
    """Return the family of a torch loss, refusing options that change it."""
    family = _FAMILIES.get(type(loss_fn))
    if family is None:
        names = ", ".join(kind.__name__ for kind in _FAMILIES)
        raise invalid_input("type(loss_fn)", type(loss_fn).__name__, f"to be an instance of one of {names}")
    for name, plain in (("weight", None), ("pos_weight", None), ("label_smoothing", 0.0), ("ignore_index", -100)):
        if getattr(loss_fn, name, plain) != plain:
            raise invalid_input(
                f"loss_fn.{name}",
                getattr(loss_fn, name),
                f"to be {plain}",
                f"Use a loss with {name}={plain}: others are not supported.",
            )
    if isinstance(loss_fn, nn.PoissonNLLLoss) and not loss_fn.log_input:
        raise invalid_input(
            "loss_fn.log_input",
            False,
            "to be True",
            "Set log_input=True: the output of the model must be the logarithm of the mean.",
        )
    if family in ("logistic", "poisson") and layer.out_features != 1:
        raise invalid_input(
            "model.out_features", layer.out_features, "to be 1", "Use nn.CrossEntropyLoss for several classes."
        )
    return family


def _scale(loss_fn: nn.Module, family: Family, records: int, outputs: int) -> float:
    """Return the factor from torch's objective to the sum of the family's losses."""
    if loss_fn.reduction not in ("mean", "sum"):
        raise invalid_input("loss_fn.reduction", loss_fn.reduction, "to be 'mean' or 'sum'")
    values = records * outputs if family == "squared" else records  # nn.MSELoss averages over outputs too
    count = values if loss_fn.reduction == "mean" else 1
    return count / 2 if family == "squared" else float(count)  # and it does not halve the square

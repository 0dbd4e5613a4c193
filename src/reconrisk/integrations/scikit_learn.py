"""Estimators of scikit-learn: what their noisy coefficients tell about each training record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor, Ridge
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.validation import check_is_fitted

from reconrisk.bounds.glm import Family, GlmFit, fit_glm
from reconrisk.bounds.glm_information import GlmInformation, glm_information
from reconrisk.bounds.matrices import nonnegative_array
from reconrisk.core.validation import refuse

Floats = NDArray[np.float64]

_FARTHEST = 0.1  # a solver that stopped early is nearer to the minimum; other records, labels or penalties are not


@dataclass(frozen=True, eq=False)
class _Objective:
    """What an estimator minimises, as sums over records."""

    family: Family
    labels: Floats
    weights: Floats
    penalty: float
    intercept_penalty: float = 0.0


def information_from_estimator(
    estimator: BaseEstimator,
    features: ArrayLike,
    labels: ArrayLike,
    *,
    noise_std: float,
    sample_weight: ArrayLike | None = None,
    tolerance: float = 1e-6,
    polish: bool = False,
) -> GlmInformation:
    """Exact Fisher information about every training record in a fitted linear model released with Gaussian noise.

    Reads ``LogisticRegression`` (binary or multinomial, penalty l2 or none), ``Ridge``, ``LinearRegression`` and
    ``PoissonRegressor`` with their penalties, intercepts and weights. Their solvers stop early at default tolerance:
    coefficients that are not the minimiser are refused. With ``polish`` Newton's method ends their way, and then
    ``coefficients`` and ``intercept`` of the result are those to release; a way of more than 10 % is refused, since the
    estimator was then fitted to something else.

    Assumes: fitted to these ``features``, ``labels`` and ``sample_weight``; labels are public; each coefficient and
    intercept is released with independent noise of ``noise_std``.
    Guarantee: that of :func:`reconrisk.bounds.glm_information.glm_information`; a convention read wrongly would be seen
    as coefficients beside the minimum.
    Edge cases: l1 and elastic-net penalties, ``positive=True``, one-versus-rest and cross-validated estimators,
    pipelines and sparse features are refused by name.
    Reference: Section 7.1, guo2022, for logistic regression without intercept.

    >>> x, y = [[0.0], [1.0], [2.0]], [0.0, 1.0, 1.0]
    >>> information = information_from_estimator(Ridge().fit(x, y), x, y, noise_std=0.1)
    >>> information.traces.shape, information.matrix(0).shape
    ((3,), (1, 1))
    """
    read = _READERS.get(type(estimator))
    if read is None:
        names = ", ".join(kind.__name__ for kind in _READERS)
        raise refuse("estimator", type(estimator).__name__, f"to be one of {names}", _remedy(estimator))
    check_is_fitted(estimator, "coef_")
    if issparse(features):
        raise refuse("features", "sparse", "to be a dense array", "Pass features.toarray().")
    _check_features(features)
    given = _given_labels(labels)
    objective = read(estimator, given, _weights(sample_weight, len(given)))
    setting: dict[str, Any] = {
        "features": features,
        "labels": objective.labels,
        "family": objective.family,
        "penalty": objective.penalty,
        "intercept_penalty": objective.intercept_penalty,
        "sample_weight": objective.weights,
    }
    fit = _fit(estimator, objective)
    if polish:
        rough, fit = fit, fit_glm(**setting, intercept=fit.intercept is not None, start=fit)
        _check_near(rough, fit)
    return glm_information(
        fit.coefficients, intercept=fit.intercept, noise_std=noise_std, tolerance=tolerance, **setting
    )


def _check_features(features: ArrayLike) -> None:
    values = np.asarray(features)
    if not np.issubdtype(values.dtype, np.floating) or np.isfinite(values).all():
        return
    place = np.argwhere(~np.isfinite(values))[0]
    name = f"features[{', '.join(map(str, place))}]"
    raise refuse(name, float(values[tuple(place)]), "to be finite", "Remove or impute what is missing, then fit again.")


def _given_labels(labels: ArrayLike | None) -> NDArray[Any]:
    given = np.asarray(labels)
    if given.ndim == 0:
        raise refuse("labels", labels, "to be one label per record", "Pass the labels the estimator was fitted to.")
    return given


def _check_near(rough: GlmFit, polished: GlmFit) -> None:
    """Refuse to call another model the polished one."""
    before, after = _centred(rough.coefficients), _centred(polished.coefficients)
    scale = max(float(np.linalg.norm(before)), float(np.linalg.norm(after)))
    distance = float(np.linalg.norm(after - before))
    if distance > _FARTHEST * scale:
        raise refuse(
            "coefficients",
            f"{distance / scale:.0%} from the minimum",
            f"to be within {_FARTHEST:.0%} of it to be polished",
            "Check that features, labels, sample_weight and penalty (C or alpha) are those of the fit; "
            "if they are, fit with a smaller tol and a larger max_iter.",
        )


def _centred(coefficients: Floats) -> Floats:
    """Without what is common to all classes, which a multinomial model does not determine."""
    return (
        coefficients - coefficients.mean(axis=0) if coefficients.ndim == 2 and len(coefficients) > 1 else coefficients
    )


def _weights(sample_weight: ArrayLike | None, records: int) -> Floats:
    weights = nonnegative_array("sample_weight", 1.0 if sample_weight is None else sample_weight, dimensions=(0, 1))
    if weights.ndim and len(weights) != records:
        raise refuse("sample_weight.shape", weights.shape, f"to be {(records,)}, one per record")
    return np.broadcast_to(weights, (records,))


def _fit(estimator: Any, objective: _Objective) -> GlmFit:
    coefficients = np.asarray(estimator.coef_, dtype=float)
    if objective.labels.ndim == 1 and objective.family != "multinomial":
        coefficients = coefficients.ravel()
    return GlmFit(coefficients, np.atleast_1d(estimator.intercept_) if estimator.fit_intercept else None)


def _read_logistic(estimator: Any, labels: NDArray[Any], weights: Floats) -> _Objective:
    _check_logistic(estimator)
    unknown = ~np.isin(labels, estimator.classes_)
    if unknown.any():
        raise refuse(
            "labels", labels[unknown][0], "to be one of estimator.classes_", "Pass the labels it was fitted to."
        )
    count = len(estimator.classes_)
    if estimator.class_weight is not None:
        if estimator.class_weight == "balanced" and (weights != weights[0]).any():
            raise refuse("class_weight", "balanced", "to be a dict beside sample_weight", "Pass the weights as a dict.")
        weights = weights * compute_sample_weight(estimator.class_weight, labels)
    penalty = 0.0 if estimator.penalty is None else 1 / float(estimator.C)
    intercept_penalty = 0.0
    if estimator.solver == "liblinear":
        if count > 2:
            raise refuse("solver", "liblinear", "to be another one for several classes", "Use solver='lbfgs'.")
        intercept_penalty = penalty / estimator.intercept_scaling**2
    indices = np.searchsorted(estimator.classes_, labels).astype(float)
    return _Objective("logistic" if count == 2 else "multinomial", indices, weights, penalty, intercept_penalty)


def _check_logistic(estimator: Any) -> None:
    """Refuse objectives that are not smooth, or not those of one model for all classes."""
    smooth = "The information needs a smooth penalty: use l2."
    if estimator.penalty not in ("l2", None, "deprecated"):
        raise refuse("penalty", estimator.penalty, "to be 'l2' or None", smooth)
    if estimator.penalty == "deprecated" and estimator.l1_ratio:
        raise refuse("l1_ratio", estimator.l1_ratio, "to be 0", smooth)
    scheme = getattr(estimator, "multi_class", "deprecated")
    if scheme not in ("auto", "deprecated") and (scheme, len(estimator.classes_) > 2) not in (
        ("multinomial", True),
        ("ovr", False),
    ):
        raise refuse("multi_class", scheme, "to be 'auto'", "Wrap one-versus-rest models yourself, class by class.")


def _read_ridge(estimator: Any, labels: NDArray[Any], weights: Floats) -> _Objective:
    _check_signs(estimator)
    alpha = np.unique(np.asarray(estimator.alpha, dtype=float))
    if len(alpha) != 1:
        raise refuse("alpha", alpha.tolist(), "to be one number", "Fit one Ridge per target.")
    return _Objective("squared", labels.astype(float), weights, float(alpha[0]))


def _read_least_squares(estimator: Any, labels: NDArray[Any], weights: Floats) -> _Objective:
    _check_signs(estimator)
    return _Objective("squared", labels.astype(float), weights, 0.0)


def _read_poisson(estimator: Any, labels: NDArray[Any], weights: Floats) -> _Objective:
    return _Objective("poisson", labels.astype(float), weights, float(estimator.alpha * weights.sum()))


def _check_signs(estimator: Any) -> None:
    if estimator.positive:
        raise refuse("positive", True, "to be False", "Coefficients at the border of a constraint have no derivative.")


def _remedy(estimator: object) -> str:
    name = type(estimator).__name__
    if name == "Pipeline":
        return "Pass its last step and the features that reach it: the information is then about those."
    if name.endswith("CV"):
        return "Fit the plain estimator with the penalty that was chosen; choosing it by these records leaks too."
    return "For other models build a release and use rr.fisher_trace."


_READERS: dict[type, Callable[[Any, NDArray[Any], Floats], _Objective]] = {
    LogisticRegression: _read_logistic,
    Ridge: _read_ridge,
    LinearRegression: _read_least_squares,
    PoissonRegressor: _read_poisson,
}

"""Estimators of scikit-learn: what their noisy coefficients tell about each training record."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator

from reconrisk.bounds.glm import GlmFit, fit_glm
from reconrisk.bounds.glm_information import GlmInformation, glm_information
from reconrisk.core.validation import refuse
from reconrisk.releases.estimators import read_estimator, weights_of_records

Floats = NDArray[np.float64]

_FARTHEST = 0.1  # a solver that stopped early is nearer to the minimum; other records, labels or penalties are not


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

    >>> from sklearn.linear_model import Ridge
    >>> x, y = [[0.0], [1.0], [2.0]], [0.0, 1.0, 1.0]
    >>> information = information_from_estimator(Ridge().fit(x, y), x, y, noise_std=0.1)
    >>> information.traces.shape, information.matrix(0).shape
    ((3,), (1, 1))
    """
    if issparse(features):
        raise refuse("features", "sparse", "to be a dense array", "Pass features.toarray().")
    _check_features(features)
    given = _given_labels(labels)
    model = read_estimator(estimator, given, weights_of_records(sample_weight, len(given)))
    setting: dict[str, Any] = {
        "features": features,
        "labels": model.labels,
        "family": model.family,
        "penalty": model.penalty,
        "intercept_penalty": model.intercept_penalty,
        "sample_weight": model.sample_weights,
    }
    flat = model.labels.ndim == 1 and model.family != "multinomial"
    fit = GlmFit(model.weight.ravel() if flat else model.weight, model.bias)
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

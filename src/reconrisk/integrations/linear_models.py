"""Information about each training record in the noisy coefficients of a linear model.

:func:`information_from_estimator` reads estimators of scikit-learn, :func:`information_from_linear` linear models of
torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from reconrisk.bounds.glm.information import GlmInformation, glm_information
from reconrisk.bounds.glm.problem import GlmFit, fit_glm
from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import check_all_finite, invalid_input
from reconrisk.releases.fitted_estimators.estimators import broadcast_sample_weight, read_estimator, read_linear


def information_from_linear(
    model: nn.Module,
    loss_fn: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    weight_decay: float,
    noise_std: float,
    decay_bias: bool = True,
    tolerance: float = 1e-6,
    polish: bool = False,
) -> GlmInformation:
    r"""Exact Fisher information about every training record in a linear torch model released with Gaussian noise.

    .. math:: \text{loss}(W x + b, y) + \tfrac12\,\text{decay}\,(|W|^2 + |b|^2)

    This is the training objective: x are the records, y the labels, W the weights and b the biases.

    Args:
        model: ``nn.Linear``, or an ``nn.Sequential`` of ``nn.Flatten`` and ``nn.Linear``.
        loss_fn: ``nn.MSELoss``, ``nn.BCEWithLogitsLoss`` (one output), ``nn.CrossEntropyLoss`` or ``nn.PoissonNLLLoss``
            (logarithmic input). Its ``reduction`` sets the scale of the decay.
        inputs: All training records.
        labels: Their labels.
        weight_decay: Weight decay as in SGD and Adam of ``torch.optim``. The weight decay of AdamW is not part of the
            objective.
        noise_std: Standard deviation of the noise on each weight and bias.
        decay_bias: False if the bias is in a parameter group without decay.
        tolerance: Largest accepted distance from the minimiser, as in ``rr.bounds.glm_information``.
        polish: True to continue to the minimiser by Newton's method in double precision. Release the ``coefficients``
            and ``intercept`` of the result then.

    Returns:
        The information about each record, and the coefficients that it belongs to.

    Raises:
        InvalidInput: If the model, loss or data are not supported, or the weights are not the minimiser.

    Assumes: the model was trained to the minimum of ``loss_fn`` over all ``inputs`` at once; labels are public; each
    weight and bias has independent noise of ``noise_std``.
    Guarantee: weights that are not the minimiser are refused.
    Edge cases: losses with class weights, label smoothing or ignored labels are refused by name.

    >>> import torch
    >>> model, x = nn.Linear(2, 1), torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    >>> records = (x, torch.tensor([0.0, 1.0, 1.0]))
    >>> information_from_linear(
    ...     model, nn.BCEWithLogitsLoss(), *records, weight_decay=0.1, noise_std=0.1, polish=True
    ... ).traces.shape
    (3,)
    """
    given: dict[str, Any] = {"inputs": inputs, "labels": labels}
    for name, values in given.items():
        if not isinstance(values, Tensor):
            raise invalid_input(
                f"type({name})",
                type(values).__name__,
                "to be torch.Tensor",
                f"Pass the {name} that the model was trained on, converted with torch.as_tensor.",
            )
        check_all_finite(name, values, "Remove or impute missing values, then train again.")
    given_labels = np.asarray(labels.detach().double().cpu().numpy())
    read = read_linear(model, loss_fn, given_labels, weight_decay=weight_decay, decay_bias=decay_bias)
    setting: dict[str, Any] = {
        "features": inputs.detach().flatten(1).double().cpu().numpy(),
        "labels": read.labels,
        "family": read.family,
        "penalty": read.penalty,
        "intercept_penalty": read.intercept_penalty,
    }
    # one output is a vector for the GLM solver; a multinomial model always has one row per class
    flat = len(read.weight) == 1 and read.family != "multinomial"
    fit = GlmFit(read.weight[0] if flat else read.weight, read.bias)
    if polish:
        fit = fit_glm(**setting, intercept=fit.intercept is not None, start=fit)
    return glm_information(
        fit.coefficients, intercept=fit.intercept, noise_std=noise_std, tolerance=tolerance, **setting
    )


Floats = NDArray[np.float64]

_FARTHEST = 0.1  # solvers that stop early end nearer to the minimum; other records, labels or penalties do not


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
    ``PoissonRegressor`` with their penalties, intercepts and weights. Their solvers stop early at default tolerance,
    and coefficients that are not the minimiser are refused: use ``polish``, or fit with a smaller tolerance.

    Args:
        estimator: Fitted estimator of scikit-learn.
        features: All training records, records x columns, dense.
        labels: Their labels.
        noise_std: Standard deviation of the noise on each coefficient and intercept.
        sample_weight: Weights of the records in the fit, or None.
        tolerance: Largest accepted distance from the minimiser, as in ``rr.bounds.glm_information``.
        polish: True to continue to the minimiser by Newton's method. Release the ``coefficients`` and ``intercept`` of
            the result then. A change of more than 10 % is refused, because the estimator was then fitted to something
            else.

    Returns:
        The information about each record, and the coefficients that it belongs to.

    Raises:
        InvalidInput: If the estimator or the data are not supported, or the coefficients are not the minimiser.

    Assumes: the estimator was fitted to these ``features``, ``labels`` and ``sample_weight``; labels are public; each
    coefficient and intercept is released with independent noise of ``noise_std``.
    Guarantee: as :func:`reconrisk.bounds.glm.information.glm_information`. A convention of scikit-learn that is
    read wrongly would show as coefficients away from the minimum.
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
        raise invalid_input(
            "type(features)", type(features).__name__, "to be a dense array", "Pass features.toarray()."
        )
    _check_features(features)
    given = np.asarray(labels)
    if given.ndim == 0:
        raise invalid_input(
            "labels", labels, "to have one label per record", "Pass the labels that the estimator was fitted to."
        )
    model = read_estimator(estimator, given, broadcast_sample_weight(sample_weight, len(given)))
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
    if polish:  # continue from the coefficients of the estimator, so that few Newton steps suffice
        rough, fit = fit, fit_glm(**setting, intercept=fit.intercept is not None, start=fit)
        _check_near(rough, fit)
    return glm_information(
        fit.coefficients, intercept=fit.intercept, noise_std=noise_std, tolerance=tolerance, **setting
    )


def _check_features(features: ArrayLike) -> None:
    """Raise InvalidInput at the first feature that is not finite."""
    values = np.asarray(features)
    if not np.issubdtype(values.dtype, np.floating) or np.isfinite(values).all():
        return
    place = np.argwhere(~np.isfinite(values))[0]
    name = f"features[{', '.join(map(str, place))}]"
    raise invalid_input(
        name, float(values[tuple(place)]), "to be finite", "Remove or impute missing values, then fit again."
    )


def _check_near(rough: GlmFit, polished: GlmFit) -> None:
    """Raise InvalidInput if polishing moved the coefficients so far that they are another model."""
    before, after = _centre(rough.coefficients), _centre(polished.coefficients)
    scale = max(float(np.linalg.norm(before)), float(np.linalg.norm(after)))
    distance = float(np.linalg.norm(after - before))
    if distance > _FARTHEST * scale:
        raise InvalidInput(
            f"Expected coefficients within {_FARTHEST:.0%} of the minimum of the training loss, but they differ "
            "from it by "
            f"{distance / scale:.0%}. Check that features, labels, sample_weight and penalty (C or alpha) are "
            "those of the fit; "
            "if they are, fit with a smaller tol and a larger max_iter."
        )


def _centre(coefficients: Floats) -> Floats:
    """Subtract the mean over classes, which a multinomial model does not determine."""
    return (
        coefficients - coefficients.mean(axis=0) if coefficients.ndim == 2 and len(coefficients) > 1 else coefficients
    )

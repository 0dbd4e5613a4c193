"""Interior of the risk corridor: exact success of adversaries with a Gaussian prior on linear Gaussian releases."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reconrisk.bounds.mse.premises import KNOWS_PRIOR, UNSTATED
from reconrisk.bounds.numerics.chi_square import log_gammainc, log_weighted_chi_square
from reconrisk.bounds.numerics.matrices import (
    eigenvalue_error,
    finite_array,
    nonnegative_array,
    nonnegative_eigenvalues,
    square_matrix,
)
from reconrisk.core.guarantee import (
    IDEAL_NOISE,
    INDEPENDENT_RECORDS,
    CoveredRelease,
    Guarantee,
    Quantity,
    Scope,
    probability_from_log,
)
from reconrisk.core.mechanism import Gaussian, Mechanism
from reconrisk.core.papers import Reference
from reconrisk.core.validation import check_nonnegative, check_positive, check_whole, invalid_input

Floats = NDArray[np.float64]

_EPSILON = float(np.finfo(float).eps)
_REFERENCE = Reference("posterior of a linear Gaussian release, Anderson's inequality", "reconrisk")
_PRIOR_TRUE = "the record is drawn from the stated Gaussian prior, which the adversary knows"


def gaussian_prior_success(noise_std: float, *, dimension: int, prior_std: float, mse: float) -> Guarantee:
    r"""Exact success of the best adversary with prior N(w, tau^2 I) who sees the record plus N(0, v I).

    .. math:: \gamma = P\bigl(\tfrac d2, \tfrac{d \eta}{2 s^2}\bigr), \quad s^2 = \frac{\tau^2 v}{\tau^2 + v}

    Here P is the regularised lower incomplete gamma function. The posterior is Gaussian with variance s^2. By
    Anderson's inequality no estimate has more posterior mass around it than the posterior mean.

    Args:
        noise_std: Standard deviation of the noise on each value (:math:`\sqrt v`).
        dimension: Number of values in a record (d).
        prior_std: Standard deviation of the prior in each coordinate (:math:`\tau`).
        mse: Largest mean squared error that counts as success (:math:`\eta`).

    Returns:
        A guarantee on the success probability, with ``log_value`` as its natural logarithm.

    Raises:
        InvalidInput: If ``noise_std``, ``prior_std`` or ``dimension`` is not positive, or ``mse`` is negative.

    Assumes: the release is x + N(0, v I) with v fixed and known. For the normalised release of riess2025 the value is
    only an estimate, because there the noise scales with the unknown norm.
    Guarantee: attained by the posterior mean. Tends to the law of riess2025's attack as the prior widens, and to the
    success without a release as the noise grows. Nonincreasing in ``noise_std`` and ``prior_std``.
    Edge cases: ``mse = 0`` gives 0; ``log_value`` represents probabilities below the smallest float.
    Reference: ours.

    >>> round(gaussian_prior_success(1.0, dimension=2, prior_std=1.0, mse=0.5).value, 4)
    0.6321
    """
    log_value = log_gaussian_prior_success(noise_std, dimension=dimension, prior_std=prior_std, mse=mse)
    released = "the release is the record plus independent Gaussian noise of this standard deviation, without clipping"
    return _guarantee(log_value, Gaussian(noise_multiplier=noise_std), released, CoveredRelease.RECORD)


def log_gaussian_prior_success(noise_std: float, *, dimension: int, prior_std: float, mse: float) -> float:
    """Logarithm of :func:`gaussian_prior_success` as a plain number, for root finding.

    Args:
        noise_std: Standard deviation of the noise on each value.
        dimension: Number of values in a record.
        prior_std: Standard deviation of the prior in each coordinate.
        mse: Largest mean squared error that counts as success.

    Returns:
        Natural logarithm of the success probability, rounded up; ``-inf`` for ``mse = 0``.

    Raises:
        InvalidInput: As :func:`gaussian_prior_success`.

    >>> round(log_gaussian_prior_success(1.0, dimension=2, prior_std=1.0, mse=0.5), 4)
    -0.4587
    """
    check_positive("noise_std", noise_std, "Without noise the record is known.")
    check_positive("prior_std", prior_std, "Without spread the record is known beforehand.")
    shape = check_whole("dimension", dimension) / 2
    threshold = check_nonnegative("mse", mse)
    # Products, because powers raise on overflow; an infinite precision means that success is certain.
    precision = (1 / noise_std) * (1 / noise_std) + (1 / prior_std) * (1 / prior_std)
    # The argument is rounded up by more than its own rounding error; 0 * inf would be NaN.
    argument = shape * threshold * precision * (1 + 8 * _EPSILON) if threshold else 0.0
    if math.isinf(argument):
        return 0.0
    value = float(log_gammainc(shape, argument))
    # A margin above the error of log_gammainc near 0 and of its large terms far below.
    return min(0.0, value + 64 * _EPSILON * (1 + abs(value))) if value > -math.inf else value


def linear_gaussian_success(
    information: ArrayLike, *, prior_covariance: ArrayLike, mse: float, mechanism: Mechanism = UNSTATED
) -> Guarantee:
    r"""Success of the best adversary with prior N(w, S) who sees J x plus N(0, Sigma), rounded up.

    .. math:: \gamma = P\Bigl(\sum_i s_i^2 z_i^2 \le d \eta\Bigr), \quad
              s_i^2 = \text{eigenvalues of } (S^{-1} + J^T \Sigma^{-1} J)^{-1}

    Args:
        information: The matrix :math:`J^T \Sigma^{-1} J`. A vector is read as a diagonal matrix, so eigenvalues may be
            passed when both matrices share their eigenvectors.
        prior_covariance: Covariance S of the prior: a matrix, a vector (diagonal), or a number (multiple of the
            identity).
        mse: Largest mean squared error that counts as success (:math:`\eta`).
        mechanism: Mechanism that the information was derived from; recorded in the guarantee.

    Returns:
        A guarantee on the success probability, with ``log_value`` as its natural logarithm.

    Raises:
        InvalidInput: If a matrix is not symmetric and positive semidefinite, if shapes differ, or if ``mse`` is
            negative.

    Assumes: a release that is linear in the record, with Gaussian noise of known covariance.
    Guarantee: attained by the posterior mean, up to a relative excess of about 1e-10. Nondecreasing in the
    information for a fixed prior covariance. Equal variances give :func:`gaussian_prior_success`.
    Edge cases: directions without prior variance are known and contribute no error; singular information is allowed.
    Reference: ours; Anderson's inequality and the inversion formula of Imhof (1961).

    >>> round(linear_gaussian_success([1.0, 1.0], prior_covariance=1.0, mse=0.5).value, 4)
    0.6321
    """
    threshold = check_nonnegative("mse", mse)
    variances = posterior_variances(information, prior_covariance=prior_covariance)
    log_value = log_weighted_chi_square(len(variances) * threshold, weights=variances)
    released = (
        "the release is linear in the record, with Gaussian noise: its information is this matrix for every record"
    )
    return _guarantee(log_value, mechanism, released, CoveredRelease.LINEAR)


def posterior_variances(information: ArrayLike, *, prior_covariance: ArrayLike) -> Floats:
    r"""Eigenvalues of the posterior covariance of a linear Gaussian release, rounded down.

    .. math:: (S^{-1} + I)^{-1} = S^{1/2} (E + S^{1/2} I S^{1/2})^{-1} S^{1/2}

    Here S is the covariance of the prior, I the information of the release, and E the identity matrix.

    Args:
        information: The matrix :math:`J^T \Sigma^{-1} J`, or its diagonal as a vector.
        prior_covariance: Covariance of the prior: a matrix, a vector (diagonal), or a number (multiple of the
            identity).

    Returns:
        One variance for each dimension of the record.

    Raises:
        InvalidInput: If a matrix is not symmetric and positive semidefinite, or if shapes differ.

    Guarantee: no inverse of S is formed, so a singular prior is allowed. Rounding errors make the variances smaller,
    never larger.

    >>> posterior_variances([1.0, 3.0], prior_covariance=1.0).round(6).tolist()
    [0.5, 0.25]
    """
    released = finite_array(
        "information", information, dimensions=(1, 2), remedy="Pass a d x d matrix or its diagonal."
    )
    prior = _nonnegative_prior(prior_covariance, len(released))
    if released.ndim == 1 and prior.ndim == 1:
        values = nonnegative_array("information", released, dimensions=(1,))
        with np.errstate(over="ignore"):  # an infinite product leaves no variance
            # Rounded down by more than the rounding error: a smaller variance never lowers the success, an upper bound.
            return np.asarray(prior / (1 + prior * values) * (1 - 4 * _EPSILON))
    matrix = square_matrix("information", released)
    nonnegative_eigenvalues("information", matrix, remedy="Pass J^T Sigma^-1 J.")
    spreads, axes, _ = nonnegative_eigenvalues("prior_covariance", square_matrix("prior_covariance", prior))
    root = axes * np.sqrt(spreads)  # S = root root^T, so S^(1/2) may be replaced by root below
    gains, turns = np.linalg.eigh(root.T @ matrix @ root)
    half = (root @ turns) / np.sqrt(1 + np.maximum(gains, 0.0))
    variances = np.linalg.eigvalsh(half @ half.T)
    return np.asarray(np.maximum(variances - eigenvalue_error(variances), 0.0))


def _nonnegative_prior(prior_covariance: ArrayLike, dimension: int) -> Floats:
    """Return a prior covariance as a vector or matrix of the given dimension."""
    prior = finite_array("prior_covariance", prior_covariance, dimensions=(0, 1, 2))
    if prior.ndim == 0:
        prior = np.full(dimension, float(prior))
    if len(prior) != dimension:
        raise invalid_input("prior_covariance.shape", prior.shape, f"to have {dimension} rows, as information has")
    return nonnegative_array("prior_covariance", prior, dimensions=(1,)) if prior.ndim == 1 else prior


def _guarantee(log_value: float, mechanism: Mechanism, released: str, release: CoveredRelease) -> Guarantee:
    return Guarantee(
        quantity=Quantity.SUCCESS_PROBABILITY,
        value=probability_from_log(log_value),
        log_value=log_value,
        mechanism=mechanism,
        scope=Scope.ANY_ADVERSARY_WITH_PRIOR,
        threat=KNOWS_PRIOR,
        reference=_REFERENCE,
        assumptions=(released, _PRIOR_TRUE, INDEPENDENT_RECORDS, IDEAL_NOISE),
        release=release,
    )

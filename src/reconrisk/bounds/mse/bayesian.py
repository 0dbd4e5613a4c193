"""Lower bounds on the mean squared error of every estimate under a prior (van Trees; chen2025, Theorem 3.2)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reconrisk.bounds.mse.premises import KNOWS_PRIOR, UNSTATED, mse_guarantee
from reconrisk.bounds.numerics.matrices import finite_array, nonnegative_eigenvalues, square_matrix
from reconrisk.core.errors import InvalidInput
from reconrisk.core.guarantee import CoveredRelease, Guarantee, Scope
from reconrisk.core.mechanism import Mechanism
from reconrisk.core.papers import Reference
from reconrisk.core.validation import check_nonnegative, check_positive, check_whole, invalid_input

Floats = NDArray[np.float64]

_PRIOR = "the record is drawn from a prior of this information, whose density vanishes at the boundary of its support"
_EXPECTED = "the information of the release is its expectation over the prior, or an upper limit of it"
_NO_UNIFORM = (
    "Use box_prior_information, gaussian_prior_information or blurred_prior_information. No prior density has zero "
    "information in a direction; a uniform density has infinite information at its boundary."
)


def bayesian_mse_lower_bound(
    information: ArrayLike | None = None,
    *,
    prior_information: ArrayLike,
    trace: float | None = None,
    dimension: int | None = None,
    constant_guess_mse: float = math.inf,
    mechanism: Mechanism = UNSTATED,
) -> Guarantee:
    r"""Lower bound on the mean squared error of any estimate, averaged over release and prior.

    .. math:: E\,\mathrm{MSE} \ge \frac{\mathrm{tr}\bigl((E I + P)^{-1}\bigr)}d
              \ge \frac d{E\,\mathrm{tr}\,I + \mathrm{tr} P}
              \ge \frac d{E\,\mathrm{tr}\,I + d \lambda_{\max}(P)}

    Here E is the mean over the prior, I the Fisher information of the release about the record, P the Fisher
    information of the prior, and :math:`\lambda_{\max}` the largest eigenvalue. Pass either ``information`` or
    ``trace``; the matrix gives the tighter bound.

    Args:
        information: Expected Fisher information E I of the release: a matrix, or its diagonal as a vector.
        prior_information: Fisher information P of the prior: a matrix, its diagonal as a vector, or its largest
            eigenvalue as a number, which gives the last form.
        trace: Expected trace of the information.
        dimension: Number of values in a record (d), not the number of parameters; required with ``trace`` unless
            ``prior_information`` has it.
        constant_guess_mse: Cap on the value: the error of a constant guess; by default no cap.
        mechanism: Mechanism that the information was derived from; recorded in the guarantee.

    Returns:
        A guarantee on the mean squared error.

    Raises:
        InvalidInput: If not exactly one of ``information`` and ``trace`` is given, if a matrix is not positive
            semidefinite, if ``prior_information`` is singular, or if shapes differ.

    Assumes: the record is drawn from the prior, whose density is smooth and vanishes at the boundary of its support.
    Guarantee: holds for biased estimates too; never above ``constant_guess_mse``.
    Edge cases: without information the bound is tr(P^-1)/d, at most the variance of the prior.
    Reference: Theorem 3.2, chen2025, with the largest eigenvalue of P; the appendix of the paper uses the smallest.

    >>> bayesian_mse_lower_bound([1.0, 3.0], prior_information=1.0).value > 0.374
    True
    >>> round(bayesian_mse_lower_bound(trace=4.0, dimension=2, prior_information=1.0).value, 4)
    0.3333
    """
    if (information is None) == (trace is None):
        raise invalid_input(
            "(information, trace)",
            (information, trace),
            "to have exactly one value",
            "Pass information=... or trace=...",
        )
    prior = finite_array("prior_information", prior_information, dimensions=(0, 1, 2), remedy=_NO_UNIFORM)
    bound = _from_matrix(information, prior) if information is not None else _from_trace(trace, dimension, prior)
    return mse_guarantee(
        bound,
        constant_guess_mse=constant_guess_mse,
        mechanism=mechanism,
        scope=Scope.ANY_ADVERSARY_WITH_PRIOR,
        threat=KNOWS_PRIOR,
        reference=Reference("Theorem 3.2, corrected", "chen2025"),
        assumptions=(_PRIOR, _EXPECTED),
        release=CoveredRelease.STATED_INFORMATION,
    )


def gaussian_prior_information(covariance: ArrayLike) -> Floats:
    """Fisher information of a Gaussian prior, the inverse of its covariance.

    Args:
        covariance: Covariance of the prior: a matrix, a vector of variances, or one variance.

    Returns:
        The information, in the form of ``covariance``.

    Raises:
        InvalidInput: If a variance is not positive, or if the matrix is singular.

    >>> gaussian_prior_information([0.5, 0.25]).tolist()
    [2.0, 4.0]
    """
    spread = finite_array("covariance", covariance, dimensions=(0, 1, 2))
    if spread.ndim < 2:
        if not (spread > 0).all():
            remedy = "Leave out coordinates that have no variance."
            raise invalid_input("min(covariance)", float(spread.min()), "> 0", remedy)
        return np.asarray(1 / spread)
    values, axes, error = nonnegative_eigenvalues("covariance", square_matrix("covariance", spread))
    if values.min() <= error:
        raise InvalidInput(
            "Expected covariance to be positive definite, found a singular one. Leave out directions without variance."
        )
    return np.asarray((axes / values) @ axes.T)  # the inverse from the eigenvalues that were just checked


def box_prior_information(widths: ArrayLike) -> Floats:
    r"""Fisher information of the prior with the least information among all priors on intervals of given widths.

    .. math:: P_{ii} = 4\pi^2/w_i^2 \quad\text{for the density}\quad p(x) \propto \prod_i \cos^2(\pi x_i/w_i)

    Here :math:`x_i` is the distance of value i from the middle of its interval, and :math:`w_i` the width.

    Args:
        widths: Width of the interval of each value, or one number.

    Returns:
        The information of each coordinate.

    Raises:
        InvalidInput: If a width is not positive.

    >>> float(box_prior_information(2.0)) == math.pi**2
    True
    """
    sides = finite_array("widths", widths, dimensions=(0, 1))
    if not (sides > 0).all():
        raise invalid_input("min(widths)", float(sides.min()), "> 0", "Leave out coordinates that are known.")
    return np.asarray(4 * math.pi**2 / sides**2)


def blurred_prior_information(blur_std: float) -> float:
    """Upper limit on the Fisher information of any data blurred by Gaussian noise: ``1 / blur_std^2``.

    Args:
        blur_std: Standard deviation of the noise added to each value.

    Returns:
        An upper limit on every eigenvalue of the information.

    Raises:
        InvalidInput: If ``blur_std`` is not positive.

    >>> blurred_prior_information(0.5)
    4.0
    """
    check_positive("blur_std", blur_std, "Without blur a finite data set has no density.")
    return (1 / blur_std) * (1 / blur_std)  # ** would raise on overflow


def _from_matrix(information: ArrayLike, prior: Floats) -> float:
    released = square_matrix("information", information)
    nonnegative_eigenvalues("information", released)
    if prior.ndim and len(prior) != len(released):
        raise invalid_input("prior_information.shape", prior.shape, f"to have {len(released)} rows, as information has")
    _check_positive_definite(prior)
    added = float(prior) * np.eye(len(released)) if prior.ndim == 0 else square_matrix("prior_information", prior)
    values, _, error = nonnegative_eigenvalues("information + prior_information", released + added)
    return float(np.mean(1 / (values + error)))  # eigenvalues rounded up, so the lower bound is rounded down


def _from_trace(trace: float | None, dimension: int | None, prior: Floats) -> float:
    total = check_nonnegative("trace", trace)
    size = len(prior) if prior.ndim and dimension is None else check_whole("dimension", dimension)
    if prior.ndim and len(prior) != size:
        raise invalid_input("dimension", dimension, f"to equal {len(prior)}, the dimension of prior_information")
    _check_positive_definite(prior)
    # Keyed by the number of axes: largest eigenvalue, diagonal, matrix.
    prior_trace = {0: lambda: size * float(prior), 1: lambda: float(prior.sum()), 2: lambda: float(np.trace(prior))}
    return size / (total + prior_trace[prior.ndim]())


def _check_positive_definite(prior: Floats) -> None:
    if prior.ndim < 2:
        smallest, error = float(prior.min()), 0.0
    else:
        values, _, error = nonnegative_eigenvalues("prior_information", square_matrix("prior_information", prior))
        smallest = float(values.min())
    if smallest <= error:  # may be zero up to rounding
        raise InvalidInput(
            f"Expected prior_information to be positive definite, found the eigenvalue {smallest:.6g}. {_NO_UNIFORM}"
        )

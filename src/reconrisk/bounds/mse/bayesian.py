"""Lower bounds on the mean squared error of every estimate, given a prior (van Trees; chen2025, Theorem 3.2)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reconrisk.bounds.mse.premises import KNOWS_PRIOR, UNSTATED, mse_guarantee
from reconrisk.bounds.numerics.matrices import finite_array, nonnegative_eigenvalues, square_matrix
from reconrisk.core.guarantee import Guarantee, Scope
from reconrisk.core.mechanism import Mechanism
from reconrisk.core.papers import Reference
from reconrisk.core.validation import check_nonnegative, check_positive, check_whole, invalid_input

Floats = NDArray[np.float64]

_PRIOR = "the record is drawn from a prior of this information, whose density vanishes at the boundary of its support"
_EXPECTED = "the information of the release is its expectation over the prior, or an upper limit of it"
_NO_UNIFORM = (
    "No density has zero information in a direction: a uniform one has infinite information at its boundary. Use "
    "box_prior_information, gaussian_prior_information or blurred_prior_information."
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

    Assumes: the record has the prior, whose density is smooth and vanishes at the boundary of its support.
    Notation: pass the expected ``information`` E I as a matrix (a vector stands for a diagonal one), or its ``trace``
    with the ``dimension`` d of the record. ``prior_information`` P is a matrix, a vector, or a number: the largest
    eigenvalue, which gives the last form. d is the dimension of the record, not the number of parameters.
    Guarantee: holds for biased estimates too; never above the error of the constant guess, where that is passed.
    Edge cases: no information leaves tr(P^-1)/d, at most the variance of the prior. Singular P is refused.
    Reference: Theorem 3.2, chen2025, with the largest eigenvalue, where its appendix takes the smallest.

    >>> bayesian_mse_lower_bound([1.0, 3.0], prior_information=1.0).value > 0.374
    True
    >>> round(bayesian_mse_lower_bound(trace=4.0, dimension=2, prior_information=1.0).value, 4)
    0.3333
    """
    if (information is None) == (trace is None):
        raise invalid_input(
            "(information, trace)", (information, trace), "to have exactly one value", "Prefer the matrix."
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
    )


def gaussian_prior_information(covariance: ArrayLike) -> Floats:
    """Information of a Gaussian prior: the inverse of its covariance (a number, variances, or a matrix).

    >>> gaussian_prior_information([0.5, 0.25]).tolist()
    [2.0, 4.0]
    """
    spread = finite_array("covariance", covariance, dimensions=(0, 1, 2))
    if spread.ndim < 2:
        if not (spread > 0).all():
            raise invalid_input("covariance", covariance, "> 0", "A direction without variance is known; leave it out.")
        return np.asarray(1 / spread)
    values, axes, error = nonnegative_eigenvalues("covariance", square_matrix("covariance", spread))
    if values.min() <= error:
        raise invalid_input(
            "covariance", "singular", "to be positive definite", "Directions without variance are known."
        )
    return np.asarray((axes / values) @ axes.T)


def box_prior_information(widths: ArrayLike) -> Floats:
    r"""Information of the smoothest prior on a box, the density proportional to :math:`\prod_i \cos^2(\pi x_i/w_i)`.

    .. math:: P_{ii} = 4\pi^2/w_i^2

    No density on an interval of that width has less information.

    >>> float(box_prior_information(2.0)) == math.pi**2
    True
    """
    sides = finite_array("widths", widths, dimensions=(0, 1))
    if not (sides > 0).all():
        raise invalid_input("widths", widths, "> 0", "Leave out coordinates that are known.")
    return np.asarray(4 * math.pi**2 / sides**2)


def blurred_prior_information(blur_std: float) -> float:
    """Upper limit on every eigenvalue of the information of any data blurred by Gaussian noise: ``1 / blur_std^2``.

    >>> blurred_prior_information(0.5)
    4.0
    """
    check_positive("blur_std", blur_std, "Without blur a finite data set has no density.")
    return (1 / blur_std) * (1 / blur_std)


def _from_matrix(information: ArrayLike, prior: Floats) -> float:
    released = square_matrix("information", information)
    nonnegative_eigenvalues("information", released)
    if prior.ndim and len(prior) != len(released):
        raise invalid_input(
            "prior_information.shape", prior.shape, f"to match information of dimension {len(released)}"
        )
    _check_positive_definite(prior)
    added = float(prior) * np.eye(len(released)) if prior.ndim == 0 else square_matrix("prior_information", prior)
    values, _, error = nonnegative_eigenvalues("information + prior_information", released + added)
    return float(np.mean(1 / (values + error)))


def _from_trace(trace: float | None, dimension: int | None, prior: Floats) -> float:
    total = check_nonnegative("trace", trace)
    size = len(prior) if prior.ndim and dimension is None else check_whole("dimension", dimension)
    if prior.ndim and len(prior) != size:
        raise invalid_input("dimension", dimension, f"to equal {len(prior)}, the dimension of prior_information")
    _check_positive_definite(prior)
    prior_trace = {0: lambda: size * float(prior), 1: lambda: float(prior.sum()), 2: lambda: float(np.trace(prior))}
    return size / (total + prior_trace[prior.ndim]())


def _check_positive_definite(prior: Floats) -> None:
    if prior.ndim < 2:
        smallest, error = float(prior.min()), 0.0
    else:
        values, _, error = nonnegative_eigenvalues("prior_information", square_matrix("prior_information", prior))
        smallest = float(values.min())
    if smallest <= error:
        raise invalid_input(
            "prior_information", f"with eigenvalue {smallest:.6g}", "to be positive definite", _NO_UNIFORM
        )

"""Lower bounds on the mean squared error from Fisher information (guo2022, Theorem 2)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reconrisk.bounds.mse.premises import KNOWS_THE_REST, UNSTATED, mse_guarantee
from reconrisk.bounds.numerics.matrices import eigenvalue_error, finite_array, nonnegative_eigenvalues, square_matrix
from reconrisk.core.guarantee import CoveredRelease, Guarantee, Scope
from reconrisk.core.mechanism import Mechanism
from reconrisk.core.papers import Reference
from reconrisk.core.validation import check_nonnegative, check_whole, invalid_input

Floats = NDArray[np.float64]

_INFORMATION = "the information is that of the whole release about the record, or an upper limit of it"
_UNBIASED = "the estimate is unbiased in a neighbourhood of the record"
_BIASED = "the mean of the estimate has the stated Jacobian and bias at this record"
_SINGULAR = (
    "the information is singular: no unbiased estimate of finite variance exists, and other estimates are not covered"
)


def mse_lower_bound_from_fisher(
    information: ArrayLike | None = None,
    *,
    trace: float | None = None,
    spectral_norm: float | None = None,
    dimension: int | None = None,
    mean_jacobian: ArrayLike | None = None,
    bias: ArrayLike = 0.0,
    constant_guess_mse: float = math.inf,
    mechanism: Mechanism = UNSTATED,
) -> Guarantee:
    r"""Lower bound on the mean squared error of estimates with a given bias, from the Fisher information.

    .. math:: \frac{\mathrm{tr}(I^{-1})}d \ge \frac d{\mathrm{tr}\,I} \ge \frac1{\lambda_{\max}(I)}, \qquad
              \text{in general}\quad \frac{\mathrm{tr}(J_\mu I^{-1} J_\mu^T)}d + \frac{|\mu(z)-z|^2}d

    Here z is the record, I the Fisher information of the release about it, and :math:`\mu(z)` the mean of the estimate.

    Pass exactly one of ``information``, ``trace`` and ``spectral_norm``, each exact or an upper limit.

    Args:
        information: Fisher information of the release about the record: a matrix, or its diagonal as a vector.
        trace: Trace of the information; requires ``dimension``.
        spectral_norm: Largest eigenvalue of the information.
        dimension: Number of values in a record (d), for ``trace``.
        mean_jacobian: Jacobian :math:`J_\mu` of the mean of the estimate; by default the identity. Requires
            ``information``.
        bias: Bias of the estimate in each coordinate, :math:`\mu(z) - z`. Requires ``information`` if it is not zero.
        constant_guess_mse: Cap on the value: the error of a constant guess; by default no cap.
        mechanism: Mechanism that the information was derived from; recorded in the guarantee.

    Returns:
        A guarantee on the mean squared error.

    Raises:
        InvalidInput: If the information is not given in exactly one form, if it is not positive semidefinite, if shapes
            differ, or if a bias is given without the matrix.

    Assumes: a regular release density; ``information`` is taken at the record itself, so the value is private.
    Guarantee: never above ``constant_guess_mse``; eigenvalues are rounded up. It does not bound the probability of a
    good estimate, nor the error of estimates with another bias.
    Edge cases: exactly singular information (a diagonal with a zero) gives inf and adds an assumption that states this,
    unless the Jacobian vanishes on the kernel of the information. An eigenvalue below the rounding error is replaced by
    that error.
    Reference: Theorem 2, guo2022.

    >>> round(mse_lower_bound_from_fisher(trace=8.0, dimension=2).value, 9)
    0.25
    >>> mse_lower_bound_from_fisher([2.0, 6.0]).value > 0.33
    True
    >>> mse_lower_bound_from_fisher([2.0, 0.0]).value
    inf
    """
    if sum(form is not None for form in (information, trace, spectral_norm)) != 1:
        given = (information, trace, spectral_norm)
        raise invalid_input(
            "(information, trace, spectral_norm)",
            given,
            "to have exactly one value",
            "Pass information=..., trace=... or spectral_norm=...",
        )
    biased = mean_jacobian is not None or bool(np.any(finite_array("bias", bias, dimensions=(0, 1)) != 0))
    if information is not None:
        bound = _from_matrix(information, mean_jacobian, bias)
    elif biased:
        raise invalid_input("information", None, "to be a matrix", "Pass it together with mean_jacobian or bias.")
    elif trace is None:
        largest = check_nonnegative("spectral_norm", spectral_norm)
        bound = math.inf if largest == 0 else 1 / largest
    elif dimension is None:
        raise invalid_input("dimension", None, "to be the dimension of the record", "Pass it together with trace.")
    else:
        total = check_nonnegative("trace", trace)
        bound = math.inf if total == 0 else check_whole("dimension", dimension) / total
    assumptions = (_INFORMATION, _BIASED if biased else _UNBIASED)
    return mse_guarantee(
        bound,
        constant_guess_mse=constant_guess_mse,
        mechanism=mechanism,
        scope=Scope.UNBIASED_ESTIMATORS,
        threat=KNOWS_THE_REST,
        reference=Reference("Theorem 2", "guo2022"),
        assumptions=(*assumptions, _SINGULAR) if math.isinf(bound) else assumptions,
        release=CoveredRelease.STATED_INFORMATION,
    )


def _from_matrix(information: ArrayLike, mean_jacobian: ArrayLike | None, bias: ArrayLike) -> float:
    matrix = square_matrix("information", information, remedy="Pass the d x d Fisher information of the record.")
    values, axes, error = nonnegative_eigenvalues("information", matrix)
    size = len(values)
    offsets = np.asarray(bias, dtype=float)
    if offsets.ndim and len(offsets) != size:
        raise invalid_input("bias.shape", offsets.shape, f"to be {(size,)}, one value per row of information")
    gains = np.ones(size)
    if mean_jacobian is not None:
        jacobian = finite_array("mean_jacobian", mean_jacobian, dimensions=(2,))
        if jacobian.shape != matrix.shape:
            raise invalid_input("mean_jacobian.shape", jacobian.shape, f"to equal information.shape={matrix.shape}")
        gains = ((jacobian @ axes) ** 2).sum(axis=0)
        gains[gains <= eigenvalue_error(gains)] = 0.0  # rounding may not turn a zero gain into an infinite ratio
    # Eigenvalues are rounded up, because one below its own error may be as large as that error. The error is 0 for a
    # diagonal matrix, so the ratio is inf only along an exact kernel.
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(gains > 0, gains / (np.maximum(values, 0.0) + error), 0.0)
    return float(ratios.sum()) / size + float(np.mean(offsets**2))

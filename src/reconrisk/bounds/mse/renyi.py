"""Lower bounds on the mean squared error from Renyi differential privacy (guo2022, Theorem 1)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reconrisk.bounds.mse.premises import CONTROLS_THE_REST, mse_guarantee, record_in_box
from reconrisk.bounds.mse.premises import constant_guess_mse as centre_guess_mse
from reconrisk.bounds.numerics.matrices import finite_array, nonnegative_array
from reconrisk.core.guarantee import Guarantee, Scope
from reconrisk.core.mechanism import Neighbouring, RenyiDP
from reconrisk.core.papers import Reference
from reconrisk.core.validation import check_nonnegative, invalid_input

Floats = NDArray[np.float64]

_LARGEST = 1e150  # squares of larger numbers overflow

_RDP = "epsilon is the Renyi divergence of order 2 (or above) between neighbours that differ by replacing the record"
_UNBIASED = "the estimate is unbiased for every record of the box"
_BIASED = "the mean of the estimate has at least the stated slopes and exactly the stated bias at this record"


def mse_lower_bound_from_rdp(
    epsilon: float,
    *,
    diameters: ArrayLike | None = None,
    low: ArrayLike | None = None,
    high: ArrayLike | None = None,
    record: ArrayLike | None = None,
    slopes: ArrayLike = 1.0,
    bias: ArrayLike = 0.0,
    constant_guess_mse: float | None = None,
) -> Guarantee:
    r"""Lower bound on the mean squared error of estimates with a given bias, from replace-one Renyi DP of order 2.

    .. math:: \frac{1}{d} \sum_i \frac{\gamma_i^2 \Delta_i^2}{e^\epsilon - 1} + \frac{|\mu(z) - z|^2}d, \quad
              \Delta_i = \tfrac12 \mathrm{diam}_i \;\text{ or, for one record, }\; \max(z_i - l_i, h_i - z_i)

    Here z is the record, d its number of values, :math:`\mu(z)` the mean of the estimate, l ``low`` and h ``high``.
    Pass either ``diameters``, or ``low`` and ``high``, which bound a box that contains all records. With ``record`` the
    bound is tighter and holds for that record only, so its value is private. The defaults of ``slopes`` and ``bias``
    describe unbiased estimates.

    Args:
        epsilon: Renyi divergence of order 2 or above under replacement of one record.
        diameters: Width of the range of each value (largest minus smallest); one number for equal widths.
        low: Smallest value of each coordinate; one number for equal limits.
        high: Largest value of each coordinate; one number for equal limits.
        record: Record to bound the error for; it must lie in the box.
        slopes: Smallest slope of the mean estimate in each coordinate, :math:`\gamma_i = \inf |\partial\mu_i/\partial
            z_i|`.
        bias: Bias of the estimate in each coordinate, :math:`\mu(z) - z`.
        constant_guess_mse: Cap on the value; by default the error of guessing the centre of the box. Pass ``math.inf``
            for the bound without a cap.

    Returns:
        A guarantee on the mean squared error.

    Raises:
        InvalidInput: If ``epsilon`` or a slope is negative, if the box is not stated in exactly one form, if shapes
            differ, or if the record lies outside the box.

    Assumes: ``epsilon`` holds under **replacement** of the record (an add/remove value is too small); records lie in a
    box.
    Guarantee: never above the error of the constant guess; nonincreasing in epsilon. It does not bound the probability
    of a good estimate, nor the error of estimates with another bias.
    Edge cases: ``epsilon = 0`` gives the error of the constant guess; a large epsilon underflows to 0, which is a valid
    bound.
    Reference: Theorem 1, guo2022.

    >>> round(mse_lower_bound_from_rdp(2.49, diameters=1.0).value, 4)
    0.0226
    >>> mse_lower_bound_from_rdp(2.49, low=0.0, high=1.0, record=[0.0, 1.0]).value > 0.09
    True
    """
    check_nonnegative("epsilon", epsilon, "Pass the Renyi divergence of order 2 under replacement of one record.")
    steps, cap = _steps(diameters, low, high, record)
    rates = nonnegative_array("slopes", slopes, dimensions=(0, 1), remedy="Pass 1 for unbiased estimates.")
    offsets = finite_array("bias", bias, dimensions=(0, 1), remedy="Pass 0 for unbiased estimates.")
    if rates.ndim and steps.ndim and rates.shape != steps.shape:
        raise invalid_input("slopes.shape", rates.shape, f"to be {steps.shape}, one slope per coordinate")
    moved = float(np.mean((rates * steps) ** 2))
    # 1 / (e^epsilon - 1), written with e^-epsilon because e^epsilon overflows above 709; inf at 0.
    inverse = math.inf if epsilon == 0 else math.exp(-epsilon) / -math.expm1(-epsilon)
    variance = moved * inverse if moved > 0 else 0.0  # 0 * inf would be NaN
    unbiased = bool((rates == 1).all() and (offsets == 0).all())
    return mse_guarantee(
        variance + float(np.mean(offsets**2)),
        constant_guess_mse=cap if constant_guess_mse is None else constant_guess_mse,
        mechanism=RenyiDP(orders=(2.0,), epsilons=(epsilon,), neighbouring=Neighbouring.REPLACE_ONE),
        scope=Scope.UNBIASED_ESTIMATORS,
        threat=CONTROLS_THE_REST,
        reference=Reference("Theorem 1", "guo2022"),
        assumptions=(_RDP, _UNBIASED if unbiased else _BIASED),
    )


def _steps(
    diameters: ArrayLike | None, low: ArrayLike | None, high: ArrayLike | None, record: ArrayLike | None
) -> tuple[Floats, float]:
    """Return Delta_i of :func:`mse_lower_bound_from_rdp` for each coordinate, and the error of the constant guess."""
    if diameters is not None and low is None and high is None and record is None:
        widths = nonnegative_array("diameters", diameters, dimensions=(0, 1))
        if widths.max() > _LARGEST:
            raise invalid_input("max(diameters)", float(widths.max()), f"<= {_LARGEST:g}", "Rescale the data.")
        return widths / 2, float(np.mean(widths**2)) / 4
    if diameters is not None or low is None or high is None:
        given = (diameters, low, high)
        raise invalid_input(
            "(diameters, low, high)",
            given,
            "to have either diameters, or both low and high",
            "Pass low and high if you pass record.",
        )
    cap = centre_guess_mse(low=low, high=high)
    lower, upper = np.asarray(low, dtype=float), np.asarray(high, dtype=float)
    if record is None:
        return (upper - lower) / 2, cap
    target = record_in_box(record, low=lower, high=upper)
    return np.maximum(target - lower, upper - target), cap

"""Lower bounds on the mean squared error as guarantees, capped by the error of a constant guess.

:func:`mse_guarantee` adds mechanism, adversary and assumptions to a bound. :func:`constant_guess_mse` is the error of a
guess that ignores the release, the baseline for all other errors.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reconrisk.bounds.numerics.matrices import finite_array
from reconrisk.core.guarantee import IDEAL_NOISE, CoveredRelease, Guarantee, Quantity, Scope
from reconrisk.core.mechanism import ApproximateDP, Mechanism
from reconrisk.core.papers import Reference
from reconrisk.core.threat import Controls, Knows, Sees, ThreatModel
from reconrisk.core.validation import check_real, invalid_input

Floats = NDArray[np.float64]

_LARGEST = 1e150  # squares of larger numbers overflow


def constant_guess_mse(*, low: ArrayLike, high: ArrayLike, record: ArrayLike | None = None) -> float:
    r"""Mean squared error of guessing the centre of the box [low, high], without the release.

    .. math:: \frac1{4d} \sum_i (h_i - l_i)^2 \quad\text{at most}, \qquad
              \frac1d \sum_i \bigl(x_i - \tfrac{l_i+h_i}2\bigr)^2 \quad\text{for one record}

    Here l is ``low``, h is ``high``, x the record and d its number of values.

    Args:
        low: Smallest value of each coordinate; one number for equal limits.
        high: Largest value of each coordinate; one number for equal limits.
        record: Record to evaluate the guess on; by default the worst case over the box.

    Returns:
        The error, or its largest value over the box if ``record`` is not given.

    Raises:
        InvalidInput: If ``high`` is not above ``low``, if a limit exceeds 1e150, if shapes differ, or if the record
            lies outside the box.

    Assumes: each value of the record lies in [low, high].
    Guarantee: without ``record``, no constant guess has a smaller largest error over the box.

    >>> constant_guess_mse(low=0.0, high=1.0)
    0.25
    >>> constant_guess_mse(low=0.0, high=1.0, record=[0.5, 1.0])
    0.125
    """
    lower = finite_array("low", low, dimensions=(0, 1))
    upper = finite_array("high", high, dimensions=(0, 1))
    if lower.ndim and upper.ndim and lower.shape != upper.shape:
        raise invalid_input("high.shape", upper.shape, f"to equal low.shape={lower.shape}")
    if not ((upper > lower).all() and np.abs([lower.min(), upper.max()]).max() <= _LARGEST):
        raise invalid_input(
            "high",
            high,
            f"> low={low!r} in every coordinate, with no magnitude above {_LARGEST:g}",
            "Pass the smallest and largest value that a record can take.",
        )
    if record is None:
        return float(np.mean((upper - lower) ** 2)) / 4
    target = record_in_box(record, low=lower, high=upper)
    return float(np.mean((target - (lower + upper) / 2) ** 2))


def record_in_box(record: ArrayLike, *, low: ArrayLike, high: ArrayLike) -> Floats:
    """Return the record as a vector, after checking that each value lies in [low, high].

    Args:
        record: Values of the record.
        low: Smallest value of each coordinate; one number for equal limits.
        high: Largest value of each coordinate; one number for equal limits.

    Returns:
        The record as a vector of floats.

    Raises:
        InvalidInput: If shapes differ, or if a value lies outside [low, high].
    """
    target = finite_array("record", record, dimensions=(1,))
    lower, upper = np.asarray(low, dtype=float), np.asarray(high, dtype=float)
    for name, limit in (("low", lower), ("high", upper)):
        if limit.ndim and limit.shape != target.shape:
            raise invalid_input(f"{name}.shape", limit.shape, f"to equal record.shape={target.shape}")
    outside = np.flatnonzero((target < lower) | (target > upper))
    if len(outside):
        first = int(outside[0])
        ends = [float(np.broadcast_to(limit, target.shape)[first]) for limit in (lower, upper)]
        raise invalid_input(
            f"record[{first}]", float(target[first]), f"in {ends}", "Widen low and high, or clip the record."
        )
    return target


UNSTATED = ApproximateDP(epsilon=0.0, delta=1.0)
"""Mechanism without any stated property: every mechanism is (0, 1)-differentially private."""

_ALL_BUT_RECORD = frozenset({Knows.LABELS, Knows.OTHER_RECORDS, Knows.INITIALISATION, Knows.DEFENSE})

KNOWS_THE_REST = ThreatModel(sees=Sees.EVERY_UPDATE, knows=_ALL_BUT_RECORD)
"""Adversary who sees the whole release and knows everything except the record, without a prior on it."""

CONTROLS_THE_REST = ThreatModel(sees=Sees.EVERY_UPDATE, knows=_ALL_BUT_RECORD, controls=frozenset(Controls))
"""The same adversary, who also chooses the model: for guarantees that hold for every released function."""

KNOWS_PRIOR = KNOWS_THE_REST.with_knowledge(Knows.PRIOR)
"""The same adversary with a prior on the record, given everything else it knows."""


_ROUNDING = 64 * float(np.finfo(float).eps)  # above the rounding error of the formulas that pass through here


def mse_guarantee(
    bound: float,
    *,
    constant_guess_mse: float,
    mechanism: Mechanism,
    scope: Scope,
    threat: ThreatModel,
    reference: Reference,
    assumptions: tuple[str, ...],
    release: CoveredRelease = CoveredRelease.ANY,
) -> Guarantee:
    """Turn a lower bound on the mean squared error into a guarantee that never exceeds a constant guess.

    An attacker who ignores the release attains the error of the constant guess, even if the bound for unbiased
    estimates is larger. Reporting the larger number would promise too much. The assumptions of the result state both
    numbers.

    Args:
        bound: Lower bound on the mean squared error.
        constant_guess_mse: Error of a constant guess; ``math.inf`` for no cap.
        mechanism: Mechanism that the bound was derived from.
        scope: Estimates that the bound covers.
        threat: Adversary that the bound covers.
        reference: Statement that proves the bound.
        assumptions: Assumptions of the bound, without the one on the law of the noise, which is added.
        release: Releases that the bound covers.

    Returns:
        The guarantee, rounded down.

    Raises:
        InvalidInput: If ``constant_guess_mse`` is negative.

    >>> from reconrisk.bounds.mse.premises import KNOWS_THE_REST, UNSTATED
    >>> mse_guarantee(3.0, constant_guess_mse=0.25, mechanism=UNSTATED, scope=Scope.UNBIASED_ESTIMATORS,
    ...               threat=KNOWS_THE_REST, reference=Reference("Theorem 2", "guo2022"), assumptions=()).value
    0.25
    """
    if check_real("constant_guess_mse", constant_guess_mse) < 0:
        raise invalid_input(
            "constant_guess_mse", constant_guess_mse, ">= 0", "Compute it with constant_guess_mse(low=, high=)."
        )
    notes: tuple[str, ...] = ()
    if math.isfinite(constant_guess_mse):
        notes = (f"a constant guess has mean squared error {constant_guess_mse:.6g}, whatever is released",)
    if bound > constant_guess_mse:
        notes = (*notes, f"the value is that of the constant guess: the bound by itself is {bound:.6g}")
    return Guarantee(
        quantity=Quantity.MEAN_SQUARED_ERROR,
        value=min(bound * (1 - _ROUNDING), constant_guess_mse),  # rounded down: a lower bound must not be too large
        mechanism=mechanism,
        scope=scope,
        threat=threat,
        reference=reference,
        assumptions=(*assumptions, IDEAL_NOISE, *notes),
        release=release,
    )

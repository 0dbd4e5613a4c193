"""Privacy loss of one subsampled Gaussian step on a lattice, rounded to the safe side, and privacy profiles.

Let q be the sampling probability and s the noise multiplier. With P = (1 - q) N(0, s^2) + q N(1, s^2) and Q = N(0, s^2)
the privacy loss is L = log dP/dQ. Each cell of the lattice keeps its mass under P and under Q, and both masses move to
the two ends of the cell ("connect the dots", doroshenko2022). That spreads dP/dQ without moving its mean. The pair of
laws on the lattice therefore dominates the true pair, also under composition. The lattice starts at log(1 - q), the
infimum of L: for a small q nearly all steps have that loss, and an atom on a lattice point is not spread.

:class:`PrivacyProfile` holds certified hockey-stick divergences, from which success and epsilon follow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri_exp

from reconrisk.accounting.phases import Phase


@dataclass(frozen=True, eq=False)
class PrivacyProfile:
    r"""Upper bounds on hockey-stick divergences of two laws P and Q, such as the release with and without a record.

    .. math:: \sup_E P(E) - e^{\varepsilon_j} Q(E) \le \delta_j \quad\text{for every } j \text{ and event } E

    :meth:`success` bounds the success probability of an attack for a prior success, :meth:`epsilon` the privacy
    parameter at a delta.

    Attributes:
        epsilons: Values :math:`\varepsilon_j` in ascending order.
        deltas: Bound :math:`\delta_j` at each epsilon.

    >>> profile = PrivacyProfile(np.array([0.0, 1.0]), np.array([0.3, 0.1]))
    >>> round(profile.success(0.01), 4), profile.epsilon(0.2), profile.epsilon(0.05)
    (0.1272, 1.0, inf)
    """

    epsilons: NDArray[np.float64]
    deltas: NDArray[np.float64]

    def success(self, prior_success: float) -> float:
        r"""Return the least :math:`\delta_j + \kappa e^{\varepsilon_j}`, for the prior success :math:`\kappa`.

        No event of probability at most kappa under Q has a larger probability under P.

        Guarantee: in [prior_success, 1], nondecreasing and concave in ``prior_success``.
        """
        with np.errstate(over="ignore", under="ignore"):
            bound = float(np.min(self.deltas + prior_success * np.exp(self.epsilons))) if prior_success > 0 else 1.0
        if prior_success == 0:
            bound = float(np.min(self.deltas))
        return min(1.0, max(bound, prior_success))

    def epsilon(self, delta: float) -> float:
        """Return the least nonnegative epsilon of the profile with a divergence of at most ``delta``, or inf."""
        safe = (self.deltas <= delta) & (self.epsilons >= 0)
        return float(self.epsilons[np.argmax(safe)]) if safe.any() else float("inf")


Array = NDArray[np.float64]

EPS = float(np.finfo(np.float64).eps)
_NDTR_ERROR = 8 * EPS  # relative; ndtr is accurate to 2 or 3 units in the last place
_LARGE_LOSS = 600.0  # exp overflows at 709; cells beyond move all their mass to the unsafe end


class Direction(Enum):
    """Order of the two laws in a divergence."""

    WITH_RECORD = "with the record, against without"
    WITHOUT_RECORD = "without the record, against with"


@dataclass(frozen=True, eq=False)
class LossDistribution:
    """Distribution of the privacy loss on a lattice.

    Attributes:
        offset: Loss at the origin of the lattice.
        spacing: Distance of neighbouring lattice points.
        start: Index of the first lattice point that carries mass.
        mass: Mass at the losses ``offset + spacing * (start + k)``.
        infinite: Mass at an infinite loss.
    """

    offset: float
    spacing: float
    start: int
    mass: Array
    infinite: float

    @property
    def losses(self) -> Array:
        """Losses of the entries of ``mass``."""
        return np.asarray(self.offset + self.spacing * (self.start + np.arange(len(self.mass))), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class _Cells:
    """Normal masses between neighbouring points and beyond the ends; ``size`` is the larger term of each difference."""

    inside: Array
    size: Array
    below: float
    above: float


@dataclass(frozen=True)
class Cuts:
    """Truncation of the loss of one step.

    Attributes:
        log_tail: Logarithm of the mass that is truncated in either tail.
        largest: Largest finite loss; larger losses count as infinite.
    """

    log_tail: float
    largest: float = math.inf


def loss_range(phase: Phase, cuts: Cuts) -> tuple[float, float]:
    """Return the range of losses that the lattice covers, relative to its origin.

    Args:
        phase: Phase of the step.
        cuts: Truncation of the loss.

    Returns:
        The least and the largest loss.
    """
    s, q = phase.noise_multiplier, phase.sampling_probability
    z = -float(ndtri_exp(cuts.log_tail))
    # Outcomes -z s under Q and 1 + z s under P, as log(q N1/N0); the loss relative to log(1 - q) follows.
    ends = np.array([-z / s - 0.5 / s / s, z / s + 0.5 / s / s]) + np.log(q)
    low, high = np.logaddexp(0, ends - np.log1p(-q)) if q < 1 else ends
    return float(low), float(max(min(high, cuts.largest), low))


def step_loss(phase: Phase, spacing: float, cuts: Cuts, direction: Direction) -> LossDistribution:
    r"""Return a loss distribution on the lattice that dominates the true loss of one step.

    .. math:: m_{right} = \frac{P(cell) - e^{l} Q(cell)}{1 - e^{-h}}, \qquad m_{left} = P(cell) - m_{right}

    Here a cell is the interval between neighbouring lattice points, l is its left end, and m_left and m_right are the
    masses at its ends. For ``WITHOUT_RECORD`` P and Q exchange their roles.

    Args:
        phase: Phase of the step.
        spacing: Spacing h of the lattice.
        cuts: Truncation of the loss.
        direction: Order of the two laws.

    Returns:
        The distribution.

    Guarantee: at every epsilon its hockey-stick divergence is at least the divergence of the true pair. Mass beyond the
    upper end moves to infinity, mass beyond the lower end to the lower end. Extra mass that moves upwards covers the
    round-off.
    """
    low, high = loss_range(phase, cuts)
    first, last = math.floor(low / spacing), math.ceil(high / spacing) + 1
    s, q = phase.noise_multiplier, phase.sampling_probability
    distance = np.asarray(spacing * np.arange(first, last + 1), dtype=np.float64)
    log_ratio = _log_sampled_ratio(q, distance)
    x = s * s * (log_ratio - np.log(q)) + 0.5  # outcomes at which the loss equals the lattice points
    null, shifted = _normal_cells(x / s), _normal_cells((x - 1) / s)
    origin = float(np.log1p(-q)) if q < 1 else 0.0
    if direction is Direction.WITH_RECORD:
        mass = _masses_with_record(q, spacing, log_ratio[:-1], null, shifted)
        infinite = (1 - q) * null.above + q * shifted.above
        return LossDistribution(origin, spacing, first, mass, infinite)
    mass = _masses_without_record(q, spacing, log_ratio[1:], origin + distance[1:], null, shifted)
    return LossDistribution(-origin, spacing, -last, mass, null.below)


def _masses_with_record(q: float, spacing: float, log_ratio: Array, null: _Cells, shifted: _Cells) -> Array:
    ratio = np.exp(np.minimum(log_ratio, _LARGE_LOSS))
    cells = (1 - q) * null.inside + q * shifted.inside
    # P(cell) - e^l Q(cell) = q N1(cell) - ratio N0(cell), since e^l = 1 - q + ratio: the terms (1 - q) N0 cancel.
    # ``noise`` bounds the round-off of all terms in units of _NDTR_ERROR.
    noise = np.expm1(spacing) * ((1 - q) * null.size + q * shifted.size) + q * shifted.size + ratio * null.size
    moved = (q * shifted.inside - ratio * null.inside + _NDTR_ERROR * noise) / -np.expm1(-spacing)
    mass = _split_cells(cells, np.where(log_ratio > _LARGE_LOSS, np.inf, moved))
    mass[0] += (1 - q) * null.below + q * shifted.below  # moved up to the first lattice point: the safe side
    return mass * (1 + _NDTR_ERROR)


def _masses_without_record(
    q: float, spacing: float, log_ratio: Array, loss: Array, null: _Cells, shifted: _Cells
) -> Array:
    # N0(cell) - e^-loss P(cell) = ratio N0(cell) - inverse N1(cell), with the same exact cancellation as above.
    ratio = np.exp(np.clip(log_ratio - loss, -_LARGE_LOSS, 0.0))
    inverse = q * np.exp(-np.clip(loss, -_LARGE_LOSS, _LARGE_LOSS))
    noise = np.expm1(spacing) * null.size + ratio * null.size + inverse * shifted.size
    moved = (ratio * null.inside - inverse * shifted.inside + _NDTR_ERROR * noise) / -np.expm1(-spacing)
    mass = _split_cells(null.inside[::-1], np.where(loss < -_LARGE_LOSS, np.inf, moved)[::-1])
    mass[0] += null.above
    return mass * (1 + _NDTR_ERROR)


def _log_sampled_ratio(q: float, distance: Array) -> Array:
    """Return log(q N(1)/N(0)) at lattice points: the likelihood ratio minus its infimum 1 - q."""
    if q == 1:
        return distance
    with np.errstate(divide="ignore"):
        return np.asarray(np.log1p(-q) + distance + np.log(-np.expm1(-distance)))


def _normal_cells(u: Array) -> _Cells:
    tail = ndtr(-np.abs(u))  # differences in the nearer tail, where both terms are small, lose fewer digits
    left, right = u[1:] <= 0, u[:-1] > 0
    inside = np.abs(np.diff(tail))
    across = ~(left | right)
    inside[across] = 1 - tail[:-1][across] - tail[1:][across]
    size = np.where(left, tail[1:], tail[:-1])
    size[across] = 1.0
    below = tail[0] if u[0] <= 0 else 1 - tail[0]
    above = tail[-1] if u[-1] > 0 else 1 - tail[-1]
    return _Cells(inside, size, float(below), float(above))


def _split_cells(cells: Array, moved: Array) -> Array:
    """Put ``moved`` of the mass of each cell at its upper end, and the rest at its lower end."""
    up = np.clip(moved, 0.0, cells)
    mass = np.zeros(len(cells) + 1)
    mass[:-1] = cells - up
    mass[1:] += up
    return mass

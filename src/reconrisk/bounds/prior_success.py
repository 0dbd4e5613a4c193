"""The best success without any release, kappa, for common beliefs about the target.

:func:`_log_ball_in_box` is the mass of a ball about the centre of a box, in log space and from above, which a uniform
prior on pixels needs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize_scalar
from scipy.special import erf, gammaln

from reconrisk.bounds.numerics.chi_square import log_gammainc
from reconrisk.bounds.numerics.matrices import finite_array
from reconrisk.core.guarantee import Estimate, probability_from_log, rounded_up
from reconrisk.core.storage.result import Result, Row
from reconrisk.core.storage.serialization import serializable
from reconrisk.core.storage.text_table import table_from_rows
from reconrisk.core.validation import check_nonnegative, check_positive, check_real, check_whole, invalid_input
from reconrisk.statistics.intervals import clopper_pearson

Floats = NDArray[np.float64]

_ALIASING = 34.0
_MAX_NODES = 400_000
_TAILS = (1e-9, 1e-7, 1e-5)  # three dimensions need the last, as the transform decays slowly
_LARGEST_ERF = 1.35  # of |erf| for arguments within 45 degrees of the real axis; the Fresnel spiral reaches 1.34


def _log_ball_in_box(sides: Floats, radius: float) -> float:
    r"""Log probability that a uniform point of a box lies within ``radius`` of its centre; an upper bound.

    .. math:: P\Big(\sum_i w_i^2 u_i^2 \le \rho^2\Big) = \frac{1}{2\pi i}\int \frac{e^{s\rho^2}}{s}
              \prod_i \frac{\sqrt\pi\,\mathrm{erf}(w_i\sqrt s/2)}{w_i\sqrt s}\,ds

    Notation: ``sides`` is w, ``radius`` is rho; u uniform on [-1/2, 1/2].
    Guarantee: not below the probability, above it by a relative 1e-6 (1e-4 in three dimensions); while the ball fits
    into the box, the ratio of volumes, which is exact.
    Edge cases: 0 once the ball reaches the corners; -inf at radius 0.

    >>> round(math.exp(_log_ball_in_box(np.ones(2), 0.5)), 6) == round(math.pi / 4, 6)
    True
    >>> _log_ball_in_box(np.ones(784), math.sqrt(784 * 0.06)) < -40
    True
    """
    if radius == 0:
        return -math.inf
    if 2 * radius >= math.sqrt(float(np.sum(sides**2))):
        return 0.0
    ratio = _log_volume_ratio(sides, radius)
    if 2 * radius <= sides.min():
        return ratio
    if len(sides) == 2:
        return min(0.0, math.log(_disc_in_rectangle(float(sides[0]), float(sides[1]), radius) + 1e-15))
    return min(0.0, ratio, _inverted(sides, radius))


def _log_volume_ratio(sides: Floats, radius: float) -> float:
    """Log of the volume of the ball over that of the box: an upper bound at every radius, above 0 for large ones."""
    d = len(sides)
    return float(d / 2 * math.log(math.pi) + d * math.log(radius) - gammaln(d / 2 + 1) - np.log(sides).sum())


def _disc_in_rectangle(width: float, height: float, radius: float) -> float:
    """Share of a rectangle that a disc about its centre covers: the integral of its half-chord, cut at the sides."""
    a, b = width / 2, height / 2
    reach = min(a, radius)
    cut = min(reach, math.sqrt(max(radius * radius - b * b, 0.0)))

    def chord(x: float) -> float:
        return (
            x * math.sqrt(max(radius * radius - x * x, 0.0)) + radius * radius * math.asin(min(x / radius, 1.0))
        ) / 2

    return (b * cut + chord(reach) - chord(cut)) / (a * b)


def _log_transform(s: NDArray[np.complex128], sides: Floats) -> NDArray[np.complex128]:
    """Log of the Laplace transform of the squared distance from the centre."""
    widths, counts = np.unique(sides, return_counts=True)
    total = np.zeros(s.shape, dtype=np.complex128)
    for width, count in zip(widths, counts, strict=True):
        root = width * np.sqrt(s)
        total += count * np.log(math.sqrt(math.pi) * erf(root / 2) / root)
    return total


def _inverted(sides: Floats, radius: float) -> float:
    """The inversion integral through its saddle point, by the trapezoidal rule.

    Aliasing adds probabilities of larger radii, damped to exp(-34) of the result: positive, hence safe. The part beyond
    the last node is bounded and added. Where that needs too many nodes, the Chernoff bound stands.
    """
    square = radius * radius

    def exponent(log_s: float) -> float:
        s = np.array([math.exp(log_s)], dtype=np.complex128)
        return float(_log_transform(s, sides)[0].real) + float(s[0].real) * square - log_s

    scale = math.log(len(sides) / square)
    found = minimize_scalar(exponent, bounds=(scale - 12, scale + 12), method="bounded")
    saddle = math.exp(float(found.x))
    peak = float(found.fun) + math.log(saddle)
    step = 2 * math.pi * saddle / (_ALIASING - min(float(found.fun), 0.0))
    choices = ((tail, max(10 * saddle, _last_node(sides, peak - saddle * square, tail))) for tail in _TAILS)
    tail, last = next(((tail, last) for tail, last in choices if last / step <= _MAX_NODES), (1.0, 0.0))
    if tail == 1:
        return peak
    s = np.asarray(saddle + 1j * step * np.arange(math.ceil(last / step) + 1), dtype=np.complex128)
    values = np.exp(_log_transform(s, sides) + s * square - peak) / s
    integral = step / math.pi * (float(values.real.sum()) - float(values[0].real) / 2)
    return peak + math.log(max(integral, 0.0) * (1 + 1e-9) + 2 * tail)


def _last_node(sides: Floats, log_transform: float, tail: float) -> float:
    """Height beyond which the integrand, by the bound on erf, contributes at most ``tail`` times its peak."""
    d = len(sides)
    decay = float(np.sum(np.log(_LARGEST_ERF * math.sqrt(math.pi) / sides)))
    return math.exp(min(2 / d * (decay - log_transform - math.log(tail * math.pi * d / 2)), 600.0))


_CHUNK = 2**22
_SMALLEST_LOG = -700.0  # below it the probability is no ordinary float
_ROUNDING = 1e-9


@serializable("prior-success")
@dataclass(frozen=True)
class PriorSuccess(Result):
    """Probability of the best guess without any release, as a logarithm, and the belief it follows from.

    ``exact`` is False where only an upper bound is known.
    """

    log_value: float
    belief: str
    exact: bool = True

    def __post_init__(self) -> None:
        if not check_real("log_value", self.log_value) <= 0:
            raise invalid_input("log_value", self.log_value, "<= 0", "It is the logarithm of a probability.")

    @property
    def value(self) -> float:
        """The probability; the smallest positive float where it is smaller."""
        return probability_from_log(self.log_value)

    @property
    def sentence(self) -> str:
        """How often the best guess succeeds, under which belief."""
        bound = "" if self.exact else "at most "
        return f"Without any release the best guess succeeds with probability {bound}{self._shown} ({self.belief})."

    def table(self) -> str:
        """Return the probability, rounded up where it is a bound, and the belief that it follows from."""
        return table_from_rows([{"prior success": self._shown, "belief": self.belief, "exact": self.exact}])

    @property
    def _shown(self) -> str:
        if self.log_value <= _SMALLEST_LOG:
            return f"exp({self.log_value:.6g})"
        return f"{self.value:.6g}" if self.exact else rounded_up(self.value)

    def to_rows(self) -> tuple[Row, ...]:
        """Return the probability as one row."""
        how: Row = {"belief": self.belief, "exact": self.exact}
        return ({"prior_success": self.value, "log_prior_success": self.log_value, **how},)

    @property
    def is_private(self) -> bool:
        """False: it follows from stated settings."""
        return False


def uniform_ball(*, dimension: int, radius: float, mse: float) -> PriorSuccess:
    r"""Success of the best guess at a point uniform in a ball.

    .. math:: \kappa = \min(1, \sqrt{d\eta}/r)^d

    Notation: ``dimension`` is d, ``radius`` is r, ``mse`` is eta: success is a mean squared error of at most eta.
    Reference: Proposition 6, balle2022.

    >>> round(uniform_ball(dimension=2, radius=1.0, mse=0.02).value, 12)
    0.04
    """
    d, reach = _reach(dimension, mse)
    check_positive("radius", radius)
    log_value = d * math.log(reach / radius) if 0 < reach < radius else (-math.inf if reach == 0 else 0.0)
    return PriorSuccess(log_value, f"uniform in a ball of radius {radius:g} in {d} dimensions")


def uniform_box(*, sides: ArrayLike, mse: float, dimension: int | None = None) -> PriorSuccess:
    """Success of the best guess at a point uniform in a box: its centre (Anderson's inequality).

    Notation: ``sides`` is one width per coordinate, or one number with ``dimension``.
    Guarantee: not below the truth, above it by a relative 1e-4 at most, by the ratio of volumes while the ball of
    admissible errors fits into the box, by inversion of the transform of the squared distance beyond. The ratio of
    volumes is no use there: in the unit box of 784 dimensions at mse 0.06 it is 1, the success practically 0.
    Reference: `Anderson (1955) <https://doi.org/10.1090/S0002-9939-1955-0069229-1>`_, Theorem 1, for the centre.

    >>> uniform_box(sides=1.0, dimension=784, mse=0.06).log_value < -40
    True
    """
    widths = np.atleast_1d(finite_array("sides", sides, dimensions=(0, 1)))
    if dimension is not None and widths.size == 1:
        widths = np.full(check_whole("dimension", dimension), float(widths[0]))
    if widths.ndim != 1 or (dimension is not None and len(widths) != dimension):
        raise invalid_input(
            "sides", widths.shape, f"to be one width, or one for each of dimension={dimension} coordinates"
        )
    if not (np.isfinite(widths).all() and (widths > 0).all()):
        raise invalid_input("sides", widths.tolist()[:8], "to be finite and > 0")
    d, reach = _reach(len(widths), mse)
    return PriorSuccess(_log_ball_in_box(widths, reach), f"uniform in a box of {d} dimensions")


def gaussian(*, dimension: int, prior_std: float, mse: float) -> PriorSuccess:
    r"""Success of the best guess at a Gaussian record with independent coordinates: its mean.

    .. math:: \kappa = P(\chi^2_d \le d\eta/\tau^2)

    Notation: ``prior_std`` is tau.
    Guarantee: exact to a relative 1e-9, rounded up.
    Reference: Proposition 7, balle2022, which prints an upper bound on this probability.

    >>> round(gaussian(dimension=2, prior_std=1.0, mse=0.1).value, 6)
    0.095163
    """
    d, _ = _reach(dimension, mse)
    check_positive("prior_std", prior_std)
    log_value = float(log_gammainc(d / 2, d / 2 * (mse / prior_std) / prior_std))
    return PriorSuccess(
        min(0.0, log_value + _ROUNDING), f"Gaussian of standard deviation {prior_std:g} in {d} dimensions"
    )


def candidate_set(weights: ArrayLike, *, candidates: ArrayLike | None = None, mse: float = 0.0) -> PriorSuccess:
    r"""Success of the best guess at one of finitely many candidates.

    .. math:: \kappa = \max_i w_i \;(\eta = 0), \qquad
              \kappa \le \max_i \sum_j w_j 1[|z_i - z_j| \le 2\sqrt{d\eta}] \;(\eta > 0)

    Notation: ``weights`` is w, summing to one; ``candidates``, one row each, are needed for ``mse`` above 0: whatever
    the guess, the candidates within eta of it lie within twice the distance of any one of them.

    >>> candidate_set([0.5, 0.3, 0.2]).value
    0.5
    >>> round(candidate_set([0.5, 0.3, 0.2], candidates=[[0.0], [1.0], [5.0]], mse=0.25).value, 12)
    0.8
    """
    masses = finite_array("weights", weights, dimensions=(1,))
    if masses.ndim != 1 or not len(masses) or not (np.isfinite(masses).all() and (masses >= 0).all()):
        raise invalid_input("weights", masses.tolist(), "to be nonnegative numbers, one for each candidate")
    if not math.isclose(float(masses.sum()), 1.0, rel_tol=1e-9):
        raise invalid_input("weights", float(masses.sum()), "to sum to 1", "Divide them by their sum.")
    check_nonnegative("mse", mse)
    belief = f"one of {len(masses)} candidates"
    if mse == 0:
        return PriorSuccess(min(0.0, math.log(float(masses.max()))), belief)
    if candidates is None:
        raise invalid_input(
            "candidates", candidates, "to be given for mse > 0", "Distances decide which of them agree."
        )
    points = _rows("candidates", candidates)
    if len(points) != len(masses):
        raise invalid_input("candidates", len(points), f"to have one row for each of {len(masses)} weights")
    reach = 2 * math.sqrt(points.shape[1] * mse)
    return PriorSuccess(
        min(0.0, math.log(float(_mass_within(points, points, masses, reach).max()))), belief, exact=False
    )


def empirical(sample: ArrayLike, *, mse: float, confidence: float = 0.95) -> Estimate:
    r"""Success of the best guess at a record drawn like an independent sample, with an interval.

    .. math:: \kappa \le \sqrt{P(|Z - Z'| \le 2\sqrt{d\eta})}

    Assumes: rows of ``sample`` are independent draws from the prior; at least four.
    Guarantee: ``high`` bounds kappa, by the root above with a Clopper-Pearson limit over disjoint pairs: a limit at the
    best guess seen would not cover the supremum over guesses. ``low`` is the limit, on the second half of the sample,
    for the best guess among the first half. Each end fails with probability at most ``(1 - confidence) / 2``.

    >>> rng = np.random.default_rng(0)
    >>> measured = empirical(rng.normal(size=(2000, 2)), mse=0.1)
    >>> measured.low < 0.0952 < measured.high
    True
    """
    rows = _rows("sample", sample)
    if len(rows) < 4:
        raise invalid_input("sample", len(rows), "to have at least 4 rows", "Two halves of pairs are compared.")
    check_nonnegative("mse", mse)
    reach = math.sqrt(rows.shape[1] * mse)
    half = len(rows) // 2
    first, second = rows[:half], rows[half : 2 * half]
    agreeing = int((np.linalg.norm(first - second, axis=1) <= 2 * reach * (1 + 1e-12)).sum())
    high = math.sqrt(clopper_pearson(agreeing, half, confidence).high)
    guess = first[int(np.argmax(_mass_within(first, first, np.full(half, 1.0), reach)))]
    hits = int((np.linalg.norm(second - guess, axis=1) <= reach).sum())
    held_out = clopper_pearson(hits, half, confidence)
    return Estimate(
        value=held_out.value,
        low=held_out.low,
        high=max(high, held_out.value),
        confidence=confidence,
        samples=len(rows),
        method="best guess held out, root of agreeing pairs",
    )


def _reach(dimension: int, mse: float) -> tuple[int, float]:
    """The dimension, and the Euclidean distance that a mean squared error allows."""
    d = check_whole("dimension", dimension, remedy="It is the number of values in one record.")
    return d, math.sqrt(d * check_nonnegative("mse", mse))


def _rows(name: str, values: ArrayLike) -> Floats:
    try:
        rows = np.asarray(values, dtype=float)
    except (TypeError, ValueError) as error:
        raise invalid_input(name, values, "to be an array of numbers") from error
    if rows.ndim < 2 or not rows.size:
        raise invalid_input(f"{name}.shape", rows.shape, "to be (records, values)", "Reshape each record to one row.")
    if not np.isfinite(rows).all():
        raise invalid_input(name, "it has NaN or infinities", "to be finite")
    return rows.reshape(len(rows), -1)


def _mass_within(centres: Floats, points: Floats, masses: Floats, reach: float) -> Floats:
    """For each centre the mass of the points within ``reach`` of it, ties and round-off included."""
    block = max(1, _CHUNK // max(len(points), 1))
    sizes = (points**2).sum(1)
    limit = reach * reach + 1e-12 * (reach * reach + 4 * float(sizes.max()))
    found = [
        ((centres[i : i + block] ** 2).sum(1)[:, None] - 2 * centres[i : i + block] @ points.T + sizes <= limit)
        @ masses
        for i in range(0, len(centres), block)
    ]
    return np.concatenate(found)

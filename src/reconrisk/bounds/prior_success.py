"""Best success probability without any release (kappa), for common priors on the target.

:func:`_log_ball_in_box` computes the share of a box that a ball around its centre covers, in log space and rounded up.
:func:`uniform_box`, the uniform prior on pixels, uses it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize_scalar
from scipy.special import betainc, betaln, erf, gammaln

from reconrisk.bounds.numerics.chi_square import log_gammainc
from reconrisk.bounds.numerics.matrices import finite_array
from reconrisk.core.errors import InvalidInput
from reconrisk.core.guarantee import Estimate, format_rounded_up, probability_from_log
from reconrisk.core.storage.result import Result, Row
from reconrisk.core.storage.serialization import serializable
from reconrisk.core.storage.text_table import table_from_rows
from reconrisk.core.validation import check_nonnegative, check_positive, check_real, check_whole, invalid_input
from reconrisk.statistics.intervals import clopper_pearson

Floats = NDArray[np.float64]

_ALIASING = 34.0  # damping exponent of the aliased terms: exp(-34) is about 2e-15
_MAX_NODES = 400_000  # about 6 MB of complex numbers for each distinct side
_TAILS = (1e-9, 1e-7, 1e-5)  # truncation errors to try; three dimensions need the last, the transform decays slowly
_LARGEST_ERF = 1.35  # of |erf| for arguments within 45 degrees of the real axis; the Fresnel spiral reaches 1.34


def _log_ball_in_box(sides: Floats, radius: float) -> float:
    r"""Upper bound on the log probability that a uniform point of a box lies within ``radius`` of its centre.

    .. math:: P\Big(\sum_i w_i^2 u_i^2 \le \rho^2\Big) = \frac{1}{2\pi i}\int \frac{e^{s\rho^2}}{s}
              \prod_i \frac{\sqrt\pi\,\mathrm{erf}(w_i\sqrt s/2)}{w_i\sqrt s}\,ds

    Notation: ``sides`` is w, ``radius`` is rho; u is uniform on [-1/2, 1/2].
    Guarantee: never below the probability, and above it by at most a relative 1e-6 (1e-4 in three dimensions). While
    the ball fits into the box it is the ratio of volumes, which is exact.
    Edge cases: 0 once the ball reaches the corners; -inf at radius 0.

    >>> round(math.exp(_log_ball_in_box(np.ones(2), 0.5)), 6) == round(math.pi / 4, 6)
    True
    >>> _log_ball_in_box(np.ones(784), math.sqrt(784 * 0.06)) < -40
    True
    """
    if radius == 0:
        return -math.inf
    if 2 * radius >= math.sqrt(float(np.sum(sides**2))):  # the ball contains the corners
        return 0.0
    ratio = _log_volume_ratio(sides, radius)
    if 2 * radius <= sides.min():
        return ratio
    if len(sides) == 2:
        # In two dimensions the area is elementary; 1e-15 covers its rounding.
        return min(0.0, math.log(_disc_in_rectangle(float(sides[0]), float(sides[1]), radius) + 1e-15))
    return min(0.0, ratio, _invert_transform(sides, radius))


def _log_volume_ratio(sides: Floats, radius: float) -> float:
    """Log of the volume of the ball divided by the volume of the box: an upper bound, above 0 for large radii."""
    d = len(sides)
    return float(d / 2 * math.log(math.pi) + d * math.log(radius) - gammaln(d / 2 + 1) - np.log(sides).sum())


def _disc_in_rectangle(width: float, height: float, radius: float) -> float:
    """Share of a rectangle that a disc around its centre covers: the integral of its half-chord, cut at the sides."""
    a, b = width / 2, height / 2
    reach = min(a, radius)
    cut = min(reach, math.sqrt(max(radius * radius - b * b, 0.0)))  # up to here the chord is cut by the sides

    def chord_integral(x: float) -> float:
        return (
            x * math.sqrt(max(radius * radius - x * x, 0.0)) + radius * radius * math.asin(min(x / radius, 1.0))
        ) / 2

    return (b * cut + chord_integral(reach) - chord_integral(cut)) / (a * b)


def _log_transform(s: NDArray[np.complex128], sides: Floats) -> NDArray[np.complex128]:
    """Log of the Laplace transform of the squared distance from the centre."""
    widths, counts = np.unique(sides, return_counts=True)
    total = np.zeros(s.shape, dtype=np.complex128)
    for width, count in zip(widths, counts, strict=True):
        root = width * np.sqrt(s)
        total += count * np.log(math.sqrt(math.pi) * erf(root / 2) / root)
    return total


def _invert_transform(sides: Floats, radius: float) -> float:
    """Evaluate the inversion integral through its saddle point by the trapezoidal rule.

    Aliasing adds probabilities of larger radii, damped to exp(-34) of the result. They are positive, so the result
    stays an upper bound. The part beyond the last node is bounded and added. If that takes too many nodes, the Chernoff
    bound is returned.
    """
    square = radius * radius

    def log_integrand(log_s: float) -> float:
        s = np.array([math.exp(log_s)], dtype=np.complex128)
        return float(_log_transform(s, sides)[0].real) + float(s[0].real) * square - log_s

    # The transform falls like s^(-d/2), so the saddle lies near d / (2 rho^2); 12 units of log s leave ample room.
    scale = math.log(len(sides) / square)
    found = minimize_scalar(log_integrand, bounds=(scale - 12, scale + 12), method="bounded")
    saddle = math.exp(float(found.x))
    peak = float(found.fun) + math.log(saddle)  # without the factor 1/s: Chernoff's bound at the saddle
    # Step h repeats the law with period 2 pi / h in rho^2; this h damps the first copy to exp(-34) of the result.
    step = 2 * math.pi * saddle / (_ALIASING - min(float(found.fun), 0.0))
    choices = ((tail, max(10 * saddle, _last_node(sides, peak - saddle * square, tail))) for tail in _TAILS)
    tail, last = next(((tail, last) for tail, last in choices if last / step <= _MAX_NODES), (1.0, 0.0))
    if tail == 1:  # no tolerance is affordable
        return peak
    s = np.asarray(saddle + 1j * step * np.arange(math.ceil(last / step) + 1), dtype=np.complex128)
    values = np.exp(_log_transform(s, sides) + s * square - peak) / s
    # The integrand is symmetric, so only half of the line is summed; the first node counts half.
    integral = step / math.pi * (float(values.real.sum()) - float(values[0].real) / 2)
    return peak + math.log(max(integral, 0.0) * (1 + 1e-9) + 2 * tail)


def _last_node(sides: Floats, log_transform: float, tail: float) -> float:
    """Height beyond which the integrand, by the bound on erf, contributes at most ``tail`` times its peak."""
    d = len(sides)
    decay = float(np.sum(np.log(_LARGEST_ERF * math.sqrt(math.pi) / sides)))
    # |transform| <= exp(decay) |s|^(-d/2), whose integral over |s| > h of ds/s is 2/d h^(-d/2); 600 avoids overflow.
    return math.exp(min(2 / d * (decay - log_transform - math.log(tail * math.pi * d / 2)), 600.0))


_CHUNK = 2**22  # distances held at once, 32 MB
_SMALLEST_LOG = -700.0  # smaller probabilities are not normal floats and are printed as exp(...)
_SMALLEST_SHARE = 1e-200  # betainc loses digits near its underflow
_ROUNDING = 1e-9  # relative; above the error of log_gammainc


@serializable("prior-success")
@dataclass(frozen=True)
class PriorSuccess(Result):
    """Probability of the best guess without any release, and the prior that it follows from.

    Attributes:
        log_value: Natural logarithm of the probability.
        belief: Description of the prior, as a text for reports.
        exact: True if ``log_value`` is exact, False if it is an upper bound.
    """

    log_value: float
    belief: str
    exact: bool = True

    def __post_init__(self) -> None:
        if not check_real("log_value", self.log_value) <= 0:
            raise invalid_input("log_value", self.log_value, "<= 0", "Pass the natural logarithm of a probability.")

    @property
    def value(self) -> float:
        """Probability as a float, at least the smallest positive float unless it is zero."""
        return probability_from_log(self.log_value)

    @property
    def sentence(self) -> str:
        """Probability of the best guess and the prior, as one sentence."""
        bound = "" if self.exact else "at most "
        return (
            f"Without any release the best guess succeeds with probability {bound}{self._value_text} ({self.belief})."
        )

    def table(self) -> str:
        """Return the probability, rounded up if it is a bound, and the prior that it follows from."""
        return table_from_rows([{"prior success": self._value_text, "belief": self.belief, "exact": self.exact}])

    @property
    def _value_text(self) -> str:
        if self.log_value <= _SMALLEST_LOG:
            return f"exp({self.log_value:.6g})"
        return f"{self.value:.6g}" if self.exact else format_rounded_up(self.value)

    def to_rows(self) -> tuple[Row, ...]:
        """Return the probability as one row."""
        return (
            {
                "prior_success": self.value,
                "log_prior_success": self.log_value,
                "belief": self.belief,
                "exact": self.exact,
            },
        )

    @property
    def is_private(self) -> bool:
        """False: it follows from stated settings."""
        return False


def uniform_ball(*, dimension: int, radius: float, mse: float) -> PriorSuccess:
    r"""Success probability of the best guess at a point that is uniform in a ball.

    .. math:: \kappa = \min(1, \sqrt{d\eta}/r)^d

    Args:
        dimension: Number of values in a record (d).
        radius: Radius of the ball (r).
        mse: Largest mean squared error that counts as success (:math:`\eta`).

    Returns:
        The exact prior success.

    Raises:
        InvalidInput: If ``dimension`` or ``radius`` is not positive, or ``mse`` is negative.

    Reference: Proposition 6, balle2022.

    >>> round(uniform_ball(dimension=2, radius=1.0, mse=0.02).value, 12)
    0.04
    """
    d, reach = _reach(dimension, mse)
    check_positive("radius", radius)
    log_value = d * math.log(reach / radius) if 0 < reach < radius else (-math.inf if reach == 0 else 0.0)
    return PriorSuccess(log_value, f"uniform in a ball of radius {radius:g} in {d} dimensions")


def uniform_sphere(*, dimension: int, norm: float, mse: float) -> PriorSuccess:
    r"""Success probability of the best guess at a point that is uniform on a sphere: known norm, unknown direction.

    .. math:: \kappa = \tfrac12 I_{\rho^2/r^2}\bigl(\tfrac{d-1}2, \tfrac12\bigr), \quad
              \rho = \sqrt{d\eta} < r, \text{ else } 1

    Here I is the regularised incomplete beta function. A ball of radius rho < r meets the sphere in a cap of half-angle
    arcsin(rho/r) at most, and :math:`\kappa` is the share of that cap.

    Args:
        dimension: Number of values in a record (d).
        norm: Euclidean norm of the record (r).
        mse: Largest mean squared error that counts as success (:math:`\eta`).

    Returns:
        The prior success, rounded up.

    Raises:
        InvalidInput: If ``dimension`` or ``norm`` is not positive, or ``mse`` is negative.

    Guarantee: exact to a relative 1e-8, rounded up; below 1e-200 at most 0.2 % above the exact value.
    Edge cases: one dimension has two directions, so the value is at least 1/2; ``mse = 0`` gives 0 otherwise.

    >>> round(uniform_sphere(dimension=10, norm=1.0, mse=0.03).value, 10)
    0.0006614753
    """
    d, reach = _reach(dimension, mse)
    sine = reach / check_positive("norm", norm, "A record of norm zero is known already.") * (1 + 1e-13)
    return PriorSuccess(_log_cap_share(d, sine), f"uniform on the sphere of norm {norm:g} in {d} dimensions")


def _log_cap_share(dimension: int, sine: float) -> float:
    """Log share of the sphere in a cap whose half-angle has this sine, rounded up; 0 if the sine is 1 or more."""
    if sine >= 1:
        return 0.0
    if dimension == 1:
        return math.log(0.5)
    if sine == 0:
        return -math.inf
    a = (dimension - 1) / 2
    share = float(betainc(a, 0.5, sine * sine)) / 2
    if share > _SMALLEST_SHARE:
        return min(0.0, math.log(share) + 1e-8)  # far above the error of betainc
    # I_x(a, 1/2) = x^a (1-x)^(1/2) / (a B(a, 1/2)) sum_n c_n x^n with c_n <= 1, hence at most the geometric series.
    # The excess is small: such a share has either a tiny x or a (1 - x) > 200, and the factor is 1 + 1 / (2 a (1 - x)).
    log_series = -math.log1p(-sine) / 2 - math.log1p(sine) / 2
    log_share = 2 * a * math.log(sine) + log_series - math.log(2 * a) - float(betaln(a, 0.5))
    return log_share * (1 - 1e-13) + 1e-8  # rounded up: the logarithm is negative; betaln errs by 1e-9


def uniform_box(*, sides: ArrayLike, mse: float, dimension: int | None = None) -> PriorSuccess:
    """Success probability of the best guess at a point that is uniform in a box.

    The best guess is the centre, by Anderson's inequality. While the ball of admissible errors fits into the box, the
    value is the ratio of volumes. Beyond that, the transform of the squared distance is inverted numerically. The ratio
    of volumes is useless there: in the unit box of 784 dimensions at mse 0.06 it is 1, while the success is practically
    0.

    Args:
        sides: Width of the box in each coordinate, or one number with ``dimension``.
        mse: Largest mean squared error that counts as success.
        dimension: Number of values in a record, if ``sides`` is one number.

    Returns:
        The prior success, rounded up.

    Raises:
        InvalidInput: If a side is not finite and positive, if ``sides`` does not match ``dimension``, or if ``mse`` is
            negative.

    Guarantee: never below the exact value, and above it by at most a relative 1e-4.
    Reference: `Anderson (1955) <https://doi.org/10.1090/S0002-9939-1955-0069229-1>`_, Theorem 1, for the centre.

    >>> uniform_box(sides=1.0, dimension=784, mse=0.06).log_value < -40
    True
    """
    widths = np.atleast_1d(finite_array("sides", sides, dimensions=(0, 1)))
    if dimension is not None and widths.size == 1:
        widths = np.full(check_whole("dimension", dimension), float(widths[0]))
    if widths.ndim != 1 or (dimension is not None and len(widths) != dimension):
        raise invalid_input(
            "sides.shape", widths.shape, f"to be () or ({dimension},): one width, or one for each coordinate"
        )
    if not (np.isfinite(widths).all() and (widths > 0).all()):
        raise invalid_input("sides", widths.tolist()[:8], "to be finite and > 0")
    d, reach = _reach(len(widths), mse)
    return PriorSuccess(_log_ball_in_box(widths, reach), f"uniform in a box of {d} dimensions")


def gaussian(*, dimension: int, prior_std: float, mse: float) -> PriorSuccess:
    r"""Success probability of the best guess at a Gaussian record with independent coordinates: its mean.

    .. math:: \kappa = P(\chi^2_d \le d\eta/\tau^2)

    Args:
        dimension: Number of values in a record (d).
        prior_std: Standard deviation of each coordinate (:math:`\tau`).
        mse: Largest mean squared error that counts as success (:math:`\eta`).

    Returns:
        The prior success, rounded up.

    Raises:
        InvalidInput: If ``dimension`` or ``prior_std`` is not positive, or ``mse`` is negative.

    Guarantee: exact to a relative 1e-9, rounded up.
    Reference: Proposition 7, balle2022, which states an upper bound on this probability.

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
    r"""Success probability of the best guess at one of finitely many candidates.

    .. math:: \kappa = \max_i w_i \;(\eta = 0), \qquad
              \kappa \le \max_i \sum_j w_j 1[|z_i - z_j| \le 2\sqrt{d\eta}] \;(\eta > 0)

    Here :math:`z_i` are the candidates with d values and :math:`w_i` their probabilities. For :math:`\eta > 0` the
    value is an upper bound: candidates within :math:`\sqrt{d\eta}` of one guess lie within twice that distance of each
    other.

    Args:
        weights: Probability of each candidate; the probabilities sum to one.
        candidates: One row of values for each candidate; required if ``mse`` is above 0.
        mse: Largest mean squared error that counts as success (:math:`\eta`); 0 asks for the exact candidate.

    Returns:
        The prior success; ``exact`` is False if ``mse`` is above 0.

    Raises:
        InvalidInput: If the weights are negative or do not sum to one, or if ``candidates`` is missing or of another
            length.

    >>> candidate_set([0.5, 0.3, 0.2]).value
    0.5
    >>> round(candidate_set([0.5, 0.3, 0.2], candidates=[[0.0], [1.0], [5.0]], mse=0.25).value, 12)
    0.8
    """
    masses = finite_array("weights", weights, dimensions=(1,))
    if masses.ndim != 1 or not len(masses) or not (np.isfinite(masses).all() and (masses >= 0).all()):
        raise invalid_input("weights", masses.tolist(), "to be nonnegative numbers, one for each candidate")
    if not math.isclose(float(masses.sum()), 1.0, rel_tol=1e-9):
        raise invalid_input("sum(weights)", float(masses.sum()), "to be 1", "Divide the weights by their sum.")
    check_nonnegative("mse", mse)
    belief = f"one of {len(masses)} candidates"
    if mse == 0:
        return PriorSuccess(min(0.0, math.log(float(masses.max()))), belief)
    if candidates is None:
        raise invalid_input(
            "candidates", candidates, "to be given for mse > 0", "Pass one row of values for each candidate."
        )
    points = _rows("candidates", candidates)
    if len(points) != len(masses):
        raise invalid_input("len(candidates)", len(points), f"to equal len(weights)={len(masses)}")
    reach = 2 * math.sqrt(points.shape[1] * mse)
    return PriorSuccess(
        min(0.0, math.log(float(_mass_within(points, points, masses, reach).max()))), belief, exact=False
    )


def empirical(sample: ArrayLike, *, mse: float, confidence: float = 0.95) -> Estimate:
    r"""Estimate the success of the best guess at a record from an independent sample of the prior.

    .. math:: \kappa \le \sqrt{P(|Z - Z'| \le 2\sqrt{d\eta})}

    Here Z and Z' are independent draws from the prior, and d is the number of values in a record. A confidence limit
    for the best guess in the sample would not cover the supremum over all guesses. The upper end therefore uses the
    root above, with a Clopper-Pearson limit over disjoint pairs of rows. The lower end picks the best guess among the
    first half of the sample and tests it on the second half.

    Args:
        sample: Independent draws from the prior, one row each; at least four.
        mse: Largest mean squared error that counts as success (:math:`\eta`).
        confidence: Confidence level of the interval.

    Returns:
        The held-out success rate of the best guess, with an interval for kappa.

    Raises:
        InvalidInput: If there are fewer than four rows, or if values are not finite.

    Assumes: rows of ``sample`` are independent draws from the prior.
    Guarantee: ``high`` is an upper bound on kappa and ``low`` a lower bound. Each end fails with probability at most
    ``(1 - confidence) / 2``.

    >>> rng = np.random.default_rng(0)
    >>> measured = empirical(rng.normal(size=(2000, 2)), mse=0.1)
    >>> measured.low < 0.0952 < measured.high
    True
    """
    rows = _rows("sample", sample)
    if len(rows) < 4:
        raise invalid_input("len(sample)", len(rows), ">= 4", "Pass at least two rows for each half of the sample.")
    check_nonnegative("mse", mse)
    reach = math.sqrt(rows.shape[1] * mse)
    half = len(rows) // 2
    first, second = rows[:half], rows[half : 2 * half]
    # Row i of the first half and row i of the second are disjoint pairs; 1e-12 counts ties in spite of rounding.
    agreeing = int((np.linalg.norm(first - second, axis=1) <= 2 * reach * (1 + 1e-12)).sum())
    high = math.sqrt(clopper_pearson(agreeing, half, confidence).high)
    # The guess is chosen on the first half and tested on the second, so its success rate is unbiased.
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
    """Return the dimension and the Euclidean distance that a mean squared error allows."""
    d = check_whole("dimension", dimension, remedy="It is the number of values in one record.")
    return d, math.sqrt(d * check_nonnegative("mse", mse))


def _rows(name: str, values: ArrayLike) -> Floats:
    """Return records as a finite matrix with one row each."""
    try:
        rows = np.asarray(values, dtype=float)
    except (TypeError, ValueError) as error:
        raise invalid_input(name, values, "to be an array of numbers") from error
    if rows.ndim < 2 or not rows.size:
        raise invalid_input(f"{name}.shape", rows.shape, "to be (records, values)", "Reshape each record to one row.")
    if not np.isfinite(rows).all():
        raise InvalidInput(f"Expected {name} to be finite, found NaN or infinities. Remove such records.")
    return rows.reshape(len(rows), -1)


def _mass_within(centres: Floats, points: Floats, masses: Floats, reach: float) -> Floats:
    """Total mass of the points within ``reach`` of each centre, ties and rounding included."""
    block = max(1, _CHUNK // max(len(points), 1))
    sizes = (points**2).sum(1)
    # |a|^2 - 2 a b + |b|^2 rounds relative to the norms, not to the distance; including too many points is safe.
    limit = reach * reach + 1e-12 * (reach * reach + 4 * float(sizes.max()))
    found = [
        ((centres[i : i + block] ** 2).sum(1)[:, None] - 2 * centres[i : i + block] @ points.T + sizes <= limit)
        @ masses
        for i in range(0, len(centres), block)
    ]
    return np.concatenate(found)

"""The mass of a ball about the centre of a box, in log space and from above: what a uniform prior on pixels gives."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import erf, gammaln

Floats = NDArray[np.float64]

_ALIASING = 34.0
_MAX_NODES = 400_000
_TAILS = (1e-9, 1e-7, 1e-5)  # three dimensions need the last, as the transform decays slowly
_LARGEST_ERF = 1.35  # of |erf| for arguments within 45 degrees of the real axis; the Fresnel spiral reaches 1.34


def log_ball_in_box(sides: Floats, radius: float) -> float:
    r"""Log probability that a uniform point of a box lies within ``radius`` of its centre; an upper bound.

    .. math:: P\Big(\sum_i w_i^2 u_i^2 \le \rho^2\Big) = \frac{1}{2\pi i}\int \frac{e^{s\rho^2}}{s}
              \prod_i \frac{\sqrt\pi\,\mathrm{erf}(w_i\sqrt s/2)}{w_i\sqrt s}\,ds

    Notation: ``sides`` is w, ``radius`` is rho; u uniform on [-1/2, 1/2].
    Guarantee: not below the probability, above it by a relative 1e-6 (1e-4 in three dimensions); while the ball fits
    into the box, the ratio of volumes, which is exact.
    Edge cases: 0 once the ball reaches the corners; -inf at radius 0.

    >>> round(math.exp(log_ball_in_box(np.ones(2), 0.5)), 6) == round(math.pi / 4, 6)
    True
    >>> log_ball_in_box(np.ones(784), math.sqrt(784 * 0.06)) < -40
    True
    """
    if radius == 0:
        return -math.inf
    if 2 * radius >= math.sqrt(float(np.sum(sides**2))):
        return 0.0
    ratio = log_volume_ratio(sides, radius)
    if 2 * radius <= sides.min():
        return ratio
    if len(sides) == 2:
        return min(0.0, math.log(_disc_in_rectangle(float(sides[0]), float(sides[1]), radius) + 1e-15))
    return min(0.0, ratio, _inverted(sides, radius))


def log_volume_ratio(sides: Floats, radius: float) -> float:
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

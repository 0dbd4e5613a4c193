"""Composition of privacy losses by FFT, with every truncation and rounding on the safe side.

:func:`spacing_for` and :func:`_spacing_to_fit` choose the lattice: fine enough for the requested accuracy, coarse
enough for bounded memory. :func:`compose` composes on it.

Bounds keep the order of the true values. For one sampling probability the lattices of two spacings h <= h' (powers of
two) are nested. The pair of laws on the coarser lattice is a further mean-preserving spread, and composition preserves
that order. More steps, less noise or a coarser lattice therefore never lower the profile, an upper bound, by more than
the allowance for round-off (about 1e-13 times the steps).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import fft
from scipy.signal import lfilter
from scipy.special import ndtr, ndtri_exp

from reconrisk.accounting.loss import (
    EPS,
    Array,
    Cuts,
    Direction,
    LossDistribution,
    PrivacyProfile,
    loss_range,
    step_loss,
)
from reconrisk.accounting.phases import Phase
from reconrisk.accounting.trade_off import log_sum_exp

MAX_POINTS = 2**21
"""Largest number of lattice points of one transform: 16 MB per array, about ten arrays at a time."""

COARSEST = 1.0
"""Largest useful spacing of a lattice."""

_FINEST = 2.0**-32
_LARGEST_PRIOR = math.log(0.5)  # for larger priors the Gaussian approximation underestimates the error
_FEW_STEPS = ((32, 8.0), (256, 2.0))  # (limit on the number of steps, divisor of the spacing)
_HALF_WIDTH = 9.0  # standard deviations; the normal tails beyond hold 2e-19
_NODES = 769  # edges of 768 cells, about 40 per standard deviation at noise multiplier 1
_LARGEST_EXPONENT = 600.0  # exp overflows at 709


def _loss_scale(phase: Phase) -> float:
    r"""Return the scale s of the privacy loss of one step, which is about its standard deviation.

    .. math:: s^2 = 4 E_Q (\sqrt{dP/dQ} - 1)^2

    Here P is the law of the step with the record and Q the law without it.

    Guarantee: s is a monotone function of an f-divergence (the squared Hellinger distance). It decreases with the noise
    and increases with the sampling probability.

    >>> scale = _loss_scale(Phase(noise_multiplier=4.0, sampling_probability=0.01, steps=1))
    >>> round(scale / (0.01 * math.sqrt(math.expm1(1 / 16))), 3)
    1.0
    """
    noise, q = phase.noise_multiplier, phase.sampling_probability
    edges = np.linspace(-_HALF_WIDTH, 1 / noise + _HALF_WIDTH, _NODES)
    u = (edges[1:] + edges[:-1]) / 2
    exponent = u / noise - 0.5 / noise / noise
    loss = np.log1p(q * np.expm1(np.minimum(exponent, _LARGEST_EXPONENT))) if q < 1 else exponent
    loss = loss + np.maximum(exponent - _LARGEST_EXPONENT, 0.0) * (q < 1)  # log(q e^x) is linear in x there
    # E_P (1 - sqrt(dQ/dP))^2 is the same number, and needs no large exponentials.
    density = (1 - q) * np.diff(ndtr(edges)) + q * np.diff(ndtr(edges - 1 / noise))
    return float(2 * np.sqrt(np.sum(density * np.expm1(-np.maximum(loss, -_LARGEST_EXPONENT) / 2) ** 2)))


def spacing_for(phases: tuple[Phase, ...], accuracy: float, log_prior: float) -> float:
    r"""Return the spacing at which the success bound exceeds the true value by about ``accuracy`` at most.

    A lattice cell of width h adds h^2/6 to the variance of the privacy loss of one step on average. If the losses of
    all steps add up to about a Gaussian of shift mu, success is :math:`\Phi(\Phi^{-1}(\kappa) + \mu)` and rises by

    .. math:: \tfrac12 \mu\,\varphi(\Phi^{-1}(\kappa) + \mu) \cdot \frac{h^2}{6 s^2}

    with s the root mean square of :func:`_loss_scale`. The worst mu is :math:`(\sqrt{z^2+4} - z)/2` for
    :math:`z = \Phi^{-1}(\kappa)`.

    Args:
        phases: Phases of the mechanism.
        accuracy: Requested excess of the success bound over the true value.
        log_prior: Natural logarithm of the prior success :math:`\kappa`.

    Returns:
        The spacing, a power of two.

    Guarantee: the spacing never decreases when a phase reveals more or kappa grows. Lattices of one sampling
    probability are then nested, and bounds keep the order of the true values
    (see :mod:`reconrisk.accounting.composition`).

    >>> spacing_for((Phase(noise_multiplier=1.0, sampling_probability=0.01, steps=1000),), 2e-5, math.log(0.1))
    0.000244140625
    """
    z = float(ndtri_exp(min(log_prior, _LARGEST_PRIOR)))
    worst_mu = (math.hypot(z, 2) - z) / 2
    sensitivity = worst_mu * math.exp(-((z + worst_mu) ** 2) / 2) / math.sqrt(8 * math.pi)
    steps = sum(phase.steps for phase in phases)
    mean_square = sum(phase.steps / steps * _loss_scale(phase) ** 2 for phase in phases)
    wanted = math.sqrt(6 * accuracy / sensitivity * mean_square)
    # The sum of few losses is far from Gaussian: much of its mass is close to the infimum, where the density is high.
    wanted /= next((divisor for limit, divisor in _FEW_STEPS if steps < limit), 1.0)
    return min(COARSEST, 2.0 ** math.floor(math.log2(max(wanted, _FINEST))))


def _spacing_to_fit(width: float) -> float:
    """Return the smallest power of two at which MAX_POINTS points cover ``width``."""
    return 2.0 ** math.ceil(math.log2(width / MAX_POINTS))


_LOG_CUT = math.log(1e-12)  # mass outside the window, which is added to the bound
_NEGLIGIBLE = -80.0  # logarithm below which a Fourier coefficient is dropped and bounded instead
_MOMENT_CELLS = 512  # cells of the coarse distribution for exponential moments


@dataclass(frozen=True, eq=False)
class _Moments:
    """A coarse distribution of the privacy loss, whose exponential moments are at least the moments of a phase."""

    losses: Array
    log_mass: Array
    steps: int

    def log_moment(self, exponents: Array) -> Array:
        """Return log E exp(exponent * loss) of all steps."""
        return self.steps * log_sum_exp(np.multiply.outer(exponents, self.losses) + self.log_mass)


@dataclass(frozen=True)
class _Window:
    """Range of the composed, tilted privacy loss; below and above it lies a mass of at most exp(_LOG_CUT) each."""

    low: float
    high: float


def compose(
    phases: tuple[Phase, ...], *, spacing: float, cuts: Cuts, direction: Direction, log_smallest: float = 0.0
) -> PrivacyProfile | None:
    r"""Compute a certified privacy profile of all steps of all phases.

    .. math:: \delta(\varepsilon) = E_P \max(0, 1 - e^{\varepsilon - L_1 - \dots - L_T})

    Here P is the first law of the pair and :math:`L_t` the privacy loss of step t of T.

    Args:
        phases: Phases of the mechanism.
        spacing: Spacing of the lattice; a coarser one is used if this one does not fit into memory.
        cuts: Truncation of the privacy loss of one step.
        direction: Order of the two laws, with and without the record.
        log_smallest: Logarithm of the prior success (or delta) at which the profile must be relatively accurate. Below
            0 the masses are multiplied by :math:`e^{\theta L}` with a tilt :math:`\theta` that favours the losses that
            matter there. The error by round-off is then relative to the result.

    Returns:
        The profile, or None if even the coarsest useful lattice does not fit into memory.

    Guarantee: never below the true divergence at any point of the profile. Memory is bounded for every input.
    """
    # Each pass either succeeds or coarsens the lattice, first for the loss of one step, then for the composed window.
    while spacing <= COARSEST:
        width = max(high - low for low, high in (loss_range(phase, cuts) for phase in phases))
        if width / spacing > MAX_POINTS:
            spacing = _spacing_to_fit(width)
            continue
        losses = [step_loss(phase, spacing, cuts, direction) for phase in phases]
        counts = [phase.steps for phase in phases]
        tilt, window = _plan(losses, counts, log_smallest)
        if (window.high - window.low) / spacing <= MAX_POINTS:
            return _convolve(losses, counts, tilt, window)
        spacing = max(2 * spacing, _spacing_to_fit(window.high - window.low))
    return None


def compose_losses(
    losses: Sequence[LossDistribution], counts: Sequence[int], *, log_smallest: float = 0.0
) -> PrivacyProfile | None:
    """Compute a certified privacy profile of independent releases from the loss of each on a common lattice.

    Args:
        losses: Loss of one release of each kind, all with the same spacing.
        counts: Number of releases of each kind.
        log_smallest: As in :func:`compose`.

    Returns:
        The profile, or None if the composition does not fit into memory at this spacing.

    Guarantee: never below the divergence of the composed losses.
    """
    tilt, window = _plan(losses, counts, log_smallest)
    if (window.high - window.low) / losses[0].spacing > MAX_POINTS:
        return None
    return _convolve(losses, counts, tilt, window)


def _plan(losses: Sequence[LossDistribution], counts: Sequence[int], log_smallest: float) -> tuple[float, _Window]:
    """Choose the tilt and the window of a composition."""
    moments = [_bound_moments(loss, count) for loss, count in zip(losses, counts, strict=True)]
    tilt = _choose_tilt(moments, log_smallest) if log_smallest < 0 else 0.0
    base = sum(count * _tilt_masses(loss, tilt)[1] for loss, count in zip(losses, counts, strict=True))
    return tilt, _find_window(moments, tilt, base)


def _bound_moments(loss: LossDistribution, steps: int) -> _Moments:
    """Return a coarser distribution of the privacy loss with the same mean.

    The points are grouped into blocks of consecutive points, and the mass of a block moves to its first and last point.
    This never lowers the expectation of a convex function, so the exponential moments of the result are upper bounds.
    """
    block = -(-len(loss.mass) // _MOMENT_CELLS)
    count = -(-len(loss.mass) // block)
    mass = np.pad(loss.mass, (0, count * block - len(loss.mass))).reshape(count, block)
    share = mass @ (np.arange(block) / max(block - 1, 1))
    ends = loss.spacing * (loss.start + block * np.arange(count))
    losses = loss.offset + np.concatenate([ends, ends + loss.spacing * (block - 1)])
    with np.errstate(divide="ignore"):
        log_mass = np.log(np.concatenate([np.maximum(mass.sum(1) - share, 0.0), share]))
    return _Moments(losses, log_mass, steps)


def _tilted_std(moments: list[_Moments], tilt: float) -> float:
    """Return the standard deviation of the composed privacy loss after tilting each mass by exp(tilt * loss)."""
    total = 0.0
    for part in moments:
        logs = part.log_mass + tilt * part.losses
        weights = np.exp(logs - logs.max())
        mean = np.average(part.losses, weights=weights)
        total += part.steps * float(np.average((part.losses - mean) ** 2, weights=weights))
    return math.sqrt(total)


def _find_window(moments: list[_Moments], tilt: float, base: float) -> _Window:
    """Bound both tails of the composed, tilted privacy loss by Chernoff's inequality and the extreme possible losses.

    ``base`` is the log moment of the exact loss at the tilt. The log moment of ``moments`` is an upper bound on it;
    subtracting this bound instead of ``base`` would underestimate the tails.
    """
    # For a Gaussian of this standard deviation, ``unit`` is the optimal Chernoff exponent. Every exponent gives a valid
    # bound; the grid around it covers other shapes.
    unit = math.sqrt(-2 * _LOG_CUT) / max(_tilted_std(moments, tilt), 1e-300)
    exponents = np.geomspace(min(unit / 16, 0.25), 4 * unit, 15)
    up = sum(part.log_moment(tilt + exponents) for part in moments) - base
    down = sum(part.log_moment(tilt - exponents) for part in moments) - base
    largest = sum(part.steps * part.losses.max() for part in moments)
    least = sum(part.steps * part.losses.min() for part in moments)
    high = np.min((up - _LOG_CUT) / exponents)
    low = np.max((_LOG_CUT - down) / exponents)
    return _Window(low=max(float(low), least), high=min(float(high), largest))


def _choose_tilt(moments: list[_Moments], log_smallest: float) -> float:
    """Return the saddle point: after this tilt of P, losses above the mean have a Q-mass of about exp(log_smallest).

    The choice affects the accuracy only; the bound holds for every tilt.
    """
    tilts = np.geomspace(1e-2, 1e3, 61)
    step = 1e-3  # relative step of the finite difference for the mean, the derivative of the log moment
    middle = sum(part.log_moment(tilts) for part in moments)
    mean = (sum(part.log_moment(tilts * (1 + step)) for part in moments) - middle) / (tilts * step)
    log_mass = middle - (1 + tilts) * mean
    # The last grid point before the saddle point is accurate enough. A point beyond it can be far off, where the mean
    # jumps from many small losses to few large ones.
    reached = np.flatnonzero(log_mass <= log_smallest)
    last = reached[0] if len(reached) else len(tilts)
    return float(tilts[last - 1]) if last > 0 else 0.0


def _convolve(steps: Sequence[LossDistribution], counts: Sequence[int], tilt: float, window: _Window) -> PrivacyProfile:
    """Compose on the window by FFT; truncated mass moves to infinite loss, and round-off is added to every mass."""
    spacing = steps[0].spacing
    offset = sum(count * loss.offset for loss, count in zip(steps, counts, strict=True))
    first = math.floor((window.low - offset) / spacing)
    last = math.ceil((window.high - offset) / spacing)
    points = fft.next_fast_len(max(last - first + 1, 2), real=True)
    tilted = [_tilt_masses(loss, tilt) for loss in steps]
    # Indices modulo the length: the convolution is circular, and the window holds all but the truncated mass.
    folded = [
        np.bincount((loss.start + np.arange(len(mass))) % points, weights=mass, minlength=points).astype(np.float64)
        for loss, (mass, _) in zip(steps, tilted, strict=True)
    ]
    masses = np.roll(_convolve_powers(folded, counts), -(first % points))  # so that entry 0 is the window's first point
    losses = offset + spacing * (first + np.arange(points))
    log_scale = sum(count * log_moment for (_, log_moment), count in zip(tilted, counts, strict=True))
    # Probability that any step has an infinite loss: 1 - prod (1 - infinite)^n without cancellation.
    infinite = -math.expm1(sum(n * math.log1p(-loss.infinite) for loss, n in zip(steps, counts, strict=True)))
    return _profile_from_masses(np.asarray(losses, dtype=np.float64), masses, tilt, log_scale, infinite)


def _convolve_powers(folded: list[Array], counts: Sequence[int]) -> Array:
    """Convolve mass vectors circularly, each as often as its count, and add the largest possible round-off."""
    points = len(folded[0])
    error = 4 * EPS * (math.log2(points) + 2)  # bound on every entry of a transform: at most 4 eps per level
    transforms = [fft.rfft(masses) for masses in folded]
    log_size, amplification = np.zeros(points // 2 + 1), np.zeros(points // 2 + 1)
    for transform, count in zip(transforms, counts, strict=True):
        size = np.minimum(np.abs(transform) + error, 1 + error)
        log_size += count * np.log(size)
        amplification += count / size
    kept = log_size > _NEGLIGIBLE
    product = np.zeros_like(transforms[0])
    with np.errstate(divide="ignore"):
        product[kept] = np.exp(sum(n * np.log(each[kept]) for each, n in zip(transforms, counts, strict=True)))
    # First-order error of the product of powers: sum_i count_i * error / size_i, times the size of the product. The
    # sums run over the half spectrum, hence the factor 2 of the inverse transform.
    wrong = float(np.sum(error * (amplification[kept] + 1) * np.exp(log_size[kept])))
    dropped = len(kept) * math.exp(_NEGLIGIBLE)
    return np.asarray(np.maximum(fft.irfft(product, points), 0.0) + 2 * (wrong + dropped) / points)


def _tilt_masses(loss: LossDistribution, tilt: float) -> tuple[Array, float]:
    """Return the masses times exp(tilt * loss - log moment), and the log moment; unchanged for tilt 0."""
    if tilt == 0:
        return loss.mass, 0.0
    with np.errstate(divide="ignore"):
        logs = np.log(loss.mass) + tilt * loss.losses
    log_moment = float(log_sum_exp(logs))
    return np.exp(logs - log_moment), log_moment


def _profile_from_masses(
    losses: Array, masses: Array, tilt: float, log_scale: float, infinite: float
) -> PrivacyProfile:
    r"""Compute hockey-stick divergences at the lattice points, by a recursion without subtraction.

    .. math:: \delta_{j-1} = e^{-h}\delta_j + (1 - e^{-h}) \sum_{i \ge j} p_i
    """
    # Mass above the window: at most e^_LOG_CUT of the tilted law, times the weight that undoes the tilt at its end.
    cut = math.exp(min(_LOG_CUT + log_scale - tilt * losses[-1], 0.0))
    usable = np.ones(len(losses), dtype=bool)
    if tilt:
        # Undo the tilt; the last term covers the round-off of the exponent. Points whose weight exceeds e^300 are left
        # out before they overflow: a profile with fewer points is still valid.
        log_weight = log_scale - tilt * losses + 64 * EPS * (abs(log_scale) + np.abs(tilt * losses))
        usable = log_weight < 300.0
        masses = masses * np.exp(np.minimum(log_weight, 300.0))
    spacing = losses[1] - losses[0]
    above = np.zeros(len(losses))
    np.cumsum(masses[:0:-1], out=above[1:])
    deltas = lfilter([-math.expm1(-spacing)], [1.0, -math.exp(-spacing)], above)[::-1]  # the recursion of the docstring
    deltas = deltas * (1 + 4 * len(losses) * EPS) + (infinite + cut)  # all terms are positive: round-off is relative
    return PrivacyProfile(losses[usable], deltas[usable]) if tilt else PrivacyProfile(losses, deltas)

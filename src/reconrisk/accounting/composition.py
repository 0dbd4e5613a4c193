"""Composition of privacy losses by FFT; every cut and rounding counts against the privacy of the record.

:func:`spacing_for` and :func:`_spacing_to_fit` choose the lattice: fine enough for a wanted accuracy, coarse enough for
bounded memory. :func:`compose` composes on it.

Why the result is ordered: for one sampling probability the lattices of two spacings h <= h' (powers of two) are nested,
the pair on the coarser one is a further mean-preserving spread, and composition keeps that order. So more steps, less
noise or a coarser lattice can only raise the profile, up to the round-off allowance (about 1e-13 times the steps).
"""

from __future__ import annotations

import math
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
"""Most lattice points of one transform: 16 MB an array, some ten arrays at a time."""

COARSEST = 1.0
"""Spacing from which on a lattice is useless."""

_FINEST = 2.0**-32
_LARGEST_PRIOR = math.log(0.5)  # beyond, the Gaussian approximation of the error is too kind
_FEW_STEPS = ((32, 8.0), (256, 2.0))
_HALF_WIDTH = 9.0
_NODES = 769


def _loss_scale(phase: Phase) -> float:
    r"""Root of the squared Hellinger distance of one step, about the standard deviation of its loss.

    .. math:: s^2 = 4 E_Q (\sqrt{dP/dQ} - 1)^2

    Guarantee: an f-divergence, hence larger for a more telling step: it falls with the noise and grows with the rate.

    >>> scale = _loss_scale(Phase(noise_multiplier=4.0, sampling_probability=0.01, steps=1))
    >>> round(scale / (0.01 * math.sqrt(math.expm1(1 / 16))), 3)
    1.0
    """
    noise, q = phase.noise_multiplier, phase.sampling_probability
    edges = np.linspace(-_HALF_WIDTH, 1 / noise + _HALF_WIDTH, _NODES)
    u = (edges[1:] + edges[:-1]) / 2
    exponent = u / noise - 0.5 / noise / noise
    loss = np.log1p(q * np.expm1(np.minimum(exponent, 600.0))) if q < 1 else exponent
    loss = loss + np.maximum(exponent - 600.0, 0.0) * (q < 1)
    density = (1 - q) * np.diff(ndtr(edges)) + q * np.diff(ndtr(edges - 1 / noise))
    return float(2 * np.sqrt(np.sum(density * np.expm1(-np.maximum(loss, -600.0) / 2) ** 2)))


def spacing_for(phases: tuple[Phase, ...], accuracy: float, log_prior: float) -> float:
    r"""The spacing at which the success bound exceeds the truth by about ``accuracy`` at most.

    A cell of width h adds h^2/6 to the variance of one loss on average. If the losses add up to about a Gaussian of
    shift mu, success is :math:`\Phi(\Phi^{-1}(\kappa) + \mu)` and rises by

    .. math:: \tfrac12 \mu\,\varphi(\Phi^{-1}(\kappa) + \mu) \cdot \frac{h^2}{6 s^2}

    with s the root mean square ``loss_scale``; the worst mu is :math:`(\sqrt{z^2+4} - z)/2` for
    :math:`z = \Phi^{-1}(\kappa)`.

    Guarantee: a power of two that never shrinks when a phase becomes more telling or kappa larger. Lattices of one rate
    are then nested in the right order, and bounds ordered in truth stay ordered
    (see :mod:`reconrisk.accounting.composition`).
    """
    z = float(ndtri_exp(min(log_prior, _LARGEST_PRIOR)))
    worst_mu = (math.hypot(z, 2) - z) / 2
    sensitivity = worst_mu * math.exp(-((z + worst_mu) ** 2) / 2) / math.sqrt(8 * math.pi)
    steps = sum(phase.steps for phase in phases)
    mean_square = sum(phase.steps / steps * _loss_scale(phase) ** 2 for phase in phases)
    wanted = math.sqrt(6 * accuracy / sensitivity * mean_square)
    # few losses are far from Gaussian: much of their mass lies close to the infimum, where the density is high
    wanted /= next((divisor for limit, divisor in _FEW_STEPS if steps < limit), 1.0)
    return min(COARSEST, 2.0 ** math.floor(math.log2(max(wanted, _FINEST))))


def _spacing_to_fit(width: float) -> float:
    """The least power of two that covers ``width`` with the allowed number of points."""
    return 2.0 ** math.ceil(math.log2(width / MAX_POINTS))


_LOG_CUT = math.log(1e-12)
_NEGLIGIBLE = -80.0
_MOMENT_CELLS = 512


@dataclass(frozen=True, eq=False)
class _Moments:
    """A coarser loss distribution whose exponential moments are at least those of the phase it stands for."""

    losses: Array
    log_mass: Array
    steps: int

    def log_moment(self, exponents: Array) -> Array:
        """Log E exp(exponent * loss) of all steps."""
        return self.steps * log_sum_exp(np.multiply.outer(exponents, self.losses) + self.log_mass)


@dataclass(frozen=True)
class _Window:
    """Range of the composed, tilted loss outside which a mass of at most exp(_LOG_CUT) lies on either side."""

    low: float
    high: float


def compose(
    phases: tuple[Phase, ...], *, spacing: float, cuts: Cuts, direction: Direction, log_smallest: float = 0.0
) -> PrivacyProfile | None:
    r"""Certified profile of all steps of all phases, on the lattice ``spacing`` or the finest that fits into memory.

    .. math:: \delta(\varepsilon) = E_P \max(0, 1 - e^{\varepsilon - L_1 - \dots - L_T})

    Notation: ``log_smallest`` is the log of the prior success (or delta) at which the profile must be relatively
    accurate; below 0 the masses are tilted by :math:`e^{\theta L}` towards the losses that matter there, so that
    round-off stays relative.
    Guarantee: never below the true divergence at any point of the profile.
    Edge cases: None where even the coarsest useful lattice does not fit; memory is bounded for every input.
    """
    while spacing <= COARSEST:
        width = max(high - low for low, high in (loss_range(phase, cuts) for phase in phases))
        if width / spacing > MAX_POINTS:
            spacing = _spacing_to_fit(width)
            continue
        steps = [step_loss(phase, spacing, cuts, direction) for phase in phases]
        moments = [_moments(loss, phase.steps) for loss, phase in zip(steps, phases, strict=True)]
        tilt = _tilt(moments, log_smallest) if log_smallest < 0 else 0.0
        base = sum(phase.steps * _tilted(loss, tilt)[1] for loss, phase in zip(steps, phases, strict=True))
        window = _window(moments, tilt, base)
        if (window.high - window.low) / spacing <= MAX_POINTS:
            return _convolve(steps, [phase.steps for phase in phases], tilt, window)
        spacing = max(2 * spacing, _spacing_to_fit(window.high - window.low))
    return None


def _moments(loss: LossDistribution, steps: int) -> _Moments:
    """Blocks of cells, the mass of each put at its two ends with the same mean loss: convex functions only grow."""
    block = -(-len(loss.mass) // _MOMENT_CELLS)
    count = -(-len(loss.mass) // block)
    mass = np.pad(loss.mass, (0, count * block - len(loss.mass))).reshape(count, block)
    share = mass @ (np.arange(block) / max(block - 1, 1))
    ends = loss.spacing * (loss.start + block * np.arange(count))
    losses = loss.offset + np.concatenate([ends, ends + loss.spacing * (block - 1)])
    with np.errstate(divide="ignore"):
        log_mass = np.log(np.concatenate([np.maximum(mass.sum(1) - share, 0.0), share]))
    return _Moments(losses, log_mass, steps)


def _spread(moments: list[_Moments], tilt: float) -> float:
    """Standard deviation of the composed, tilted loss."""
    total = 0.0
    for part in moments:
        logs = part.log_mass + tilt * part.losses
        weights = np.exp(logs - logs.max())
        mean = np.average(part.losses, weights=weights)
        total += part.steps * float(np.average((part.losses - mean) ** 2, weights=weights))
    return math.sqrt(total)


def _window(moments: list[_Moments], tilt: float, base: float) -> _Window:
    """Chernoff bounds on both tails of the composed, tilted loss; the largest and least possible loss cap them.

    ``base``, the log moment at the tilt, is that of the loss itself: the blocks of ``moments`` would make it too large,
    and the tails then look too thin.
    """
    unit = math.sqrt(-2 * _LOG_CUT) / max(_spread(moments, tilt), 1e-300)
    exponents = np.geomspace(min(unit / 16, 0.25), 4 * unit, 15)
    up = sum(part.log_moment(tilt + exponents) for part in moments) - base
    down = sum(part.log_moment(tilt - exponents) for part in moments) - base
    largest = sum(part.steps * part.losses.max() for part in moments)
    least = sum(part.steps * part.losses.min() for part in moments)
    high = np.min((up - _LOG_CUT) / exponents)
    low = np.max((_LOG_CUT - down) / exponents)
    return _Window(low=max(float(low), least), high=min(float(high), largest))


def _tilt(moments: list[_Moments], log_smallest: float) -> float:
    """The saddle point: under P tilted by theta, events of Q-mass about exp(log_smallest) begin at the mean loss."""
    tilts = np.geomspace(1e-2, 1e3, 61)
    step = 1e-3
    middle = sum(part.log_moment(tilts) for part in moments)
    mean = (sum(part.log_moment(tilts * (1 + step)) for part in moments) - middle) / (tilts * step)
    log_mass = middle - (1 + tilts) * mean
    # one grid point too early is accurate enough; too late can be far off, where the mean jumps from many small losses
    # to few large ones
    reached = np.flatnonzero(log_mass <= log_smallest)
    last = reached[0] if len(reached) else len(tilts)
    return float(tilts[last - 1]) if last > 0 else 0.0


def _convolve(steps: list[LossDistribution], counts: list[int], tilt: float, window: _Window) -> PrivacyProfile:
    """The profile on the window: transforms multiplied, cut mass at infinity, round-off added to every mass."""
    spacing = steps[0].spacing
    offset = sum(count * loss.offset for loss, count in zip(steps, counts, strict=True))
    first = math.floor((window.low - offset) / spacing)
    last = math.ceil((window.high - offset) / spacing)
    points = fft.next_fast_len(max(last - first + 1, 2), real=True)
    tilted = [_tilted(loss, tilt) for loss in steps]
    folded = [
        np.bincount((loss.start + np.arange(len(mass))) % points, weights=mass, minlength=points).astype(np.float64)
        for loss, (mass, _) in zip(steps, tilted, strict=True)
    ]
    masses = np.roll(_product(folded, counts), -(first % points))
    losses = offset + spacing * (first + np.arange(points))
    log_scale = sum(count * log_moment for (_, log_moment), count in zip(tilted, counts, strict=True))
    infinite = -math.expm1(sum(n * math.log1p(-loss.infinite) for loss, n in zip(steps, counts, strict=True)))
    return _profile(np.asarray(losses, dtype=np.float64), masses, tilt, log_scale, infinite)


def _product(folded: list[Array], counts: list[int]) -> Array:
    """Circular convolution powers of masses that sum to one, each entry raised by the largest possible round-off."""
    points = len(folded[0])
    error = 4 * EPS * (math.log2(points) + 2)  # of every entry of a transform: at most 4 eps a level
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
    wrong = float(np.sum(error * (amplification[kept] + 1) * np.exp(log_size[kept])))
    dropped = len(kept) * math.exp(_NEGLIGIBLE)
    return np.asarray(np.maximum(fft.irfft(product, points), 0.0) + 2 * (wrong + dropped) / points)


def _tilted(loss: LossDistribution, tilt: float) -> tuple[Array, float]:
    """Masses times exp(tilt * loss - log moment), and that log moment; untouched without tilt."""
    if tilt == 0:
        return loss.mass, 0.0
    with np.errstate(divide="ignore"):
        logs = np.log(loss.mass) + tilt * loss.losses
    log_moment = float(log_sum_exp(logs))
    return np.exp(logs - log_moment), log_moment


def _profile(losses: Array, masses: Array, tilt: float, log_scale: float, infinite: float) -> PrivacyProfile:
    r"""Hockey-stick divergences at the lattice points, by a recursion without subtraction.

    .. math:: \delta_{j-1} = e^{-h}\delta_j + (1 - e^{-h}) \sum_{i \ge j} p_i
    """
    cut = math.exp(min(_LOG_CUT + log_scale - tilt * losses[-1], 0.0))
    usable = np.ones(len(losses), dtype=bool)
    if tilt:
        log_weight = log_scale - tilt * losses + 64 * EPS * (abs(log_scale) + np.abs(tilt * losses))
        usable = log_weight < 300.0
        masses = masses * np.exp(np.minimum(log_weight, 300.0))
    spacing = losses[1] - losses[0]
    above = np.zeros(len(losses))
    np.cumsum(masses[:0:-1], out=above[1:])
    deltas = lfilter([-math.expm1(-spacing)], [1.0, -math.exp(-spacing)], above)[::-1]
    deltas = deltas * (1 + 4 * len(losses) * EPS) + (infinite + cut)
    return PrivacyProfile(losses[usable], deltas[usable]) if tilt else PrivacyProfile(losses, deltas)

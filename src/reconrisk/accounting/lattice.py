"""How fine the lattice of losses must be for a wanted accuracy, and how coarse for bounded memory."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr, ndtri_exp

from reconrisk.accounting.phases import Phase

MAX_POINTS = 2**21
"""Most lattice points of one transform: 16 MB an array, some ten arrays at a time."""

COARSEST = 1.0
"""Spacing from which on a lattice is useless."""

_FINEST = 2.0**-32
_LARGEST_PRIOR = math.log(0.5)  # beyond, the Gaussian approximation of the error is too kind
_FEW_STEPS = ((32, 8.0), (256, 2.0))
_HALF_WIDTH = 9.0
_NODES = 769


def loss_scale(phase: Phase) -> float:
    r"""Root of the squared Hellinger distance of one step, about the standard deviation of its loss.

    .. math:: s^2 = 4 E_Q (\sqrt{dP/dQ} - 1)^2

    Guarantee: an f-divergence, hence larger for a more telling step: it falls with the noise and grows with the rate.

    >>> scale = loss_scale(Phase(noise_multiplier=4.0, sampling_probability=0.01, steps=1))
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
    mean_square = sum(phase.steps / steps * loss_scale(phase) ** 2 for phase in phases)
    wanted = math.sqrt(6 * accuracy / sensitivity * mean_square)
    # few losses are far from Gaussian: much of their mass lies close to the infimum, where the density is high
    wanted /= next((divisor for limit, divisor in _FEW_STEPS if steps < limit), 1.0)
    return min(COARSEST, 2.0 ** math.floor(math.log2(max(wanted, _FINEST))))


def spacing_to_fit(width: float) -> float:
    """The least power of two that covers ``width`` with the allowed number of points."""
    return 2.0 ** math.ceil(math.log2(width / MAX_POINTS))

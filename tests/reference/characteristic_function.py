"""Oracle: the success of the best test against subsampled Gaussian training, by inverting characteristic functions.

Shares nothing with the package: no lattice of losses, no FFT, no bound. Integrals over the outcome of one step by the
trapezoidal rule on a fine grid, powers for the steps, tails by Gil-Pelaez. Accurate to about 1e-9 where the sum of
losses is smooth (many steps); not for few steps at little noise, where the characteristic function decays slowly.
"""

import numpy as np
from scipy.optimize import brentq


def true_success(phases, prior_success):
    """``phases`` holds (noise_multiplier, sampling_probability, steps)."""
    grids = [_grid(noise, rate) for noise, rate, _ in phases]
    steps = [count for _, _, count in phases]
    without = _Tail([(losses, null) for losses, null, _ in grids], steps)
    with_record = _Tail([(losses, shifted) for losses, _, shifted in grids], steps)
    mean, std = without.mean, without.std
    threshold = brentq(lambda t: without(t) - prior_success, mean - 8 * std, mean + 12 * std, xtol=1e-13)
    return with_record(threshold)


def _grid(noise, rate, nodes=16001, width=11.0):
    x = np.linspace(-width * noise, 1 + width * noise, nodes)
    weight = (x[1] - x[0]) / noise / np.sqrt(2 * np.pi)
    null = weight * np.exp(-((x / noise) ** 2) / 2)
    shifted = (1 - rate) * null + rate * weight * np.exp(-(((x - 1) / noise) ** 2) / 2)
    losses = np.logaddexp(np.log1p(-rate), np.log(rate) + (x - 0.5) / noise**2)
    return losses, null, shifted


class _Tail:
    """P(sum of losses > t), by Gil-Pelaez."""

    def __init__(self, laws, steps):
        means = [float(masses @ losses) for losses, masses in laws]
        self.mean = sum(n * m for n, m in zip(steps, means, strict=True))
        variances = (masses @ (losses - m) ** 2 for (losses, masses), m in zip(laws, means, strict=True))
        self.std = float(np.sqrt(sum(n * v for n, v in zip(steps, variances, strict=True))))
        self.du = 2 * np.pi / (60 * self.std)
        values = []
        for block in range(200):
            u = (np.arange(25) + 25 * block + 0.5) * self.du
            powers = 1.0
            for (losses, masses), n, m in zip(laws, steps, means, strict=True):
                powers = powers * (np.exp(1j * np.outer(u, losses - m)) @ masses) ** n
            values.append(powers)
            if np.abs(powers).max() < 1e-13:
                break
        else:
            raise AssertionError("the characteristic function does not decay: choose more steps or more noise")
        self.values = np.concatenate(values)
        self.u = (np.arange(len(self.values)) + 0.5) * self.du

    def __call__(self, t):
        wave = np.exp(-1j * self.u * (t - self.mean)) * self.values
        return 0.5 + float((wave.imag / self.u).sum() * self.du / np.pi)

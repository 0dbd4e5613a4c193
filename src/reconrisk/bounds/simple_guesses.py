"""What attackers reach who guess without looking, or shrink what they see: why one attack's law is no bound."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from reconrisk.bounds.analytic_inversion import analytic_inversion_law
from reconrisk.core.law import mse_threshold
from reconrisk.core.mechanism import Mechanism
from reconrisk.core.serialization import serializable

_GRID = 400
_LARGEST_NOISE = 1e100
_LARGEST_SUM = 1e8


@serializable
@dataclass(frozen=True)
class SimpleGuesses:
    """Errors and success at one threshold of a zero guess, a mid-range guess, shrinkage, and riess2025's attack.

    ``zero_guess_mse`` is exact for the norm; ``centre_guess_mse`` is the largest over records in a box of the data
    range; ``shrinkage_success`` is a numerical value to about three digits.
    """

    mse: float
    zero_guess_mse: float
    centre_guess_mse: float
    attack_mse: float
    attack_success: float
    shrinkage_mse: float
    shrinkage_success: float
    observations: int = 1

    @property
    def constant_guess_succeeds(self) -> bool:
        """Whether a guess that ignores the release is always within the threshold."""
        return self.mse >= min(self.zero_guess_mse, self.centre_guess_mse)

    def __str__(self) -> str:
        """The numbers as two sentences."""
        verdict = "always succeeds" if self.constant_guess_succeeds else "is not certain to succeed"
        return (
            f"At mean squared error {self.mse:.4g} a constant guess {verdict}: "
            f"zero has error {self.zero_guess_mse:.4g}, "
            f"the middle of the data range at most {self.centre_guess_mse:.4g}. "
            f"Given {self.observations} release(s) of the record, James-Stein shrinkage has expected error "
            f"{self.shrinkage_mse:.4g} and succeeds with probability "
            f"{self.shrinkage_success:.2g}, riess2025's attack {self.attack_mse:.4g} and {self.attack_success:.2g}."
        )


def what_simple_guesses_reach(
    mechanism: Mechanism,
    *,
    dimension: int,
    norm: float,
    mse: float | None = None,
    psnr: float | None = None,
    data_range: float = 1.0,
    observations: int = 1,
) -> SimpleGuesses:
    r"""What a constant guess and James-Stein shrinkage reach at a threshold, beside riess2025's attack.

    .. math:: E\,\mathrm{MSE}_{JS} = v \Bigl(1 - \frac{(d-2)^2}d E \frac1{d-2+2J}\Bigr), \quad
              J \sim \mathrm{Poisson}\bigl(\|x\|^2/(2v)\bigr)

    for the shrunk estimate :math:`(1 - (d-2) v/|y|^2) y` of :math:`y \sim N(x, vI)`, :math:`v = \sigma^2\|x\|^2/k`.

    Assumes: as :func:`reconrisk.bounds.analytic_inversion.analytic_inversion_law`; records in a box of side
    ``data_range`` for the mid-range guess.
    Guarantee: none; these are attackers, and the best of them may still be beaten.
    Edge cases: below three dimensions shrinkage does not help and equals the attack.
    Reference: `James and Stein (1961) <https://projecteuclid.org/euclid.bsmsp/1200512173>`_.

    >>> from reconrisk.core.mechanism import Gaussian
    >>> reach = what_simple_guesses_reach(Gaussian(noise_multiplier=0.2), dimension=64, norm=4.6, mse=0.26)
    >>> round(reach.attack_mse, 2), round(reach.shrinkage_mse, 2), reach.attack_success < 1e-6
    (0.85, 0.26, True)
    """
    threshold = mse_threshold(mse=mse, psnr=psnr, data_range=data_range)
    law = analytic_inversion_law(mechanism, dimension=dimension, norm=norm, observations=observations)
    shrunk = law.dimension > 2  # Stein's paradox needs three dimensions
    return SimpleGuesses(
        mse=threshold,
        zero_guess_mse=norm * norm / law.dimension,
        centre_guess_mse=data_range * data_range / 4,
        attack_mse=law.expected_mse,
        attack_success=law.success(mse=threshold),
        shrinkage_mse=_james_stein_mse(law.dimension, norm, law.variance) if shrunk else law.expected_mse,
        shrinkage_success=_james_stein_success(law.dimension, norm, law.variance, threshold)
        if shrunk
        else law.success(mse=threshold),
        observations=observations,
    )


def _james_stein_mse(dimension: int, norm: float, variance: float) -> float:
    mean = norm * norm / (2 * variance)
    if mean > _LARGEST_SUM:  # the Poisson spread is below 1e-4 of the mean there
        expectation = 1 / (dimension - 2 + 2 * mean)
    else:
        spread = 12 * math.sqrt(mean) + 40
        counts = np.arange(max(0, math.floor(mean - spread)), math.ceil(mean + spread))
        logs = special.xlogy(counts, mean) - mean - special.gammaln(counts + 1)
        expectation = float((np.exp(logs) / (dimension - 2 + 2 * counts)).sum())
    return variance * (1 - (dimension - 2) ** 2 / dimension * expectation)


def _james_stein_success(dimension: int, norm: float, variance: float, threshold: float) -> float:
    """Share of an even grid of quantiles, noise along the record times noise across it, that reaches the threshold."""
    levels = (np.arange(_GRID) + 0.5) / _GRID
    noise = min(math.sqrt(variance) / norm, _LARGEST_NOISE)  # in units of the norm; more changes nothing
    along = 1 + noise * special.ndtri(levels)[:, None]
    across = 2 * special.gammaincinv((dimension - 1) / 2, levels) * noise * noise
    shrink = 1 - (dimension - 2) * noise * noise / (along**2 + across)
    errors = ((shrink * along - 1) ** 2 + shrink**2 * across) / dimension
    return float(np.mean(np.sqrt(errors) <= math.sqrt(threshold) / norm))

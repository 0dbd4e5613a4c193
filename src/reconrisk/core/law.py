"""The error distribution of one named attack: exact for that attack, silent about every other."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reconrisk.core.papers import Reference
from reconrisk.core.validation import check_finite, check_nonnegative, check_positive, check_probability, refuse

_LARGEST_PSNR = 2000.0  # beyond it neither the error nor its reciprocal is a float


class Law(ABC):
    """How the mean squared error of one attack is distributed over the noise of the release.

    It is not a guarantee and cannot stand for one: another attack may succeed more often. ``attack`` names whose
    law it is and ``reference`` the statement that derives it.
    """

    attack: str
    reference: Reference

    @abstractmethod
    def log_cdf(self, mse: ArrayLike) -> NDArray[np.float64]:
        """Logarithm of the probability that the error is at most ``mse``."""

    @abstractmethod
    def pdf(self, mse: ArrayLike) -> NDArray[np.float64]:
        """Density of the error at ``mse``."""

    @abstractmethod
    def quantile_from_log(self, log_probability: float) -> float:
        """The error not exceeded with probability ``exp(log_probability)``."""

    @property
    @abstractmethod
    def expected_mse(self) -> float:
        """Mean of the error."""

    def cdf(self, mse: ArrayLike) -> NDArray[np.float64]:
        """Probability that the error is at most ``mse``."""
        return np.asarray(np.exp(self.log_cdf(mse)))

    def log_success(self, *, mse: float | None = None, psnr: float | None = None, data_range: float = 1.0) -> float:
        """Logarithm of the probability that the attack reaches the threshold, where that underflows too."""
        return float(self.log_cdf(mse_threshold(mse=mse, psnr=psnr, data_range=data_range)))

    def success(self, *, mse: float | None = None, psnr: float | None = None, data_range: float = 1.0) -> float:
        """Probability that the attack reaches the threshold, stated as error or as PSNR over ``data_range``."""
        return math.exp(self.log_success(mse=mse, psnr=psnr, data_range=data_range))

    def quantile(self, probability: float) -> float:
        """The error not exceeded with this probability."""
        check_probability("probability", probability)
        return self.quantile_from_log(math.log(probability) if probability > 0 else -math.inf)

    def psnr_quantile(self, probability: float, *, data_range: float = 1.0) -> float:
        """The peak signal-to-noise ratio in dB that is reached or exceeded with this probability."""
        return psnr_from_mse(self.quantile(probability), data_range=data_range)

    def psnr_pdf(self, psnr: float, *, data_range: float = 1.0) -> float:
        """Density of the peak signal-to-noise ratio in dB."""
        error = mse_from_psnr(psnr, data_range=data_range)
        return float(self.pdf(error)) * error * math.log(10) / 10

    def __repr__(self) -> str:
        """Whose law it is, and that it bounds nobody else."""
        return (
            f"{type(self).__name__}(law of {self.attack}, {self.reference}; expected MSE {self.expected_mse:.4g}; "
            "not a bound on other attacks)"
        )

    __str__ = __repr__


def mse_from_psnr(psnr: float, *, data_range: float) -> float:
    r"""The mean squared error at which a peak signal-to-noise ratio in dB is reached.

    .. math:: \eta = R^2 \, 10^{-t/10}

    Assumes: ``data_range`` is the range R of the metric: of the data set (riess2025, Proposition IV.8), or of the one
    record (riess2025, Definition IV.7); the two differ for every record that does not use the full range.

    >>> mse_from_psnr(20.0, data_range=1.0)
    0.01
    """
    check_finite("psnr", psnr)
    check_positive("data_range", data_range, "Pass the largest minus the smallest value the data may take.")
    if abs(psnr) > _LARGEST_PSNR:
        raise refuse("psnr", psnr, f"between -{_LARGEST_PSNR:g} and {_LARGEST_PSNR:g} dB", "Pass it in decibel.")
    threshold = float(data_range * data_range * 10.0 ** (-psnr / 10))
    if not 0 < threshold < math.inf:
        raise refuse("data_range", data_range, "to give an error that is a float", "State the range of the values.")
    return threshold


def psnr_from_mse(mse: float, *, data_range: float) -> float:
    """The peak signal-to-noise ratio in dB at a mean squared error.

    Edge cases: ``mse = 0`` gives inf.

    >>> psnr_from_mse(0.01, data_range=1.0)
    20.0
    """
    check_nonnegative("mse", mse)
    check_positive("data_range", data_range, "Pass the largest minus the smallest value the data may take.")
    return math.inf if mse == 0 else 20 * math.log10(data_range) - 10 * math.log10(mse)


def mse_threshold(*, mse: float | None, psnr: float | None, data_range: float) -> float:
    """The threshold as mean squared error, from whichever of the two ways to state it was used.

    >>> mse_threshold(mse=None, psnr=30.0, data_range=1.0)
    0.001
    """
    check_positive("data_range", data_range, "Pass the largest minus the smallest value the data may take.")
    if mse is not None and psnr is None:
        return check_nonnegative("mse", mse)
    if psnr is not None and mse is None:
        return mse_from_psnr(psnr, data_range=data_range)
    raise refuse("(mse, psnr)", (mse, psnr), "to have exactly one number", "Pass mse=... or psnr=..., not both.")

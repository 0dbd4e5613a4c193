"""Three types for numbers about risk, so that a measurement cannot be mistaken for a proof.

A :class:`Guarantee` is proved. A :class:`Law` is the exact error distribution of one named attack and does not bound
other attacks. An :class:`Estimate` is measured. :func:`format_rounded_up` and :func:`format_rounded_down` round numbers
to the safe side for display.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from enum import Enum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reconrisk.core.mechanism import Mechanism
from reconrisk.core.papers import Reference
from reconrisk.core.storage.result import Result, Row
from reconrisk.core.storage.serialization import serializable
from reconrisk.core.storage.text_table import table_from_rows
from reconrisk.core.threat import ThreatModel
from reconrisk.core.validation import (
    check_finite,
    check_nonnegative,
    check_positive,
    check_probability,
    check_real,
    check_whole,
    invalid_input,
)


def format_rounded_up(value: float, digits: int = 4) -> str:
    """Format a number rounded up, for success probabilities and required noise.

    Args:
        value: The number.
        digits: Significant digits.

    Returns:
        The text of a number that is never below ``value``.

    >>> format_rounded_up(11.72935, 6), format_rounded_up(0.1), format_rounded_up(1e-7 / 3), format_rounded_up(math.inf)
    ('11.7294', '0.1', '3.334e-08', 'inf')
    """
    return _format_rounded(value, digits, ROUND_CEILING)


def format_rounded_down(value: float, digits: int = 4) -> str:
    """Format a number rounded down, for errors and permitted settings.

    Args:
        value: The number.
        digits: Significant digits.

    Returns:
        The text of a number that is never above ``value``.

    >>> format_rounded_down(0.42303378, 5), format_rounded_down(0.05)
    ('0.42303', '0.05')
    """
    return _format_rounded(value, digits, ROUND_FLOOR)


def _format_rounded(value: float, digits: int, direction: str) -> str:
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    exact = Decimal(repr(value))  # the shortest decimal that reads back as this float: 0.1 stays 0.1
    return f"{float(Context(prec=digits, rounding=direction).plus(exact)):.{digits}g}"


_LARGEST_PSNR = 2000.0  # dB: errors from 1e-200 to 1e200 times the squared range, with room for that range


_LOG_REMEDY = "Pass the natural logarithm of a probability."
_LEVELS = (0.01, 0.1, 0.5, 0.9, 0.99)  # probabilities of the quantiles in tables


class Law(Result):
    """Distribution of the mean squared error of one attack over the noise of the release.

    A law is not a guarantee: another attack may succeed more often.

    Attributes:
        attack: Name of the attack.
        reference: Statement that derives the law.
    """

    attack: str
    reference: Reference

    @abstractmethod
    def log_cdf(self, mse: ArrayLike) -> NDArray[np.float64]:
        """Return the logarithm of the probability that the error is at most ``mse``."""

    @abstractmethod
    def pdf(self, mse: ArrayLike) -> NDArray[np.float64]:
        """Return the density of the error at ``mse``."""

    @abstractmethod
    def quantile_from_log(self, log_probability: float) -> float:
        """Return the error that is not exceeded with probability ``exp(log_probability)``."""

    @property
    @abstractmethod
    def expected_mse(self) -> float:
        """Mean of the error."""

    def cdf(self, mse: ArrayLike) -> NDArray[np.float64]:
        """Return the probability that the error is at most ``mse``."""
        return np.asarray(np.exp(self.log_cdf(mse)))

    def log_success(self, *, mse: float | None = None, psnr: float | None = None, data_range: float = 1.0) -> float:
        """Return the logarithm of :meth:`success`; it is finite even where the probability underflows.

        Args:
            mse: Threshold as mean squared error.
            psnr: Threshold as peak signal-to-noise ratio in dB, instead of ``mse``.
            data_range: Largest minus smallest value of the data; only ``psnr`` uses it.

        Returns:
            Natural logarithm of the probability that the error is at most the threshold.
        """
        return float(self.log_cdf(mse_threshold(mse=mse, psnr=psnr, data_range=data_range)))

    def success(self, *, mse: float | None = None, psnr: float | None = None, data_range: float = 1.0) -> float:
        """Return the probability that the attack reaches a threshold.

        Args:
            mse: Threshold as mean squared error.
            psnr: Threshold as peak signal-to-noise ratio in dB, instead of ``mse``.
            data_range: Largest minus smallest value of the data; only ``psnr`` uses it.

        Returns:
            Probability that the error is at most the threshold, over the noise of the release.
        """
        return math.exp(self.log_success(mse=mse, psnr=psnr, data_range=data_range))

    def quantile(self, probability: float) -> float:
        """Return the error that is not exceeded with this probability."""
        check_probability("probability", probability)
        return self.quantile_from_log(math.log(probability) if probability > 0 else -math.inf)

    def psnr_quantile(self, probability: float, *, data_range: float = 1.0) -> float:
        """Return the peak signal-to-noise ratio in dB that is reached or exceeded with a probability.

        Args:
            probability: The probability, in [0, 1].
            data_range: Largest minus smallest value of the data.

        Returns:
            Peak signal-to-noise ratio in dB that corresponds to the same quantile of the mean squared error.
        """
        return psnr_from_mse(self.quantile(probability), data_range=data_range)

    def psnr_pdf(self, psnr: float, *, data_range: float = 1.0) -> float:
        """Return the density of the peak signal-to-noise ratio.

        Args:
            psnr: Peak signal-to-noise ratio in dB.
            data_range: Largest minus smallest value of the data.

        Returns:
            Probability density at ``psnr``, per dB.
        """
        error = mse_from_psnr(psnr, data_range=data_range)
        return float(self.pdf(error)) * error * math.log(10) / 10  # change of variables: |d mse / d psnr|

    @property
    def sentence(self) -> str:
        """The attack with the mean and the median of its error, as a sentence."""
        return (
            f"{self.attack} has an expected mean squared error of {self.expected_mse:.4g} and a median of "
            f"{self.quantile(0.5):.4g} ({self.reference}); other attacks may do better."
        )

    def to_rows(self) -> tuple[Row, ...]:
        """Return the quantiles of the error."""
        return tuple({"probability": level, "mse": self.quantile(level)} for level in _LEVELS)

    @property
    def is_private(self) -> bool:
        """False, because a law follows from public settings alone."""
        return False

    def __repr__(self) -> str:
        """Return a text with the attack, the reference and the mean error."""
        return (
            f"{type(self).__name__}(law of {self.attack}, {self.reference}; expected MSE {self.expected_mse:.4g}; "
            "not a bound on other attacks)"
        )

    __str__ = __repr__


def mse_from_psnr(psnr: float, *, data_range: float) -> float:
    r"""Convert a peak signal-to-noise ratio to the mean squared error.

    .. math:: \eta = R^2 \, 10^{-t/10}

    Args:
        psnr: Peak signal-to-noise ratio t in dB.
        data_range: Range R of the metric: largest minus smallest value of the data.

    Returns:
        The mean squared error :math:`\eta`.

    Raises:
        InvalidInput: If ``psnr`` is not finite, ``data_range`` is not positive, or the error is no positive float.

    Assumes: ``data_range`` is the range of the data set (riess2025, Proposition IV.8), or the range of one record
    (riess2025, Definition IV.7). The two differ for every record that does not use the full range.

    >>> mse_from_psnr(20.0, data_range=1.0)
    0.01
    """
    check_finite("psnr", psnr)
    check_positive("data_range", data_range, "Pass the largest minus the smallest possible value of the data.")
    if abs(psnr) > _LARGEST_PSNR:
        raise invalid_input("psnr", psnr, f"in [-{_LARGEST_PSNR:g}, {_LARGEST_PSNR:g}]", "Pass it in decibels.")
    threshold = float(data_range * data_range * 10.0 ** (-psnr / 10))
    if not 0 < threshold < math.inf:
        raise invalid_input(
            "data_range",
            data_range,
            "to give a mean squared error that floats can represent",
            "Pass the largest minus the smallest possible value of the data.",
        )
    return threshold


def psnr_from_mse(mse: float, *, data_range: float) -> float:
    """Convert a mean squared error to the peak signal-to-noise ratio.

    Args:
        mse: Mean squared error.
        data_range: Largest minus smallest value of the data.

    Returns:
        The peak signal-to-noise ratio in dB.

    Raises:
        InvalidInput: If ``mse`` is negative or ``data_range`` is not positive.

    Edge cases: ``mse = 0`` gives inf.

    >>> psnr_from_mse(0.01, data_range=1.0)
    20.0
    """
    check_nonnegative("mse", mse)
    check_positive("data_range", data_range, "Pass the largest minus the smallest possible value of the data.")
    return math.inf if mse == 0 else 20 * math.log10(data_range) - 10 * math.log10(mse)


def mse_threshold(*, mse: float | None, psnr: float | None, data_range: float) -> float:
    """Return a threshold as mean squared error. Pass ``mse``, which is returned, or ``psnr``, which is converted.

    Args:
        mse: Threshold as mean squared error, or None.
        psnr: Threshold as peak signal-to-noise ratio in dB, or None.
        data_range: Largest minus smallest value of the data; only ``psnr`` uses it.

    Returns:
        The mean squared error at the threshold.

    Raises:
        InvalidInput: If both or neither of ``mse`` and ``psnr`` are given, or a number is outside its domain.

    >>> mse_threshold(mse=None, psnr=30.0, data_range=1.0)
    0.001
    """
    check_positive("data_range", data_range, "Pass the largest minus the smallest possible value of the data.")
    if mse is not None and psnr is None:
        return check_nonnegative("mse", mse)
    if psnr is not None and mse is None:
        return mse_from_psnr(psnr, data_range=data_range)
    raise invalid_input("(mse, psnr)", (mse, psnr), "to have exactly one number", "Pass mse=... or psnr=..., not both.")


class Quantity(Enum):
    """Quantity that a guarantee bounds, and the side from which it is bounded."""

    SUCCESS_PROBABILITY = "success probability at most"
    MEAN_SQUARED_ERROR = "mean squared error at least"


class Scope(Enum):
    """Adversaries that a guarantee covers, in addition to its threat model."""

    ANY_ADVERSARY_WITH_PRIOR = "any adversary with this prior"
    KNOWN_NORM_UNIFORM_DIRECTION = "known norm, direction uniform on the sphere"
    KNOWN_NORM_ANY_RELEASE = "known norm, direction uniform on the sphere, any release"
    UNBIASED_ESTIMATORS = "unbiased estimators, mean squared error only"


class CoveredRelease(Enum):
    """Releases that a guarantee covers: all that a mechanism can produce, or only one function of the record."""

    ANY = "any release of the mechanism"
    DIRECTION = "only the release x/|x| plus Gaussian noise"
    RECORD = "only the release of the record itself plus Gaussian noise"
    LINEAR = "only a release that is linear in the record, plus Gaussian noise"
    STATED_INFORMATION = "only the release whose Fisher information was passed"


IDEAL_NOISE = (
    "the noise has the law of real numbers, unlike noise that other code adds in floating point, whose low bits can "
    "identify a record"
)
"""Assumption of every guarantee about noise that other code may have added."""

EXACT_NOISE = (
    "the noise of this package is rounded exactly: its random bits are independent and uniform",
    "log, sin and cos of this machine are within 4 units in the last place, which `reconrisk doctor` checks",
    "the adversary does not measure the time that a release takes",
)
"""Assumptions that replace ``IDEAL_NOISE`` if a defense of this package adds its exactly rounded noise."""

INDEPENDENT_RECORDS = "the other records are independent of the target, or the prior success is conditional on them"
"""Assumption of every guarantee on a success probability: a duplicate of the target, for example, reveals it too."""


@serializable("estimate")
@dataclass(frozen=True)
class Estimate(Result):
    """A measured number with its confidence interval.

    Attributes:
        value: The point estimate.
        low: Lower end of the interval.
        high: Upper end of the interval.
        confidence: Probability with which the interval covers the true value.
        samples: Number of independent samples.
        method: Name of the method that computes the interval.

    >>> print(Estimate(0.5, 0.25, 0.75, 0.95, 12, "Clopper-Pearson"))
    0.5 [0.25, 0.75] (95% Clopper-Pearson, 12 samples)
    """

    value: float
    low: float
    high: float
    confidence: float
    samples: int
    method: str

    def __post_init__(self) -> None:
        check_real("value", self.value)
        check_real("low", self.low)
        check_real("high", self.high)
        if not self.low <= self.value <= self.high:
            raise invalid_input("value", self.value, f"in [{self.low!r}, {self.high!r}]", "Pass low <= value <= high.")
        check_probability("confidence", self.confidence)
        check_whole("samples", self.samples, minimum=0)

    @property
    def sentence(self) -> str:
        """Value, interval and method, as a sentence."""
        return f"{self}."

    def columns(self, name: str) -> Row:
        """Return value and interval as three columns of a table, named after ``name``.

        >>> Estimate(0.5, 0.25, 0.75, 0.95, 12, "Clopper-Pearson").columns("success")
        {'success': 0.5, 'success_low': 0.25, 'success_high': 0.75}
        """
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}

    def to_rows(self) -> tuple[Row, ...]:
        """Return the estimate as one row."""
        how: Row = {"confidence": self.confidence, "samples": self.samples, "method": self.method}
        return ({**self.columns("value"), **how},)

    def __str__(self) -> str:
        """Return value, interval and method in one line."""
        return (
            f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}] "
            f"({100 * self.confidence:.4g}% {self.method}, {self.samples} samples)"
        )


@serializable("guarantee")
@dataclass(frozen=True)
class Guarantee(Result):
    """A proved bound on the success probability or the error of every adversary that it covers.

    Attributes:
        quantity: The quantity that is bounded, with the side of the bound.
        value: The bound.
        mechanism: The mechanism for which the bound holds.
        scope: The adversaries that the bound covers.
        threat: The strongest threat model under which the bound holds.
        reference: The statement that proves the bound.
        assumptions: Further conditions, one sentence each without the full stop.
        log_value: Natural logarithm of a success probability; None for an error. ``log_value`` is exact even if the
            probability is too small for a float. Then ``value`` is the smallest positive float, because 0 would be too
            small for an upper bound.
        release: The releases that the bound covers. The scope ``KNOWN_NORM_UNIFORM_DIRECTION`` implies ``DIRECTION``.
    """

    quantity: Quantity
    value: float
    mechanism: Mechanism
    scope: Scope
    threat: ThreatModel
    reference: Reference
    assumptions: tuple[str, ...] = ()
    log_value: float | None = None
    release: CoveredRelease = CoveredRelease.ANY

    def __post_init__(self) -> None:
        if self.scope is Scope.KNOWN_NORM_UNIFORM_DIRECTION:  # also for files that were written without the field
            object.__setattr__(self, "release", CoveredRelease.DIRECTION)
        if self.quantity is Quantity.SUCCESS_PROBABILITY:
            log_value = _log_of_probability(check_probability("value", self.value), self.log_value)
            object.__setattr__(self, "log_value", log_value)
        elif self.log_value is not None:
            raise invalid_input(
                "log_value", self.log_value, "to be None for an error", "Pass log_value for success probabilities only."
            )
        elif not check_real("value", self.value) >= 0:
            raise invalid_input("value", self.value, ">= 0")

    @property
    def is_trivial(self) -> bool:
        """True if the bound is vacuous: success at most 1, or error at least 0."""
        return self.value == (1.0 if self.quantity is Quantity.SUCCESS_PROBABILITY else 0.0)

    def covers(self, threat: ThreatModel, *, release: CoveredRelease = CoveredRelease.ANY) -> bool:
        """Return True if the bound holds against an adversary with the powers of ``threat`` for a kind of release.

        Args:
            threat: Powers of the adversary.
            release: Kind of the release. The default is a release of which only the mechanism is known, such as the
                gradient of a network with noise.

        Returns:
            True if both the adversary and the release are covered.
        """
        return self.threat.covers(threat) and self.release in (CoveredRelease.ANY, release)

    def with_exact_noise(self) -> Guarantee:
        """Return the same bound for noise that this package rounds exactly: other assumptions about the noise."""
        if IDEAL_NOISE not in self.assumptions:
            return self
        others = tuple(each for each in self.assumptions if each != IDEAL_NOISE)
        return replace(self, assumptions=(*others, *EXACT_NOISE))

    def is_contradicted_by(self, measured: Estimate) -> bool:
        """Return True if the whole interval of an estimate violates the bound.

        Then either the release does not implement the mechanism, or the code is wrong.

        Assumes: ``measured`` is of the same quantity and for an attack within this scope and threat.

        >>> from reconrisk.core.mechanism import Gaussian
        >>> from reconrisk.core.threat import STRONGEST
        >>> bound = Guarantee(Quantity.SUCCESS_PROBABILITY, 0.1, Gaussian(1.0), Scope.ANY_ADVERSARY_WITH_PRIOR,
        ...                   STRONGEST, Reference("Corollary 3", "balle2022"))
        >>> bound.is_contradicted_by(Estimate(0.3, 0.2, 0.4, 0.95, 80, "Clopper-Pearson"))
        True
        """
        if self.quantity is Quantity.SUCCESS_PROBABILITY:
            return measured.low > self.value
        return measured.high < self.value and not math.isnan(measured.high)

    @property
    def sentence(self) -> str:
        """The bound with its scope, reference and assumptions, as sentences."""
        assumed = f" Assumes: {'; '.join(self.assumptions)}." if self.assumptions else ""
        return f"{str(self)[0].upper()}{str(self)[1:]}.{assumed}"

    def table(self) -> str:
        """Return the fields of the guarantee as a table, with the value rounded to the safe side."""
        row = {**self.to_rows()[0], "value": self._safe_value}
        fields = table_from_rows([{name: row[name] for name in row if name not in ("log_value", "assumptions")}])
        return "\n".join(
            [fields, "Assumes:", *(f"  - {each}" for each in self.assumptions)] if self.assumptions else [fields]
        )

    def to_rows(self) -> tuple[Row, ...]:
        """Return the guarantee as one row."""
        return (
            {
                "quantity": self.quantity.value,
                "value": self.value,
                "log_value": self.log_value,
                "mechanism": repr(self.mechanism),
                "scope": self.scope.value,
                "release": self.release.value,
                "sees": self.threat.sees.value,
                "knows": ", ".join(sorted(power.value for power in self.threat.knows)),
                "controls": ", ".join(sorted(power.value for power in self.threat.controls)),
                "reference": str(self.reference),
                "assumptions": "; ".join(self.assumptions),
            },
        )

    def __str__(self) -> str:
        """Return quantity, value, scope and reference in one line, as in tables and sentences."""
        limits = self.scope.value if self.release is CoveredRelease.ANY else f"{self.scope.value}; {self.release.value}"
        return f"{self.quantity.value} {self._safe_value} ({limits}; {self.reference})"

    @property
    def _safe_value(self) -> str:
        """The value for display, rounded to the safe side."""
        if self.log_value is not None and _SMALLEST >= self.value > 0:
            return f"exp({self.log_value:.6g})"
        return (
            format_rounded_up(self.value)
            if self.quantity is Quantity.SUCCESS_PROBABILITY
            else format_rounded_down(self.value)
        )


_SMALLEST = math.ulp(0.0)  # the smallest positive float, 5e-324


def probability_from_log(log_probability: float) -> float:
    """Return a probability from its logarithm, rounded to the safe side of an upper bound.

    Args:
        log_probability: Natural logarithm of the probability, at most 0.

    Returns:
        The probability; positive unless the logarithm is -inf.

    Raises:
        InvalidInput: If the logarithm is positive or NaN.

    >>> probability_from_log(-1e4), probability_from_log(0.0), probability_from_log(-math.inf)
    (5e-324, 1.0, 0.0)
    """
    if not check_real("log_probability", log_probability) <= 0:
        raise invalid_input("log_probability", log_probability, "<= 0", _LOG_REMEDY)
    return 0.0 if log_probability == -math.inf else max(math.exp(log_probability), _SMALLEST)


def _log_of_probability(value: float, log_value: float | None) -> float:
    """Return ``log_value`` after comparing it with ``value``; compute it if it is None."""
    if log_value is None:
        return math.log(value) if value > 0 else -math.inf
    given = probability_from_log(log_value)
    # The absolute tolerance is for subnormal numbers, which have a relative precision worse than 1e-9.
    if not math.isclose(given, value, rel_tol=1e-9, abs_tol=2 * _SMALLEST) or (value == 0) != (given == 0):
        raise invalid_input("log_value", log_value, f"to be the natural logarithm of value={value!r}")
    return float(log_value)

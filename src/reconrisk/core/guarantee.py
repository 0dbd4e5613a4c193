"""Numbers about risk, in three types by their use, so that none can pose as another.

A :class:`Guarantee` is proved, a :class:`Law` is the exact error distribution of one named attack and says nothing
about others, an :class:`Estimate` is measured. :func:`rounded_up` and :func:`rounded_down` round numbers for reading to
the safe side.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
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


def rounded_up(value: float, digits: int = 4) -> str:
    """A number with so many significant digits, never below ``value``: for success probabilities and needed noise.

    >>> rounded_up(11.72935, 6), rounded_up(0.1), rounded_up(1e-7 / 3), rounded_up(math.inf)
    ('11.7294', '0.1', '3.334e-08', 'inf')
    """
    return _rounded(value, digits, ROUND_CEILING)


def rounded_down(value: float, digits: int = 4) -> str:
    """A number with so many significant digits, never above ``value``: for errors and allowed settings.

    >>> rounded_down(0.42303378, 5), rounded_down(0.05)
    ('0.42303', '0.05')
    """
    return _rounded(value, digits, ROUND_FLOOR)


def _rounded(value: float, digits: int, direction: str) -> str:
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    exact = Decimal(repr(value))  # the shortest decimal that reads back as this float: 0.1 stays 0.1
    return f"{float(Context(prec=digits, rounding=direction).plus(exact)):.{digits}g}"


_LARGEST_PSNR = 2000.0  # beyond it neither the error nor its reciprocal is a float


_LEVELS = (0.01, 0.1, 0.5, 0.9, 0.99)


class Law(Result):
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

    @property
    def sentence(self) -> str:
        """Whose law it is, and what error to expect."""
        return (
            f"{self.attack} has an expected mean squared error of {self.expected_mse:.4g} and a median of "
            f"{self.quantile(0.5):.4g} ({self.reference}); other attacks may do better."
        )

    def to_rows(self) -> tuple[Row, ...]:
        """Return errors by the probability that they are not exceeded."""
        return tuple({"probability": level, "mse": self.quantile(level)} for level in _LEVELS)

    @property
    def is_private(self) -> bool:
        """False: it follows from stated settings."""
        return False

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
        raise invalid_input("psnr", psnr, f"between -{_LARGEST_PSNR:g} and {_LARGEST_PSNR:g} dB", "Pass it in decibel.")
    threshold = float(data_range * data_range * 10.0 ** (-psnr / 10))
    if not 0 < threshold < math.inf:
        raise invalid_input(
            "data_range", data_range, "to give an error that is a float", "State the range of the values."
        )
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
    raise invalid_input("(mse, psnr)", (mse, psnr), "to have exactly one number", "Pass mse=... or psnr=..., not both.")


class Quantity(Enum):
    """What is bounded, and from which side the bound is safe."""

    SUCCESS_PROBABILITY = "success probability at most"
    MEAN_SQUARED_ERROR = "mean squared error at least"


class Scope(Enum):
    """Against whom a guarantee holds, beyond its threat model."""

    ANY_ADVERSARY_WITH_PRIOR = "any adversary with this prior"
    KNOWN_NORM_UNIFORM_DIRECTION = "known norm, direction uniform on the sphere"
    UNBIASED_ESTIMATORS = "unbiased estimators, mean squared error only"


@serializable("estimate")
@dataclass(frozen=True)
class Estimate(Result):
    """A measured number with the interval that contains the truth with probability ``confidence``."""

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
            raise invalid_input("value", self.value, f"in [low, high] = [{self.low}, {self.high}]")
        check_probability("confidence", self.confidence)
        check_whole("samples", self.samples, minimum=0)

    @property
    def sentence(self) -> str:
        """Value, interval and how it came about."""
        return f"{self}."

    def columns(self, name: str) -> Row:
        """Return value and interval as three columns of a table.

        >>> Estimate(0.5, 0.25, 0.75, 0.95, 12, "Clopper-Pearson").columns("success")
        {'success': 0.5, 'success_low': 0.25, 'success_high': 0.75}
        """
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}

    def to_rows(self) -> tuple[Row, ...]:
        """Return the estimate as one row."""
        how: Row = {"confidence": self.confidence, "samples": self.samples, "method": self.method}
        return ({**self.columns("value"), **how},)

    def __str__(self) -> str:
        """Value, interval and how it came about, in one line."""
        return (
            f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}] "
            f"({100 * self.confidence:.4g}% {self.method}, {self.samples} samples)"
        )


@serializable("guarantee")
@dataclass(frozen=True)
class Guarantee(Result):
    """A proved bound: what, how much, for which mechanism, against whom, by which statement, if what holds.

    ``log_value`` is the natural logarithm of a success probability, also where ``value`` is too small for a float:
    then ``value`` is the smallest positive float, never an optimistic zero. For an error it is None.
    """

    quantity: Quantity
    value: float
    mechanism: Mechanism
    scope: Scope
    threat: ThreatModel
    reference: Reference
    assumptions: tuple[str, ...] = ()
    log_value: float | None = None

    def __post_init__(self) -> None:
        if self.quantity is Quantity.SUCCESS_PROBABILITY:
            object.__setattr__(self, "log_value", _checked_log(check_probability("value", self.value), self.log_value))
        elif self.log_value is not None:
            raise invalid_input(
                "log_value", self.log_value, "to be None for an error", "Only probabilities become so small."
            )
        elif not check_real("value", self.value) >= 0:
            raise invalid_input("value", self.value, ">= 0")

    @property
    def is_trivial(self) -> bool:
        """Whether it says nothing: success at most one, error at least zero."""
        return self.value == (1.0 if self.quantity is Quantity.SUCCESS_PROBABILITY else 0.0)

    def covers(self, threat: ThreatModel) -> bool:
        """Whether it holds against an adversary with the powers of ``threat``."""
        return self.threat.covers(threat)

    def contradicted_by(self, measured: Estimate) -> bool:
        """Whether the whole interval lies on the forbidden side: then the mechanism or the code is wrong.

        Assumes: ``measured`` is of the same quantity and for an attack within this scope and threat.

        >>> from reconrisk.core.mechanism import Gaussian
        >>> from reconrisk.core.threat import STRONGEST
        >>> bound = Guarantee(Quantity.SUCCESS_PROBABILITY, 0.1, Gaussian(1.0), Scope.ANY_ADVERSARY_WITH_PRIOR,
        ...                   STRONGEST, Reference("Corollary 3", "balle2022"))
        >>> bound.contradicted_by(Estimate(0.3, 0.2, 0.4, 0.95, 80, "Clopper-Pearson"))
        True
        """
        if self.quantity is Quantity.SUCCESS_PROBABILITY:
            return measured.low > self.value
        return measured.high < self.value and not math.isnan(measured.high)

    @property
    def sentence(self) -> str:
        """The bound, against whom it holds, by which statement, and what it assumes."""
        assumed = f" Assumes: {'; '.join(self.assumptions)}." if self.assumptions else ""
        return f"{str(self)[0].upper()}{str(self)[1:]}.{assumed}"

    def table(self) -> str:
        """Return the parts of the guarantee, its value rounded to the safe side."""
        row = {**self.to_rows()[0], "value": self._safe_value}
        return table_from_rows([{name: value for name, value in row.items() if name != "log_value"}])

    def to_rows(self) -> tuple[Row, ...]:
        """Return the guarantee as one row."""
        return (
            {
                "quantity": self.quantity.value,
                "value": self.value,
                "log_value": self.log_value,
                "mechanism": repr(self.mechanism),
                "scope": self.scope.value,
                "sees": self.threat.sees.value,
                "knows": ", ".join(sorted(power.value for power in self.threat.knows)),
                "controls": ", ".join(sorted(power.value for power in self.threat.controls)),
                "reference": str(self.reference),
                "assumptions": "; ".join(self.assumptions),
            },
        )

    def __str__(self) -> str:
        """The bound in short, as it stands in tables and sentences."""
        return f"{self.quantity.value} {self._safe_value} ({self.scope.value}; {self.reference})"

    @property
    def _safe_value(self) -> str:
        """The value for reading, rounded to the safe side."""
        if self.log_value is not None and _SMALLEST >= self.value > 0:
            return f"exp({self.log_value:.6g})"
        return rounded_up(self.value) if self.quantity is Quantity.SUCCESS_PROBABILITY else rounded_down(self.value)


_SMALLEST = math.ulp(0.0)


def probability_from_log(log_probability: float) -> float:
    """A probability from its logarithm, rounded to the safe side for an upper bound: positive unless exactly zero.

    >>> probability_from_log(-1e4), probability_from_log(0.0), probability_from_log(-math.inf)
    (5e-324, 1.0, 0.0)
    """
    if not check_real("log_probability", log_probability) <= 0:
        raise invalid_input("log_probability", log_probability, "<= 0")
    return 0.0 if log_probability == -math.inf else max(math.exp(log_probability), _SMALLEST)


def _checked_log(value: float, log_value: float | None) -> float:
    """The logarithm of ``value``: as given, if it agrees, else computed."""
    if log_value is None:
        return math.log(value) if value > 0 else -math.inf
    given = probability_from_log(log_value)
    if not math.isclose(given, value, rel_tol=1e-9, abs_tol=2 * _SMALLEST) or (value == 0) != (given == 0):
        raise invalid_input("log_value", log_value, f"to be the logarithm of value={value!r}")
    return float(log_value)

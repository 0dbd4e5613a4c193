"""Numbers about risk by what they may be used for: a guarantee is proved, an estimate is measured."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from reconrisk.core.mechanism import Mechanism
from reconrisk.core.papers import Reference
from reconrisk.core.rounding import rounded_down, rounded_up
from reconrisk.core.serialization import serializable
from reconrisk.core.threat import ThreatModel
from reconrisk.core.validation import check_probability, check_real, check_whole, refuse


class Quantity(Enum):
    """What is bounded, and from which side the bound is safe."""

    SUCCESS_PROBABILITY = "success probability at most"
    MEAN_SQUARED_ERROR = "mean squared error at least"


class Scope(Enum):
    """Against whom a guarantee holds, beyond its threat model."""

    ANY_ADVERSARY_WITH_PRIOR = "any adversary with this prior"
    KNOWN_NORM_UNIFORM_DIRECTION = "known norm, direction uniform on the sphere"
    UNBIASED_ESTIMATORS = "unbiased estimators, mean squared error only"


@serializable
@dataclass(frozen=True)
class Estimate:
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
            raise refuse("value", self.value, f"in [low, high] = [{self.low}, {self.high}]")
        check_probability("confidence", self.confidence)
        check_whole("samples", self.samples, minimum=0)

    def __str__(self) -> str:
        """Value, interval and how it came about, in one line."""
        return (
            f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}] "
            f"({100 * self.confidence:.4g}% {self.method}, {self.samples} samples)"
        )


@serializable
@dataclass(frozen=True)
class Guarantee:
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
            raise refuse("log_value", self.log_value, "to be None for an error", "Only probabilities become so small.")
        elif not check_real("value", self.value) >= 0:
            raise refuse("value", self.value, ">= 0")

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

    def __str__(self) -> str:
        """The bound as a sentence."""
        upper = self.quantity is Quantity.SUCCESS_PROBABILITY
        number = rounded_up(self.value) if upper else rounded_down(self.value)
        if self.log_value is not None and _SMALLEST >= self.value > 0:
            number = f"exp({self.log_value:.6g})"
        return f"{self.quantity.value} {number} ({self.scope.value}; {self.reference})"


_SMALLEST = math.ulp(0.0)


def probability_from_log(log_probability: float) -> float:
    """A probability from its logarithm, rounded to the safe side for an upper bound: positive unless exactly zero.

    >>> probability_from_log(-1e4), probability_from_log(0.0), probability_from_log(-math.inf)
    (5e-324, 1.0, 0.0)
    """
    if not check_real("log_probability", log_probability) <= 0:
        raise refuse("log_probability", log_probability, "<= 0")
    return 0.0 if log_probability == -math.inf else max(math.exp(log_probability), _SMALLEST)


def _checked_log(value: float, log_value: float | None) -> float:
    """The logarithm of ``value``: as given, if it agrees, else computed."""
    if log_value is None:
        return math.log(value) if value > 0 else -math.inf
    given = probability_from_log(log_value)
    if not math.isclose(given, value, rel_tol=1e-9, abs_tol=2 * _SMALLEST) or (value == 0) != (given == 0):
        raise refuse("log_value", log_value, f"to be the logarithm of value={value!r}")
    return float(log_value)

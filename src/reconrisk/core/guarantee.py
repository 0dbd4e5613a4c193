"""Numbers about risk by what they may be used for: a guarantee is proved, an estimate is measured."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from reconrisk.core.mechanism import Mechanism
from reconrisk.core.papers import Reference
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
    KNOWN_NORM_ANY_DIRECTION = "worst case over directions, with known norm"
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
            f"({self.confidence:.0%} {self.method}, {self.samples} samples)"
        )


@serializable
@dataclass(frozen=True)
class Guarantee:
    """A proved bound: what, how much, for which mechanism, against whom, by which statement, if what holds."""

    quantity: Quantity
    value: float
    mechanism: Mechanism
    scope: Scope
    threat: ThreatModel
    reference: Reference
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.quantity is Quantity.SUCCESS_PROBABILITY:
            check_probability("value", self.value)
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
        return f"{self.quantity.value} {self.value:.4g} ({self.scope.value}; {self.reference})"

"""How often a record is in what is released: the binomial law of hits, in log space and on the safe side."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from reconrisk.accounting.phases import phase_of
from reconrisk.core.mechanism import Composed, Gaussian, Mechanism, PoissonSampled, Repeated
from reconrisk.core.serialization import serializable
from reconrisk.core.validation import check_probability, check_whole, refuse

Floats = NDArray[np.float64]

_SMALLEST_TAIL = 1e-280
_MOST_ATTEMPTS = 10**12


@serializable
@dataclass(frozen=True)
class Hits:
    """The number of releases that contain the record: Binomial(``attempts``, ``probability``).

    >>> round(math.exp(Hits(attempts=3, probability=0.5).log_pmf(2)), 12)
    0.375
    """

    attempts: int
    probability: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "attempts", check_whole("attempts", self.attempts))
        if self.attempts > _MOST_ATTEMPTS:
            raise refuse("attempts", self.attempts, f"<= {_MOST_ATTEMPTS:g}, the steps of the longest training")
        check_probability("probability", self.probability)

    def log_pmf(self, hits: ArrayLike) -> Floats:
        """Logarithm of the probability of exactly ``hits``, without underflow."""
        k = np.asarray(hits, dtype=float)
        choose = special.gammaln(self.attempts + 1) - special.gammaln(k + 1) - special.gammaln(self.attempts - k + 1)
        return np.asarray(
            choose + special.xlogy(k, self.probability) + special.xlog1py(self.attempts - k, -self.probability)
        )

    def log_at_least(self, hits: ArrayLike) -> Floats:
        """Upper bound on the logarithm of the probability of ``hits`` or more: exact, below 1e-280 by Chernoff.

        >>> round(float(Hits(attempts=3, probability=0.5).log_at_least(3)) - math.log(0.125), 12)
        0.0
        """
        k = np.asarray(hits, dtype=float)
        exact = np.where(k <= 0, 1.0, special.betainc(np.maximum(k, 1), self.attempts - k + 1, self.probability))
        share = np.maximum(k / self.attempts, self.probability)
        with np.errstate(divide="ignore"):
            logs = np.log(exact)
        divergence = special.rel_entr(share, self.probability) + special.rel_entr(1 - share, 1 - self.probability)
        chernoff = -self.attempts * divergence
        return np.asarray(np.where(exact > _SMALLEST_TAIL, logs, chernoff))


def phases(mechanism: Mechanism) -> tuple[tuple[float, Hits], ...]:
    """Noise multiplier and hits of each phase of a mechanism that is described by its noise.

    >>> from reconrisk.core.mechanism import dp_sgd
    >>> phases(dp_sgd(noise_multiplier=1.1, sampling_probability=0.01, steps=500))
    ((1.1, Hits(attempts=500, probability=0.01)),)
    """
    parts = mechanism.mechanisms if isinstance(mechanism, Composed) else (mechanism,)
    found = []
    for part in parts:
        if not isinstance(part, (Gaussian, PoissonSampled, Repeated)):
            raise refuse(
                "mechanism",
                mechanism,
                "to be a Gaussian release, possibly sampled, repeated and composed",
                "An epsilon alone does not fix the noise: pass dp_sgd(noise_multiplier=...).",
            )
        stated = phase_of(part)
        found.append((stated.noise_multiplier, Hits(stated.steps, stated.sampling_probability)))
    return tuple(found)


def one_phase(mechanism: Mechanism) -> tuple[float, Hits]:
    """Noise multiplier and hits of a mechanism of one phase; several have no single law."""
    found = phases(mechanism)
    if len(found) > 1:
        raise refuse("mechanism", mechanism, "to have one phase", "Ask for the law of each phase by itself.")
    return found[0]


def dominating_phase(mechanism: Mechanism) -> tuple[float, Hits]:
    """One phase that releases at least as much as all phases together.

    Guarantee: exact for one phase and for phases without sampling, whose informations steps / noise^2 add up; otherwise
    every step gets the least noise and the largest sampling probability of any phase.

    >>> from reconrisk.core.mechanism import dp_sgd
    >>> dominating_phase(Composed((dp_sgd(noise_multiplier=1.0, steps=9), dp_sgd(noise_multiplier=0.25))))
    (0.2, Hits(attempts=1, probability=1.0))
    """
    found = phases(mechanism)
    if all(hits.probability == 1 for _, hits in found):
        signal = math.hypot(*(math.sqrt(hits.attempts) / noise for noise, hits in found))
        return 1 / signal, Hits(attempts=1, probability=1.0)
    steps = sum(hits.attempts for _, hits in found)
    probability = max(hits.probability for _, hits in found)
    return min(noise for noise, _ in found), Hits(attempts=steps, probability=probability)

"""A noise mechanism as a flat list of phases: what the numerical accountants read."""

from __future__ import annotations

import math
from dataclasses import dataclass

from reconrisk.core.mechanism import Composed, Gaussian, NoiseMechanism, PoissonSampled, Repeated
from reconrisk.core.validation import refuse

# Beyond these nothing changes but the danger of overflow; noise and rate are cut to the safe side, and so many steps
# give away everything at any noise below the cut.
_MOST_STEPS = 10**300
_MOST_NOISE = 1e100
_MOST_SAMPLED_NOISE = 1e8
_LEAST_RATE = 1e-15


@dataclass(frozen=True)
class Phase:
    """``steps`` Poisson-subsampled Gaussian releases of sensitivity one and noise ``noise_multiplier``.

    The pair that dominates a step is P = (1 - q) N(0, s^2) + q N(1, s^2) with the record and Q = N(0, s^2) without.
    """

    noise_multiplier: float
    sampling_probability: float
    steps: int

    @property
    def is_full_batch(self) -> bool:
        """Whether every record takes part in every step."""
        return self.sampling_probability == 1


def phases_of(mechanism: NoiseMechanism) -> tuple[Phase, ...]:
    """The phases of a mechanism, equal ones merged, all full-batch ones as one Gaussian step; sorted.

    Guarantee: the order and the grouping of equal steps do not change the result, because they do not change the
    composed pair of laws.

    >>> from reconrisk.core.mechanism import dp_sgd
    >>> step = dp_sgd(noise_multiplier=2.0, sampling_probability=0.5)
    >>> phases_of(Composed((step, Repeated(Gaussian(3.0), 9), step)))
    (Phase(noise_multiplier=2.0, sampling_probability=0.5, steps=2), Phase(noise_multiplier=1.0, \
sampling_probability=1.0, steps=1))
    """
    steps: dict[tuple[float, float], int] = {}
    precision = 0.0
    for part in mechanism.mechanisms if isinstance(mechanism, Composed) else (mechanism,):
        phase = phase_of(part)
        if phase.is_full_batch:
            precision += phase.steps / phase.noise_multiplier / phase.noise_multiplier
        else:
            key = (phase.sampling_probability, phase.noise_multiplier)
            steps[key] = steps.get(key, 0) + phase.steps
    sampled = tuple(Phase(noise, rate, count) for (rate, noise), count in sorted(steps.items()))
    full = (Phase(1 / math.sqrt(min(precision, 1e300)), 1.0, 1),) if precision > 0 else ()
    return sampled + full


def gaussian_mu(phase: Phase) -> float:
    """The shift, in standard deviations, of the one Gaussian that full-batch steps amount to.

    >>> gaussian_mu(Phase(noise_multiplier=10.0, sampling_probability=1.0, steps=25))
    0.5
    """
    if not phase.is_full_batch:
        raise refuse("phase", phase, "to be full-batch", "A subsampled phase is no Gaussian.")
    return math.sqrt(phase.steps) / phase.noise_multiplier


def phase_of(part: Gaussian | PoissonSampled | Repeated) -> Phase:
    """One phase as it is stated, full-batch steps not merged.

    >>> phase_of(Repeated(Gaussian(3.0), 9))
    Phase(noise_multiplier=3.0, sampling_probability=1.0, steps=9)
    """
    if isinstance(part, Repeated):
        one = phase_of(part.mechanism)
        return Phase(one.noise_multiplier, one.sampling_probability, min(part.steps, _MOST_STEPS))
    if isinstance(part, PoissonSampled) and part.sampling_probability < 1:
        noise = min(float(part.mechanism.noise_multiplier), _MOST_SAMPLED_NOISE)
        return Phase(noise, max(float(part.sampling_probability), _LEAST_RATE), 1)
    gaussian = part.mechanism if isinstance(part, PoissonSampled) else part
    return Phase(min(float(gaussian.noise_multiplier), _MOST_NOISE), 1.0, 1)

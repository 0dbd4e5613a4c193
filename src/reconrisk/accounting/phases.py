"""Noise mechanisms as a flat list of phases, the input of the numerical accountants.

A mechanism of subsampled Gaussian steps needs one row in the table of this file. Every bound that reads phases then
supports it: success, Renyi divergence, from-scratch success, the risk corridor. Mechanisms with other noise have no
phases; their bounds have their own rows (:mod:`reconrisk.bounds.success`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from reconrisk.core.mechanism import Composed, Gaussian, Mechanism, NoiseMechanism, PoissonSampled, Repeated
from reconrisk.core.validation import invalid_input

# Limits against overflow. Noise and rate are limited to the safe side: less noise and a higher rate reveal more. 1e300
# steps reveal everything at any noise below its limit, so a larger number changes nothing.
_MOST_STEPS = 10**300
_MOST_NOISE = 1e100
_MOST_SAMPLED_NOISE = 1e8
_LEAST_RATE = 1e-15


@dataclass(frozen=True)
class Phase:
    """Equal Poisson-subsampled Gaussian steps of sensitivity one.

    The dominating pair of a step is P = (1 - q) N(0, s^2) + q N(1, s^2) with the record and Q = N(0, s^2) without it.

    Attributes:
        noise_multiplier: Standard deviation s of the noise.
        sampling_probability: Probability q with which a record enters a batch.
        steps: Number of steps.
    """

    noise_multiplier: float
    sampling_probability: float
    steps: int

    @property
    def is_full_batch(self) -> bool:
        """True if every record enters every step."""
        return self.sampling_probability == 1


def phases_of(mechanism: NoiseMechanism) -> tuple[Phase, ...]:
    """Return the sorted phases of a mechanism, with equal phases merged and all full-batch phases as one step.

    Args:
        mechanism: A mechanism that :func:`has_phases` accepts.

    Returns:
        The subsampled phases, then at most one full-batch phase.

    Raises:
        InvalidInput: If the mechanism has no phases.

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
    for phase in unmerged_phases(mechanism):
        if phase.is_full_batch:
            precision += phase.steps / phase.noise_multiplier / phase.noise_multiplier
        else:
            key = (phase.sampling_probability, phase.noise_multiplier)
            steps[key] = steps.get(key, 0) + phase.steps
    sampled = tuple(Phase(noise, rate, count) for (rate, noise), count in sorted(steps.items()))
    # The shifts 1/s of full-batch steps add up in squares: together they are one Gaussian step.
    full = (Phase(1 / math.sqrt(min(precision, 1e300)), 1.0, 1),) if precision > 0 else ()
    return sampled + full


def gaussian_mu(phase: Phase) -> float:
    """Return the shift, in standard deviations, of the single Gaussian that is equivalent to full-batch steps.

    Args:
        phase: A full-batch phase.

    Returns:
        The shift mu of Gaussian DP.

    Raises:
        InvalidInput: If the phase is subsampled.

    >>> gaussian_mu(Phase(noise_multiplier=10.0, sampling_probability=1.0, steps=25))
    0.5
    """
    if not phase.is_full_batch:
        raise invalid_input("phase", phase, "to be full-batch", "Pass a phase with sampling_probability=1.")
    return math.sqrt(phase.steps) / phase.noise_multiplier


def has_phases(mechanism: object) -> TypeGuard[NoiseMechanism]:
    """Return True if a mechanism consists of subsampled Gaussian steps, so that it has phases.

    Args:
        mechanism: Any mechanism, or None.

    Returns:
        True for the classes in :data:`WITH_PHASES`.

    >>> from reconrisk.core.mechanism import GaussianDP
    >>> has_phases(Gaussian(1.0)), has_phases(GaussianDP(1.0))
    (True, False)
    """
    return type(mechanism) in _RULES


def unmerged_phases(mechanism: Mechanism) -> tuple[Phase, ...]:
    """Return the phases of a mechanism in their original order, without merging any.

    Args:
        mechanism: A mechanism that :func:`has_phases` accepts.

    Returns:
        The phases.

    Raises:
        InvalidInput: If the mechanism has no phases.

    >>> unmerged_phases(Repeated(Gaussian(3.0), 9))
    (Phase(noise_multiplier=3.0, sampling_probability=1.0, steps=9),)
    """
    if not has_phases(mechanism):
        raise invalid_input(
            "mechanism",
            mechanism,
            "to be a Gaussian release, possibly sampled, repeated and composed",
            "Pass dp_sgd(noise_multiplier=...): an epsilon alone does not determine the noise.",
        )
    return _RULES[type(mechanism)](mechanism)


def _phases_of_gaussian(part: Gaussian) -> tuple[Phase, ...]:
    return (Phase(min(float(part.noise_multiplier), _MOST_NOISE), 1.0, 1),)


def _phases_of_sampled(part: PoissonSampled) -> tuple[Phase, ...]:
    if part.sampling_probability == 1:
        return _phases_of_gaussian(part.mechanism)
    noise = min(float(part.mechanism.noise_multiplier), _MOST_SAMPLED_NOISE)
    return (Phase(noise, max(float(part.sampling_probability), _LEAST_RATE), 1),)


def _phases_of_repeated(part: Repeated) -> tuple[Phase, ...]:
    (one,) = unmerged_phases(part.mechanism)
    return (Phase(one.noise_multiplier, one.sampling_probability, min(part.steps, _MOST_STEPS)),)


def _phases_of_composed(whole: Composed) -> tuple[Phase, ...]:
    return tuple(phase for part in whole.mechanisms for phase in unmerged_phases(part))


_RULES: Mapping[type, Callable[[Any], tuple[Phase, ...]]] = {
    Gaussian: _phases_of_gaussian,
    PoissonSampled: _phases_of_sampled,
    Repeated: _phases_of_repeated,
    Composed: _phases_of_composed,
}
WITH_PHASES: tuple[type, ...] = tuple(_RULES)
"""Mechanism classes that have phases."""

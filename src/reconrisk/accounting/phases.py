"""A noise mechanism as a flat list of phases: the input of the numerical accountants.

A mechanism of subsampled Gaussian steps needs one row in the table of this file. Every bound that reads phases then
supports it: success, Renyi divergence, from-scratch success, the risk corridor. Other noise has no phases; its bounds
have rows of their own (:mod:`reconrisk.bounds.success`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from reconrisk.core.mechanism import Composed, Gaussian, Mechanism, NoiseMechanism, PoissonSampled, Repeated
from reconrisk.core.validation import invalid_input

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
    for phase in stated_phases(mechanism):
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
        raise invalid_input("phase", phase, "to be full-batch", "A subsampled phase is no Gaussian.")
    return math.sqrt(phase.steps) / phase.noise_multiplier


def has_phases(mechanism: object) -> TypeGuard[NoiseMechanism]:
    """Return True if a mechanism consists of subsampled Gaussian steps, so that it has phases.

    Args:
        mechanism: Any mechanism, or None.

    >>> from reconrisk.core.mechanism import GaussianDP
    >>> has_phases(Gaussian(1.0)), has_phases(GaussianDP(1.0))
    (True, False)
    """
    return type(mechanism) in _RULES


def stated_phases(mechanism: Mechanism) -> tuple[Phase, ...]:
    """Return the phases of a mechanism as they are stated: none merged, in their order.

    Args:
        mechanism: A mechanism that :func:`has_phases` accepts.

    Raises:
        InvalidInput: If the mechanism has no phases.

    >>> stated_phases(Repeated(Gaussian(3.0), 9))
    (Phase(noise_multiplier=3.0, sampling_probability=1.0, steps=9),)
    """
    if not has_phases(mechanism):
        raise invalid_input(
            "mechanism",
            mechanism,
            "to be a Gaussian release, possibly sampled, repeated and composed",
            "An epsilon alone does not fix the noise: pass dp_sgd(noise_multiplier=...).",
        )
    return _RULES[type(mechanism)](mechanism)


def _of_gaussian(part: Gaussian) -> tuple[Phase, ...]:
    return (Phase(min(float(part.noise_multiplier), _MOST_NOISE), 1.0, 1),)


def _of_sampled(part: PoissonSampled) -> tuple[Phase, ...]:
    if part.sampling_probability == 1:
        return _of_gaussian(part.mechanism)
    noise = min(float(part.mechanism.noise_multiplier), _MOST_SAMPLED_NOISE)
    return (Phase(noise, max(float(part.sampling_probability), _LEAST_RATE), 1),)


def _of_repeated(part: Repeated) -> tuple[Phase, ...]:
    (one,) = stated_phases(part.mechanism)
    return (Phase(one.noise_multiplier, one.sampling_probability, min(part.steps, _MOST_STEPS)),)


def _of_composed(whole: Composed) -> tuple[Phase, ...]:
    return tuple(phase for part in whole.mechanisms for phase in stated_phases(part))


_RULES: Mapping[type, Callable[[Any], tuple[Phase, ...]]] = {
    Gaussian: _of_gaussian,
    PoissonSampled: _of_sampled,
    Repeated: _of_repeated,
    Composed: _of_composed,
}
WITH_PHASES: tuple[type, ...] = tuple(_RULES)
"""Classes of mechanisms that have phases."""

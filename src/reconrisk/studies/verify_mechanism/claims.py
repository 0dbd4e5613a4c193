"""Functions of a claimed mechanism: its noise, its trade-off function, and its family with other noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

from reconrisk.accounting.phases import has_phases
from reconrisk.accounting.subsampled import epsilon_of_training
from reconrisk.bounds.success import success_upper_bound
from reconrisk.core.mechanism import Composed, Gaussian, Mechanism, PoissonSampled, Repeated
from reconrisk.core.validation import invalid_input

TradeOff: TypeAlias = Callable[[float], float]
"""Least probability of missing a record for each probability of a false alarm."""


def gaussian_of_one_release(mechanism: Mechanism) -> Gaussian:
    """Return the noise of one release of a mechanism, without sampling and repetition.

    Args:
        mechanism: The claimed mechanism.

    Returns:
        The Gaussian mechanism of each release.

    Raises:
        InvalidInput: If the mechanism states no noise, or its phases have different noise.

    >>> from reconrisk.core.mechanism import dp_sgd
    >>> gaussian_of_one_release(dp_sgd(noise_multiplier=2.0, sampling_probability=0.1, steps=9))
    Gaussian(noise_multiplier=2.0, clip_norm=1.0)
    """
    phases = mechanism.mechanisms if isinstance(mechanism, Composed) else (mechanism,)
    found = []
    for phase in phases:
        step: Mechanism = phase
        while isinstance(step, (Repeated, PoissonSampled)):
            step = step.mechanism
        if not isinstance(step, Gaussian):
            remedy = "Pass rr.mechanisms.dp_sgd(noise_multiplier=..., clip_norm=...): epsilon alone states no noise."
            raise invalid_input("claimed", mechanism, "to state Gaussian noise and a clip norm", remedy)
        found.append(step)
    if len(set(found)) > 1:
        raise invalid_input("claimed", mechanism, "to have the same noise in all phases", "Verify each phase alone.")
    return found[0]


def trade_off_of(mechanism: Mechanism) -> TradeOff:
    """Return the trade-off function of a mechanism, rounded down.

    Args:
        mechanism: Any mechanism.

    Returns:
        Lower bound on the probability of missing a record, as a function of the probability of a false alarm.

    >>> round(trade_off_of(Gaussian(1.0))(0.1), 4)
    0.6109
    """

    @cache
    def least_missed(alarm: float) -> float:
        return max(0.0, 1 - success_upper_bound(mechanism, prior_success=alarm).value)

    return least_missed


def scale_noise(mechanism: Mechanism, factor: float) -> Mechanism | None:
    """Return a mechanism of the same family with other noise.

    Args:
        mechanism: The mechanism.
        factor: Factor of every noise multiplier.

    Returns:
        The mechanism; None if it is not described by its noise.

    >>> scale_noise(Repeated(Gaussian(1.0), 5), 0.5)
    Repeated(mechanism=Gaussian(noise_multiplier=0.5, clip_norm=1.0), steps=5)
    """
    if isinstance(mechanism, Gaussian):
        return Gaussian(mechanism.noise_multiplier * factor, mechanism.clip_norm)
    inner: Any
    if isinstance(mechanism, PoissonSampled):
        inner = scale_noise(mechanism.mechanism, factor)
        return PoissonSampled(inner, mechanism.sampling_probability)
    if isinstance(mechanism, Repeated):
        inner = scale_noise(mechanism.mechanism, factor)
        return Repeated(inner, mechanism.steps)
    if isinstance(mechanism, Composed):
        parts: Any = tuple(scale_noise(part, factor) for part in mechanism.mechanisms)
        return Composed(parts)
    return None


def epsilon_with_less_noise(mechanism: Mechanism, factor: float, delta: float) -> float | None:
    """Return the epsilon of a mechanism of the same family with other noise.

    Args:
        mechanism: The claimed mechanism.
        factor: Factor of its noise.
        delta: Delta of the epsilon.

    Returns:
        The epsilon; None if the mechanism is not described by its noise.

    >>> round(epsilon_with_less_noise(Gaussian(2.0), 0.5, 1e-5), 3)
    4.377
    """
    if not has_phases(mechanism):
        return None
    if factor <= 0:
        return math.inf
    scaled: Any = scale_noise(mechanism, min(factor, 1e6))
    return epsilon_of_training(scaled, delta)

"""Noise of a release with an unknown defense, estimated from the residual of the current records.

:func:`reweight_by_noise` provides the weights for Laplacian noise. :func:`run_warm_start` runs the attack that provides
the first estimate, within the remaining time.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from reconrisk.attacks.gauss_newton.laplace import reweight_laplace
from reconrisk.core.observation import Attack, Observation
from reconrisk.core.reconstruction import Reconstruction
from reconrisk.core.threat import Knows

_LEAST = 1e-3  # shortest limit in seconds; limits must be positive


def run_warm_start(
    attack: Attack, observation: Observation, *, seconds_left: float | None, rng: torch.Generator
) -> Reconstruction:
    """Run an attack with a time limit, if it has one.

    Args:
        attack: The attack to run.
        observation: The observation to attack.
        seconds_left: Remaining time in seconds; None for no limit.
        rng: Source of randomness.

    Returns:
        Its reconstruction.

    Guarantee: an attack with its own time limit runs under the shorter of the two limits.
    """
    has_limit = hasattr(attack, "seconds") and dataclasses.is_dataclass(attack)
    limited: Any = attack
    if seconds_left is not None and has_limit:
        allowed = seconds_left if limited.seconds is None else min(limited.seconds, seconds_left)
        limited = dataclasses.replace(limited, seconds=max(_LEAST, allowed))
    found: Reconstruction = limited(observation, rng=rng)
    return found


_LEAST_ERROR = 1e-6  # smallest noise relative to the release (root mean square): the rounding of float32
_SMALLEST = 1e-30  # smallest noise of a zero release; its inverse is still finite in single precision


def assume_noise(observation: Observation, records: Tensor, labels: Tensor) -> Observation:
    """Return the observation with noise: the known one, or equal on all values and as large as the residual.

    Args:
        observation: The observation.
        records: Current records, whose residual is used.
        labels: Labels of the records.

    Returns:
        The observation with ``noise_std``.

    Guarantee: the noise is never below the rounding error of a release without noise in single precision.
    """
    if observation.noise_std is not None:
        return observation
    whole = sum(float(value.double().square().sum()) for value in observation.released.values())
    count = max(1, count_sent_values(observation))
    size = math.sqrt(squared_residual(observation, records, labels) / count)
    # Root mean square residual, but never below rounding, so that weights stay finite.
    error = max(size if math.isfinite(size) else 0.0, _LEAST_ERROR * math.sqrt(whole / count), _SMALLEST)
    noise = {name: torch.full_like(value, error) for name, value in observation.released.items()}
    return replace(observation, noise_std=noise, threat=observation.threat.with_knowledge(Knows.DEFENSE))


def reweight_by_noise(observation: Observation, records: Tensor, labels: Tensor) -> Observation:
    """Return the observation with Gaussian noise: as :func:`assume_noise`, or the majorant of Laplacian noise.

    Args:
        observation: The observation.
        records: Records at which the weights of Laplacian noise are taken.
        labels: Labels of the records.

    Returns:
        The observation with Gaussian noise.

    Reference: one round of :func:`reconrisk.attacks.gauss_newton.laplace.refine_laplace`.
    """
    return (
        reweight_laplace(observation, labels, records)
        if observation.has_laplacian_noise
        else assume_noise(observation, records, labels)
    )


def squared_residual(observation: Observation, records: Tensor, labels: Tensor) -> float:
    """Return the squared residual of records over all sent values, in units of the noise if it is known.

    Args:
        observation: The observation.
        records: The records to evaluate.
        labels: Labels of the records.

    Returns:
        The sum of squares; inf if it is not finite.
    """
    with torch.no_grad():
        caused = observation.forward(records, labels)
    total = 0.0
    for name, value in observation.released.items():
        left = (caused[name] - value).double()
        if observation.noise_std is not None:
            spread = observation.noise_std[name].double()
            left = torch.where(spread > 0, left / spread, 0.0)
        if observation.kept is not None:
            left = left * observation.kept[name]
        total += float(left.square().sum())
    return total if math.isfinite(total) else math.inf


def count_sent_values(observation: Observation) -> int:
    """Return the number of values that were sent.

    Args:
        observation: The observation.

    Returns:
        The number of released values, without the ones that a known defense removed.
    """
    if observation.kept is None:
        return sum(value.numel() for value in observation.released.values())
    return sum(int(mask.sum()) for mask in observation.kept.values())

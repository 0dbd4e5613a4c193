"""Noise of a release whose defense is not known, estimated by what the current records leave unexplained.

:func:`weighted_by_noise` has the weights of Laplacian noise. :func:`begun_by` runs the attack that provides the first
estimate, in the time that is left.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from reconrisk.attacks.gauss_newton.laplace import reweighted
from reconrisk.core.observation import Attack, Observation
from reconrisk.core.reconstruction import Reconstruction
from reconrisk.core.threat import Knows

_LEAST = 1e-3  # seconds: an attack has some time, and makes at least one step


def begun_by(
    attack: Attack, observation: Observation, *, seconds_left: float | None, rng: torch.Generator
) -> Reconstruction:
    """What ``attack`` finds in at most so many seconds, if it can be limited.

    Guarantee: an attack with a limit of its own keeps the shorter one.
    """
    has_limit = hasattr(attack, "seconds") and dataclasses.is_dataclass(attack)
    limited: Any = attack
    if seconds_left is not None and has_limit:
        allowed = seconds_left if limited.seconds is None else min(limited.seconds, seconds_left)
        limited = dataclasses.replace(limited, seconds=max(_LEAST, allowed))
    found: Reconstruction = limited(observation, rng=rng)
    return found


_LEAST_ERROR = 1e-6  # of the release, root mean square: what float32 leaves where there is no noise
_SMALLEST = 1e-30  # of a release of zeros; its inverse is still a number in single precision


def with_noise(observation: Observation, records: Tensor, labels: Tensor) -> Observation:
    """The observation with its noise: as known, or equal on all values and as large as the residual of ``records``.

    Guarantee: never less than single precision leaves of a clean release.
    """
    if observation.noise_std is not None:
        return observation
    whole = sum(float(value.double().square().sum()) for value in observation.released.values())
    count = max(1, sent_values(observation))
    size = math.sqrt(squared_residual(observation, records, labels) / count)
    error = max(size if math.isfinite(size) else 0.0, _LEAST_ERROR * math.sqrt(whole / count), _SMALLEST)
    noise = {name: torch.full_like(value, error) for name, value in observation.released.items()}
    return replace(observation, noise_std=noise, threat=observation.threat.knowing(Knows.DEFENSE))


def weighted_by_noise(observation: Observation, records: Tensor, labels: Tensor) -> Observation:
    """As :func:`with_noise`, as Gaussian noise: Laplacian noise by the weights that are right at ``records``.

    Reference: :func:`reconrisk.attacks.gauss_newton.laplace.refined`, of whose rounds it is one.
    """
    return (
        reweighted(observation, labels, records)
        if observation.has_laplacian_noise
        else with_noise(observation, records, labels)
    )


def squared_residual(observation: Observation, records: Tensor, labels: Tensor) -> float:
    """The sum over all values that were sent, in units of the noise where it is known."""
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


def sent_values(observation: Observation) -> int:
    """How many values were sent."""
    if observation.kept is None:
        return sum(value.numel() for value in observation.released.values())
    return sum(int(mask.sum()) for mask in observation.kept.values())

"""The noise of a release whose defense is not known, as what the records at hand leave unexplained."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from reconrisk.core.observation import Observation
from reconrisk.core.threat import Knows

_LEAST_ERROR = 1e-6  # of the release, root mean square: what float32 leaves where there is no noise


def with_noise(observation: Observation, records: Tensor, labels: Tensor) -> Observation:
    """The observation with its noise: as known, or equal on all values and as large as the residual of ``records``.

    Guarantee: never less than single precision leaves of a clean release.
    """
    if observation.noise_std is not None:
        return observation
    released = observation.released.values()
    whole = torch.cat([value.double().flatten() for value in released])
    least = _LEAST_ERROR * float(whole.square().mean().sqrt())
    size = math.sqrt(squared_residual(observation, records, labels) / whole.numel())
    error = max(size if math.isfinite(size) else 0.0, least, torch.finfo(torch.float64).tiny)
    noise = {name: torch.full_like(value, error) for name, value in observation.released.items()}
    return replace(observation, noise_std=noise, threat=observation.threat.knowing(Knows.DEFENSE))


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

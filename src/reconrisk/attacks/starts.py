"""Where candidates begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from reconrisk.core.observation import Attack, Observation
from reconrisk.core.validation import check_nonnegative


class Start(Protocol):
    """First candidates for every restart."""

    def __call__(self, observation: Observation, restarts: int, rng: torch.Generator) -> Tensor:
        """Candidates of shape (restarts, batch_size, *input_shape)."""
        ...


@dataclass(frozen=True)
class NormalStart:
    """Normal noise around the middle of the data range; ``spread`` is its standard deviation in units of the range."""

    spread: float = 0.25

    def __post_init__(self) -> None:
        check_nonnegative("spread", self.spread)

    def __call__(self, observation: Observation, restarts: int, rng: torch.Generator) -> Tensor:
        """Independent draws."""
        low, high = observation.data_range
        shape = (restarts, observation.batch_size, *observation.input_shape)
        noise = torch.randn(shape, generator=rng, device=rng.device).to(observation.device)
        return (low + high) / 2 + self.spread * (high - low) * noise


@dataclass(frozen=True)
class UniformStart:
    """Uniform noise over the data range."""

    def __call__(self, observation: Observation, restarts: int, rng: torch.Generator) -> Tensor:
        """Independent draws."""
        low, high = observation.data_range
        shape = (restarts, observation.batch_size, *observation.input_shape)
        return low + (high - low) * torch.rand(shape, generator=rng, device=rng.device).to(observation.device)


@dataclass(frozen=True)
class StartFrom:
    """The estimates of another attack in the first restart, and noise of ``spread`` around them in the others."""

    attack: Attack
    spread: float = 0.1

    def __call__(self, observation: Observation, restarts: int, rng: torch.Generator) -> Tensor:
        """The other attack's estimates, repeated."""
        first = self.attack(observation, rng=rng).estimates.to(torch.get_default_dtype())
        low, high = observation.data_range
        drawn = torch.randn((restarts, *first.shape), generator=rng, device=rng.device).to(first.device)
        noise = drawn * self.spread * (high - low)
        noise[0] = 0
        return (first + noise).clamp(low, high)

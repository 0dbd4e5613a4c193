"""What an attack varies to vary the records: the values themselves, or something that generates them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from reconrisk.core.observation import Observation


class Parametrization(Protocol):
    """Coordinates of candidates. All tensors begin with the axis of the restarts."""

    def begin(self, observation: Observation, inputs: Tensor, rng: torch.Generator) -> Tensor:
        """Coordinates whose candidates are near ``inputs`` of shape ``(restarts, records, *shape)``."""
        ...

    def decode(self, coordinates: Tensor, observation: Observation) -> Tensor:
        """The candidates, differentiable."""
        ...

    def project(self, coordinates: Tensor, observation: Observation) -> Tensor:
        """The nearest coordinates that are allowed; called after every step."""
        ...

    def improbability(self, coordinates: Tensor) -> Tensor | float:
        """Minus the logarithm of their density up to a constant, for each restart; 0 where nothing is believed."""
        ...

    def finish(self, inputs: Tensor, observation: Observation) -> Tensor:
        """The records as they can be, such as with whole categories, from the best candidates of one restart."""
        ...


@dataclass(frozen=True)
class Values:
    """The values of the records in units of the data range, held within it.

    >>> from reconrisk.core.threat import HONEST_BUT_CURIOUS
    >>> seen = Observation({"y": torch.ones(1)}, lambda inputs, labels: {}, HONEST_BUT_CURIOUS, (1,), (0.0, 4.0))
    >>> Values().decode(Values().project(torch.tensor([[[1.5]]]), seen), seen)
    tensor([[[4.]]])
    """

    def begin(self, observation: Observation, inputs: Tensor, rng: torch.Generator) -> Tensor:
        """The candidates, scaled to [0, 1]."""
        del rng
        low, high = observation.data_range
        return self.project((inputs - low) / (high - low), observation)

    def decode(self, coordinates: Tensor, observation: Observation) -> Tensor:
        """Scaled back to the data range."""
        low, high = observation.data_range
        return low + (high - low) * coordinates

    def project(self, coordinates: Tensor, observation: Observation) -> Tensor:
        """Clipped to [0, 1]."""
        del observation
        return coordinates.clamp(0, 1)

    def improbability(self, coordinates: Tensor) -> float:
        """Nothing is believed of values."""
        del coordinates
        return 0.0

    def finish(self, inputs: Tensor, observation: Observation) -> Tensor:
        """Clipped to the data range, which rounding may have left."""
        low, high = observation.data_range
        return inputs.clamp(low, high)

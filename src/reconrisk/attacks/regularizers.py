"""What an attacker expects of records before seeing anything: smooth pictures, usual statistics, agreement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from reconrisk.core.observation import Observation
from reconrisk.core.validation import check_nonnegative, refuse

Penalty = Callable[[Tensor], Tensor]
"""From candidates (restarts, records, *shape) to one number per restart."""


class Regularizer(Protocol):
    """A penalty, weighted by ``weight`` beside a distance and by ``prior_weight`` beside a likelihood."""

    @property
    def weight(self) -> float:
        """Weight beside a distance between zero and about one."""
        ...

    @property
    def prior_weight(self) -> float:
        """Weight beside the likelihood of known noise, where the penalty is minus a log-density per coordinate."""
        ...

    def bind(self, observation: Observation) -> Penalty:
        """The penalty for records of this observation, in units of the data range."""
        ...


@dataclass(frozen=True)
class TotalVariation:
    r"""Mean absolute difference of neighbouring pixels, for images with any number of channels.

    .. math:: \mathrm{mean}_{c,h,w} |x_{c,h+1,w} - x_{c,h,w}| + \mathrm{mean}_{c,h,w} |x_{c,h,w+1} - x_{c,h,w}|

    ``prior_weight`` is one over the mean difference expected of photographs, 0.05 of the range.

    Reference: equation 4, `Geiping et al. (2020) <https://arxiv.org/abs/2003.14053>`_.
    """

    weight: float
    prior_weight: float = 20.0

    def __post_init__(self) -> None:
        check_nonnegative("weight", self.weight)
        check_nonnegative("prior_weight", self.prior_weight)

    def bind(self, observation: Observation) -> Penalty:
        """Refused for records that are not images."""
        shape = observation.input_shape
        if len(shape) < 2:
            remedy = "Total variation needs rows and columns: pass total_variation=0 for tables."
            raise refuse("input_shape", shape, "to be that of an image", remedy)
        low, high = observation.data_range

        def penalty(inputs: Tensor) -> Tensor:
            rows = inputs.diff(dim=-2).abs().flatten(1).mean(1) if shape[-2] > 1 else 0.0
            columns = inputs.diff(dim=-1).abs().flatten(1).mean(1) if shape[-1] > 1 else 0.0
            return (rows + columns) / (high - low) + inputs.new_zeros(len(inputs))

        return penalty

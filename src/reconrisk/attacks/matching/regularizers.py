"""What an attacker expects of records before seeing anything: smooth pictures, usual statistics, agreement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation
from reconrisk.core.validation import check_nonnegative, invalid_input
from reconrisk.releases.observe import model_of, seen_by_batch_norm

Penalty = Callable[[Tensor], Tensor]
"""From candidates ``(restarts, records, *shape)`` to one number per restart."""


class Regularizer(Protocol):
    """A penalty, weighted by ``weight`` beside a distance and by ``prior_weight`` beside a likelihood.

    Beside a distance the weight goes to ``final_share`` of itself over the budget: usual pictures first, then details.
    """

    @property
    def weight(self) -> float:
        """Weight beside a distance that is one at the start."""
        ...

    @property
    def final_share(self) -> float:
        """Share of ``weight`` that is left at the end."""
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
    final_share: float = 1.0

    def __post_init__(self) -> None:
        _check_weights(self)

    def bind(self, observation: Observation) -> Penalty:
        """Refused for records that are not images."""
        shape = observation.input_shape
        if len(shape) < 2:
            remedy = "Total variation needs rows and columns: pass total_variation=0 for tables."
            raise invalid_input("input_shape", shape, "to be that of an image", remedy)
        low, high = observation.data_range

        def penalty(inputs: Tensor) -> Tensor:
            rows = inputs.diff(dim=-2).abs().flatten(1).mean(1) if shape[-2] > 1 else 0.0
            columns = inputs.diff(dim=-1).abs().flatten(1).mean(1) if shape[-1] > 1 else 0.0
            return (rows + columns) / (high - low) + inputs.new_zeros(len(inputs))

        return penalty


@dataclass(frozen=True)
class L2Norm:
    r"""Mean square distance of the values from the middle of the data range: against extreme pixels.

    .. math:: \mathrm{mean}_i \big( (x_i - m) / (b - a) \big)^2

    ``prior_weight`` is that of a normal density whose standard deviation is a quarter of the range.

    Notation: the data range is (a, b), its middle m.
    Reference: the image prior of `Yin et al. (2021) <https://arxiv.org/abs/2104.07586>`_, there the norm
    of images of mean zero.
    """

    weight: float
    prior_weight: float = 8.0
    final_share: float = 1.0

    def __post_init__(self) -> None:
        _check_weights(self)

    def bind(self, observation: Observation) -> Penalty:
        """For records of any shape."""
        low, high = observation.data_range
        return lambda inputs: ((inputs - (low + high) / 2) / (high - low)).square().flatten(1).mean(1)


@dataclass(frozen=True)
class GroupConsistency:
    r"""Mean square distance of the candidates of a restart from the mean of all restarts.

    .. math:: \mathrm{mean}_i \big( (x^{(r)}_i - \tfrac{1}{R} \sum_s x^{(s)}_i) / (b - a) \big)^2

    The mean is held fixed in the derivative, so a restart answers for its own place only. Agreement is no prior:
    beside a likelihood it has no weight unless ``prior_weight`` says so.

    Assumes: record k is the same one in every restart, which the labels see to where they differ.
    Edge cases: zero for a single restart; a restart that is not a number does not enter the mean.
    Reference: group consistency, here with the pixel-wise mean, `Yin et al. (2021) <https://arxiv.org/abs/2104.07586>`_.
    """

    weight: float
    prior_weight: float = 0.0
    final_share: float = 1.0

    def __post_init__(self) -> None:
        _check_weights(self)

    def bind(self, observation: Observation) -> Penalty:
        """For records of any shape."""
        low, high = observation.data_range
        return lambda inputs: ((inputs - inputs.detach().nanmean(0)) / (high - low)).square().flatten(1).mean(1)


@dataclass(frozen=True)
class BatchNormStatistics:
    r"""Distance of the statistics that batch norm layers see of the candidates from the expected ones.

    .. math:: \frac{1}{L} \sum_l \bigg[ \Big(\mathrm{mean}_c \frac{(\mu_{lc} - m_{lc})^2}{v_{lc}}\Big)^{1/2}
              + \Big(\mathrm{mean}_c \frac{(\sigma^2_{lc} - v_{lc})^2}{v_{lc}^2}\Big)^{1/2} \bigg]

    Expected are the statistics of the batch where the threat knows them, else the running ones of the model, which
    the server has; those count ``running_share`` as much, since a batch differs from its population. The statistics
    of the candidates are those of each restart's own batch, in train mode as in eval mode.

    Notation: mu and sigma^2 are mean and variance of channel c before layer l for the candidates; m and v (plus the
    layer's epsilon) the expected ones. The paper adds the norms without dividing by v.
    Edge cases: running statistics as they are before training, mean 0 and variance 1, say nothing and do not enter;
    without any layer to go by the penalty is zero. A forward map without a model is refused.
    Reference: batch norm regularisation of `Yin et al. (2021) <https://arxiv.org/abs/2104.07586>`_.
    """

    weight: float
    prior_weight: float = 1.0
    final_share: float = 1.0
    running_share: float = 0.1

    def __post_init__(self) -> None:
        _check_weights(self)
        check_nonnegative("running_share", self.running_share)

    def bind(self, observation: Observation) -> Penalty:
        """Refused where no model is behind the release."""
        model = model_of(observation.forward)
        if model is None:
            raise InvalidInput("Expected a release of a model for the statistics of its layers. Pass batch_norm=0.")
        network = model
        expected = _expected_statistics(network, observation, self.running_share)

        def penalty(inputs: Tensor) -> Tensor:
            if not expected:
                return inputs.new_zeros(len(inputs))
            seen = _seen(network, inputs)
            deviations = [part.share * _deviation(seen[name], part) for name, part in expected.items() if name in seen]
            return torch.stack(deviations).mean(0)

        return penalty


@dataclass(frozen=True, eq=False)
class _Expected:
    """What a batch norm layer should see, the epsilon it adds to the variance, and how much that counts."""

    mean: Tensor
    variance: Tensor
    epsilon: float
    share: float


def _check_weights(part: Regularizer) -> None:
    check_nonnegative("weight", part.weight)
    check_nonnegative("prior_weight", part.prior_weight)
    check_nonnegative("final_share", part.final_share)


def _expected_statistics(model: nn.Module, observation: Observation, running_share: float) -> dict[str, _Expected]:
    known = observation.batch_statistics or {}
    dtype = torch.get_default_dtype()
    found: dict[str, _Expected] = {}
    for name, layer in _batch_norms(model).items():
        mean, variance, share = known.get(f"{name}.mean"), known.get(f"{name}.var"), 1.0
        if mean is None or variance is None:
            mean, variance, share = layer.running_mean, layer.running_var, running_share
            if mean is None or variance is None or not bool(mean.any() | (variance != 1).any()):
                continue
        found[name] = _Expected(mean.detach().to(dtype), variance.detach().to(dtype), layer.eps, share)
    return found


def _batch_norms(model: nn.Module) -> dict[str, nn.modules.batchnorm._BatchNorm]:
    kind = nn.modules.batchnorm._BatchNorm
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, kind)}


def _seen(model: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    """What each batch norm layer receives, (restarts, rows, channels, places); a record may be several rows.

    Where layers use the statistics of the batch, each restart is its own batch: one call each, since torch does not
    vectorise over running statistics that it updates.
    """
    mixing = any(layer.training or layer.running_mean is None for layer in _batch_norms(model).values())
    groups = list(inputs) if mixing else [inputs.flatten(0, 1)]
    seen = [seen_by_batch_norm(model, group) for group in groups]
    return {
        name: torch.cat([values[name] for values in seen]).reshape(
            len(inputs), -1, first.shape[1], first.shape[2:].numel()
        )
        for name, first in seen[0].items()
    }


def _deviation(values: Tensor, expected: _Expected) -> Tensor:
    """Of mean and variance from the expected ones, relative to the variance: one number per restart."""
    size = expected.variance + expected.epsilon
    # a norm, not the root of a mean of squares: its derivative at zero is zero, not NaN
    shift = torch.linalg.vector_norm((values.mean((1, 3)) - expected.mean) / size.sqrt(), dim=1)
    spread = torch.linalg.vector_norm((values.var((1, 3), unbiased=False) - expected.variance) / size, dim=1)
    total: Tensor = (shift + spread) / len(size) ** 0.5
    return total

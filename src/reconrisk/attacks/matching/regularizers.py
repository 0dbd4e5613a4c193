"""Regularizers: expectations about records, such as smooth images, usual statistics and agreement of restarts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation
from reconrisk.core.validation import check_nonnegative, invalid_input
from reconrisk.releases.observe import batch_norm_inputs, find_model

Penalty = Callable[[Tensor], Tensor]
"""Function from candidates ``(restarts, records, *shape)`` to one number per restart."""


class Regularizer(Protocol):
    """Protocol of a weighted penalty on candidates.

    Next to a distance the weight falls to ``final_share`` of itself over the budget: typical images first, then
    details.
    """

    @property
    def weight(self) -> float:
        """Weight next to a distance, which is 1 at the start."""
        ...

    @property
    def final_share(self) -> float:
        """Share of ``weight`` that is left at the end."""
        ...

    @property
    def prior_weight(self) -> float:
        """Weight next to the likelihood of known noise, where the penalty is a negative log-density per coordinate."""
        ...

    def bind(self, observation: Observation) -> Penalty:
        """Return the penalty for the records of an observation, in units of the data range."""
        ...


@dataclass(frozen=True)
class TotalVariation:
    r"""Mean absolute difference of neighbouring pixels, for images with any number of channels.

    .. math:: \mathrm{mean}_{c,h,w} |x_{c,h+1,w} - x_{c,h,w}| + \mathrm{mean}_{c,h,w} |x_{c,h,w+1} - x_{c,h,w}|

    Here x is a candidate image with channels c, rows h and columns w.

    Attributes:
        weight: Weight next to a distance.
        prior_weight: Weight next to a likelihood; the default is one over the mean difference in photographs, 0.05 of
            the range.
        final_share: Share of ``weight`` that is left at the end.

    Reference: equation 4, `Geiping et al. (2020) <https://arxiv.org/abs/2003.14053>`_.
    """

    weight: float
    prior_weight: float = 20.0
    final_share: float = 1.0

    def __post_init__(self) -> None:
        _check_weights(self)

    def bind(self, observation: Observation) -> Penalty:
        """Return the penalty; raise InvalidInput for records that are not images."""
        shape = observation.input_shape
        if len(shape) < 2:
            remedy = "Pass total_variation=0 for tables: total variation needs rows and columns."
            raise invalid_input("input_shape", shape, "to be the shape of an image", remedy)
        low, high = observation.data_range

        def penalty(inputs: Tensor) -> Tensor:
            rows = inputs.diff(dim=-2).abs().flatten(1).mean(1) if shape[-2] > 1 else 0.0
            columns = inputs.diff(dim=-1).abs().flatten(1).mean(1) if shape[-1] > 1 else 0.0
            return (rows + columns) / (high - low) + inputs.new_zeros(len(inputs))

        return penalty


@dataclass(frozen=True)
class L2Norm:
    r"""Mean squared distance of the values from the middle of the data range, against extreme pixels.

    .. math:: \mathrm{mean}_i \big( (x_i - m) / (b - a) \big)^2

    Attributes:
        weight: Weight next to a distance.
        prior_weight: Weight next to a likelihood; the default is a normal density with a quarter of the range as its
            standard deviation.
        final_share: Share of ``weight`` that is left at the end.

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
        """Return the penalty, for records of any shape."""
        low, high = observation.data_range
        return lambda inputs: ((inputs - (low + high) / 2) / (high - low)).square().flatten(1).mean(1)


@dataclass(frozen=True)
class GroupConsistency:
    r"""Mean squared distance of the candidates of a restart from the mean of all restarts.

    .. math:: \mathrm{mean}_i \big( (x^{(r)}_i - \tfrac{1}{R} \sum_s x^{(s)}_i) / (b - a) \big)^2

    Here :math:`x^{(r)}_i` is value i of the candidates of restart r, R the number of restarts, and (a, b) the data
    range.

    The mean is held fixed in the derivative, so each restart moves only itself.

    Attributes:
        weight: Weight next to a distance.
        prior_weight: Weight next to a likelihood; 0 by default, since agreement of restarts is no prior.
        final_share: Share of ``weight`` that is left at the end.

    Assumes: record k is the same one in every restart, which distinct labels ensure.
    Edge cases: zero for a single restart. A restart with NaN values does not enter the mean.
    Reference: group consistency, here with the pixel-wise mean, `Yin et al. (2021)
    <https://arxiv.org/abs/2104.07586>`_.
    """

    weight: float
    prior_weight: float = 0.0
    final_share: float = 1.0

    def __post_init__(self) -> None:
        _check_weights(self)

    def bind(self, observation: Observation) -> Penalty:
        """Return the penalty, for records of any shape."""
        low, high = observation.data_range
        return lambda inputs: ((inputs - inputs.detach().nanmean(0)) / (high - low)).square().flatten(1).mean(1)


@dataclass(frozen=True)
class BatchNormStatistics:
    r"""Distance between the batch norm statistics of the candidates and the expected ones.

    .. math:: \frac{1}{L} \sum_l \bigg[ \Big(\mathrm{mean}_c \frac{(\mu_{lc} - m_{lc})^2}{v_{lc}}\Big)^{1/2}
              + \Big(\mathrm{mean}_c \frac{(\sigma^2_{lc} - v_{lc})^2}{v_{lc}^2}\Big)^{1/2} \bigg]

    Expected are the statistics of the batch if the threat model knows them, else the running statistics of the model,
    which the server has. The statistics of the candidates are computed over each restart's own batch, in train mode as
    in eval mode.

    Attributes:
        weight: Weight next to a distance.
        prior_weight: Weight next to a likelihood.
        final_share: Share of ``weight`` that is left at the end.
        running_share: Relative weight of running statistics, since a batch differs from its population.

    Notation: mu and sigma^2 are mean and variance of channel c before layer l for the candidates; m and v (plus the
    layer's epsilon) the expected ones. The paper adds the norms without dividing by v.
    Edge cases: running statistics of an untrained model, mean 0 and variance 1, carry no information and are left out.
    The penalty is zero if no layer remains. A forward map without a model is refused.
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
        """Return the penalty; raise InvalidInput if the release has no model."""
        model = find_model(observation.forward)
        if model is None:
            raise InvalidInput("Expected the release of a model, to compare batch norm statistics. Pass batch_norm=0.")
        network = model
        expected = _expected_statistics(network, observation, self.running_share)

        def penalty(inputs: Tensor) -> Tensor:
            if not expected:
                return inputs.new_zeros(len(inputs))
            seen = _batch_norm_inputs(network, inputs)
            deviations = [part.share * _deviation(seen[name], part) for name, part in expected.items() if name in seen]
            return torch.stack(deviations).mean(0)

        return penalty


@dataclass(frozen=True, eq=False)
class _Expected:
    """Expected statistics of a batch norm layer, its epsilon and its relative weight."""

    mean: Tensor
    variance: Tensor
    epsilon: float
    share: float


def _check_weights(part: Regularizer) -> None:
    check_nonnegative("weight", part.weight)
    check_nonnegative("prior_weight", part.prior_weight)
    check_nonnegative("final_share", part.final_share)


def _expected_statistics(model: nn.Module, observation: Observation, running_share: float) -> dict[str, _Expected]:
    """Collect known batch statistics, else informative running ones, by layer."""
    known = observation.batch_statistics or {}
    dtype = torch.get_default_dtype()
    found: dict[str, _Expected] = {}
    for name, layer in _batch_norms(model).items():
        mean, variance, share = known.get(f"{name}.mean"), known.get(f"{name}.var"), 1.0
        if mean is None or variance is None:
            mean, variance, share = layer.running_mean, layer.running_var, running_share
            # Initial running statistics (mean 0, variance 1) carry no information.
            if mean is None or variance is None or not bool(mean.any() | (variance != 1).any()):
                continue
        found[name] = _Expected(mean.detach().to(dtype), variance.detach().to(dtype), layer.eps, share)
    return found


def _batch_norms(model: nn.Module) -> dict[str, nn.modules.batchnorm._BatchNorm]:
    kind = nn.modules.batchnorm._BatchNorm
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, kind)}


def _batch_norm_inputs(model: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    """Return the inputs of each batch norm layer, (restarts, rows, channels, places); a record may be several rows.

    Where layers use the statistics of the batch, each restart is its own batch and needs its own call, since torch
    cannot vectorise over running statistics that it updates.
    """
    # In train mode, or without running statistics, records of a batch influence each other.
    mixing = any(layer.training or layer.running_mean is None for layer in _batch_norms(model).values())
    groups = list(inputs) if mixing else [inputs.flatten(0, 1)]
    seen = [batch_norm_inputs(model, group) for group in groups]
    return {
        name: torch.cat([values[name] for values in seen]).reshape(
            len(inputs), -1, first.shape[1], first.shape[2:].numel()
        )
        for name, first in seen[0].items()
    }


def _deviation(values: Tensor, expected: _Expected) -> Tensor:
    """Return the deviation of mean and variance relative to the expected variance, one number per restart."""
    size = expected.variance + expected.epsilon
    # A norm, not the root of a mean of squares: its derivative at zero is zero, not NaN.
    shift = torch.linalg.vector_norm((values.mean((1, 3)) - expected.mean) / size.sqrt(), dim=1)
    spread = torch.linalg.vector_norm((values.var((1, 3), unbiased=False) - expected.variance) / size, dim=1)
    total: Tensor = (shift + spread) / len(size) ** 0.5
    return total

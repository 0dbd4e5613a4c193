"""The released gradient of a linear layer that reads the record: noisy multiples of the record, one per neuron."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from reconrisk.attacks.labels.infer import labels_for
from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation
from reconrisk.core.validation import check_finite, invalid_input
from reconrisk.releases.model_state import called
from reconrisk.releases.observe import model_of

Scales = float | tuple[float, ...]

_ROUNDS = 200
_SETTLED = 1e-12


@dataclass(frozen=True, eq=False)
class LayerGradient:
    r"""What was released of a linear layer: rows :math:`s_j x` and, with a bias, :math:`s_j`, all with noise.

    ``weight_precision`` (a column, or one value per entry) and ``bias_precision`` are one over the variance of the
    noise, 1 where ``noisy`` is false, 0 where a value was not sent. ``planted`` holds the :math:`s_j` up to a common
    factor if the adversary chose them, ``scales`` the :math:`s_j` themselves where they are known. ``reads_record`` is
    None where the model is not at hand.
    """

    name: str
    weight: Tensor
    weight_precision: Tensor
    bias: Tensor | None
    bias_precision: Tensor | None
    noisy: bool
    reads_record: bool | None
    planted: Tensor | None = None
    scales: Tensor | None = None

    @property
    def is_active(self) -> bool:
        """Whether anything of the record can be in it."""
        return bool(self.weight.any()) and (self.bias is None or bool(self.bias.any()))

    @property
    def unsent(self) -> int:
        """How many values of the record no row holds, of those whose bias was sent where there is one."""
        sent = (self.weight_precision > 0).expand_as(self.weight)
        if self.bias_precision is not None and self.scales is None:
            sent = sent & (self.bias_precision > 0)[:, None]
        return int((~sent.any(0)).sum())

    def known_bias(self) -> Tensor:
        """The gradient of the bias, or an error that says what is missing."""
        if self.bias is None:
            raise InvalidInput(
                f"Expected a released linear layer with bias on {self.weight.shape[1]} features, {self.name!r} has "
                "none. Use estimate=known_norm(), or state scales."
            )
        return self.bias

    def weighted_mean(self, scales: Tensor) -> tuple[Tensor, Tensor]:
        r"""The mean of the rows over their scales with weights :math:`s_j^2` over the noise, and its variance.

        .. math:: \hat x = \sum_j s_j w_j / \tau_j^2 \Big/ \sum_j s_j^2 / \tau_j^2

        Edge cases: a coordinate that no row holds is 0 with infinite variance; without noise the variance is 0.
        """
        information = ((scales * scales) @ self.weight_precision).expand(self.weight.shape[1])
        mean = _ratio(scales @ (self.weight_precision * self.weight), information)
        return mean, torch.where(information > 0, float(self.noisy) / information, math.inf)

    def rank_one(self) -> tuple[Tensor, Tensor | None]:
        r"""The best fit :math:`s_j (x, 1)` to weight and bias as (multiple of x, same multiple of 1).

        Alternating weighted least squares; for equal noise everywhere the leading right singular vector.
        """
        values, precision = self.weight, self.weight_precision
        if self.bias is not None and self.bias_precision is not None:
            values = torch.cat([values, self.bias[:, None]], 1)
            entries = precision.expand_as(self.weight)
            precision = torch.cat([entries, self.bias_precision[:, None]], 1)
        weighted, before = precision * values, torch.zeros_like(values[0])
        scales = values @ values[int(values.norm(dim=1).argmax())]
        for _ in range(_ROUNDS):
            along = _ratio(scales @ weighted, ((scales * scales) @ precision).expand_as(before))
            along = _unit(along)
            if min(float((along - before).norm()), float((along + before).norm())) < _SETTLED:
                break
            squares = along * along
            squares = squares if precision.shape == values.shape else squares.sum(0, keepdim=True)
            before, scales = along, _ratio(weighted @ along, precision @ squares)
        return (along, None) if self.bias is None else (along[:-1], along[-1])

    def direction(self, data_range: tuple[float, float]) -> Tensor:
        """The record up to its length; without a bias the sign is the one that fits the data range."""
        if self.planted is not None:
            return _unit(self.weighted_mean(self.planted)[0])
        along, one = self.rank_one()
        sign = along.sum() * sum(data_range) if one is None else one
        return _unit(-along if bool(sign < 0) else along)

    def residual(self, estimate: Tensor) -> float:
        """Norm of what the estimate leaves unexplained of the rows, relative to them, over the values that were sent.

        The scales are those of the bias, or known ones, or else the best for this estimate.
        """
        sent = (self.weight_precision > 0).expand_as(self.weight)
        scales = self.bias if self.bias is not None else self.scales
        if scales is None:
            scales = _ratio(self.weight @ estimate, estimate @ estimate)
        left = (self.weight - scales[:, None] * estimate)[sent]
        return float(left.norm() / self.weight.norm())


def read_layer(observation: Observation, *, neurons: int | None = None) -> LayerGradient:
    """The first released linear layer on the record's features; ``neurons`` says how many it must have.

    A layer that is seen to read the record, by a probe sent through the model, goes before others of its width.
    """
    features = math.prod(observation.input_shape)
    names = [
        name
        for name, value in observation.released.items()
        if value.ndim == 2 and value.shape[1] == features and neurons in (None, value.shape[0])
    ]
    if not names:
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in observation.released.items())
        wanted = "linear layer with bias" if neurons is None else f"linear layer of {neurons} neurons"
        raise InvalidInput(
            f"Expected a released {wanted} on {features} features, there are: {shapes}. "
            + (
                "Use an attack that optimises, such as gauss_newton()."
                if neurons is None
                else "Train what plant() gives."
            )
        )
    reading = {name: _reads_record(observation, name) for name in names}
    name = next((name for name in names if reading[name]), names[0])
    released, bias = observation.released, _bias_name(observation.released, name)
    precision = _precision(observation, name)
    if bool((precision == precision[:, :1]).all()):  # once per row: a layer of many neurons is large enough once
        precision = precision[:, :1]
    return LayerGradient(
        name=name,
        weight=released[name].detach().double(),
        weight_precision=precision,
        bias=None if bias is None else released[bias].detach().double(),
        bias_precision=None if bias is None else _precision(observation, bias),
        noisy=observation.noise_std is not None,
        reads_record=reading[name],
    )


def with_scales(
    layer: LayerGradient,
    scales: Scales | None,
    observation: Observation,
    labels: Callable[[Observation], Tensor] = labels_for,
) -> LayerGradient:
    r"""The layer with its :math:`s_j`: the stated ones, or those that the known release has at a first estimate.

    The first estimate has the known norm, or else is the fit to weight and bias. Where the scales depend on the norm
    alone, as for a planted layer that is clipped, the replayed ones are exact.
    """
    if scales is not None:
        return replace(layer, scales=_stated_scales(scales, len(layer.weight)))
    if observation.record_norms is not None:
        candidate = observation.record_norms.double() * layer.direction(observation.data_range)
    elif layer.bias is not None:
        candidate = fitted(layer)
    else:
        remedy = "Add Knows.RECORD_NORM to the threat, or state scales."
        raise invalid_input(
            "record_norms", None, "to be known for a layer without bias, whose scales depend on them", remedy
        )
    caused = observation.forward(candidate.view(1, *observation.input_shape), labels(observation))[layer.name]
    return replace(layer, scales=_ratio(caused.detach().double() @ candidate, candidate @ candidate))


def fitted(layer: LayerGradient) -> Tensor:
    """The record of the best fit to weight and bias, of any size where the bias is all noise."""
    layer.known_bias()
    along, one = layer.rank_one()
    return _ratio(along, torch.zeros_like(along) if one is None else one)


def _stated_scales(scales: Scales, neurons: int) -> Tensor:
    """The scales as one number for each neuron."""
    numbers = (scales,) * neurons if isinstance(scales, (int, float)) else tuple(scales)
    if len(numbers) != neurons:
        raise invalid_input("scales", f"{len(numbers)} numbers", f"to have one for each of {neurons} neurons")
    values = torch.tensor([check_finite("scales", number) for number in numbers], dtype=torch.float64)
    if not values.any():
        raise invalid_input("scales", scales, "to have one that is not zero")
    return values


def _bias_name(released: Mapping[str, Tensor], name: str) -> str | None:
    """The bias by its name as torch gives it; where names are the user's own, what follows the weight."""
    if name.endswith("weight"):
        following: str | None = name.removesuffix("weight") + "bias"
    else:
        names = list(released)
        following = next(iter(names[names.index(name) + 1 :]), None)
    if following is None or following not in released:
        return None
    return following if released[following].shape == released[name].shape[:1] else None


def _precision(observation: Observation, name: str) -> Tensor:
    ones = torch.ones(observation.released[name].shape, dtype=torch.float64)
    if observation.noise_std is not None:
        ones = ones / observation.noise_std[name].double().square()
    return ones if observation.kept is None else ones * observation.kept[name]


def _reads_record(observation: Observation, name: str) -> bool | None:
    """Whether the layer gets the record itself, by sending a ramp through the model; None without a model."""
    model = model_of(observation.forward)
    layer = None if model is None else dict(model.named_modules()).get(name.rpartition(".")[0])
    if model is None or layer is None:
        return None
    low, high = observation.data_range
    dtype = next(layer.parameters()).dtype
    ramp = torch.linspace(low, high, math.prod(observation.input_shape), dtype=dtype)

    def stop(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        raise _Reached(arguments[0])

    handle = layer.register_forward_pre_hook(stop)
    # Copies of the buffers, so that batch norm in training mode does not move its statistics.
    buffers = {key: value.clone() for key, value in model.named_buffers()}
    try:
        with torch.no_grad():
            called(model, buffers, ramp.view(1, *observation.input_shape))
    except _Reached as reached:
        return torch.equal(reached.read.flatten(), ramp)
    finally:
        handle.remove()
    return False


class _Reached(Exception):
    """Ends a probe at the layer in question, however deep the network goes on."""

    def __init__(self, read: Tensor) -> None:
        super().__init__()
        self.read = read


def _unit(vector: Tensor) -> Tensor:
    length: Tensor = vector.norm()
    return vector / length.clamp_min(torch.finfo(vector.dtype).tiny)


def _ratio(over: Tensor, under: Tensor) -> Tensor:
    """A quotient that is 0 where nothing is known."""
    return torch.where(under != 0, over / torch.where(under != 0, under, 1.0), 0.0)

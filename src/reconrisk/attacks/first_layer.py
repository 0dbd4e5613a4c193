"""Released gradient of a linear layer on the record: one noisy multiple of the record per neuron."""

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
from reconrisk.releases.model_state import call_module
from reconrisk.releases.observe import find_model

Scales = float | tuple[float, ...]

_ROUNDS = 200  # alternations; convergence is linear, like that of the power method
_SETTLED = 1e-12  # change of the unit direction that ends the alternation, near double precision


@dataclass(frozen=True, eq=False)
class LayerGradient:
    """Released gradient of a linear layer: rows :math:`s_j x` and, with a bias, :math:`s_j`, all with noise.

    Attributes:
        name: Name of the weight in the release.
        weight: Released gradient of the weight, one row per neuron.
        weight_precision: One over the noise variance, as one number per row or per entry; 1 if not ``noisy``, 0 for
            values that were not sent.
        bias: Released gradient of the bias, or None.
        bias_precision: One over the noise variance of the bias, as ``weight_precision``.
        noisy: True if the noise is known.
        reads_record: True if a probe shows that the input of the layer is the record; None if the model is not
            available.
        planted: The :math:`s_j` up to a common factor, if the adversary chose them by planting the layer; else None.
        scales: The :math:`s_j` themselves, if the adversary knows them; else None.
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
        """Return True if the gradient can carry information about the record."""
        return bool(self.weight.any()) and (self.bias is None or bool(self.bias.any()))

    @property
    def missing_values(self) -> int:
        """Number of values of the record that no usable row holds; a row without its bias is not usable."""
        sent = (self.weight_precision > 0).expand_as(self.weight)
        if self.bias_precision is not None and self.scales is None:
            # A row without its bias has an unknown scale and cannot be used.
            sent = sent & (self.bias_precision > 0)[:, None]
        return int((~sent.any(0)).sum())

    def require_bias(self) -> Tensor:
        """Return the gradient of the bias; raise InvalidInput if the layer has none."""
        if self.bias is None:
            raise InvalidInput(
                f"Expected a released linear layer with bias on {self.weight.shape[1]} features, {self.name!r} has "
                "none. Use estimate=known_norm(), or pass scales."
            )
        return self.bias

    def weighted_mean(self, scales: Tensor) -> tuple[Tensor, Tensor]:
        r"""Return the precision-weighted mean of the rows divided by their scales, and its variance.

        .. math:: \hat x = \sum_j s_j w_j / \tau_j^2 \Big/ \sum_j s_j^2 / \tau_j^2

        Here :math:`w_j` is the row of neuron j, :math:`s_j` its scale, and :math:`\tau_j` the standard deviation of its
        noise.

        Edge cases: a coordinate that no row holds is 0 with infinite variance; without noise the variance is 0.
        """
        information = ((scales * scales) @ self.weight_precision).expand(self.weight.shape[1])
        mean = _divide_or_zero(scales @ (self.weight_precision * self.weight), information)
        return mean, torch.where(information > 0, float(self.noisy) / information, math.inf)

    def rank_one(self) -> tuple[Tensor, Tensor | None]:
        """Return the best fit :math:`s_j (x, 1)` to weight and bias as (multiple of x, same multiple of 1).

        Uses alternating weighted least squares. For equal noise everywhere this is the leading right singular vector.
        """
        values, precision = self.weight, self.weight_precision
        if self.bias is not None and self.bias_precision is not None:
            values = torch.cat([values, self.bias[:, None]], 1)
            entries = precision.expand_as(self.weight)
            precision = torch.cat([entries, self.bias_precision[:, None]], 1)
        weighted, before = precision * values, torch.zeros_like(values[0])
        # Start from the largest row, which is rarely orthogonal to the leading direction.
        scales = values @ values[int(values.norm(dim=1).argmax())]
        for _ in range(_ROUNDS):
            along = _divide_or_zero(scales @ weighted, ((scales * scales) @ precision).expand_as(before))
            along = _unit(along)
            # A direction and its negative are the same fit.
            if min(float((along - before).norm()), float((along + before).norm())) < _SETTLED:
                break
            squares = along * along
            # A single column of precisions is shared by all entries of a row.
            squares = squares if precision.shape == values.shape else squares.sum(0, keepdim=True)
            before, scales = along, _divide_or_zero(weighted @ along, precision @ squares)
        return (along, None) if self.bias is None else (along[:-1], along[-1])

    def direction(self, data_range: tuple[float, float]) -> Tensor:
        """Return the record up to its length; without a bias the sign is chosen to fit the data range."""
        if self.planted is not None:
            return _unit(self.weighted_mean(self.planted)[0])
        along, one = self.rank_one()
        # Without a bias the sign is free: choose the one whose mean has the sign of the middle of the range.
        sign = along.sum() * sum(data_range) if one is None else one
        return _unit(-along if bool(sign < 0) else along)

    def residual(self, estimate: Tensor) -> float:
        """Return the norm of the residual of an estimate relative to the rows, over the values that were sent.

        The residual is the rows minus scales times the estimate. The scales are the gradient of the bias, else known
        scales, else the scales that fit this estimate best.
        """
        sent = (self.weight_precision > 0).expand_as(self.weight)
        scales = self.bias if self.bias is not None else self.scales
        if scales is None:
            # Least-squares scale of each row for this estimate.
            scales = _divide_or_zero(self.weight @ estimate, estimate @ estimate)
        left = (self.weight - scales[:, None] * estimate)[sent]
        return float(left.norm() / self.weight.norm())


def read_layer(observation: Observation, *, neurons: int | None = None) -> LayerGradient:
    """Find the first released linear layer on the features of the record.

    Among layers of the right width, a layer that reads the record is preferred. A probe through the model tests this.

    Args:
        observation: The observation with the release.
        neurons: Required number of neurons; None accepts any.

    Returns:
        The released gradient of the layer.

    Raises:
        InvalidInput: If no released tensor has the shape of such a layer.
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
            f"Expected a released {wanted} on {features} features, found {shapes}. "
            + (
                "Use an attack that optimises, such as gauss_newton()."
                if neurons is None
                else "Train the model that plant() returns."
            )
        )
    # Several layers may have the width of the record; the probe tells which one reads it.
    reading = {name: _reads_record(observation, name) for name in names}
    name = next((name for name in names if reading[name]), names[0])
    released, bias = observation.released, _bias_name(observation.released, name)
    precision = _precision(observation, name)
    if bool(
        (precision == precision[:, :1]).all()
    ):  # keep one column: a second copy of a wide layer would double the memory
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


def attach_scales(
    layer: LayerGradient,
    scales: Scales | None,
    observation: Observation,
    labels: Callable[[Observation], Tensor] = labels_for,
) -> LayerGradient:
    """Return the layer with its scales :math:`s_j`, as stated or as computed from the known release.

    The scale :math:`s_j` of neuron j is the factor by which its row is a multiple of the record. If ``scales`` is None,
    the function evaluates the release at a first estimate of the record and takes the scales of that release. The first
    estimate has the known norm, else it is the fit to weight and bias. The scales are exact if they depend on the norm
    of the record only, as for a planted layer under clipping.

    Args:
        layer: The released gradient of the layer.
        scales: Scales stated by the user, one for all neurons or one per neuron; None computes them.
        observation: The observation with the forward map.
        labels: Function that returns the labels with which the release is evaluated.

    Returns:
        The layer with ``scales``.

    Raises:
        InvalidInput: If stated scales are invalid, or there is neither a bias nor a known norm for the first estimate.
    """
    if scales is not None:
        return replace(layer, scales=_scales_per_neuron(scales, len(layer.weight)))
    if observation.record_norms is not None:
        # The direction needs no scales, so the known norm completes a first estimate.
        candidate = observation.record_norms.double() * layer.direction(observation.data_range)
    elif layer.bias is not None:
        candidate = fit_record(layer)
    else:
        remedy = "Add Knows.RECORD_NORM to the threat model, or pass scales."
        raise invalid_input(
            "record_norms", None, "to be known for a layer without bias, since its scales depend on them", remedy
        )
    # The release of the first estimate shows the scales that clipping leaves.
    caused = observation.forward(candidate.view(1, *observation.input_shape), labels(observation))[layer.name]
    return replace(layer, scales=_divide_or_zero(caused.detach().double() @ candidate, candidate @ candidate))


def fit_record(layer: LayerGradient) -> Tensor:
    """Return the record of the best rank-one fit to weight and bias.

    Args:
        layer: The released gradient of a layer with bias.

    Returns:
        The flat record. Its size is arbitrary where the bias is pure noise.

    Raises:
        InvalidInput: If the layer has no bias.
    """
    layer.require_bias()
    along, one = layer.rank_one()
    return _divide_or_zero(along, torch.zeros_like(along) if one is None else one)


def _scales_per_neuron(scales: Scales, neurons: int) -> Tensor:
    """Return the scales as one number per neuron."""
    numbers = (scales,) * neurons if isinstance(scales, (int, float)) else tuple(scales)
    if len(numbers) != neurons:
        raise invalid_input(
            "scales", f"{len(numbers)} numbers", f"to be one number, or one for each of {neurons} neurons"
        )
    values = torch.tensor([check_finite("scales", number) for number in numbers], dtype=torch.float64)
    if not values.any():
        raise invalid_input("scales", scales, "to have a nonzero entry", "Pass the factors that the release applied.")
    return values


def _bias_name(released: Mapping[str, Tensor], name: str) -> str | None:
    """Return the name of the bias by torch's convention, else the next released tensor if its shape fits."""
    # torch names weight and bias of a layer alike.
    if name.endswith("weight"):
        following: str | None = name.removesuffix("weight") + "bias"
    else:
        names = list(released)
        following = next(iter(names[names.index(name) + 1 :]), None)
    if following is None or following not in released:
        return None
    return following if released[following].shape == released[name].shape[:1] else None


def _precision(observation: Observation, name: str) -> Tensor:
    """Return one over the noise variance of each value; 0 for values that were not sent."""
    ones = torch.ones(observation.released[name].shape, dtype=torch.float64)
    if observation.noise_std is not None:
        ones = ones / observation.noise_std[name].double().square()
    return ones if observation.kept is None else ones * observation.kept[name]


def _reads_record(observation: Observation, name: str) -> bool | None:
    """Return True if a ramp sent through the model reaches the layer unchanged; None without a model."""
    model = find_model(observation.forward)
    layer = None if model is None else dict(model.named_modules()).get(name.rpartition(".")[0])
    if model is None or layer is None:
        return None
    low, high = observation.data_range
    dtype = next(layer.parameters()).dtype
    # A ramp has distinct values, so permutations and crops show as well.
    ramp = torch.linspace(low, high, math.prod(observation.input_shape), dtype=dtype)

    def stop(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        raise _Reached(arguments[0])

    handle = layer.register_forward_pre_hook(stop)
    # Copies of the buffers, so that batch norm in training mode does not update its statistics.
    buffers = {key: value.clone() for key, value in model.named_buffers()}
    try:
        with torch.no_grad():
            call_module(model, buffers, ramp.view(1, *observation.input_shape))
    except _Reached as reached:
        return torch.equal(reached.read.flatten(), ramp)
    finally:
        handle.remove()
    return False


class _Reached(Exception):
    """Stops a probe at the layer of interest, so that the rest of the network need not run."""

    def __init__(self, read: Tensor) -> None:
        super().__init__()
        self.read = read


def _unit(vector: Tensor) -> Tensor:
    length: Tensor = vector.norm()
    return vector / length.clamp_min(torch.finfo(vector.dtype).tiny)


def _divide_or_zero(over: Tensor, under: Tensor) -> Tensor:
    """Divide elementwise; 0 where the denominator is 0."""
    return torch.where(under != 0, over / torch.where(under != 0, under, 1.0), 0.0)

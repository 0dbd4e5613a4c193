"""What an update says about the output layer of a classifier: the evidence about labels, whatever form it came in."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation
from reconrisk.core.threat import Knows
from reconrisk.core.validation import refuse
from reconrisk.releases.model_state import LossFunction, ModelState, model_state, record_losses
from reconrisk.releases.observe import DefendedMap
from reconrisk.releases.training.optimizers import OptimizerState, UpdateRule
from reconrisk.releases.updates.gradient import GradientMap
from reconrisk.releases.updates.local_update import LocalUpdateMap

DECLARE = "Declare the labels as known instead: add Knows.LABELS to the threat and pass labels."

_PROBES = 16
_ROUNDING = 1e-7  # of a float32 gradient, relative to its norm


@dataclass(frozen=True, eq=False)
class OutputLayer:
    r"""The gradient of the output layer, brought to one form.

    .. math:: G = \sum_i d_i \tilde h_i^T, \qquad d_i = \partial \ell_i / \partial z_i, \quad z_i = P \tilde h_i

    ``gradient`` is G, one row per class, ``parameters`` P at each step. If ``biased``, their last column belongs to the
    bias, whose feature is 1; if ``weighted``, the others to the weight. ``features`` and ``outputs`` are those of
    probes drawn from the data range, ``offset`` is the part of outputs that is not released. ``noise_std`` is that of
    the values of G. ``clipped`` says whether clipping has scaled G, None if nobody knows; ``linear`` is false where an
    adaptive optimizer has bent it, ``exact`` where it is gathered along several steps.
    """

    gradient: Tensor
    parameters: Tensor
    weighted: bool
    biased: bool
    features: Tensor
    outputs: Tensor
    offset: Tensor
    loss_fn: LossFunction
    noise_std: float
    clipped: bool | None
    linear: bool
    exact: bool

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.gradient)


def output_layer(observation: Observation) -> OutputLayer:
    """The evidence about labels in an observation.

    Edge cases: an output layer that is no ``nn.Linear`` is judged by its bias alone. A release without weight and bias
    of it, a network with one output, a loss without class indices and a forward map without a network are refused.
    """
    forward = observation.forward.undefended if isinstance(observation.forward, DefendedMap) else observation.forward
    if not isinstance(forward, (GradientMap, LocalUpdateMap)):
        raise InvalidInput(f"Expected a forward map of a known network, to infer labels. {DECLARE}")
    loss_fn = forward.loss_fn if isinstance(forward, GradientMap) else forward.training.loss_fn
    network = _Network.probed(forward, observation)
    _check_loss(loss_fn, network.outputs)
    names = network.names(observation.released)
    sent = {name: observation.released[name].double() for name in names}
    step = _step(forward, sent, {name: network.parameters[name] for name in names})
    gradient = _columns(step.gradient, names) / _weight(forward, loss_fn, observation.batch_size)
    softmax = is_cross_entropy(loss_fn, len(gradient))
    return OutputLayer(
        gradient=gradient,
        parameters=torch.stack([_columns(values, names) for values in _spaced(step.path)]),
        weighted=sent[names[0]].ndim == 2,
        biased=sent[names[-1]].ndim == 1,
        features=_columns_of_features(network, sent, names),
        outputs=network.outputs,
        offset=network.offset(names),
        loss_fn=loss_fn,
        noise_std=_noise_std(observation, gradient, _columns(sent, names), names, step.linear and softmax),
        clipped=_clipped(observation, forward),
        linear=step.linear,
        exact=step.count == 1,
    )


def loss_gradients(loss_fn: LossFunction, outputs: Tensor, labels: Tensor) -> Tensor:
    """The derivative of each record's loss by its outputs."""
    leaf = outputs.detach().requires_grad_()
    with torch.enable_grad():
        (gradients,) = torch.autograd.grad(record_losses(loss_fn, leaf, labels).sum(), leaf)
    return gradients


def is_cross_entropy(loss_fn: LossFunction, classes: int) -> bool:
    r"""Whether the derivative of a loss by the outputs is softmax minus one-hot, tried at a few outputs.

    >>> is_cross_entropy(nn.functional.cross_entropy, 4), is_cross_entropy(nn.CrossEntropyLoss(label_smoothing=0.1), 4)
    (True, False)
    """
    labels = torch.arange(min(classes, 4))
    outputs = torch.linspace(-2, 2, len(labels) * classes, dtype=torch.float64).sin().view(len(labels), classes)
    expected = outputs.softmax(1) - nn.functional.one_hot(labels, classes)
    return torch.allclose(loss_gradients(loss_fn, outputs, labels), expected, atol=1e-6)


@dataclass(frozen=True, eq=False)
class _Network:
    """A network at probes: its outputs, and the linear layer that makes them, if one does, with what it reads."""

    outputs: Tensor
    features: Tensor | None
    layer: str | None
    parameters: Mapping[str, Tensor]

    @classmethod
    def probed(cls, forward: GradientMap | LocalUpdateMap, observation: Observation) -> _Network:
        model = forward.model if isinstance(forward, GradientMap) else forward.training.model
        low, high = observation.data_range
        rng = torch.Generator().manual_seed(0)  # the same probes for every observation: they are part of the method
        drawn = torch.rand((_PROBES, *observation.input_shape), generator=rng).to(observation.device)
        inputs = low + (high - low) * drawn
        state = model_state(model, inputs.dtype)
        outputs, layer, features = _last_layer(state, inputs)
        if outputs.ndim != 2 or outputs.shape[1] < 2:
            shape = tuple(outputs.shape[1:])
            raise refuse("shape of a record's outputs", shape, "to be one number for each of several classes", DECLARE)
        parameters = {name: value.double() for name, value in {**state.fixed, **state.released}.items()}
        return cls(outputs.double(), features, layer, parameters)

    def names(self, released: Mapping[str, Tensor]) -> list[str]:
        """The names of weight and bias of the output layer, as far as they are released."""
        if self.layer is None:
            shape = (self.outputs.shape[1],)
            names = [name for name, tensor in released.items() if tuple(tensor.shape) == shape][-1:]
        else:
            both = [f"{self.layer}.{kind}".removeprefix(".") for kind in ("weight", "bias")]
            names = [name for name in both if name in released]
        if not names:
            known = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in released.items())
            raise InvalidInput(f"Expected a released weight or bias of the output layer, there are: {known}. {DECLARE}")
        return names

    def offset(self, names: Sequence[str]) -> Tensor:
        """The bias of the output layer where it is not released."""
        bias = f"{self.layer}.bias".removeprefix(".")
        hidden = self.layer is not None and bias in self.parameters and bias not in names
        return self.parameters[bias] if hidden else self.outputs.new_zeros(self.outputs.shape[1])


def _last_layer(state: ModelState, inputs: Tensor) -> tuple[Tensor, str | None, Tensor | None]:
    """The outputs, and name and inputs of the linear layer whose outputs they are."""
    calls: list[tuple[str, Tensor, Tensor]] = []

    def recorded(name: str) -> Callable[..., None]:
        return lambda _, given, made: calls.append((name, given[0], made))

    layers = [(name, layer) for name, layer in state.model.named_modules() if isinstance(layer, nn.Linear)]
    handles = [layer.register_forward_hook(recorded(name)) for name, layer in layers]
    try:
        with torch.no_grad():
            outputs = state.outputs(inputs)
    finally:
        for handle in handles:
            handle.remove()
    last = [(name, given) for name, given, made in calls if made is outputs and given.ndim == 2]
    return (outputs, last[-1][0], last[-1][1].double()) if last else (outputs, None, None)


def _check_loss(loss_fn: LossFunction, outputs: Tensor) -> None:
    some = outputs[: 3 if outputs.shape[1] == 2 else 2]  # never as many as classes: indices must not pass for targets
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # torch only warns of targets that it stretches to the outputs
            loss = loss_fn(some, torch.zeros(len(some), dtype=torch.int64, device=some.device))
    except (RuntimeError, ValueError, IndexError, TypeError, UserWarning) as error:
        raise InvalidInput(f"Expected a loss of outputs and class indices, to infer labels. {DECLARE}") from error
    if not bool(loss.isfinite()):
        raise InvalidInput(f"Expected a loss that is finite on noise over the data range, to infer labels. {DECLARE}")


@dataclass(frozen=True, eq=False)
class _Step:
    """The average over ``count`` steps of their gradients, and about where those were taken."""

    gradient: Mapping[str, Tensor]
    path: Sequence[Mapping[str, Tensor]]
    count: int = 1
    linear: bool = True


def _step(forward: GradientMap | LocalUpdateMap, sent: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> _Step:
    if isinstance(forward, GradientMap):
        return _Step(sent, [own])
    training = forward.training
    count = int(training.steps or 1) if training.batches is None else len(training.batches)
    zero, one = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
    still = _moved(training.optimizer, own, dict.fromkeys(own, zero), count)
    once = _moved(training.optimizer, {"": zero}, {"": one}, count)[""]
    twice = _moved(training.optimizer, {"": zero}, {"": 2 * one}, count)[""]
    gradient = {name: (sent[name] - still[name]) / once for name in sent}
    path = [{name: own[name] + sent[name] * (number / count) for name in sent} for number in range(count)]
    return _Step(gradient, path, count, linear=math.isclose(float(twice), 2 * float(once), rel_tol=1e-6))


def _moved(
    rule: UpdateRule, start: Mapping[str, Tensor], gradient: Mapping[str, Tensor], count: int
) -> dict[str, Tensor]:
    """How far ``count`` steps with the same gradient go."""
    state, values = OptimizerState(), dict(start)
    for _ in range(count):
        values, state = rule.step(values, {name: gradient[name].expand_as(values[name]) for name in values}, state)
    return {name: values[name] - start[name] for name in start}


def _weight(forward: GradientMap | LocalUpdateMap, loss_fn: LossFunction, records: int) -> float:
    """The weight of one record in the gradient of a step, on average over the steps."""
    if isinstance(forward, GradientMap) and forward.reduction is not None:
        return 1.0 if forward.reduction == "sum" else 1 / records
    outputs, labels = torch.tensor([[1.0, -1.0]]).repeat(2, 1), torch.zeros(2, dtype=torch.int64)
    if float(loss_fn(outputs, labels)) < 1.5 * float(loss_fn(outputs[:1], labels[:1])):
        return 1 / records
    batches = forward.training.batches if isinstance(forward, LocalUpdateMap) else None
    return 1.0 if batches is None else sum(len(rows) for rows in batches) / len(batches) / records


def _clipped(observation: Observation, forward: GradientMap | LocalUpdateMap) -> bool | None:
    """Whether something scales the update by its norm; None where there may be a defense nobody knows of."""
    if isinstance(forward, GradientMap) and forward.clip is not None:
        return True
    if not isinstance(observation.forward, DefendedMap):
        return False if Knows.DEFENSE in observation.threat.knows else None
    longer = {name: 1e6 * tensor for name, tensor in observation.released.items()}
    replayed = observation.forward.defense.replay(longer)
    return not all(torch.equal(replayed[name], tensor) for name, tensor in longer.items())


def _spaced(path: Sequence[Mapping[str, Tensor]], most: int = 16) -> Sequence[Mapping[str, Tensor]]:
    return (
        path
        if len(path) <= most
        else [path[round(number)] for number in torch.linspace(0, len(path) - 1, most).tolist()]
    )


def _columns(tensors: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    return torch.cat([tensors[name].reshape(len(tensors[name]), -1) for name in names], dim=1)


def _columns_of_features(network: _Network, sent: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    ones = network.outputs.new_ones(len(network.outputs), 1)
    parts = [ones if sent[name].ndim == 1 or network.features is None else network.features for name in names]
    return torch.cat(parts, dim=1)


def _noise_std(observation: Observation, gradient: Tensor, sent: Tensor, names: Sequence[str], balanced: bool) -> float:
    """That of the values of ``gradient``: as known, or from its columns, which add up to zero if ``balanced``."""
    scale = float(gradient.norm() / sent.norm().clamp_min(torch.finfo(sent.dtype).tiny))
    if observation.noise_std is not None:
        return scale * float(_columns({name: observation.noise_std[name].double() for name in names}, names).mean())
    rounding = _ROUNDING * float(gradient.norm()) / math.sqrt(gradient.numel())
    if not balanced:
        return rounding
    return max(rounding, float(gradient.sum(0).square().mean().div(len(gradient)).sqrt()))

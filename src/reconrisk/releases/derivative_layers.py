"""The layers of a network whose derivative is in doubt, and the first of them that breaks it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reconrisk.core.validation import check_all_finite, check_all_numbers
from reconrisk.releases.model_state import LossFunction, ModelState, cast_tensors, record_losses
from reconrisk.releases.release import linearize_graph

UNSAFE = "No number is reported, since a missing derivative does not mean that records are safe."

CUT = (
    "Remove detach(), .data, no_grad(), rounding, casts to integers and conversions to numpy. The backward of an "
    "autograd function must be right and differentiable. To freeze a layer use layer.requires_grad_(False) instead."
)

_NO_GRAD = (
    "Call it without torch.no_grad() and torch.inference_mode(). To freeze a layer use layer.requires_grad_(False), "
    "which keeps the derivative with respect to records."
)

_NODES = 64  # points on a long step at which derivatives are averaged: kinks of ReLU then cost a percent

_TWICE = "Write the backward of its autograd functions with differentiable operations, without once_differentiable."

_SHORT, _LONG = 1e-3, 0.05  # relative error of a wrong layer along short and long steps, as for the release


@dataclass(frozen=True, eq=False)
class _Event:
    """A tensor that enters or leaves a layer.

    Attributes:
        layer: Name of the layer; empty for the model itself.
        is_input: True for the first tensor that enters, False for the one that leaves.
        has_grad: True if autograd records at this place.
        value: Copy of the tensor, since later layers may work in place.
        tensor: The tensor itself, through which the loss is computed.
    """

    layer: str
    is_input: bool
    has_grad: bool
    value: Tensor
    tensor: Tensor


@dataclass(frozen=True, eq=False)
class Network:
    """A network with its loss, called with fixed tensors in the precision of the records.

    Attributes:
        model: The module, which is never changed.
        tensors: Its parameters and buffers by name.
        loss_fn: Loss of outputs and labels; None if there is none.
    """

    model: nn.Module
    tensors: Mapping[str, Tensor]
    loss_fn: LossFunction | None

    @classmethod
    def prepare(cls, model: nn.Module | ModelState, loss_fn: LossFunction | None) -> Network:
        """Return the network of a module, or of a module with other tensors.

        Args:
            model: The module, or its tensors.
            loss_fn: Loss of outputs and labels; None if there is none.

        Returns:
            The network.

        Raises:
            InvalidInput: If a parameter is not finite.
        """
        if isinstance(model, nn.Module):
            network = cls(model, {**dict(model.named_parameters()), **dict(model.named_buffers())}, loss_fn)
        else:
            network = cls(model.model, {**model.fixed, **model.released}, loss_fn)
        # Buffers may be infinite, as the masks of attention.
        for name, _ in network.model.named_parameters():
            check_all_finite(
                f"parameter {name!r}", network.tensors[name].detach(), "Load weights from before training diverged."
            )
        return network

    def values(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return outputs and loss, differentiable with respect to ``inputs``."""
        torch.manual_seed(0)
        state = ModelState(self.model, {}, cast_tensors(self.tensors, inputs.dtype))
        outputs: Any = state.outputs(inputs)
        found = {f"outputs {place}": each for place, each in enumerate(_find_tensors(outputs))}
        if self.loss_fn is not None:
            try:
                found["loss"] = self.loss_fn(outputs, labels)
            except (RuntimeError, ValueError, TypeError):  # a loss of one record
                found["loss"] = record_losses(self.loss_fn, outputs, labels)
        return found

    def check_values(self, inputs: Tensor, labels: Tensor) -> None:
        """Refuse outputs with NaN, and losses that are not finite.

        Args:
            inputs: Records, ``(n, *shape)``.
            labels: One label per record.

        Raises:
            InvalidInput: If such a value is found.
        """
        with torch.no_grad():
            found = self.values(inputs, labels)
        for name, value in found.items():
            if name == "loss":
                check_all_finite("loss of the model", value, "Check loss_fn, the labels and the weights of the model.")
            else:  # a masked class has the output -inf
                check_all_numbers(
                    "output of the model", value, "Check the model for divisions by zero and its weights."
                )


def name_broken_layer(network: Network, inputs: Tensor, labels: Tensor, *, short: Tensor, long: Tensor | None) -> str:
    """Describe the first layer whose derivative disagrees with finite differences, and the remedy.

    Layers are compared in the order of execution. If the derivatives of all layers are right, the second derivatives
    are compared, in the order of the backward pass.

    Args:
        network: The network.
        inputs: Records at which the derivative of the release disagrees.
        labels: One label per record.
        short: Step of the records, so short that the derivative is constant.
        long: Long step of the records, along which rounding shows; None if the disagreement shows on the short one.

    Returns:
        Two sentences: the layer, and the remedy.
    """
    for step in (short, *([] if long is None else [long])):
        nodes = [0.0] if step is short else [(place + 0.5) / _NODES for place in range(_NODES)]
        events = _trace_layers(network, inputs, labels)[0]
        wrong = _find_wrong(network, inputs, labels, step, nodes, _layer_values)
        if wrong:
            return _describe_forward(network, events, min(wrong))
    wrong = _find_wrong(network, inputs, labels, short, [0.0], _layer_gradients)
    if wrong:
        return _describe_backward(network, events, max(wrong))
    return f"The derivatives of all layers are right: check loss_fn and code outside of layers. {CUT}"


def _trace_layers(network: Network, inputs: Tensor, labels: Tensor) -> tuple[list[_Event], Tensor | None]:
    """Return the tensors that enter and leave each layer, in the order of execution, and the loss."""
    events: list[_Event] = []
    with _hooks(network.model, events), torch.enable_grad():
        values = network.values(inputs, labels)
    loss = values.get("loss")
    return events, None if loss is None else loss.sum()


@contextmanager
def _hooks(model: nn.Module, events: list[_Event]) -> Iterator[None]:
    """Record the tensors that enter and leave the layers of a model."""

    def record(layer: str, is_input: bool, values: Any) -> None:
        for tensor in _find_tensors(values)[:1]:
            events.append(_Event(layer, is_input, torch.is_grad_enabled(), tensor.clone(), tensor))

    handles = []
    for name, layer in model.named_modules():
        handles.append(layer.register_forward_pre_hook(lambda _, arguments, name=name: record(name, True, arguments)))
        handles.append(layer.register_forward_hook(lambda _, arguments, output, name=name: record(name, False, output)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _find_tensors(values: Any) -> list[Tensor]:
    """Return the floating-point tensors in a tensor, sequence or mapping."""
    if isinstance(values, Tensor):
        return [values] if values.is_floating_point() else []
    if isinstance(values, Mapping):
        values = list(values.values())
    return [tensor for each in values for tensor in _find_tensors(each)] if isinstance(values, (tuple, list)) else []


def _layer_values(network: Network, inputs: Tensor, labels: Tensor) -> list[Tensor | None]:
    return [event.value for event in _trace_layers(network, inputs, labels)[0]]


def _layer_gradients(network: Network, inputs: Tensor, labels: Tensor) -> list[Tensor | None]:
    """Return the gradient of the loss with respect to each tensor of the layers; None where there is none."""
    leaf = inputs if inputs.requires_grad else inputs.detach().clone().requires_grad_()
    events, loss = _trace_layers(network, leaf, labels)
    known = [place for place, event in enumerate(events) if event.tensor.requires_grad]
    found: list[Tensor | None] = [None] * len(events)
    if loss is None or not loss.requires_grad or not known:
        return found
    tensors = [events[place].tensor for place in known]
    gradients = torch.autograd.grad(loss, tensors, create_graph=True, allow_unused=True)
    for place, gradient in zip(known, gradients, strict=True):
        found[place] = gradient
    return found


def _find_wrong(
    network: Network,
    inputs: Tensor,
    labels: Tensor,
    step: Tensor,
    nodes: Sequence[float],
    compute: Callable[[Network, Tensor, Tensor], list[Tensor | None]],
) -> list[int]:
    """Return the tensors of the layers whose change along ``step`` is not the average of their derivative at nodes."""
    start, end = compute(network, inputs, labels), compute(network, inputs + step, labels)
    if len(start) != len(end):  # the code takes another path
        return []
    predicted: dict[int, Tensor] = {}
    for place in nodes:
        leaf = (inputs + place * step).detach().requires_grad_()
        with torch.enable_grad():
            values = compute(network, leaf, labels)
        for row, change in _push_values(leaf, values, step).items():
            predicted[row] = predicted.get(row, torch.zeros_like(change)) + change / len(nodes)
    wrong = []
    for row, change in predicted.items():
        before, after = start[row], end[row]
        if before is None or after is None or before.shape != after.shape:
            continue
        found = (after - before).detach()
        size = max(float(found.norm()), float(change.norm()))
        floor = 64 * torch.finfo(found.dtype).eps * float(before.detach().norm())
        if not float((found - change).norm()) <= (_SHORT if len(nodes) == 1 else _LONG) * size + floor:
            wrong.append(row)
    return wrong


def _push_values(leaf: Tensor, values: Sequence[Tensor | None], step: Tensor) -> dict[int, Tensor]:
    """Return the change of each tensor along ``step``; 0 for those that cannot be differentiated."""
    named = {str(row): value for row, value in enumerate(values) if value is not None}
    try:
        pushed = linearize_graph(leaf, named).push(step)
    except RuntimeError:  # one of them: take each by itself
        pushed = {name: _push_value(leaf, value, step) for name, value in named.items()}
    return {int(name): change.detach() for name, change in pushed.items()}


def _push_value(leaf: Tensor, value: Tensor, step: Tensor) -> Tensor:
    try:
        return linearize_graph(leaf, {"value": value}).push(step)["value"]
    except RuntimeError:
        return torch.zeros_like(value)


def _quote(network: Network, layer: str) -> str:
    """Return the name and class of a layer."""
    kind = type(network.model.get_submodule(layer)).__name__
    return f"layer {layer!r} ({kind})" if layer else f"the model itself ({kind})"


def _describe_forward(network: Network, events: Sequence[_Event], place: int) -> str:
    """Describe the layer that breaks the derivative of the tensor at ``place``."""
    off = next((event for event in events[: place + 1] if not event.has_grad), None)
    if off is not None:
        return f"The first to break it is {_quote(network, off.layer)}, which is called without gradients. {_NO_GRAD}"
    event = events[place]
    if not event.is_input or not event.layer:
        return f"The first to break it is {_quote(network, event.layer)}. {CUT}"
    parent = event.layer.rpartition(".")[0]
    before = f"before {event.layer!r}"
    if place and events[place - 1].layer != parent:
        before = f"between {events[place - 1].layer!r} and {event.layer!r}"
    return f"The first to break it is {_quote(network, parent)}, in its own code {before}. {CUT}"


def _describe_backward(network: Network, events: Sequence[_Event], place: int) -> str:
    """Describe the layer that breaks the derivative of the gradient at ``place``, which the backward pass reaches."""
    event = events[place]
    layer = event.layer if event.is_input else event.layer.rpartition(".")[0]
    return f"The first to break the second derivative is {_quote(network, layer)}. {_TWICE}"

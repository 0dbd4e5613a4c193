"""Derivatives of a trained dense network with respect to its target, in many directions at once.

The tangents of one step share the records and the model's own values, so most of their products are large ones. A
direction costs about 1.3 trainings, and the Jacobian is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reconrisk.releases.shadow.dense import Layout, Pointwise, SharedRecords, Targets
from reconrisk.releases.shadow.optimizers import make_tangent_updater
from reconrisk.releases.training.optimizers import UpdateRule


@dataclass(frozen=True, eq=False)
class _LayerState:
    """Values of one model at one layer: outputs, derivatives of the activation, and of the loss.

    Attributes:
        outputs: Outputs of the activation.
        slope: First derivative of the activation; None without one.
        bend: Second derivative of the activation; None without one.
        upstream: Derivative of the loss with respect to the outputs.
        delta: Derivative of the loss with respect to the input of the activation.
    """

    outputs: Tensor
    slope: Tensor | None
    bend: Tensor | None
    upstream: Tensor
    delta: Tensor


@dataclass(frozen=True, eq=False)
class DensePush:
    """The derivative of training one dense network, along directions of its target.

    Attributes:
        layout: Order of the parameters.
        squared: Use the squared loss instead of cross-entropy.
    """

    layout: Layout
    squared: bool

    def train(
        self,
        values: list[Tensor],
        targets: Targets,
        moved: Tensor,
        rule: UpdateRule,
        batches: Iterable[SharedRecords],
    ) -> list[Tensor]:
        """Train one model in place and return the change of its parameters along each direction.

        Args:
            values: Packed parameters of one model, which are changed.
            targets: Its target.
            moved: Directions of the target, (k, 1, features).
            rule: Update rule.
            batches: Records of each step.

        Returns:
            Derivatives of the packed parameters, one tensor for each of ``values``, (k, ...).
        """
        tangents = [value.new_zeros(len(moved), *value.shape[1:]) for value in values]
        update = make_tangent_updater(rule, values, tangents)
        for records in batches:
            layers = self._run_model(values, records, targets)
            gradients = self._gradients(layers, records, targets)
            update(gradients, self._push_gradients(values, tangents, layers, records, targets, moved))
        return tangents

    def _run_model(self, values: Sequence[Tensor], records: SharedRecords, targets: Targets) -> list[_LayerState]:
        """Run forward and backward of the model itself."""
        weights, biases = self.layout.parts(values)
        outputs: list[Tensor] = []
        slopes = []
        for place, layer in enumerate(self.layout.layers):
            if place == 0:
                entering = values[0].new_empty(1, layer.fan_out, records.answers.shape[1])
                records.forward(weights[0], targets, out=entering)
            else:
                entering = weights[place] @ outputs[-1] + biases.get(place, 0.0)
            slopes.append(_activation_derivatives(layer.activation, entering))
            outputs.append(entering if layer.activation is None else layer.activation.module(entering.clone()))
        upstream = outputs[-1].clone() if self.squared else outputs[-1].softmax(1)
        records.compare(upstream, targets)
        # Gradient of the mean loss, as in DenseEngine: mse_loss averages over outputs, hence 2 / outputs.
        upstream *= records.weights * (2 / upstream.shape[1] if self.squared else 1)
        found: list[_LayerState] = []
        for place in reversed(range(len(weights))):
            slope, bend = slopes[place]
            delta = upstream if slope is None else upstream * slope
            found.append(_LayerState(outputs[place], slope, bend, upstream, delta))
            upstream = weights[place].mT @ delta if place else upstream
        return found[::-1]

    def _gradients(self, layers: Sequence[_LayerState], records: SharedRecords, targets: Targets) -> list[Tensor]:
        """Return the gradients of the model itself, in the order of the packed parameters."""
        first = layers[0].delta.new_empty(1, layers[0].delta.shape[1], targets.inputs.shape[2])
        records.backward(layers[0].delta, targets, out=first)
        gradients = [first]
        for place in range(1, len(layers)):
            gradients.append(layers[place].delta @ layers[place - 1].outputs.mT)
            if self.layout.layers[place].bias is not None:
                gradients.append(layers[place].delta.sum(2, keepdim=True))
        return gradients

    def _push_gradients(
        self,
        values: Sequence[Tensor],
        tangents: Sequence[Tensor],
        layers: Sequence[_LayerState],
        records: SharedRecords,
        targets: Targets,
        moved: Tensor,
    ) -> list[Tensor]:
        """Return the change of the gradient along each direction."""
        entering, leaving = self._forward(values, tangents, layers, records, targets, moved)
        (weights, _), (turned, _) = self.layout.parts(values), self.layout.parts(tangents)
        upstream = self._push_loss_gradient(leaving[-1], layers[-1].outputs, records)
        gradients: list[Tensor] = []
        for place in reversed(range(len(layers))):
            layer, delta = layers[place], upstream
            # Product rule for delta = upstream * slope(entering).
            if layer.slope is not None and layer.bend is not None:
                delta = upstream.mul_(layer.slope).addcmul_(entering[place], layer.upstream * layer.bend)
            if place == 0:
                first = moved.new_empty(len(moved), delta.shape[1], moved.shape[2])
                records.backward(delta, _repeat_targets(targets, len(moved)), out=first)
                # The first gradient is delta x^T: besides delta, the target's x changes by `moved` itself.
                gradients.insert(0, first.addcmul_(layer.delta[:, :, records.target, None], moved))
                break
            if self.layout.layers[place].bias is not None:
                gradients.insert(0, delta.sum(2, keepdim=True))
            below = layers[place - 1].outputs  # product rule for delta below^T, then for weights^T delta
            gradients.insert(0, _shared_right(delta, below[0].T) + _shared_left(layer.delta, leaving[place - 1].mT))
            upstream = _shared_right(turned[place].mT, layer.delta[0]) + _shared_left(weights[place].mT, delta)
        return gradients

    def _forward(
        self,
        values: Sequence[Tensor],
        tangents: Sequence[Tensor],
        layers: Sequence[_LayerState],
        records: SharedRecords,
        targets: Targets,
        moved: Tensor,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the changes of the inputs and outputs of each activation along each direction."""
        (weights, _), (turned, shifted) = self.layout.parts(values), self.layout.parts(tangents)
        entering: list[Tensor] = []
        leaving: list[Tensor] = []
        for place, layer in enumerate(layers):
            if place == 0:
                change = moved.new_empty(len(moved), layer.outputs.shape[1], layer.outputs.shape[2])
                records.forward(turned[0], _repeat_targets(targets, len(moved)), out=change)
                # Product rule for W x: the weights turn, and the target itself moves.
                change[:, :, records.target] += moved[:, 0] @ weights[0][0].T
            else:
                change = _shared_right(turned[place], layers[place - 1].outputs[0])
                change += _shared_left(weights[place], leaving[-1])
                change += shifted.get(place, 0.0)
            entering.append(change)
            leaving.append(change if layer.slope is None else change * layer.slope)
        return entering, leaving

    def _push_loss_gradient(self, change: Tensor, outputs: Tensor, records: SharedRecords) -> Tensor:
        """Return the change of the loss gradient at the outputs for a change of the outputs."""
        if self.squared:
            return change * (records.weights * 2 / change.shape[1])
        # Hessian of cross-entropy at the outputs, diag(p) - p p^T, times the change.
        likely = outputs.softmax(1)
        return (change - (change * likely).sum(1, keepdim=True)) * (likely * records.weights)


def _repeat_targets(targets: Targets, times: int) -> Targets:
    return Targets(targets.inputs.expand(times, -1, -1), targets.answers)


def _shared_right(many: Tensor, one: Tensor) -> Tensor:
    """Multiply each of (k, a, b) by the same (b, c), as one large product."""
    product = many.reshape(-1, many.shape[2]) @ one
    return product.view(*many.shape[:2], -1)


def _shared_left(one: Tensor, many: Tensor) -> Tensor:
    """Multiply the same (1, a, b) by each of (k, b, c)."""
    return torch.bmm(one.expand(len(many), -1, -1), many)


def _activation_derivatives(activation: Pointwise | None, entering: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return first and second derivative of an activation at its input; None without one."""
    if activation is None:
        return None, None
    module: nn.Module = activation.module
    with torch.enable_grad():
        leaf = entering.detach().clone().requires_grad_()
        # The clone allows activations that work in place; the sum gives elementwise derivatives.
        (slope,) = torch.autograd.grad(module(leaf.clone()).sum(), leaf, create_graph=True)
        bend = torch.zeros_like(entering)
        if slope.requires_grad:  # piecewise linear activations have second derivative zero
            (found,) = torch.autograd.grad(slope.sum(), leaf, allow_unused=True)
            bend = bend if found is None else found
    return slope.detach(), bend.detach()

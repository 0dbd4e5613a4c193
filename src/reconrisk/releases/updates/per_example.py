"""Norms of every record's own gradient, in memory that does not grow with records times parameters.

For a linear layer with input a and output gradient e, the gradient of one record is the outer product ``e a^T``, with
norm ``|e| |a|``. For several positions t (of a convolution or a sequence) it is ``sum_t e_t a_t^T``. Its norm follows
from the T x T products of positions or from the sum itself, whichever is smaller. Layers without such a rule use a
vectorised gradient of single records, and modules that cannot be vectorised use a loop.

The fastest method is verified on two records before it is used: torch 2.13 differentiates a vectorised layer norm
wrongly without an error (``Scaled`` in ``tests/releases/conftest.py``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from reconrisk.releases.model_state import LossFunction, ModelState, record_losses


def gradient_norms(state: ModelState, loss_fn: LossFunction, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the norm of each record's gradient with respect to the released parameters.

    Args:
        state: The model.
        loss_fn: Loss of the outputs and labels of a batch.
        inputs: Records, ``(n, *shape)``.
        labels: One label per record.

    Returns:
        Norms, (n,), differentiable with respect to ``inputs``; the derivative is 0 where a gradient vanishes.

    >>> from reconrisk.releases.model_state import model_state
    >>> layer = nn.Linear(2, 1, bias=False)
    >>> state = model_state(layer, torch.float32)
    >>> gradient_norms(state, lambda output, label: output.sum(), torch.tensor([[3.0, 4.0]]), torch.zeros(1))
    tensor([5.])
    """
    squares = squared_norms(state, loss_fn, inputs, labels)
    # Mask before the root: its derivative at 0 is infinite, and infinity times the mask's 0 would be NaN.
    positive = squares > 0
    return torch.where(positive, squares.where(positive, torch.ones_like(squares)).sqrt(), torch.zeros_like(squares))


def squared_norms(
    state: ModelState, loss_fn: LossFunction, inputs: Tensor, labels: Tensor, *, vectorized: bool = False
) -> Tensor:
    """Return the squares of :func:`gradient_norms`, in a loop over records or vectorised.

    Args:
        state: The model.
        loss_fn: Loss of the outputs and labels of a batch.
        inputs: Records, ``(n, *shape)``.
        labels: One label per record.
        vectorized: Use ``torch.func.vmap`` instead of a loop.

    Returns:
        Squared norms, (n,), differentiable with respect to ``inputs``.

    Edge cases: in torch 2.13 the derivative of the vectorised form is wrong for some layers (layer norm) without any
    error, and data-dependent control flow cannot be vectorised. Verify before use.
    """

    def loss(values: dict[str, Tensor], record: Tensor, label: Tensor) -> Tensor:
        return record_losses(loss_fn, state.outputs(record[None], values), label[None]).sum()

    def square(record: Tensor, label: Tensor) -> Tensor:
        gradient = torch.func.grad(loss)(state.released, record, label)
        return torch.stack([value.square().sum() for value in gradient.values()]).sum()

    if vectorized:
        squares: Tensor = torch.func.vmap(square)(inputs, labels)
        return squares
    return torch.stack([square(record, label) for record, label in zip(inputs, labels, strict=True)])


class LayerRecorder:
    """Records inputs and outputs of every layer with released parameters during one forward pass.

    Args:
        state: Model, with the parameters that are released.

    Attributes:
        complete: True if each released parameter belongs to exactly one layer with a rule, and all parameters of these
            layers are released. Otherwise the norms must come from :func:`squared_norms`.
        calls: Layer name, input and output of each call, in order.
    """

    def __init__(self, state: ModelState) -> None:
        owners = {name.rpartition(".")[0] for name in state.released}
        modules = state.model.named_modules()
        self._layers = {name: layer for name, layer in modules if name in owners and _has_rule(layer)}
        layers = self._layers.items()
        covered = [f"{name}.{own}".lstrip(".") for name, layer in layers for own, _ in layer.named_parameters()]
        # A parameter that two layers share has the sum of their gradients, whose norm is not the sum of norms.
        shared = [id(value) for _, value in state.model.named_parameters(remove_duplicate=False)]
        self.complete = sorted(covered) == sorted(state.released) and len(shared) == len(set(shared))
        self.calls: list[tuple[str, Tensor, Tensor]] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record calls inside a ``with`` block; the hooks are removed at its end."""
        hooks = [layer.register_forward_hook(self._hook(name)) for name, layer in self._layers.items()]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @property
    def outputs(self) -> list[Tensor]:
        """Outputs of the recorded layers, in the order of their calls."""
        return [output for _, _, output in self.calls]

    def squares(self, output_gradients: Sequence[Tensor]) -> Tensor:
        """Return the squared norm of each record's gradient, from the loss gradients at the recorded outputs."""
        calls: defaultdict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for (name, layer_input, _), gradient in zip(self.calls, output_gradients, strict=True):
            calls[name].append((layer_input, gradient))
        return torch.stack([_layer_squares(self._layers[name], pairs) for name, pairs in calls.items()]).sum(0)

    def _hook(self, name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        def record(_: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
            self.calls.append((name, arguments[0], output))
            return output.clone()  # the next layer may work in place and would change the recorded tensor

        return record


def _layer_squares(layer: nn.Module, calls: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the squared gradient norms of each record for one layer, summed over its calls."""
    if isinstance(layer, (nn.Linear, nn.Conv2d)):
        return _product_squares(layer, calls)
    gradients = [_affine_gradient(layer, *call) for call in calls]
    scale = torch.stack([gradient[0] for gradient in gradients]).sum(0)
    shift = torch.stack([gradient[1] for gradient in gradients]).sum(0)
    return scale.square().flatten(1).sum(1) + shift.square().flatten(1).sum(1)


def _product_squares(layer: nn.Linear | nn.Conv2d, calls: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Return ``|sum_t e_t a_t^T|^2 + |sum_t e_t|^2`` over positions t; shapes are (records, groups, width, T)."""
    unfolded = [_unfold_layer(layer, *call) for call in calls]
    a, e = unfolded[0] if len(calls) == 1 else (torch.cat(parts, dim=3) for parts in zip(*unfolded, strict=True))
    positions = a.shape[3]
    if positions == 1:  # an outer product: |e a^T| = |e| |a|
        weight = (e.square().sum((2, 3)) * a.square().sum((2, 3))).sum(1)
    elif positions**2 < a.shape[2] * e.shape[2]:  # T x T Gram matrices are smaller than the gradient itself
        weight = ((e.transpose(2, 3) @ e) * (a.transpose(2, 3) @ a)).sum((1, 2, 3))
    else:
        weight = (e @ a.transpose(2, 3)).square().sum((1, 2, 3))
    if layer.bias is None:
        return weight
    return weight + e.sum(3).square().sum((1, 2))


def _unfold_layer(layer: nn.Linear | nn.Conv2d, a: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
    """Return layer inputs and output gradients as (records, groups, width, positions)."""
    if isinstance(layer, nn.Linear):
        pairs = (value.reshape(len(value), 1, -1, value.shape[-1]).transpose(2, 3) for value in (a, e))
        return next(pairs), next(pairs)
    padding = layer._reversed_padding_repeated_twice  # in the order that pad expects; "same" may be asymmetric
    padded = nn.functional.pad(a, padding) if any(padding) else a
    columns = nn.functional.unfold(padded, layer.kernel_size, layer.dilation, 0, layer.stride)
    split = (len(a), layer.groups, -1, columns.shape[-1])  # channels of one group are contiguous
    return columns.reshape(split), e.reshape(split)


def _affine_gradient(layer: nn.Module, a: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
    """Return each record's gradient with respect to scale and shift of a normalisation layer."""
    if isinstance(layer, nn.LayerNorm):
        product = e * nn.functional.layer_norm(a, layer.normalized_shape, eps=layer.eps)
        kept = len(layer.normalized_shape)
        summed = list(range(1, a.ndim - kept))  # positions that share scale and shift
        return (product.sum(summed), e.sum(summed)) if summed else (product, e)
    if isinstance(layer, nn.GroupNorm):
        normal = nn.functional.group_norm(a, layer.num_groups, eps=layer.eps)
    else:
        normal = nn.functional.batch_norm(a, layer.running_mean, layer.running_var, eps=layer.eps)  # type: ignore[arg-type]  # eval mode
    spread = (*e.shape[:2], -1)
    return (e * normal).reshape(spread).sum(2), e.reshape(spread).sum(2)


def _has_rule(layer: nn.Module) -> bool:
    """Return True if the gradient norm of a layer follows from its input and output gradient."""
    if isinstance(layer, nn.Conv2d):
        return layer.padding_mode == "zeros"
    affine = isinstance(layer, (nn.GroupNorm, nn.LayerNorm, nn.modules.batchnorm._BatchNorm))
    if affine:
        return getattr(layer, "weight", None) is not None and getattr(layer, "bias", None) is not None
    return type(layer) is nn.Linear  # a subclass may compute something else

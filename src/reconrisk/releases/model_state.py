"""The parameters of a module as values: which are released, which stay fixed, in which precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import invalid_input

LossFunction = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class ModelState:
    """A module's tensors, detached from it: ``released`` parameters by name, and everything else it needs."""

    model: nn.Module
    released: dict[str, Tensor]
    fixed: dict[str, Tensor]

    def outputs(self, inputs: Tensor, released: Mapping[str, Tensor] | None = None) -> Tensor:
        """What the module computes, with other values for the released parameters if given; it stays as it is."""
        values = {**self.fixed, **(self.released if released is None else released)}
        buffers = {
            name: value.clone() for name, value in self.fixed.items() if name in dict(self.model.named_buffers())
        }
        return called(self.model, {**values, **buffers}, inputs)


def called(model: nn.Module, tensors: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    """What ``model`` computes with other parameters and buffers; it stays as it is.

    Attention is computed by plain products, since its fused form cannot be differentiated twice.
    """
    with sdpa_kernel(SDPBackend.MATH):
        outputs: Tensor = functional_call(model, dict(tensors), (inputs,))
    return outputs


def model_state(
    model: nn.Module,
    dtype: torch.dtype,
    *,
    parameters: Iterable[str] | None = None,
    state: Mapping[str, Tensor] | None = None,
) -> ModelState:
    """The tensors of ``model``, or those of ``state`` under the same names, in precision ``dtype``.

    ``parameters`` names the released ones, whole layers included ("head" stands for "head.weight" and "head.bias");
    without it all that require gradients are released.
    """
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    names = trained if parameters is None else chosen_names(parameters, [name for name, _ in model.named_parameters()])
    if not names:
        raise invalid_input(
            "parameters", [], "to name at least one parameter", "Call model.requires_grad_() or name some."
        )
    given = {name: value for name, value in (state or {}).items() if name in own}
    values = cast_tensors({**own, **given}, dtype)
    released = {name: value for name, value in values.items() if name in names}
    return ModelState(model, released, {name: value for name, value in values.items() if name not in names})


def cast_tensors(values: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the tensors detached, those of floating point in precision ``dtype``."""
    return {name: v.detach().to(dtype) if v.is_floating_point() else v.detach() for name, v in values.items()}


def record_losses(loss_fn: LossFunction, outputs: Tensor, labels: Tensor) -> Tensor:
    """The loss of each record on its own: ``loss_fn`` of one row of the outputs and its label.

    >>> record_losses(nn.functional.mse_loss, torch.ones(3, 2), torch.zeros(3, 2))
    tensor([1., 1., 1.])
    """

    def loss(output: Tensor, label: Tensor) -> Tensor:
        return loss_fn(output[None], label[None])

    try:
        losses: Tensor = torch.func.vmap(loss)(outputs, labels)
    except (RuntimeError, ValueError):  # what vmap cannot trace, a loop over outputs can; the network is not in it
        losses = torch.stack([loss(output, label) for output, label in zip(outputs, labels, strict=True)])
    if losses.shape != (len(outputs),):
        raise invalid_input(
            "loss_fn(...).shape", tuple(losses.shape[1:]), "to be (), one number per record", "Reduce to a scalar."
        )
    return losses


def check_mode(model: nn.Module, *, batch_norm: bool = False) -> None:
    """Refuse layers that draw something in training mode, or, unless ``batch_norm``, mix the records of a batch."""
    for name, layer in model.named_modules():
        if layer.training and draws_at_random(layer):
            raise invalid_input(
                f"{name or 'model'}.training",
                True,
                f"to be False for {type(layer).__name__}",
                "Call model.eval() first.",
            )
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and not batch_norm:
            if layer.training:
                remedy = "Call model.eval() first, or use rr.models.group_norm(channels) instead."
                raise invalid_input(
                    f"{name or 'model'}.training", True, f"to be False for {type(layer).__name__}", remedy
                )
            if not layer.track_running_stats:
                remedy = "It mixes the records of a batch: use rr.models.group_norm(channels) instead."
                raise invalid_input(
                    f"{name or 'model'}.track_running_stats", False, f"to be True for {type(layer).__name__}", remedy
                )


def check_separate(state: ModelState, loss_fn: LossFunction, inputs: Tensor, labels: Tensor) -> None:
    """Refuse a model that mixes records or draws at random, and a loss that is not the mean or sum of records' losses.

    Tried at up to four records of different labels. The user's random numbers stay as they are.
    """
    rows = torch.arange(min(4, len(labels)))
    if labels.ndim == 1:
        first = [int((labels == value).nonzero()[0]) for value in labels.unique()[:4]]
        rows = torch.tensor(sorted({*first, *range(min(2, len(labels)))})[:4])
    some, targets = inputs[rows].detach(), labels[rows]
    close = torch.finfo(inputs.dtype).eps ** 0.5
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        together, again = state.outputs(some), state.outputs(some)
        if not torch.equal(together.nan_to_num(), again.nan_to_num()):
            raise InvalidInput("Expected a model that gives the same outputs twice. Call model.eval() first.")
        apart = torch.cat([state.outputs(record[None]) for record in some])
        if together.shape != apart.shape or not torch.allclose(together, apart, rtol=close, atol=close, equal_nan=True):
            raise InvalidInput(
                "Expected a model whose outputs for a record depend on that record alone. "
                "Leave reduction and clip out, or replace the layer that mixes the records of a batch."
            )
        losses, whole = record_losses(loss_fn, together, targets), loss_fn(together, targets)
    options = torch.stack([losses.mean(), losses.sum()])
    if bool(whole.isfinite()) and not bool(((whole - options).abs() <= close * (1 + options.abs())).any()):
        raise InvalidInput(
            "Expected the loss of a batch to be the mean or the sum of its records' losses; class weights cancel in a "
            "mean over one record. Pass a loss_fn that multiplies by the record's weight and adds."
        )


def draws_at_random(layer: nn.Module) -> bool:
    """Whether a layer is random in training mode."""
    if isinstance(layer, nn.modules.dropout._DropoutNd):
        return layer.p > 0
    inner = isinstance(layer, (nn.RNNBase, nn.MultiheadAttention)) and layer.dropout > 0
    return inner or isinstance(layer, nn.RReLU)


def chosen_names(parameters: Iterable[str], known: Sequence[str]) -> set[str]:
    """The names among ``known`` that are listed, or belong to a listed layer."""
    if isinstance(parameters, str):
        raise InvalidInput(f"Expected parameters={parameters!r} to be a list of names. Write [{parameters!r}].")
    chosen: set[str] = set()
    for wanted in parameters:
        matches = {name for name in known if name == wanted or name.startswith(f"{wanted}.")}
        if not matches:
            raise invalid_input("parameters", wanted, f"to name one of {', '.join(known)}")
        chosen |= matches
    return chosen

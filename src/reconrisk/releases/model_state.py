"""The parameters of a module as values: the released ones, the fixed ones, and their precision."""

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
    """The tensors of a module, detached from it.

    Attributes:
        model: The module, which is never changed.
        released: Released parameters by name.
        fixed: All other parameters and buffers by name.
    """

    model: nn.Module
    released: dict[str, Tensor]
    fixed: dict[str, Tensor]

    def outputs(self, inputs: Tensor, released: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return the outputs of the module, without changing it.

        Args:
            inputs: A batch of records.
            released: Other values of the released parameters; by default the values of the module.

        Returns:
            Outputs of the batch, differentiable with respect to ``inputs`` and ``released``.
        """
        values = {**self.fixed, **(self.released if released is None else released)}
        # Batch norm in training mode writes to its buffers: hand it copies.
        buffers = {
            name: value.clone() for name, value in self.fixed.items() if name in dict(self.model.named_buffers())
        }
        return call_module(self.model, {**values, **buffers}, inputs)

    def gradient(self, loss: Callable[[dict[str, Tensor]], Tensor]) -> dict[str, Tensor]:
        """Return the gradient of a loss with respect to the released parameters.

        Args:
            loss: Loss as a function of the released parameters.

        Returns:
            The gradient by name, differentiable with respect to records in ``loss``.
        """
        try:
            found: dict[str, Tensor] = torch.func.grad(loss)(self.released)
        except RuntimeError:  # torch.func cannot trace a layer; for other causes plain autograd raises the error again
            leaves = {name: value.detach().requires_grad_() for name, value in self.released.items()}
            with torch.enable_grad():
                gradients = torch.autograd.grad(
                    loss(leaves), list(leaves.values()), create_graph=True, materialize_grads=True
                )
            found = dict(zip(leaves, gradients, strict=True))
        return found


def call_module(model: nn.Module, tensors: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    """Call a module with other parameters and buffers, without changing it.

    Attention is computed by plain matrix products, since its fused kernels cannot be differentiated twice.

    Args:
        model: The module.
        tensors: Parameters and buffers by name.
        inputs: A batch of records.

    Returns:
        The outputs of the module.

    >>> call_module(nn.Linear(1, 1), {"weight": torch.full((1, 1), 2.0), "bias": torch.zeros(1)}, torch.ones(1, 1))
    tensor([[2.]])
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
    """Split the tensors of a module into released and fixed ones, in one precision.

    Args:
        model: The module.
        dtype: Precision of all floating-point tensors.
        parameters: Names of the released parameters or whole layers ("head" means "head.weight" and "head.bias"); by
            default all parameters that require gradients.
        state: Tensors that replace those of the module, by name.

    Returns:
        The tensors, detached from the module.

    Raises:
        InvalidInput: If no parameter is released, or a name is unknown.

    >>> sorted(model_state(nn.Linear(2, 2), torch.float64, parameters=["bias"]).fixed)
    ['weight']
    """
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    # Explicitly named parameters are released even if they are frozen.
    names = (
        trained
        if parameters is None
        else match_parameter_names(parameters, [name for name, _ in model.named_parameters()])
    )
    if not names:
        raise invalid_input(
            "parameters", [], "to name at least one parameter", "Call model.requires_grad_(), or name parameters."
        )
    given = {name: value for name, value in (state or {}).items() if name in own}
    values = cast_tensors({**own, **given}, dtype)
    released = {name: value for name, value in values.items() if name in names}
    return ModelState(model, released, {name: value for name, value in values.items() if name not in names})


def cast_tensors(values: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the tensors detached, with floating-point ones in another precision.

    Args:
        values: Tensors by name.
        dtype: Precision of the floating-point tensors; others keep theirs.

    Returns:
        The tensors by name.
    """
    # A tensor made under inference_mode cannot be saved for a backward pass, and its copy can.
    usable = {name: value.clone() if value.is_inference() else value for name, value in values.items()}
    return {name: v.detach().to(dtype) if v.is_floating_point() else v.detach() for name, v in usable.items()}


def record_losses(loss_fn: LossFunction, outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of each record by itself.

    Args:
        loss_fn: Loss of the outputs and labels of a batch.
        outputs: Outputs of the model, one row per record.
        labels: One label per record.

    Returns:
        One loss per record, (n,).

    Raises:
        InvalidInput: If ``loss_fn`` does not return one number for one record.

    >>> record_losses(nn.functional.mse_loss, torch.ones(3, 2), torch.zeros(3, 2))
    tensor([1., 1., 1.])
    """

    def loss(output: Tensor, label: Tensor) -> Tensor:
        return loss_fn(output[None], label[None])

    try:
        losses: Tensor = torch.func.vmap(loss)(outputs, labels)
    except (RuntimeError, ValueError):
        # vmap cannot trace every loss. The loop is cheap, since it runs over outputs and not through the network.
        losses = torch.stack([loss(output, label) for output, label in zip(outputs, labels, strict=True)])
    if losses.shape != (len(outputs),):
        raise invalid_input(
            "loss_fn(...).shape",
            tuple(losses.shape[1:]),
            "to be (), one number per record",
            "Reduce the loss of a record to a scalar.",
        )
    return losses


def check_mode(model: nn.Module, *, batch_norm: bool = False) -> None:
    """Refuse layers that are random in training mode or that mix the records of a batch.

    Args:
        model: The module.
        batch_norm: True to accept batch norm in training mode, which mixes the records of a batch.

    Raises:
        InvalidInput: If such a layer is in the module; the error names it.
    """
    for name, layer in model.named_modules():
        if layer.training and is_random_layer(layer):
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
                remedy = "Use rr.models.group_norm(channels) instead: this layer mixes the records of a batch."
                raise invalid_input(
                    f"{name or 'model'}.track_running_stats", False, f"to be True for {type(layer).__name__}", remedy
                )


def check_records_independent(state: ModelState, loss_fn: LossFunction, inputs: Tensor, labels: Tensor) -> None:
    """Refuse models that mix records or are random, and losses that are not the mean or sum of the records' losses.

    Up to four records of different labels are tried. The global random state is left as it was.

    Args:
        state: The model.
        loss_fn: Loss of the outputs and labels of a batch.
        inputs: Records, ``(n, *shape)``.
        labels: One label per record.

    Raises:
        InvalidInput: If two passes differ, the outputs of a record depend on others, or the loss is neither mean nor
            sum.
    """
    rows = torch.arange(min(4, len(labels)))
    if labels.ndim == 1:  # class weights show only if the labels differ
        first = [int((labels == value).nonzero()[0]) for value in labels.unique()[:4]]
        rows = torch.tensor(sorted({*first, *range(min(2, len(labels)))})[:4])
    some, targets = inputs[rows].detach(), labels[rows]
    close = torch.finfo(inputs.dtype).eps ** 0.5  # half the digits: above rounding, below any mixing of records
    with torch.no_grad(), torch.random.fork_rng(devices=[]):  # the user's random numbers stay the same
        together, again = state.outputs(some), state.outputs(some)
        if not torch.equal(together.nan_to_num(), again.nan_to_num()):  # NaN differs from itself
            raise InvalidInput(
                "Expected a model that gives the same outputs twice for the same records, but two passes differ. "
                "Call model.eval() first."
            )
        apart = torch.cat([state.outputs(record[None]) for record in some])
        if together.shape != apart.shape or not torch.allclose(together, apart, rtol=close, atol=close, equal_nan=True):
            raise InvalidInput(
                "Expected a model whose outputs for a record depend on that record alone. "
                "Leave out reduction and clip, or replace the layer that mixes the records of a batch."
            )
        losses, whole = record_losses(loss_fn, together, targets), loss_fn(together, targets)
    options = torch.stack([losses.mean(), losses.sum()])
    if bool(whole.isfinite()) and not bool(((whole - options).abs() <= close * (1 + options.abs())).any()):
        raise InvalidInput(
            "Expected the loss of a batch to be the mean or the sum of the losses of its records. Note that class "
            "weights cancel in a mean over one record. Pass a loss_fn that multiplies by the record's weight and adds."
        )


def is_random_layer(layer: nn.Module) -> bool:
    """Return True if a layer is random in training mode.

    Args:
        layer: A layer of a model.

    Returns:
        True for dropout (also inside recurrent and attention layers) and randomised ReLU.
    """
    if isinstance(layer, nn.modules.dropout._DropoutNd):
        return layer.p > 0
    inner = isinstance(layer, (nn.RNNBase, nn.MultiheadAttention)) and layer.dropout > 0
    return inner or isinstance(layer, nn.RReLU)


def match_parameter_names(parameters: Iterable[str], known: Sequence[str]) -> set[str]:
    """Return the known names that are listed, or that belong to a listed layer.

    Args:
        parameters: Names of parameters or layers.
        known: All names to choose from.

    Returns:
        The chosen names.

    Raises:
        InvalidInput: If ``parameters`` is one string, or a name matches nothing.

    >>> sorted(match_parameter_names(["head"], ["body.weight", "head.weight", "head.bias"]))
    ['head.bias', 'head.weight']
    """
    if isinstance(parameters, str):
        raise InvalidInput(f"Expected parameters={parameters!r} to be a list of names. Write [{parameters!r}].")
    chosen: set[str] = set()
    for wanted in parameters:
        matches = {name for name in known if name == wanted or name.startswith(f"{wanted}.")}
        if not matches:
            raise invalid_input("parameters", wanted, f"to name one of {', '.join(known)}")
        chosen |= matches
    return chosen

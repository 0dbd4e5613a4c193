"""Which modules are dense networks, and what their activations do in place to the units of many models at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

Apply = Callable[[Tensor], Tensor]
Pull = Callable[[Tensor, Tensor], Tensor]

_ELEMENTWISE = (
    nn.ELU, nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Softplus, nn.Mish,
    nn.Hardtanh, nn.ReLU6, nn.LogSigmoid, nn.Softsign, nn.Hardswish, nn.Tanhshrink,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Pointwise:
    """An activation: ``apply`` may write to its argument; ``pull`` takes a gradient and what it says it keeps.

    Where ``from_output`` the derivative follows from the activation's output, so that its input need not be kept.
    """

    module: nn.Module
    apply: Apply
    pull: Pull
    from_output: bool


@dataclass(frozen=True, eq=False)
class DenseLayer:
    """A linear map by the names of its parameters, and the activation after it."""

    weight: str
    bias: str | None
    fan_in: int
    fan_out: int
    activation: Pointwise | None


def dense_layers(model: nn.Module) -> tuple[DenseLayer, ...] | None:
    """The layers of a network of flattening, linear maps and at most one activation after each; None for others."""
    found: list[DenseLayer] = []
    for name, module in _leaves(model):
        if isinstance(module, nn.Identity) or (_flattens(module) and not found):
            continue
        if type(module) is nn.Linear:
            found.append(_linear(name, module))
        elif type(module) in _ELEMENTWISE and found and found[-1].activation is None:
            last = found[-1]
            found[-1] = DenseLayer(last.weight, last.bias, last.fan_in, last.fan_out, pointwise(module))
        else:
            return None
    whole = all(parameter.requires_grad for parameter in model.parameters())
    fits = all(one.fan_out == other.fan_in for one, other in pairwise(found))
    parameters = dict(model.named_parameters())
    named = {name for layer in found for name in (layer.weight, layer.bias) if name is not None}
    return tuple(found) if found and whole and fits and named == set(parameters) else None  # shared weights differ


def pointwise(module: nn.Module) -> Pointwise:
    """How to apply and pull back ``module`` with one pass over memory each; by autograd where no kernel is known."""
    aten = torch.ops.aten
    match module:
        case nn.ELU(alpha=alpha) if alpha > 0:
            return Pointwise(
                module,
                lambda z: nn.functional.elu_(z, alpha),
                lambda g, a: aten.elu_backward.grad_input(g, alpha, 1.0, 1.0, True, a, grad_input=g),
                True,
            )
        case nn.ReLU():
            return Pointwise(
                module, torch.relu_, lambda g, a: aten.threshold_backward.grad_input(g, a, 0.0, grad_input=g), True
            )
        case nn.Tanh():
            return Pointwise(module, torch.tanh_, lambda g, a: aten.tanh_backward.grad_input(g, a, grad_input=g), True)
        case nn.Sigmoid():
            return Pointwise(
                module, torch.sigmoid_, lambda g, a: aten.sigmoid_backward.grad_input(g, a, grad_input=g), True
            )
        case _:
            return Pointwise(module, module, _pulled(module), False)


def _pulled(module: nn.Module) -> Pull:
    def pull(gradient: Tensor, before: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = before.detach().requires_grad_()
            (found,) = torch.autograd.grad(module(leaf), leaf, gradient)
        return gradient.copy_(found)

    return pull


def _linear(name: str, module: nn.Linear) -> DenseLayer:
    prefix = f"{name}." if name else ""
    bias = None if module.bias is None else f"{prefix}bias"
    return DenseLayer(f"{prefix}weight", bias, module.in_features, module.out_features, None)


def _flattens(module: nn.Module) -> bool:
    return isinstance(module, nn.Flatten) and module.start_dim == 1 and module.end_dim == -1


def _leaves(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The modules that a chain of ``nn.Sequential`` calls one after the other."""
    if type(model) is nn.Sequential:
        for name, child in model.named_children():
            yield from _leaves(child, f"{prefix}.{name}" if prefix else name)
    else:
        yield prefix, model

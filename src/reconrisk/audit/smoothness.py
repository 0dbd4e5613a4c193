"""Whether the gradient of a loss is known to move without jumps as the record moves, which bounds on errors assume."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from reconrisk.releases.state import LossFunction

_SMOOTH_LAYERS = (
    nn.Identity,
    nn.Flatten,
    nn.Unflatten,
    nn.Linear,
    nn.Bilinear,
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.AvgPool3d,
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveAvgPool3d,
    nn.Tanh,
    nn.Sigmoid,
    nn.LogSigmoid,
    nn.Softplus,
    nn.SiLU,
    nn.GELU,
    nn.Mish,
    nn.ELU,
    nn.CELU,
    nn.Softmax,
    nn.LogSoftmax,
    nn.Dropout,
    nn.ZeroPad2d,
    nn.RNN,
    nn.RNNCell,
    nn.LSTM,
    nn.LSTMCell,
    nn.GRU,
    nn.GRUCell,
)
"""Layers of which some settings are smooth; what they do in a pass decides."""

_SMOOTH_OPERATIONS = frozenset(
    name
    for names in (
        "add sub rsub neg mul addmm mm bmm baddbmm addbmm addmv mv dot outer matmul linear convolution sum mean var",
        "cumsum exp tanh sigmoid log_sigmoid_forward softplus silu gelu mish celu sin cos erf square logsumexp",
        "_softmax _log_softmax nll_loss_forward nll_loss2d_forward mse_loss binary_cross_entropy_with_logits",
        "avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d native_batch_norm _native_batch_norm_legit",
        "_native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_no_update native_layer_norm",
        "native_group_norm view _unsafe_view reshape _reshape_alias expand permute transpose t unsqueeze squeeze slice",
        "select index_select cat stack split split_with_sizes unbind clone detach alias contiguous copy _to_copy",
        "lift_fresh as_strided constant_pad_nd zeros ones zeros_like ones_like new_zeros full empty empty_like",
        "new_empty scalar_tensor fill zero arange",
    )
    for name in names.split()
)
"""Operations, by name, whose derivatives are continuous for all settings."""


def is_known_smooth(model: nn.Module, loss_fn: LossFunction, inputs: Tensor, labels: Tensor) -> bool:
    """Whether every layer and every operation of a pass through model and loss is known to have no kink.

    ReLU and max-pooling have one: the gradient jumps as the record moves.

    Guarantee: False where anything is not known: a layer or function that is not listed, a comparison, a gradient that
    is stated by hand, or a pass that raises.

    >>> inputs, labels = torch.rand(2, 3), torch.tensor([0, 1])
    >>> [
    ...     is_known_smooth(nn.Sequential(nn.Linear(3, 2), layer), nn.functional.cross_entropy, inputs, labels)
    ...     for layer in (nn.Tanh(), nn.ReLU(), nn.ELU(1.0), nn.ELU(0.5))
    ... ]
    [True, False, True, False]
    """
    leaves = (layer for layer in model.modules() if not any(layer.children()))
    if not all(isinstance(layer, _SMOOTH_LAYERS) or layer is model for layer in leaves):
        return False
    scan, working = _Scan(), copy.deepcopy(model)  # whose running statistics stay as they are
    records = inputs.detach().clone().requires_grad_(inputs.is_floating_point())
    try:
        with torch.enable_grad(), scan:  # without gradients layers take short cuts that hide what they do
            loss = loss_fn(working(records), labels)
    except Exception:  # a module of the user may raise anything, and whoever needs its pass will say so
        return False
    return scan.is_smooth and not _has_stated_gradient(loss)


class _Scan(TorchDispatchMode):
    """Looks at every operation that is run inside."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not say
        self.is_smooth = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation and remember whether it is smooth."""
        self.is_smooth = self.is_smooth and _is_smooth(func.overloadpacket.__name__, args)
        return func(*args, **(kwargs or {}))


def _is_smooth(operation: str, args: tuple[Any, ...]) -> bool:
    """Whether an operation has continuous derivatives, with these settings."""
    name = operation.removesuffix("_")  # in place or not
    if name in _SMOOTH_OPERATIONS:
        return True
    if name == "elu":  # scale * (x if x > 0 else alpha * (exp(input_scale * x) - 1))
        alpha, _, input_scale = [*args[1:], 1.0, 1.0, 1.0][:3]
        return math.isclose(alpha * input_scale, 1.0)
    if name == "div":
        return not isinstance(args[1], Tensor) or (args[1].dim() == 0 and not args[1].requires_grad)
    return name == "pow" and isinstance(args[1], (int, float)) and args[1] >= 0 and float(args[1]).is_integer()


def _has_stated_gradient(loss: Tensor) -> bool:
    """Whether a function with a gradient of its own is in the graph: what it says need not be a derivative."""
    waiting: list[Any] = [loss.grad_fn]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return True
        seen.add(node)
        waiting += [each for each, _ in node.next_functions]
    return False

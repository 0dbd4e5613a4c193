"""How weights begin: one place where a generator becomes a reproducible model, and the papers' initial laws."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from reconrisk.core.validation import refuse

M = TypeVar("M", bound=nn.Module)


def initialised(build: Callable[[], M], rng: torch.Generator | None) -> M:
    """The model that ``build`` makes, its random weights fixed by the state of ``rng``.

    Modules draw their weights from the global generator, so that generator is seeded from ``rng`` and put back.

    Guarantee: with ``rng`` the weights depend on its state alone, not on the device (they are drawn on the CPU and
    moved to the default device), ``rng`` moves on by one draw, and the global generator is as before, also when
    ``build`` fails.
    Edge cases: without ``rng`` it is ``build()``, which draws from the global generator as every module does.

    >>> from torch import nn
    >>> one = initialised(lambda: nn.Linear(2, 1), torch.Generator().manual_seed(0))
    >>> two = initialised(lambda: nn.Linear(2, 1), torch.Generator().manual_seed(0))
    >>> torch.equal(one.weight, two.weight)
    True
    """
    if rng is None:
        return build()
    if not isinstance(rng, torch.Generator):
        raise refuse("rng", rng, "to be a torch.Generator", "Make one with torch.Generator().manual_seed(0).")
    device = torch.get_default_device()
    seed = int(torch.randint(2**63 - 1, (), generator=rng, device=rng.device))
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the accelerators too
        model = build()
    return model.to(device)


def redraw(
    model: M,
    kind: type[nn.Module] | tuple[type[nn.Module], ...],
    weight: Callable[[Tensor], object],
    bias: Callable[[Tensor], object] = nn.init.zeros_,
) -> M:
    """``model`` with the weights and biases of its layers of one ``kind`` drawn anew."""
    for layer in model.modules():
        if isinstance(layer, kind):
            weight(layer.get_parameter("weight"))
            if layer.bias is not None:
                bias(layer.get_parameter("bias"))
    return model


def he_normal(weight: Tensor) -> None:
    """Normal with variance 2 / fan-out: keeps gradients of ReLU networks in scale (He et al. 2015)."""
    nn.init.kaiming_normal_(weight, mode="fan_out", nonlinearity="relu")


def lecun_normal(weight: Tensor) -> None:
    """Normal with scale 1 / sqrt(fan-in) cut at two scales: the default of the JAX library haiku."""
    scale = 1 / math.sqrt(weight[0].numel())
    nn.init.trunc_normal_(weight, std=scale, a=-2 * scale, b=2 * scale)

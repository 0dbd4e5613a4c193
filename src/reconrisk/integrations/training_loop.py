"""A defense in a plain training loop: gradients are defended right before the optimizer uses them."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from reconrisk.core.defense import Defense
from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import invalid_input
from reconrisk.defenses.base import SendingDefense
from reconrisk.defenses.chain import Chain
from reconrisk.defenses.refreshed import defense_at


class DefendedLoop:
    """An optimizer whose every step uses defended gradients, until it is closed; :func:`defend` makes it.

    ``sent`` is what the last step used, by name of the parameter: what would leave the machine. ``steps`` counts.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, model: nn.Module, defense: Defense, rng: torch.Generator
    ) -> None:
        self.defense, self.steps = defense, 0
        self.sent: dict[str, Tensor] = {}
        self._rng, self._model = rng, model
        _shared(optimizer, model)
        self._handle = optimizer.register_step_pre_hook(self._before_step)

    def close(self) -> None:
        """Let the optimizer use gradients as they are again."""
        self._handle.remove()

    def _before_step(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if len(args) > 1 or kwargs.get("closure") is not None:  # the first is the optimizer itself
            remedy = "Compute the loss and its gradients before the step."
            raise invalid_input(
                "closure", "a function", "to be None: it would compute gradients that are not defended", remedy
            )
        parameters = _shared(optimizer, self._model)
        if all(value.grad is None for value in parameters.values()):
            raise InvalidInput("Expected gradients before a step. Call loss.backward() first.")
        for value in parameters.values():
            if value.grad is None:  # a part of the network that this batch did not use: that, too, must not show
                value.grad = torch.zeros_like(value)
        gradients = {name: value.grad.detach() for name, value in parameters.items() if value.grad is not None}
        sent = defense_at(self.defense, self._model)(gradients, rng=self._rng)
        for name, gradient in gradients.items():
            gradient.copy_(sent[name])
        self.sent, self.steps = {name: value.detach().clone() for name, value in sent.items()}, self.steps + 1

    def __enter__(self) -> DefendedLoop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def defend_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module, defense: Defense, *, rng: torch.Generator | None = None
) -> DefendedLoop:
    """Defend the gradients of a plain training loop: every ``optimizer.step()`` uses what ``defense`` sends.

    Without ``rng`` the noise is seeded by the machine, as it should be where it counts.

    Assumes: the gradient of a step is what is released, of one client or of one record; ``defense.mechanism`` speaks
    of it as a whole. For DP-SGD, which clips each record of a batch, train with Opacus.
    Guarantee: nothing of the gradient but what the defense sends reaches the parameters or ``sent``.
    Edge cases: gradients that are not finite are refused, and so are a step without any and one with a closure, which
    would compute gradients of its own. A parameter that the loss did not use is sent as if its gradient were zero.
    Frozen parameters are left out.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    >>> before = model.weight.detach().clone()
    >>> from reconrisk.defenses.clipping import clip
    >>> with defend_optimizer(optimizer, model, clip(0.5), rng=torch.Generator()) as defended:
    ...     model(torch.tensor([[3.0, 4.0]])).sum().backward()
    ...     optimizer.step()
    >>> (before - model.weight.detach()).norm()
    tensor(0.5000)
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise invalid_input("optimizer", type(optimizer).__name__, "to be a torch optimizer")
    if rng is None:
        rng = torch.Generator()
        rng.seed()
    if not isinstance(rng, torch.Generator):
        raise invalid_input("rng", rng, "to be a torch.Generator", "Make one with torch.Generator().manual_seed(0).")
    parts = defense.parts if isinstance(defense, Chain) else (defense,)
    if any(not hasattr(part, "replay") for part in parts):
        raise invalid_input("defense", defense, "to be a defense", "Pass rr.defenses.clip(1.0), for instance.")
    if any(part.is_local for part in parts if isinstance(part, SendingDefense)):
        remedy = "Take the global form: rr.defenses.refreshed(...) recomputes it from public records."
        raise invalid_input("defense", str(defense), "to need no records, which a loop does not show it", remedy)
    return DefendedLoop(optimizer, model, defense, rng)


def _shared(optimizer: torch.optim.Optimizer, model: nn.Module) -> Mapping[str, Tensor]:
    """The parameters of the model by name; refused where the optimizer moves others."""
    named = dict(model.named_parameters())
    known = {id(value) for value in named.values()}
    stepped = {id(value) for group in optimizer.param_groups for value in group["params"]}
    if not stepped <= known:
        remedy = "Pass the model whose parameters it steps."
        raise invalid_input("optimizer", f"{len(stepped - known)} parameters", "to be of the model", remedy)
    return {name: value for name, value in named.items() if id(value) in stepped and value.requires_grad}

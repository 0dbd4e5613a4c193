"""A defense in a plain training loop: gradients are defended right before the optimizer uses them."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from reconrisk.core.defense import Defense
from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import check_all_finite, refuse
from reconrisk.defenses.local import LocalDefense
from reconrisk.defenses.refreshed import Refreshed


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
        self._parameters = _shared(optimizer, model)
        self._handle = optimizer.register_step_pre_hook(self._before_step)

    def close(self) -> None:
        """Let the optimizer use gradients as they are again."""
        self._handle.remove()

    def _before_step(self, *_: Any) -> None:
        gradients = {name: value.grad for name, value in self._parameters.items() if value.grad is not None}
        if not gradients:
            raise InvalidInput("Expected gradients before a step. Call loss.backward() first.")
        for name, gradient in gradients.items():
            check_all_finite(f"gradient of {name}", gradient, "Lower the learning rate, or check the loss.")
        present: Defense = self.defense.for_model(self._model) if isinstance(self.defense, Refreshed) else self.defense
        sent = present({name: value.detach() for name, value in gradients.items()}, rng=self._rng)
        for name, gradient in gradients.items():
            gradient.copy_(sent[name])
        self.sent, self.steps = {name: value.detach().clone() for name, value in sent.items()}, self.steps + 1

    def __enter__(self) -> DefendedLoop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def defend(
    optimizer: torch.optim.Optimizer, model: nn.Module, defense: Defense, *, rng: torch.Generator
) -> DefendedLoop:
    """Defend the gradients of a plain training loop: every ``optimizer.step()`` uses what ``defense`` sends.

    Assumes: the gradient of a step is what is released, of one client or of one record; ``defense.mechanism`` speaks
    of it as a whole. For DP-SGD, which clips each record of a batch, train with Opacus.
    Guarantee: nothing of the gradient but what the defense sends reaches the parameters or ``sent``.
    Edge cases: gradients that are not finite are refused, and so is a step without any. Parameters without a gradient
    are left out.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    >>> before = model.weight.detach().clone()
    >>> from reconrisk.defenses.clipping import clip
    >>> with defend(optimizer, model, clip(0.5), rng=torch.Generator()) as defended:
    ...     model(torch.tensor([[3.0, 4.0]])).sum().backward()
    ...     optimizer.step()
    >>> (before - model.weight.detach()).norm()
    tensor(0.5000)
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise refuse("optimizer", type(optimizer).__name__, "to be a torch optimizer")
    if not isinstance(rng, torch.Generator):
        raise refuse("rng", rng, "to be a torch.Generator", "Make one with torch.Generator().manual_seed(0).")
    if isinstance(defense, LocalDefense):
        remedy = "Take the global form: rr.defenses.refreshed(...) recomputes it from public records."
        raise refuse("defense", str(defense), "to need no records, which a loop does not show it", remedy)
    return DefendedLoop(optimizer, model, defense, rng)


def _shared(optimizer: torch.optim.Optimizer, model: nn.Module) -> Mapping[str, Tensor]:
    """The parameters of the model by name; refused where the optimizer moves others."""
    named = dict(model.named_parameters())
    known = {id(value) for value in named.values()}
    stepped = {id(value) for group in optimizer.param_groups for value in group["params"]}
    if not stepped <= known:
        remedy = "Pass the model whose parameters it steps."
        raise refuse("optimizer", f"{len(stepped - known)} parameters", "to be of the model", remedy)
    return {name: value for name, value in named.items() if id(value) in stepped}

"""Defense in a plain training loop: gradients are defended right before the optimizer uses them."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from reconrisk.core.defense import Defense
from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import invalid_input
from reconrisk.defenses.base import BaseDefense
from reconrisk.defenses.chain import Chain
from reconrisk.defenses.refreshed import defense_for_model
from reconrisk.releases.float_safe_noise import protecting_generator


class DefendedLoop:
    """Optimizer whose steps use defended gradients until it is closed, as returned by :func:`defend`.

    Use it as a context manager, or call :meth:`close`.

    Args:
        optimizer: Optimizer of the loop. Its gradients are changed in place before each step.
        model: Model whose parameters the optimizer updates.
        defense: Defense of the gradient of one step.
        rng: Source of the noise.

    Attributes:
        defense: The defense.
        steps: Number of steps so far.
        sent: Gradients that the last step used, by parameter name: the update that would leave the machine.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, model: nn.Module, defense: Defense, rng: torch.Generator
    ) -> None:
        self.defense, self.steps = defense, 0
        self.sent: dict[str, Tensor] = {}
        self._rng, self._model = rng, model
        _stepped_parameters(optimizer, model)  # raises at once for another model
        self._handle = optimizer.register_step_pre_hook(self._before_step)

    def close(self) -> None:
        """Let the optimizer use undefended gradients again."""
        self._handle.remove()

    def _before_step(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Replace the gradients by defended ones; the optimizer calls this before each step."""
        if len(args) > 1 or kwargs.get("closure") is not None:  # args[0] is the optimizer itself
            remedy = "Call loss.backward() before step() instead."
            raise InvalidInput(f"Expected step() without a closure, which would compute undefended gradients. {remedy}")
        parameters = _stepped_parameters(optimizer, self._model)
        if all(value.grad is None for value in parameters.values()):
            raise InvalidInput("Expected gradients before a step. Call loss.backward() first.")
        for value in parameters.values():
            if value.grad is None:  # unused by this batch, which must not be visible either
                value.grad = torch.zeros_like(value)
        gradients = {name: value.grad.detach() for name, value in parameters.items() if value.grad is not None}
        sent = defense_for_model(self.defense, self._model)(gradients, rng=self._rng)
        for name, gradient in gradients.items():
            gradient.copy_(sent[name])  # in place: the optimizer reads value.grad
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
    """Defend the gradients of a plain training loop: every ``optimizer.step()`` uses defended gradients.

    Args:
        optimizer: Optimizer of the loop. Its gradients are changed in place.
        model: Model whose parameters the optimizer updates.
        defense: Defense of the gradient of one step. A defense from ``rr.defenses.refreshed`` is computed again as the
            model changes.
        rng: Seeded generator for repeatable simulations; a warning says that it protects nothing. None draws the bits
            of the noise from the operating system.

    Returns:
        A context manager that restores the optimizer at its end.

    Raises:
        InvalidInput: If an argument has a wrong type, the optimizer updates other parameters, or private records choose
            the defense.

    Assumes: the gradient of a step is the release of one client or one record; ``defense.mechanism`` covers the
    gradient as a whole. For DP-SGD, which clips each record of a batch, train with Opacus.
    Guarantee: only the output of the defense reaches the parameters and ``sent``.
    Edge cases: a defense that clips replaces gradients that are not finite by zero, others refuse them. A step without
    gradients is refused, as is a step with a closure, which would compute its own. A parameter that the loss did not
    use is sent as if its gradient were zero. Frozen parameters are left out. Buffers, such as the statistics of batch
    norm, are not defended: keep such layers in evaluation mode, or do not release their buffers.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    >>> before = model.weight.detach().clone()
    >>> from reconrisk.defenses.clipping import clip
    >>> with defend_optimizer(optimizer, model, clip(0.5)) as defended:
    ...     model(torch.tensor([[3.0, 4.0]])).sum().backward()
    ...     optimizer.step()
    >>> (before - model.weight.detach()).norm()
    tensor(0.5000)
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise invalid_input(
            "type(optimizer)",
            type(optimizer).__name__,
            "to be a torch optimizer",
            "Pass torch.optim.SGD(model.parameters(), lr=0.1), for instance.",
        )
    rng = protecting_generator(rng)
    parts = defense.parts if isinstance(defense, Chain) else (defense,)
    if any(not hasattr(part, "replay") for part in parts):
        raise invalid_input("defense", defense, "to be a defense", "Pass rr.defenses.clip(1.0), for instance.")
    if any(part.is_local for part in parts if isinstance(part, BaseDefense)):
        remedy = "Use the global form: rr.defenses.refreshed(...) recomputes it from public records."
        raise invalid_input("defense", str(defense), "to need no records, which the loop cannot pass", remedy)
    return DefendedLoop(optimizer, model, defense, rng)


def _stepped_parameters(optimizer: torch.optim.Optimizer, model: nn.Module) -> Mapping[str, Tensor]:
    """Return the trainable parameters that the optimizer updates, by name; all must belong to the model."""
    named = dict(model.named_parameters())
    known = {id(value) for value in named.values()}
    stepped = {id(value) for group in optimizer.param_groups for value in group["params"]}
    if not stepped <= known:
        remedy = "Pass the model whose parameters the optimizer updates."
        raise InvalidInput(
            f"Expected an optimizer of parameters of the model, but {len(stepped - known)} belong to another "
            f"model. {remedy}"
        )
    return {name: value for name, value in named.items() if id(value) in stepped and value.requires_grad}

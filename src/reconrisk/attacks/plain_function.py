"""Plain functions as attacks, with the same checks as the attacks of this package."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from reconrisk.core.digest import identify_settings, short_digest
from reconrisk.core.observation import Attack, Observation
from reconrisk.core.reconstruction import AttackReport, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import HONEST_BUT_CURIOUS, ThreatModel
from reconrisk.core.validation import invalid_input

_SIGNATURE = "(observation, *, rng)"


@dataclass(frozen=True, eq=False)
class FunctionAttack:
    """Attack made from a plain function by :func:`attack_from_function`.

    Attributes:
        function: Function ``(observation, *, rng)`` that returns a tensor of estimates or a Reconstruction.
        name: Name of the attack in results.
        needs: Weakest threat model that allows the attack.

    Guarantee: two functions of the same name but with different code have different representations, so stored trials
    of one are never taken for trials of the other.
    """

    function: Callable[..., Reconstruction | Tensor]
    name: str
    needs: ThreatModel = HONEST_BUT_CURIOUS

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Call the function and check its result."""
        observation.check_covers(self.needs)
        begun = time.monotonic()
        found = self.function(observation, rng=rng)
        if isinstance(found, Reconstruction):
            return found
        estimates = self._estimates(found, observation)
        status, lost = Status(Ending.CONVERGED, "the function returned estimates"), int((~estimates.isfinite()).sum())
        if lost:
            cause = f"{lost} of {estimates.numel()} returned values are not finite"
            status = Status(Ending.DIVERGED, cause, "Return finite estimates")
        account = AttackReport(repr(self), status, (math.inf,) * len(estimates), Cost(time.monotonic() - begun, 0))
        return Reconstruction(estimates, account)

    def _estimates(self, found: object, observation: Observation) -> Tensor:
        """Return the tensor as estimates; raise InvalidInput if it does not have the shape of the records."""
        wanted = f"to be a tensor of shape (n, {', '.join(map(str, observation.input_shape))}) with n up to batch_size"
        returned = f"the result of {self.name}"
        if not isinstance(found, Tensor):
            kind, remedy = type(found).__name__, "Return the estimates as a torch tensor, or a Reconstruction."
            raise invalid_input(returned, kind, f"{wanted}={observation.batch_size}", remedy)
        shape = tuple(found.shape)
        if found.ndim == 0 or shape[1:] != observation.input_shape or not 0 < len(found) <= observation.batch_size:
            is_one = shape == observation.input_shape
            remedy = "Return estimates[None]." if is_one else "Return one estimate per record, along the first axis."
            raise invalid_input(f"shape of {returned}", shape, f"{wanted}={observation.batch_size}", remedy)
        return found.detach() if found.is_floating_point() else found.detach().to(torch.get_default_dtype())

    @cached_property
    def _digest(self) -> str:
        return short_digest(
            identify_settings(self.function)
        )  # objects that cannot be digested, such as locks, count by their address

    def __repr__(self) -> str:
        """Return the name with a digest of the code, in place of settings."""
        return f"{self.name}(code={self._digest})"


def attack_from_function(function: Any) -> Attack:
    """Turn a function ``(observation, *, rng)`` into an attack.

    Args:
        function: Returns estimates of the records as a tensor, one per row, or a
            :class:`~reconrisk.core.reconstruction.Reconstruction`. Its optional attribute ``needs``, a ThreatModel, is
            the weakest threat model that allows the attack (default: an honest server that reads one update). An object
            that is an attack already is returned unchanged.

    Returns:
        The attack, with the name of the function.

    Raises:
        InvalidInput: If ``function`` is not callable, has another signature, or is the class of an attack.

    Guarantee: a result is refused unless it has the shape of at most ``batch_size`` records. Values that are not finite
    make the attempt a failure.
    Edge cases: the objective of a returned tensor is inf, since the function does not report its fit to the release.

    >>> def middle(observation, *, rng):
    ...     return torch.full((observation.batch_size, *observation.input_shape), 0.5)
    >>> attack = attack_from_function(middle)
    >>> seen = Observation({"y": torch.ones(1)}, lambda inputs, labels: {}, HONEST_BUT_CURIOUS, (2,), (0.0, 1.0))
    >>> attack(seen, rng=torch.Generator()).estimates
    tensor([[0.5000, 0.5000]])
    >>> attack_from_function(lambda observation: observation)
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidInput: Expected attack='function(observation)' to take (observation, *, rng). \
Write def function(observation, *, rng): ...
    """
    needs = getattr(function, "needs", HONEST_BUT_CURIOUS)
    if isinstance(function, type):
        name = function.__name__
        raise invalid_input(
            "attack", f"the class {name}", "to be a configured attack", f"Pass an instance: {name}(...)."
        )
    if not callable(function):
        remedy = f"Pass a name, a configured attack or a function {_SIGNATURE}."
        raise invalid_input("attack", type(function).__name__, "to be callable", remedy)
    inner = function  # a partial has no name: look through it
    while isinstance(inner, partial):
        inner = inner.func
    name = getattr(inner, "__name__", type(inner).__name__)
    name = name if name.isidentifier() else "function"  # a lambda has no name of its own
    if not isinstance(needs, ThreatModel):
        remedy = "Set needs = rr.ThreatModel(sees='one-update'), for instance."
        raise invalid_input(f"needs of {name}", needs, "to be a ThreatModel", remedy)
    _check_signature(name, function)
    # A function with an attribute needs is still a plain function; only other objects with it are attacks.
    is_attack = hasattr(function, "needs") and not inspect.isroutine(function)
    return function if is_attack else FunctionAttack(function, name, needs)


def _check_signature(name: str, function: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions written in C have none
        return
    try:
        signature.bind(object(), rng=object())
    except TypeError as error:
        remedy = f"Write def {name}{_SIGNATURE}: ..."
        if "observation" not in signature.parameters:
            remedy += f" If it configures an attack, call it: {name}(...)."
        raise invalid_input("attack", f"{name}{signature}", f"to take {_SIGNATURE}", remedy) from error

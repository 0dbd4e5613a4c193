"""Rules for defenses, and :func:`check_defense`, which runs them on a small update."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from reconrisk.core.defense import Defense
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import Gaussian, Mechanism
from reconrisk.core.validation import invalid_input
from reconrisk.testing.contract import (
    CheckReport,
    Skipped,
    broken,
    error_in_words,
    global_seed,
    global_state,
    run_rules,
)

Update = Mapping[str, Tensor]

_SHAPES = {"weight": (6, 5), "bias": (6,)}
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_DRAWS = 300
_DEVIATIONS = 6.0  # of a mean that is compared: one in a billion passes by chance, and seeds are fixed
_RATIO = 0.2  # between stated and measured variance of noise: ten deviations for 300 draws of 36 Laplacian values
_ROUNDING = 1e-4


@dataclass(eq=False)
class DefenseCase:
    """A defense, and an update that it can be applied to."""

    defense: Defense
    update: Update

    def send(self, update: Any = None, *, seed: int = 0) -> Any:
        """Apply the defense with a generator of this seed."""
        return self.defense(self.copy() if update is None else update, rng=torch.Generator().manual_seed(seed))

    def copy(self, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """Return a copy of the update."""
        return {name: value.detach().clone().to(dtype or value.dtype) for name, value in self.update.items()}

    def apply(self, function: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """Return the update with a function applied to each tensor."""
        return {name: function(value) for name, value in self.copy().items()}

    @cached_property
    def first(self) -> Any:
        """What is sent of the update, or the exception."""
        try:
            return self.send()
        except Exception as error:  # code of others may raise anything
            return error

    @property
    def sent(self) -> dict[str, Tensor]:
        """What is sent of the update."""
        if not _is_like(self.first, self.update):
            raise Skipped("what is sent does not fit the update")
        found: dict[str, Tensor] = self.first
        return found

    @cached_property
    def draws(self) -> dict[str, Tensor]:
        """Sent many times in double precision: one tensor for each name, draws first."""
        rng = torch.Generator().manual_seed(11)
        several = [self.defense(self.copy(torch.float64), rng=rng) for _ in range(_DRAWS)]
        return {name: torch.stack([each[name] for each in several]) for name in self.update}


def check_defense(defense: Any, released: Update | None = None) -> CheckReport:
    """Check that a defense keeps the rules that releases, attacks and guarantees rely on.

    Args:
        defense: A configured defense.
        released: An update that it can be applied to, by name; a weight of 6 x 5 and a bias of 6 values if left out.

    Returns:
        The rules that hold, and those that say nothing about this defense.

    Raises:
        BrokenContract: With one sentence for each rule that does not hold.
        InvalidInput: If it is no defense at all.

    >>> from reconrisk.defenses.noise import gaussian_noise
    >>> print(check_defense(gaussian_noise(0.5)))  # doctest: +ELLIPSIS
    NoisyRelease(std=0.5, clip_norm=None) keeps ... rules for defenses.
      states_its_mechanism
      ...
    """
    missing = [name for name in ("replay", "noise_std", "kept", "mechanism") if not hasattr(defense, name)]
    if isinstance(defense, type) or inspect.isroutine(defense) or not callable(defense) or missing:
        lacks = f" It has no {', '.join(missing)}." if missing and not inspect.isroutine(defense) else ""
        remedy = f"Pass a configured one, such as gaussian_noise(0.5).{lacks}"
        raise invalid_input("defense", getattr(defense, "__name__", type(defense).__name__), "to be a defense", remedy)
    rng = torch.Generator().manual_seed(5)
    update = released or {name: torch.randn(shape, generator=rng) for name, shape in _SHAPES.items()}
    return run_rules("defense", defense, RULES, DefenseCase(defense, update))


def states_its_mechanism(case: DefenseCase) -> None:
    """The mechanism is one of reconrisk.core.mechanism, or None for a heuristic without guarantee."""
    found = case.defense.mechanism
    if found is not None and not isinstance(found, Mechanism):
        raise broken(
            "mechanism to be None or a mechanism", type(found).__name__, "Return rr.mechanisms.Gaussian(...) or None."
        )


def shows_its_settings(case: DefenseCase) -> None:
    """Neither str nor repr shows an address in memory: stored trials are told apart by them."""
    for shown in (str(case.defense), repr(case.defense)):
        if " at 0x" in shown or not shown:
            raise broken("a representation with every setting", shown, "Write __repr__, or make it a dataclass.")


def sends_what_fits(case: DefenseCase) -> None:
    """What is sent has the names, shapes and types of the update, in every precision, and is finite."""
    if isinstance(case.first, BaseException):
        remedy = "Pass check_defense an update that it can be applied to."
        raise broken("something to be sent", error_in_words(case.first), remedy)
    for dtype in _DTYPES:
        update = case.copy(dtype)
        sent = case.send(update)
        if not _is_like(sent, update):
            remedy = "Return a new dictionary with the same keys; compute in another precision and convert back."
            raise broken(f"an update such as {_layout(update)}", _layout(sent), remedy)
        if not all(bool(value.isfinite().all()) for value in sent.values()):
            remedy = "Compute sums in double precision: squares of half precision overflow."
            raise broken(f"finite values in {dtype}", "values that are not", remedy)


def leaves_the_update(case: DefenseCase) -> None:
    """The update itself is as it was: training goes on with it."""
    update = case.copy()
    case.send(update)
    changed = [name for name, value in update.items() if not torch.equal(value, case.update[name])]
    if changed:
        raise broken("the update as it was", f"changes in {', '.join(changed)}", "Work on copies; avoid add_ and mul_.")


def repeats_with_the_same_rng(case: DefenseCase) -> None:
    """The same generator sends the same, whatever the global generators are."""
    with global_seed(1):
        first = case.send(seed=3)
    with global_seed(2):
        again = case.send(seed=3)
    if not _equal(first, again):
        remedy = "Draw from rng only: torch.randn(..., generator=rng)."
        raise broken("the same to be sent for the same rng", "something else", remedy)


def leaves_global_generators(case: DefenseCase) -> None:
    """The global generators of torch, NumPy and Python are as they were before."""
    with global_seed(1):
        before = global_state()
        case.send()
        after = global_state()
    if before != after:
        remedy = "Draw with generator=rng, and never call torch.manual_seed."
        raise broken("the global generators as they were", "another state after the call", remedy)


def sends_zero_updates(case: DefenseCase) -> None:
    """An update of zeros, and one with a single value, are sent as finite values."""
    zeros, single = case.apply(torch.zeros_like), case.apply(torch.zeros_like)
    next(iter(single.values())).view(-1)[0] = 1.0
    for update in (zeros, single):
        if not all(bool(value.isfinite().all()) for value in case.send(update).values()):
            remedy = "Guard divisions by norms and maxima: a gradient may vanish."
            raise broken("finite values for an update of zeros", "values that are not", remedy)


def refuses_what_is_no_update(case: DefenseCase) -> None:
    """Values that are not finite, an empty update and a missing generator are refused with InvalidInput."""
    poisoned = case.copy()
    next(iter(poisoned.values())).view(-1)[0] = math.nan
    wrong: dict[str, Callable[[], Any]] = {
        "an update with NaN": lambda: case.send(poisoned),
        "an update without tensors": lambda: case.send({}),
        "rng=None": lambda: case.defense(case.copy(), rng=None),  # type: ignore[arg-type]
    }
    for what, call in wrong.items():
        try:
            call()
        except InvalidInput:
            continue
        except Exception as error:  # code of others may raise anything
            raise broken(f"InvalidInput for {what}", error_in_words(error), _BASE) from error
        raise broken(f"InvalidInput for {what}", "something sent", _BASE)


_BASE = "Extend reconrisk.defenses.base.SendingDefense, which checks that."


def replays_what_can_be_differentiated(case: DefenseCase) -> None:
    """The replay fits the update, can be differentiated, and has finite derivatives."""
    update = {name: value.requires_grad_() for name, value in case.copy().items()}
    replayed = case.defense.replay(update)
    if not _is_like(replayed, update):
        raise broken(f"a replay such as {_layout(update)}", _layout(replayed), "Return what is sent on average.")
    total = torch.stack([value.square().sum() for value in replayed.values()]).sum()
    if not total.requires_grad:
        remedy = "Avoid .detach(), .item() and rounding in replay: attacks differentiate it."
        raise broken("a replay that depends on the update", "one without a graph", remedy)
    grads = torch.autograd.grad(total, list(update.values()), allow_unused=True)
    if not all(grad is None or bool(grad.isfinite().all()) for grad in grads):
        raise broken("finite derivatives of the replay", "some that are not", "Guard divisions by norms.")


def replays_without_chance(case: DefenseCase) -> None:
    """The replay is the same each time, and leaves the update and the global generators as they were."""
    update = case.copy()
    with global_seed(1):
        before = global_state()
        first = {name: value.clone() for name, value in case.defense.replay(update).items()}
        touched = global_state() != before
    with global_seed(2):
        again = case.defense.replay(case.copy())
    if touched or not _equal(first, again):
        remedy = "Leave out whatever is drawn: noise_std states it."
        raise broken("the same replay each time", "another one, or a draw", remedy)
    if not _equal(update, case.copy()):
        raise broken("the update as it was after a replay", "changes in it", "Work on copies.")


def states_side_information_that_fits(case: DefenseCase) -> None:
    """Noise is stated above zero for every value, or not at all; values that were not kept are zero."""
    sent = case.sent
    stds, kept = case.defense.noise_std(sent), case.defense.kept(sent)
    for what, stated in (("noise_std", stds), ("kept", kept)):
        shapes = None if stated is None else {name: tuple(value.shape) for name, value in stated.items()}
        if shapes is not None and shapes != {name: tuple(value.shape) for name, value in sent.items()}:
            raise broken(f"{what} of the shapes of what is sent", shapes, "Return one tensor per name, or None.")
    if stds is not None and not all(bool((value > 0).all()) for value in stds.values()):
        raise broken("noise_std above zero", "zeros or less", "Return None if there is no noise.")
    for name, mask in (kept or {}).items():
        if mask.dtype != torch.bool:
            raise broken("kept to be true or false", mask.dtype, "Return tensor != 0.")
        if bool(sent[name][~mask].any()):
            raise broken("zeros where kept is False", f"other values in {name}", "Send zeros, or state them as kept.")


def states_the_noise_that_it_adds(case: DefenseCase) -> None:
    """Over many draws, what is sent has the replay as its mean and noise_std as its standard deviation."""
    names = list(case.sent)
    draws, mean = case.draws, case.defense.replay(case.copy(torch.float64))
    is_random = any(bool((value != value[:1]).any()) for value in draws.values())
    one = {name: draws[name][0] for name in names}
    stds = case.defense.noise_std(one)
    if not is_random:
        if stds is not None and _equal(one, mean):
            remedy = "Return None: an attacker would believe in noise that is not there."
            raise broken("noise_std to be None where nothing is added", "a standard deviation", remedy)
        raise Skipped("nothing that it sends is drawn")
    _check_mean(draws, mean)
    if stds is not None:
        _check_variance(case, draws, mean)


def _check_mean(draws: Mapping[str, Tensor], mean: Mapping[str, Tensor]) -> None:
    """Refuse a replay that is not the mean of what is sent, at six deviations of the mean of all draws."""
    for name, value in draws.items():
        error = (value.mean(0) - mean[name]).abs()
        allowed = _DEVIATIONS * value.std(0) / math.sqrt(len(value)) + _ROUNDING * (1 + mean[name].abs())
        if bool((error > allowed).any()):
            found = f"a difference of {float((error - allowed).max()):.2g} beyond chance in {name}"
            raise broken("the mean of what is sent to be the replay", found, "Replay all that is done but the draws.")


def _check_variance(case: DefenseCase, draws: Mapping[str, Tensor], mean: Mapping[str, Tensor]) -> None:
    """Refuse noise whose variance, over all draws and values, is not the one that is stated."""
    squares, count = 0.0, 0
    for draw in range(_DRAWS):
        sent = {name: value[draw] for name, value in draws.items()}
        stds, kept = case.defense.noise_std(sent), case.defense.kept(sent)
        for name, value in sent.items():
            used = torch.ones_like(value, dtype=torch.bool) if kept is None else kept[name]
            squares += float((((value - mean[name]) / (stds or {})[name].double())[used]).square().sum())
            count += int(used.sum())
    ratio = squares / max(count, 1)
    if abs(ratio - 1) > _RATIO:
        found = f"noise of {math.sqrt(ratio):.3g} times that"
        raise broken("noise of the standard deviation that noise_std states", found, "Return what is added.")


def keeps_the_bound_of_its_mechanism(case: DefenseCase) -> None:
    """A Gaussian mechanism sends no mean longer, in units of its noise, than one over its noise multiplier."""
    mechanism = case.defense.mechanism
    if not isinstance(mechanism, Gaussian):
        raise Skipped("it states no Gaussian mechanism")
    for size in (1e-4, 1.0, 300.0):
        update = case.apply(lambda value, size=size: torch.full_like(value, size))  # type: ignore[misc]
        mean, stds = case.defense.replay(update), case.defense.noise_std(update)
        if stds is None:
            raise broken("noise_std of a Gaussian mechanism", None, "State the noise that it adds.")
        length = torch.cat([(mean[name].double() / stds[name].double()).flatten() for name in mean]).norm()
        if float(length) > 1.001 / mechanism.noise_multiplier:
            found = f"{float(length):.4g} for values of {size:g}"
            remedy = "Clip before the noise, or state mechanism None."
            raise broken(f"a mean of at most 1/{mechanism.noise_multiplier:g} deviations", found, remedy)


RULES = (
    states_its_mechanism,
    shows_its_settings,
    sends_what_fits,
    leaves_the_update,
    repeats_with_the_same_rng,
    leaves_global_generators,
    sends_zero_updates,
    refuses_what_is_no_update,
    replays_what_can_be_differentiated,
    replays_without_chance,
    states_side_information_that_fits,
    states_the_noise_that_it_adds,
    keeps_the_bound_of_its_mechanism,
)
"""Rules for defenses, in the order in which they are checked."""


def _is_like(sent: Any, update: Update) -> bool:
    """Return True if ``sent`` maps the names of an update to tensors of its shapes and types."""
    return isinstance(sent, Mapping) and _layout(sent) == _layout(update)


def _layout(sent: Any) -> object:
    if not isinstance(sent, Mapping):
        return type(sent).__name__
    return {
        name: f"{tuple(value.shape)} {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
        for name, value in sent.items()
    }


def _equal(one: Update, other: Update) -> bool:
    return list(one) == list(other) and all(torch.equal(value, other[name]) for name, value in one.items())

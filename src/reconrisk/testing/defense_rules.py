"""Rules for defenses, and :func:`check_defense`, which runs them on a small update."""

from __future__ import annotations

import inspect
import math
import warnings
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
    broken_rule,
    describe_error,
    global_seed,
    global_state,
    run_rules,
)

Update = Mapping[str, Tensor]

_SHAPES = {"weight": (6, 5), "bias": (6,)}
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_DRAWS = 300
_DEVIATIONS = 6.0  # standard errors of a mean: a correct defense fails once in a billion, and seeds are fixed
_RATIO = 0.2  # allowed relative error of the variance: ten standard errors for 300 draws of 36 Laplacian values
_ROUNDING = 1e-4  # allowed rounding of a mean, relative to 1 + its size; defenses may work in single precision


@dataclass(eq=False)
class DefenseCase:
    """A defense with an update that it can be applied to."""

    defense: Defense
    update: Update

    def send(self, update: Any = None, *, seed: int = 0) -> Any:
        """Apply the defense.

        Args:
            update: The update; None for a copy of the update of the case.
            seed: Seed of the generator.

        Returns:
            The object that the defense returns, unchecked.
        """
        return self.defense(self.copy() if update is None else update, rng=torch.Generator().manual_seed(seed))

    def copy(self, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """Return a copy of the update, converted to ``dtype`` unless that is None."""
        return {name: value.detach().clone().to(dtype or value.dtype) for name, value in self.update.items()}

    def apply(self, function: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """Return the update with a function applied to each tensor."""
        return {name: function(value) for name, value in self.copy().items()}

    @cached_property
    def first(self) -> Any:
        """Result of the first call, or its exception."""
        try:
            return self.send()
        except Exception as error:  # third-party code may raise anything
            return error

    @property
    def sent_update(self) -> dict[str, Tensor]:
        """Update that the first call sent."""
        if not _is_like(self.first, self.update):
            raise Skipped("the defense sent no update of the same names, shapes and types")
        found: dict[str, Tensor] = self.first
        return found

    @cached_property
    def draws(self) -> dict[str, Tensor]:
        """Results of many calls in double precision, stacked along the first dimension."""
        rng = torch.Generator().manual_seed(11)
        several = [self.defense(self.copy(torch.float64), rng=rng) for _ in range(_DRAWS)]
        return {name: torch.stack([each[name] for each in several]) for name in self.update}


def check_defense(defense: Any, released: Update | None = None) -> CheckReport:
    """Check that a defense keeps the rules that releases, attacks and guarantees rely on.

    Args:
        defense: A configured defense.
        released: Update to apply it to, tensors by name. By default a random weight of 6 x 5 and a bias of 6 values.

    Returns:
        The rules that hold, and those that do not apply to this defense.

    Raises:
        BrokenContract: If a rule does not hold; the message has one sentence for each.
        InvalidInput: If the object is not a defense.

    >>> from reconrisk.defenses.noise import gaussian_noise
    >>> print(check_defense(gaussian_noise(0.5)))  # doctest: +ELLIPSIS
    NoisyRelease(std=0.5, clip_norm=None) keeps ... rules for defenses.
      states_its_mechanism
      ...
    """
    missing = [name for name in ("replay", "noise_std", "kept", "mechanism") if not hasattr(defense, name)]
    if isinstance(defense, type) or inspect.isroutine(defense) or not callable(defense) or missing:
        lacks = f" It has no {', '.join(missing)}." if missing and not inspect.isroutine(defense) else ""
        remedy = f"Pass a configured defense, such as gaussian_noise(0.5).{lacks}"
        raise invalid_input("defense", getattr(defense, "__name__", type(defense).__name__), "to be a defense", remedy)
    rng = torch.Generator().manual_seed(5)
    update = released or {name: torch.randn(shape, generator=rng) for name, shape in _SHAPES.items()}
    return run_rules("defense", defense, RULES, DefenseCase(defense, update))


def states_its_mechanism(case: DefenseCase) -> None:
    """The attribute mechanism is a class of reconrisk.core.mechanism, or None for a heuristic without guarantee."""
    found = case.defense.mechanism
    if found is not None and not isinstance(found, Mechanism):
        raise broken_rule(
            "mechanism to be None or a mechanism", type(found).__name__, "Return rr.mechanisms.Gaussian(...) or None."
        )


def shows_its_settings(case: DefenseCase) -> None:
    """Neither str nor repr contains a memory address: they identify stored trials."""
    for shown in (str(case.defense), repr(case.defense)):
        if " at 0x" in shown or not shown:
            raise broken_rule("a representation with every setting", shown, "Write __repr__, or make it a dataclass.")


def sends_what_fits(case: DefenseCase) -> None:
    """The update that is sent has the names, shapes and types of the original, in every precision, and is finite."""
    if isinstance(case.first, BaseException):
        remedy = "Pass check_defense an update that the defense can be applied to, or fix the error."
        raise broken_rule("an update to be sent", describe_error(case.first), remedy)
    for dtype in _DTYPES:
        update = case.copy(dtype)
        sent = case.send(update)
        if not _is_like(sent, update):
            remedy = "Return a new dictionary with the same keys; compute in another precision and convert back."
            raise broken_rule(f"an update such as {_layout(update)}", _layout(sent), remedy)
        if not all(bool(value.isfinite().all()) for value in sent.values()):
            remedy = "Compute sums in double precision: squares of half precision overflow."
            raise broken_rule(f"finite values in {dtype}", "NaN or infinite values", remedy)


def leaves_the_update(case: DefenseCase) -> None:
    """A call leaves its input unchanged, because training continues with it."""
    update = case.copy()
    case.send(update)
    changed = [name for name, value in update.items() if not torch.equal(value, case.update[name])]
    if changed:
        remedy = "Work on copies; avoid add_ and mul_."
        raise broken_rule("an unchanged input", f"changes in {', '.join(changed)}", remedy)


def repeats_with_the_same_rng(case: DefenseCase) -> None:
    """The same generator gives the same result, whatever the global generators are."""
    with global_seed(1):
        first = case.send(seed=3)
    with global_seed(2):
        again = case.send(seed=3)
    if not _equal(first, again):
        remedy = "Draw from rng only: torch.randn(..., generator=rng)."
        raise broken_rule("the same result for the same rng", "a different one", remedy)


def leaves_global_generators(case: DefenseCase) -> None:
    """A call leaves the global generators of torch, NumPy and Python unchanged."""
    with global_seed(1):
        before = global_state()
        case.send()
        after = global_state()
    if before != after:
        remedy = "Draw with generator=rng, and never call torch.manual_seed."
        raise broken_rule("unchanged global generators", "another state after the call", remedy)


def sends_zero_updates(case: DefenseCase) -> None:
    """The result is finite for an update of zeros, and for one with a single value other than zero."""
    zeros, single = case.apply(torch.zeros_like), case.apply(torch.zeros_like)
    next(iter(single.values())).view(-1)[0] = 1.0
    for update in (zeros, single):
        if not all(bool(value.isfinite().all()) for value in case.send(update).values()):
            remedy = "Guard divisions by norms and maxima: a gradient may vanish."
            raise broken_rule("finite values for an update of zeros", "NaN or infinite values", remedy)


def refuses_what_is_no_update(case: DefenseCase) -> None:
    """An empty update and a wrong generator raise InvalidInput, values that are not finite too or become zero."""
    poisoned = case.copy()
    next(iter(poisoned.values())).view(-1)[0] = math.nan
    if getattr(case.defense, "clips", False):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the defense says that it sends zeros
            sent = case.send(poisoned)
        if not _equal(sent, case.send({name: torch.zeros_like(value) for name, value in poisoned.items()})):
            raise broken_rule("the zero update in place of one with NaN", "another update", _BASE)
        wrong: dict[str, Callable[[], Any]] = {}
    else:
        wrong = {"an update with NaN": lambda: case.send(poisoned)}
    wrong["an update without tensors"] = lambda: case.send({})
    wrong["rng=0"] = lambda: case.defense(case.copy(), rng=0)  # type: ignore[arg-type]
    for what, call in wrong.items():
        try:
            call()
        except InvalidInput:
            continue
        except Exception as error:  # third-party code may raise anything
            raise broken_rule(f"InvalidInput for {what}", describe_error(error), _BASE) from error
        raise broken_rule(f"InvalidInput for {what}", "no error", _BASE)


_BASE = "Extend reconrisk.defenses.base.BaseDefense, which checks its input."


def replays_what_can_be_differentiated(case: DefenseCase) -> None:
    """The replay has the shapes of the update, can be differentiated, and has finite derivatives."""
    update = {name: value.requires_grad_() for name, value in case.copy().items()}
    replayed = case.defense.replay(update)
    if not _is_like(replayed, update):
        remedy = "Return the mean of the update that is sent, with the same keys."
        raise broken_rule(f"a replay such as {_layout(update)}", _layout(replayed), remedy)
    # A sum of squares, so that the derivative depends on the values and not only on the graph.
    total = torch.stack([value.square().sum() for value in replayed.values()]).sum()
    if not total.requires_grad:
        remedy = "Avoid .detach(), .item() and rounding in replay: attacks differentiate it."
        raise broken_rule("a replay that depends on the update", "one without an autograd graph", remedy)
    grads = torch.autograd.grad(total, list(update.values()), allow_unused=True)
    if not all(grad is None or bool(grad.isfinite().all()) for grad in grads):
        raise broken_rule("finite derivatives of the replay", "NaN or infinite ones", "Guard divisions by norms.")


def replays_without_chance(case: DefenseCase) -> None:
    """The replay is the same each time, and leaves the update and the global generators unchanged."""
    update = case.copy()
    with global_seed(1):
        before = global_state()
        first = {name: value.clone() for name, value in case.defense.replay(update).items()}
        touched = global_state() != before
    with global_seed(2):
        again = case.defense.replay(case.copy())
    if touched or not _equal(first, again):
        remedy = "Leave out all random draws: noise_std describes them."
        raise broken_rule("the same replay each time", "a different one, or a random draw", remedy)
    if not _equal(update, case.copy()):
        raise broken_rule("an unchanged update after a replay", "changes in it", "Work on copies.")


def states_side_information_that_fits(case: DefenseCase) -> None:
    """The result of noise_std is None or positive for every value, and values that are not kept are zero."""
    sent = case.sent_update
    stds, kept = case.defense.noise_std(sent), case.defense.kept(sent)
    for what, stated in (("noise_std", stds), ("kept", kept)):
        shapes = None if stated is None else {name: tuple(value.shape) for name, value in stated.items()}
        if shapes is not None and shapes != {name: tuple(value.shape) for name, value in sent.items()}:
            remedy = "Return one tensor per name, or None."
            raise broken_rule(f"{what} of the shapes of the update that is sent", shapes, remedy)
    if stds is not None and not all(bool((value > 0).all()) for value in stds.values()):
        raise broken_rule("noise_std above zero", "zero or negative values", "Return None if there is no noise.")
    for name, mask in (kept or {}).items():
        if mask.dtype != torch.bool:
            raise broken_rule("kept to be of type torch.bool", mask.dtype, "Return tensor != 0.")
        if bool(sent[name][~mask].any()):
            remedy = "Send zeros there, or return True for these values."
            raise broken_rule("zeros where kept is False", f"other values in {name}", remedy)


def states_the_noise_that_it_adds(case: DefenseCase) -> None:
    """Over many draws, the update that is sent has the replay as its mean and noise_std as its standard deviation."""
    names = list(case.sent_update)
    draws, mean = case.draws, case.defense.replay(case.copy(torch.float64))
    is_random = any(bool((value != value[:1]).any()) for value in draws.values())
    one = {name: draws[name][0] for name in names}
    stds = case.defense.noise_std(one)
    if not is_random:
        if stds is not None and _equal(one, mean):
            remedy = "Return None: otherwise an adversary would assume noise that does not exist."
            raise broken_rule("noise_std to be None without noise", "a standard deviation", remedy)
        raise Skipped("the defense is deterministic")
    _check_mean(draws, mean)
    if stds is not None:
        _check_variance(case, draws, mean)


def _check_mean(draws: Mapping[str, Tensor], mean: Mapping[str, Tensor]) -> None:
    """Check that the replay is the mean of the draws, up to six standard errors."""
    for name, value in draws.items():
        error = (value.mean(0) - mean[name]).abs()
        allowed = _DEVIATIONS * value.std(0) / math.sqrt(len(value)) + _ROUNDING * (1 + mean[name].abs())
        if bool((error > allowed).any()):
            found = f"a difference of {float((error - allowed).max()):.2g} beyond chance in {name}"
            remedy = "Replay every operation except the random draws."
            raise broken_rule("the mean of the update that is sent to be the replay", found, remedy)


def _check_variance(case: DefenseCase, draws: Mapping[str, Tensor], mean: Mapping[str, Tensor]) -> None:
    """Check that the variance of the noise, over all draws and values, is the square of noise_std."""
    squares, count = 0.0, 0
    for draw in range(_DRAWS):
        sent = {name: value[draw] for name, value in draws.items()}
        stds, kept = case.defense.noise_std(sent), case.defense.kept(sent)
        for name, value in sent.items():
            # Values that are not sent have no noise.
            used = torch.ones_like(value, dtype=torch.bool) if kept is None else kept[name]
            squares += float((((value - mean[name]) / (stds or {})[name].double())[used]).square().sum())
            count += int(used.sum())
    ratio = squares / max(count, 1)
    if abs(ratio - 1) > _RATIO:
        found = f"{math.sqrt(ratio):.3g} times that"
        remedy = "Return the standard deviation of the noise that is added."
        raise broken_rule("noise with the standard deviation noise_std", found, remedy)


def keeps_the_bound_of_its_mechanism(case: DefenseCase) -> None:
    """With a Gaussian mechanism, the norm of the replay is at most noise_std over the noise multiplier."""
    mechanism = case.defense.mechanism
    if not isinstance(mechanism, Gaussian):
        raise Skipped("its mechanism is not Gaussian")
    for size in (1e-4, 1.0, 300.0):  # updates far below, near and far above usual clip norms
        update = case.apply(lambda value, size=size: torch.full_like(value, size))  # type: ignore[misc]
        mean, stds = case.defense.replay(update), case.defense.noise_std(update)
        if stds is None:
            raise broken_rule("noise_std of a Gaussian mechanism", None, "Return the standard deviation of its noise.")
        length = torch.cat([(mean[name].double() / stds[name].double()).flatten() for name in mean]).norm()
        if float(length) > 1.001 / mechanism.noise_multiplier:  # room for single precision
            found = f"{float(length):.4g} for values of {size:g}"
            remedy = "Clip before the noise, or set mechanism to None."
            expected = f"a replay of norm at most 1/{mechanism.noise_multiplier:g} in units of noise_std"
            raise broken_rule(expected, found, remedy)


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
    """Return shapes and types by name, for comparison and for messages."""
    if not isinstance(sent, Mapping):
        return type(sent).__name__
    return {
        name: f"{tuple(value.shape)} {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
        for name, value in sent.items()
    }


def _equal(one: Update, other: Update) -> bool:
    return list(one) == list(other) and all(torch.equal(value, other[name]) for name, value in one.items())

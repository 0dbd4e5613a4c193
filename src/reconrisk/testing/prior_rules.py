"""Rules for priors, and :func:`check_prior`, which runs them on a few draws."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import invalid_input
from reconrisk.priors.prior import Prior, is_prior
from reconrisk.testing.contract import (
    CheckReport,
    Skipped,
    broken,
    error_in_words,
    global_seed,
    global_state,
    run_rules,
)

_DRAWS = 8
_MEMBERS = tuple(name for name in vars(Prior) if not name.startswith("_"))
_MANY_DRAWS, _DEVIATIONS = 400, 6.0
_FEWEST_WITHIN = 0.5  # of the values of draws, which need not be clipped to the range


@dataclass(eq=False)
class PriorCase:
    """A prior."""

    prior: Any

    def draw(self, *, seed: int = 3, global_one: int = 1) -> Any:
        """Draw a few records from a generator of this seed."""
        with global_seed(global_one):
            return self.prior.draw(_DRAWS, torch.Generator().manual_seed(seed))

    @cached_property
    def first(self) -> Any:
        """The first draws, or the exception."""
        try:
            return self.draw()
        except Exception as error:  # code of others may raise anything
            return error

    @property
    def drawn(self) -> Tensor:
        """The first draws."""
        if not isinstance(self.first, Tensor) or tuple(self.first.shape) != (_DRAWS, *self.prior.shape):
            raise Skipped("there are no records to look at")
        return self.first


def check_prior(prior: Any) -> CheckReport:
    """Check that a prior keeps the rules that attacks and baselines rely on.

    Args:
        prior: A prior, as :class:`reconrisk.priors.prior.Prior` describes it; ``BasePrior`` has most of it.

    Returns:
        The rules that hold.

    Raises:
        BrokenContract: With one sentence for each rule that does not hold.
        InvalidInput: If it is no prior at all.

    >>> from reconrisk.priors.gaussian import gaussian
    >>> print(check_prior(gaussian(torch.full((2,), 0.5), 0.01 * torch.eye(2))))  # doctest: +ELLIPSIS
    GaussianPrior(...) keeps ... rules for priors.
      names_itself
      ...
    """
    if not is_prior(prior):
        missing = [name for name in _MEMBERS if not hasattr(prior, name)]
        remedy = f"It has no {', '.join(missing)}: inherit from reconrisk.priors.prior.BasePrior."
        lacks = "Pass an object of the class." if isinstance(prior, type) else remedy
        raise invalid_input("prior", getattr(prior, "__name__", type(prior).__name__), "to be a prior", lacks)
    return run_rules("prior", prior, RULES, PriorCase(prior))


def names_itself(case: PriorCase) -> None:
    """Name and kind are words that reports can show."""
    for what in ("name", "kind"):
        word = getattr(case.prior, what)
        if not isinstance(word, str) or not word.strip() or " at 0x" in word:
            raise broken(f"{what} to be a word", repr(word), f"State a {what}, such as faces.")


def states_shape_and_range(case: PriorCase) -> None:
    """The shape of a record is a tuple of whole numbers above zero, the range is (low, high)."""
    shape, ends = case.prior.shape, case.prior.data_range
    if not isinstance(shape, tuple) or not shape or not all(isinstance(side, int) and side > 0 for side in shape):
        raise broken("shape such as (1, 28, 28)", shape, "State the shape of one record, without the batch.")
    if not isinstance(ends, tuple) or len(ends) != 2 or not ends[0] < ends[1]:
        raise broken("data_range such as (0.0, 1.0)", ends, "State the smallest and the largest value.")


def draws_records(case: PriorCase) -> None:
    """A call of draw(count, rng) returns so many finite records of the stated shape, without a graph."""
    if isinstance(case.first, BaseException):
        raise broken("draw(count, rng) to return records", error_in_words(case.first), "Take a count and a generator.")
    wanted = (_DRAWS, *case.prior.shape)
    if not isinstance(case.first, Tensor) or tuple(case.first.shape) != wanted:
        found = tuple(case.first.shape) if isinstance(case.first, Tensor) else type(case.first).__name__
        raise broken(f"draws of shape {wanted}", found, "Return one record per row.")
    if not case.first.is_floating_point() or not bool(case.first.isfinite().all()):
        raise broken("draws of finite real numbers", "values that are not", "Check the weights of the network.")
    if case.first.requires_grad:
        raise broken("draws without a graph", "requires_grad=True", "Draw within torch.no_grad().")


def draws_in_the_units_of_its_range(case: PriorCase) -> None:
    """At least half of the values of draws lie within data_range: draws are records, not inputs of a network."""
    low, high = case.prior.data_range
    share = float(((case.drawn >= low) & (case.drawn <= high)).double().mean())
    if share < _FEWEST_WITHIN:
        remedy = "Convert from the units of the network, often [-1, 1], to data_range."
        raise broken(f"most values within {(low, high)}", f"{share:.0%} of them there", remedy)


def repeats_with_the_same_rng(case: PriorCase) -> None:
    """The same generator draws the same records, whatever the global generators are; another draws others."""
    if not torch.equal(case.drawn, case.draw(global_one=2)):
        remedy = "Draw from rng only: torch.randn(..., generator=rng)."
        raise broken("the same draws for the same rng", "others", remedy)
    if torch.equal(case.drawn, case.draw(seed=4)):
        raise broken("other draws for another rng", "the same", "Use the generator that draw is handed.")


def leaves_global_generators(case: PriorCase) -> None:
    """The global generators of torch, NumPy and Python are as they were before."""
    with global_seed(1):
        before = global_state()
        case.prior.draw(_DRAWS, torch.Generator().manual_seed(3))
        after = global_state()
    if before != after:
        remedy = "Draw with generator=rng, and never call torch.manual_seed."
        raise broken("the global generators as they were", "another state after the call", remedy)


def states_its_mean(case: PriorCase) -> None:
    """The mean is None, or one record that many draws have as their mean."""
    mean = case.prior.mean
    if mean is None:
        raise Skipped("its mean is not known exactly")
    if not isinstance(mean, Tensor) or tuple(mean.shape) != case.prior.shape:
        found = tuple(mean.shape) if isinstance(mean, Tensor) else type(mean).__name__
        raise broken(f"mean of shape {case.prior.shape}", found, "Return one record, or None if it is not known.")
    low, high = case.prior.data_range
    drawn = case.prior.draw(_MANY_DRAWS, torch.Generator().manual_seed(5)).to(case.drawn).double()
    allowed = _DEVIATIONS * drawn.std(0) / math.sqrt(len(drawn)) + 1e-4 * (high - low)  # chance, and rounding
    error = (drawn.mean(0) - mean.to(drawn)).abs()
    if bool((error > allowed).any()):
        found = f"a difference of {float(error.max()):.2g}"
        raise broken("the mean of many draws to be the stated mean", found, "Return None if it is not known.")


def has_a_fingerprint(case: PriorCase) -> None:
    """The fingerprint is a word that is the same each time: stored trials are told apart by it."""
    first, again = case.prior.fingerprint, copy.deepcopy(case.prior).fingerprint
    if not isinstance(first, str) or not first:
        raise broken("fingerprint to be a word", repr(first), "Return reconrisk.core.digest.short_digest(self).")
    if first != again:
        remedy = "Return a digest of what the prior holds, never an address or a random number."
        raise broken("the same fingerprint for a copy", f"{first} and {again}", remedy)


def times_a_pass(case: PriorCase) -> None:
    """A call of time_pass measures seconds: a finite number of at least zero."""
    seconds = case.prior.time_pass()
    if not isinstance(seconds, float) or not 0 <= seconds < math.inf:
        raise broken("seconds as a number", repr(seconds), "Return time.monotonic() - begun.")


def scales_to_another_range(case: PriorCase) -> None:
    """The prior scaled to another range draws the same records in the units of that range."""
    (low, high), ends = case.prior.data_range, (-100.0, 100.0)
    moved = case.prior.scaled_to(ends)
    if tuple(moved.data_range) != ends:
        raise broken(f"data_range={ends} after scaled_to", moved.data_range, "Replace the range as well.")
    expected = ends[0] + (case.drawn.double() - low) * (ends[1] - ends[0]) / (high - low)
    drawn = moved.draw(_DRAWS, torch.Generator().manual_seed(3)).double()
    error = float((drawn - expected).abs().max() / (ends[1] - ends[0]))
    if error > 1e-4:  # single precision, through a network
        raise broken("the same records in other units", f"a difference of {error:.2g} of the range", "Move the draws.")


def refuses_other_records(case: PriorCase) -> None:
    """Records of another shape or range are refused by check_fits with InvalidInput, its own are not."""
    shape, (low, high) = case.prior.shape, case.prior.data_range
    case.prior.check_fits(shape, (low, high))
    for what, given in (("another shape", ((*shape, 2), (low, high))), ("another range", (shape, (low, high + 1.0)))):
        try:
            case.prior.check_fits(*given)
        except InvalidInput:
            continue
        raise broken(f"InvalidInput for records of {what}", "none", "Compare both in check_fits.")


RULES = (
    names_itself,
    states_shape_and_range,
    draws_records,
    draws_in_the_units_of_its_range,
    repeats_with_the_same_rng,
    leaves_global_generators,
    states_its_mean,
    has_a_fingerprint,
    times_a_pass,
    scales_to_another_range,
    refuses_other_records,
)
"""Rules for priors, in the order in which they are checked."""

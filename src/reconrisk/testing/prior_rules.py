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
    broken_rule,
    describe_error,
    global_seed,
    global_state,
    run_rules,
)

_DRAWS = 8
_MEMBERS = tuple(name for name in vars(Prior) if not name.startswith("_"))
_MANY_DRAWS, _DEVIATIONS = 400, 6.0  # draws for a mean, and the standard errors by which it may differ
_FEWEST_WITHIN = 0.5  # share of values within the range; draws need not be clipped to it


@dataclass(eq=False)
class PriorCase:
    """A prior with its first draws."""

    prior: Any

    def draw(self, *, seed: int = 3, ambient_seed: int = 1) -> Any:
        """Draw a few records.

        Args:
            seed: Seed of the generator.
            ambient_seed: Seed of the global generators, which the prior should not use.

        Returns:
            The object that ``draw`` of the prior returns, unchecked.
        """
        with global_seed(ambient_seed):
            return self.prior.draw(_DRAWS, torch.Generator().manual_seed(seed))

    @cached_property
    def first(self) -> Any:
        """Result of the first call, or its exception."""
        try:
            return self.draw()
        except Exception as error:  # third-party code may raise anything
            return error

    @property
    def draws(self) -> Tensor:
        """Records of the first call."""
        if not isinstance(self.first, Tensor) or tuple(self.first.shape) != (_DRAWS, *self.prior.shape):
            raise Skipped("the prior drew no records of its shape")
        return self.first


def check_prior(prior: Any) -> CheckReport:
    """Check that a prior keeps the rules that attacks and baselines rely on.

    Args:
        prior: An object with the interface of :class:`reconrisk.priors.prior.Prior`; ``BasePrior`` implements most of
            it.

    Returns:
        The rules that hold, and those that do not apply to this prior.

    Raises:
        BrokenContract: If a rule does not hold; the message has one sentence for each.
        InvalidInput: If the object is not a prior.

    >>> from reconrisk.priors.gaussian import gaussian
    >>> print(check_prior(gaussian(torch.full((2,), 0.5), 0.01 * torch.eye(2))))  # doctest: +ELLIPSIS
    GaussianPrior(...) keeps ... rules for priors.
      names_itself
      ...
    """
    if not is_prior(prior):
        missing = [name for name in _MEMBERS if not hasattr(prior, name)]
        remedy = f"Inherit from reconrisk.priors.prior.BasePrior. It has no {', '.join(missing)}."
        lacks = "Pass an object of the class." if isinstance(prior, type) else remedy
        raise invalid_input("prior", getattr(prior, "__name__", type(prior).__name__), "to be a prior", lacks)
    return run_rules("prior", prior, RULES, PriorCase(prior))


def names_itself(case: PriorCase) -> None:
    """Name and kind are texts that reports can show."""
    for what in ("name", "kind"):
        word = getattr(case.prior, what)
        if not isinstance(word, str) or not word.strip() or " at 0x" in word:
            raise broken_rule(f"{what} to be a non-empty text", repr(word), f"Return a {what}, such as 'faces'.")


def states_shape_and_range(case: PriorCase) -> None:
    """The shape of a record is a tuple of positive integers, and the data range is a tuple (low, high)."""
    shape, ends = case.prior.shape, case.prior.data_range
    if not isinstance(shape, tuple) or not shape or not all(isinstance(side, int) and side > 0 for side in shape):
        raise broken_rule("shape such as (1, 28, 28)", shape, "Return the shape of one record, without the batch.")
    if not isinstance(ends, tuple) or len(ends) != 2 or not ends[0] < ends[1]:
        raise broken_rule("data_range such as (0.0, 1.0)", ends, "Return the smallest and the largest value.")


def draws_records(case: PriorCase) -> None:
    """A call of draw(count, rng) returns ``count`` finite records of the right shape, without an autograd graph."""
    if isinstance(case.first, BaseException):
        remedy = "Accept a count and a generator."
        raise broken_rule("draw(count, rng) to return records", describe_error(case.first), remedy)
    wanted = (_DRAWS, *case.prior.shape)
    if not isinstance(case.first, Tensor) or tuple(case.first.shape) != wanted:
        found = tuple(case.first.shape) if isinstance(case.first, Tensor) else type(case.first).__name__
        raise broken_rule(f"draws of shape {wanted}", found, "Return one record per row.")
    if not case.first.is_floating_point() or not bool(case.first.isfinite().all()):
        raise broken_rule("draws of finite real numbers", "other values", "Check the weights of the network.")
    if case.first.requires_grad:
        raise broken_rule("draws without an autograd graph", "requires_grad=True", "Draw within torch.no_grad().")


def draws_in_the_units_of_its_range(case: PriorCase) -> None:
    """At least half of the drawn values lie within data_range: draws are records, not inputs of a network."""
    low, high = case.prior.data_range
    share = float(((case.draws >= low) & (case.draws <= high)).double().mean())
    if share < _FEWEST_WITHIN:
        remedy = "Convert from the units of the network, often [-1, 1], to data_range."
        raise broken_rule(f"most values within {(low, high)}", f"{share:.0%} of them there", remedy)


def repeats_with_the_same_rng(case: PriorCase) -> None:
    """The same generator gives the same draws, whatever the global generators are; another generator gives others."""
    if not torch.equal(case.draws, case.draw(ambient_seed=2)):
        remedy = "Draw from rng only: torch.randn(..., generator=rng)."
        raise broken_rule("the same draws for the same rng", "different ones", remedy)
    if torch.equal(case.draws, case.draw(seed=4)):
        raise broken_rule("different draws for another rng", "the same", "Use the generator that is passed to draw.")


def leaves_global_generators(case: PriorCase) -> None:
    """A call leaves the global generators of torch, NumPy and Python unchanged."""
    with global_seed(1):
        before = global_state()
        case.prior.draw(_DRAWS, torch.Generator().manual_seed(3))
        after = global_state()
    if before != after:
        remedy = "Draw with generator=rng, and never call torch.manual_seed."
        raise broken_rule("unchanged global generators", "another state after the call", remedy)


def states_its_mean(case: PriorCase) -> None:
    """The attribute mean is None, or the mean of many draws."""
    mean = case.prior.mean
    if mean is None:
        raise Skipped("its mean is None")
    if not isinstance(mean, Tensor) or tuple(mean.shape) != case.prior.shape:
        found = tuple(mean.shape) if isinstance(mean, Tensor) else type(mean).__name__
        raise broken_rule(f"mean of shape {case.prior.shape}", found, "Return one record, or None if it is not known.")
    low, high = case.prior.data_range
    drawn = case.prior.draw(_MANY_DRAWS, torch.Generator().manual_seed(5)).to(case.draws).double()
    allowed = _DEVIATIONS * drawn.std(0) / math.sqrt(len(drawn)) + 1e-4 * (high - low)  # sampling error and rounding
    error = (drawn.mean(0) - mean.to(drawn)).abs()
    if bool((error > allowed).any()):
        found = f"a difference of {float(error.max()):.2g}"
        raise broken_rule("mean to be the mean of many draws", found, "Return None if it is not known.")


def has_a_fingerprint(case: PriorCase) -> None:
    """The fingerprint is a text that is equal for a copy: it identifies stored trials."""
    first, again = case.prior.fingerprint, copy.deepcopy(case.prior).fingerprint
    if not isinstance(first, str) or not first:
        remedy = "Return reconrisk.core.digest.short_digest(self)."
        raise broken_rule("fingerprint to be a non-empty text", repr(first), remedy)
    if first != again:
        remedy = "Return a digest of the content of the prior, never an address or a random number."
        raise broken_rule("the same fingerprint for a copy", f"{first} and {again}", remedy)


def times_a_pass(case: PriorCase) -> None:
    """A call of time_pass returns seconds: a finite float of at least zero."""
    seconds = case.prior.time_pass()
    if not isinstance(seconds, float) or not 0 <= seconds < math.inf:
        raise broken_rule("seconds as a finite float", repr(seconds), "Return time.monotonic() - start.")


def scales_to_another_range(case: PriorCase) -> None:
    """After scaled_to, the prior draws the same records in the units of the new range."""
    (low, high), ends = case.prior.data_range, (-100.0, 100.0)  # far from the usual ranges of data
    moved = case.prior.scaled_to(ends)
    if tuple(moved.data_range) != ends:
        raise broken_rule(f"data_range={ends} after scaled_to", moved.data_range, "Replace data_range as well.")
    expected = ends[0] + (case.draws.double() - low) * (ends[1] - ends[0]) / (high - low)
    drawn = moved.draw(_DRAWS, torch.Generator().manual_seed(3)).double()
    error = float((drawn - expected).abs().max() / (ends[1] - ends[0]))
    if error > 1e-4:  # the rounding of single precision through a network
        remedy = "Scale the draws to the new range."
        raise broken_rule("the same records in the new units", f"a difference of {error:.2g} of the range", remedy)


def refuses_other_records(case: PriorCase) -> None:
    """A call of check_fits raises InvalidInput for another shape or range, and nothing for its own."""
    shape, (low, high) = case.prior.shape, case.prior.data_range
    case.prior.check_fits(shape, (low, high))
    for what, given in (("another shape", ((*shape, 2), (low, high))), ("another range", (shape, (low, high + 1.0)))):
        try:
            case.prior.check_fits(*given)
        except InvalidInput:
            continue
        raise broken_rule(f"InvalidInput for records of {what}", "no error", "Compare shape and range in check_fits.")


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

"""Rules for priors, and :func:`check_prior`, which runs them on a few draws."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import refuse
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
        prior: A prior with ``name``, ``shape``, ``data_range``, ``draw(count, rng)``, ``scaled_to(data_range)`` and
            ``check_fits(shape, data_range)``.

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
    missing = [name for name in ("name", "shape", "data_range", "draw") if not hasattr(prior, name)]
    if isinstance(prior, type) or missing:
        lacks = f"It has no {', '.join(missing)}." if missing else "Pass an object of the class."
        raise refuse("prior", getattr(prior, "__name__", type(prior).__name__), "to be a prior", lacks)
    return run_rules("prior", prior, RULES, PriorCase(prior))


def names_itself(case: PriorCase) -> None:
    """The name is a word that reports can show."""
    name = case.prior.name
    if not isinstance(name, str) or not name.strip() or " at 0x" in name:
        raise broken("name to be a word", repr(name), "State a name, such as faces.")


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


def scales_to_another_range(case: PriorCase) -> None:
    """The prior scaled to another range draws the same records in the units of that range."""
    if not hasattr(case.prior, "scaled_to"):
        raise broken("scaled_to(data_range)", "no such method", "Return the same prior in other units.")
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
    if not hasattr(case.prior, "check_fits"):
        remedy = "Call reconrisk.priors.network.check_fits there."
        raise broken("check_fits(shape, data_range)", "no such method", remedy)
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
    scales_to_another_range,
    refuses_other_records,
)
"""Rules for priors, in the order in which they are checked."""

"""Deliberately broken priors: each rule fails with its sentence, and no other rule does."""

import dataclasses
import itertools

import pytest
import torch

import reconrisk as rr
from reconrisk.priors.prior import BasePrior
from reconrisk.testing import BrokenContract, check_prior
from reconrisk.testing.prior_rules import RULES


@dataclasses.dataclass(frozen=True)
class Good(BasePrior):
    """Uniform records."""

    name: str = "uniform"
    kind: str = "box"
    shape: tuple = (2, 3)
    data_range: tuple = (0.0, 1.0)

    def draw(self, count, rng):
        low, high = self.data_range
        return low + (high - low) * torch.rand(count, *self.shape, generator=rng)

    @property
    def mean(self):
        return torch.full(self.shape, sum(self.data_range) / 2)

    def scaled_to(self, data_range):
        return dataclasses.replace(self, data_range=data_range)


class Flat(Good):
    def draw(self, count, rng):
        return super().draw(count, rng).flatten(1)


class OtherUnits(Good):
    def draw(self, count, rng):
        return 255 * super().draw(count, rng)


class FromGlobal(Good):
    def draw(self, count, rng):
        with torch.random.fork_rng():
            return super().draw(count, None)


class Constant(Good):
    def draw(self, count, rng):
        return super().draw(count, torch.Generator().manual_seed(0))


class TouchesGlobal(Good):
    def draw(self, count, rng):
        torch.rand(1)
        return super().draw(count, rng)


class ScalesItsRangeOnly(Good):
    def draw(self, count, rng):
        return torch.rand(count, *self.shape, generator=rng)


class StatesAnotherMean(Good):
    @property
    def mean(self):
        return torch.full(self.shape, 0.6)


class Unstable(Good):
    @property
    def fingerprint(self):
        return str(next(_NUMBERS))


class Untimed(Good):
    def time_pass(self):
        return None


_NUMBERS = itertools.count()


class FitsAnything(Good):
    def check_fits(self, shape, data_range):
        del shape, data_range


BROKEN = {
    "names_itself": (lambda: Good(name=" "), "Expected name to be a non-empty text, found ' '."),
    "states_shape_and_range": (lambda: Good(data_range=[0.0, 1.0]), "Expected data_range such as (0.0, 1.0), found ["),
    "draws_records": (Flat, "Expected draws of shape (8, 2, 3), found (8, 6)."),
    "draws_in_the_units_of_its_range": (OtherUnits, "Expected most values within (0.0, 1.0), found "),
    "repeats_with_the_same_rng": (FromGlobal, "Expected the same draws for the same rng, found different ones."),
    "leaves_global_generators": (TouchesGlobal, "Expected unchanged global generators, found another state"),
    "states_its_mean": (
        StatesAnotherMean,
        "Expected mean to be the mean of many draws, found a difference of 0.1",
    ),
    "has_a_fingerprint": (Unstable, "Expected the same fingerprint for a copy, found "),
    "times_a_pass": (Untimed, "Expected seconds as a finite float, found None."),
    "scales_to_another_range": (
        ScalesItsRangeOnly,
        "Expected the same records in the new units, found a difference of",
    ),
    "refuses_other_records": (FitsAnything, "Expected InvalidInput for records of another shape, found no error."),
}


def failures(prior):
    with pytest.raises(BrokenContract) as refused:
        check_prior(prior)
    return refused.value.failures


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_prior_fails_its_rule_with_a_sentence(rule):
    build, sentence = BROKEN[rule]
    found = failures(build())
    assert set(found) - SPOILT.get(rule, set()) == {rule}
    assert sentence in found[rule]


SPOILT = {
    "draws_in_the_units_of_its_range": {"scales_to_another_range", "states_its_mean"},
    "repeats_with_the_same_rng": {"scales_to_another_range"},
}
"""Rules that such draws break as well."""


def test_every_rule_has_a_prior_that_breaks_it():
    assert set(BROKEN) == {rule.__name__ for rule in RULES}


def test_a_good_prior_keeps_every_rule():
    assert check_prior(Good()).passed == tuple(rule.__name__ for rule in RULES)


def test_draws_that_no_generator_changes_are_found():
    assert (
        "Expected different draws for another rng, found the same." in failures(Constant())["repeats_with_the_same_rng"]
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda drawn: drawn.requires_grad_(), "Expected draws without an autograd graph, found requires_grad=True."),
        (lambda drawn: drawn / 0, "Expected draws of finite real numbers, found other values."),
        (lambda drawn: drawn.tolist(), "Expected draws of shape (8, 2, 3), found list."),
    ],
)
def test_other_draws_that_are_no_records(change, sentence):
    class Changed(Good):
        def draw(self, count, rng):
            return change(super().draw(count, rng))

    assert sentence in failures(Changed())["draws_records"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Good, "prior='Good' to be a prior. Pass an object of the class."),
        (3, "It has no kind, name, shape, data_range, mean, fingerprint, draw, time_pass, scaled_to, check_fits."),
    ],
)
def test_what_is_no_prior_is_refused(wrong, message):
    with pytest.raises(rr.InvalidInput) as refused:
        check_prior(wrong)
    assert message in str(refused.value)

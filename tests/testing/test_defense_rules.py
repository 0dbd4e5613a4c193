"""Deliberately broken defenses: each rule fails with its sentence, and no other rule does."""

import dataclasses
import math
from collections.abc import Mapping

import pytest
import torch

import reconrisk as rr
from reconrisk.core.mechanism import Gaussian
from reconrisk.defenses.base import BaseDefense
from reconrisk.releases.sensitivity.moments import ReferenceMoments
from reconrisk.testing import BrokenContract, check_defense
from reconrisk.testing.defense_rules import RULES

STD, NORM = 0.5, 1.0


@dataclasses.dataclass(frozen=True)
class Good(BaseDefense):
    """A clip and Gaussian noise, which keeps every rule."""

    std: float = STD

    @property
    def mechanism(self):
        return Gaussian(STD / NORM, NORM)

    def _apply(self, released, rng):
        mean = self.replay(released)
        return {name: value + self.std * self.drawn(value, rng).to(value) for name, value in mean.items()}

    def drawn(self, value, rng):
        return torch.randn(value.shape, generator=rng)

    def replay(self, released: Mapping[str, torch.Tensor]):
        square = sum(value.double().square().sum() for value in released.values())
        factor = NORM / square.clamp_min(NORM**2).sqrt()
        return {name: value * factor.to(value) for name, value in released.items()}

    def noise_std(self, sent):
        return {name: torch.full_like(value, self.std) for name, value in sent.items()}

    def kept(self, sent):
        return None


class StatesAWord(Good):
    mechanism = "gaussian"


class Addressed(Good):
    def __repr__(self):
        return "<noise at 0x7f00>"


class Forgets(Good):
    def _apply(self, released, rng):
        return {name: value for name, value in super()._apply(released, rng).items() if name != "bias"}

    def __call__(self, released, *, rng):
        super().__call__(released, rng=rng)
        return self._apply(released, rng)


class Overflows(Good):
    def replay(self, released):
        norm = torch.cat([value.flatten() for value in released.values()]).square().sum().sqrt()
        return {name: value * (NORM / norm.clamp_min(NORM)) for name, value in released.items()}

    def __call__(self, released, *, rng):
        sent = super().__call__(released, rng=rng)
        if next(iter(released.values())).dtype == torch.float16:
            return {name: value + 1e5 for name, value in sent.items()}
        return sent


class WritesInPlace(Good):
    def __call__(self, released, *, rng):
        sent = super().__call__(released, rng=rng)
        for value in released.values():
            value.mul_(0.5)
        return sent


class FromGlobal(Good):
    def drawn(self, value, rng):
        with torch.random.fork_rng():
            return torch.randn(value.shape)


class TouchesGlobal(Good):
    def drawn(self, value, rng):
        torch.rand(1)
        return super().drawn(value, rng)


class DividesByZero(Good):
    def _apply(self, released, rng):
        largest = torch.cat([value.flatten() for value in released.values()]).abs().max()
        return {name: value * (largest / largest) for name, value in super()._apply(released, rng).items()}


class TakesAnything(Good):
    def __call__(self, released, *, rng):
        return self._apply(released, rng)

    def _apply(self, released, rng):
        return super()._apply({name: value.nan_to_num() for name, value in released.items()}, rng)


class Detaches(Good):
    def replay(self, released):
        return {name: value.detach() for name, value in super().replay(released).items()}


class ReplaysChance(Good):
    def replay(self, released):
        return {name: value * (1 + 1e-9 * torch.rand(())) for name, value in super().replay(released).items()}

    def _apply(self, released, rng):
        mean = Good.replay(self, released)
        return {name: value + self.std * self.drawn(value, rng).to(value) for name, value in mean.items()}


class StatesZeroNoise(Good):
    def noise_std(self, sent):
        stds = super().noise_std(sent)
        stds["bias"][0] = 0.0
        return stds


class StatesKeptWrongly(Good):
    def kept(self, sent):
        return {name: torch.arange(value.numel()).view(value.shape) > 0 for name, value in sent.items()}


class StatesTooLittleNoise(Good):
    def _apply(self, released, rng):
        mean = self.replay(released)
        return {name: value + 1.3 * self.std * self.drawn(value, rng).to(value) for name, value in mean.items()}


class ReplaysTooMuch(Good):
    mechanism = None

    def _apply(self, released, rng):
        return {name: 0.5 * value for name, value in super()._apply(released, rng).items()}

    def noise_std(self, sent):
        return {name: torch.full_like(value, 0.5 * self.std) for name, value in sent.items()}


class ClaimsNoise(Good):
    mechanism = None

    def drawn(self, value, rng):
        return torch.zeros_like(value)


class DoesNotClip(Good):
    def replay(self, released):
        return dict(released)


BROKEN = {
    "states_its_mechanism": (StatesAWord, "Expected mechanism to be None or a mechanism, found str."),
    "shows_its_settings": (Addressed, "Expected a representation with every setting, found <noise at 0x7f00>."),
    "sends_what_fits": (Overflows, "Expected finite values in torch.float16, found NaN or infinite values."),
    "leaves_the_update": (WritesInPlace, "Expected an unchanged input, found changes in weight, bias."),
    "repeats_with_the_same_rng": (FromGlobal, "Expected the same result for the same rng, found a different one."),
    "leaves_global_generators": (TouchesGlobal, "Expected unchanged global generators, found another state"),
    "sends_zero_updates": (
        DividesByZero,
        "Expected finite values for an update of zeros, found NaN or infinite values.",
    ),
    "refuses_what_is_no_update": (
        TakesAnything,
        "Expected InvalidInput for an update with NaN, found no error. Extend reconrisk.defenses.base",
    ),
    "replays_what_can_be_differentiated": (
        Detaches,
        "Expected a replay that depends on the update, found one without an autograd graph.",
    ),
    "replays_without_chance": (
        ReplaysChance,
        "Expected the same replay each time, found a different one, or a random draw.",
    ),
    "states_side_information_that_fits": (
        StatesKeptWrongly,
        "Expected zeros where kept is False, found other values in weight.",
    ),
    "states_the_noise_that_it_adds": (
        StatesTooLittleNoise,
        "Expected noise with the standard deviation noise_std, found 1.3 times that.",
    ),
    "keeps_the_bound_of_its_mechanism": (
        DoesNotClip,
        "Expected a replay of norm at most 1/0.5 in units of noise_std, found ",
    ),
}


def failures(defense, *args):
    with pytest.raises(BrokenContract) as refused:
        check_defense(defense, *args)
    return refused.value.failures


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_defense_fails_its_rule_with_a_sentence(rule):
    build, sentence = BROKEN[rule]
    found = failures(build())
    assert list(found) == [rule]
    assert sentence in found[rule]


def test_every_rule_has_a_defense_that_breaks_it():
    assert set(BROKEN) == {rule.__name__ for rule in RULES}


def test_a_good_defense_keeps_every_rule():
    report = check_defense(Good())
    assert report.passed == tuple(rule.__name__ for rule in RULES)
    assert not report.skipped


@pytest.mark.parametrize(
    ("build", "rule", "sentence"),
    [
        (Forgets, "sends_what_fits", "Expected an update such as {'weight': '(6, 5) torch.float16', 'bias': "),
        (
            StatesZeroNoise,
            "states_side_information_that_fits",
            "Expected noise_std above zero, found zero or negative values.",
        ),
        (
            ReplaysTooMuch,
            "states_the_noise_that_it_adds",
            "Expected the mean of the update that is sent to be the replay, found ",
        ),
        (ClaimsNoise, "states_the_noise_that_it_adds", "Expected noise_std to be None without noise"),
    ],
)
def test_other_ways_to_break_a_rule(build, rule, sentence):
    assert sentence in failures(build())[rule]


def test_a_defense_of_certain_updates_is_checked_on_one_of_them():
    def mean(*values):
        return {"w": torch.tensor(values)}

    moments = ReferenceMoments(mean(4.0, 1.0), mean(0.0, 0.0), mean(1.0, 1.0), records=1, probes=1)
    defense = rr.defenses.optimal_noise(moments, utility_loss=3.0)
    assert "states_the_noise_that_it_adds" in check_defense(defense, mean(0.5, 0.25)).passed
    assert (
        "Pass check_defense an update that the defense can be applied to, or fix the error."
        in failures(defense)["sends_what_fits"]
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (rr.defenses.gaussian_noise, "defense='gaussian_noise' to be a defense. Pass a configured defense"),
        (Good, "defense='Good' to be a defense"),
        (3, "It has no replay, noise_std, kept, mechanism."),
        (math, "defense='math' to be a defense"),
    ],
)
def test_what_is_no_defense_is_refused(wrong, message):
    with pytest.raises(rr.InvalidInput) as refused:
        check_defense(wrong)
    assert message in str(refused.value)

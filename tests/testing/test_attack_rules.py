"""Deliberately broken attacks: each rule fails with its sentence, and no other rule does."""

import dataclasses
import math
import random

import numpy as np
import pytest
import torch

import reconrisk as rr
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import AttackReport, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import HONEST_BUT_CURIOUS, INFORMED, MALICIOUS_SERVER, Knows, ThreatModel
from reconrisk.testing import BrokenContract, check_attack
from reconrisk.testing.attack_rules import RULES

KNOWING_LABELS = HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS)


@dataclasses.dataclass(frozen=True)
class Good:
    """An attack that keeps every rule: it searches a little, and refuses whoever does not know the labels."""

    needs: ThreatModel = KNOWING_LABELS

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        observation.check_covers(self.needs)
        shape = (observation.batch_size, *observation.input_shape)
        found = torch.rand(shape, generator=rng, dtype=next(iter(observation.released.values())).dtype)
        for _ in range(3):
            observation.forward(found, observation.labels)
        return self.made(found)

    def made(self, found, status=None):
        account = AttackReport(
            repr(self), status or Status(Ending.CONVERGED, "done"), (0.0,) * len(found), Cost(0.0, 3)
        )
        return Reconstruction(found, account)


def changed(change):
    """The good attack with something done to what it returns."""

    class Changed(Good):
        def __call__(self, observation, *, rng):
            return change(self, super().__call__(observation, rng=rng), observation)

    return dataclasses.dataclass(frozen=True)(Changed)()


def of_estimates(change):
    return changed(lambda attack, found, seen: attack.made(change(found.estimates)))


class Named(Good):
    def __repr__(self):
        return "<attack at 0x7f00>"

    def made(self, found, status=None):
        account = AttackReport("named()", Status(Ending.CONVERGED, "done"), (0.0,) * len(found), Cost(0.0, 3))
        return Reconstruction(found, account)


class Unnamed(Good):
    def made(self, found, status=None):
        account = AttackReport("x", Status(Ending.CONVERGED, "done"), (0.0,) * len(found), Cost(0.0, 3))
        return Reconstruction(found, account)


class Counting(Good):
    calls = 0

    def __call__(self, observation, *, rng):
        type(self).calls += 1
        return self.made((super().__call__(observation, rng=rng).estimates / type(self).calls).clamp(0, 1))


def from_global_torch(attack, found, seen):
    with torch.random.fork_rng():
        return attack.made(torch.rand(found.estimates.shape))


def touches_global_torch(attack, found, seen):
    torch.manual_seed(0)
    return found


def touches_global_numpy(attack, found, seen):
    np.random.random()  # noqa: NPY002
    return found


def touches_python(attack, found, seen):
    random.random()
    return found


def writes_into_the_release(attack, found, seen):
    next(iter(seen.released.values())).add_(1.0)
    return found


def trains_the_model(attack, found, seen):
    with torch.no_grad():
        next(seen.forward.model.parameters()).add_(1.0)
    return found


class Careless(Good):
    """Uses labels only if they are there, and says that it needs them."""

    def __call__(self, observation, *, rng):
        return self.made(torch.rand(observation.batch_size, *observation.input_shape, generator=rng))


class SinglePrecision(Good):
    def __call__(self, observation, *, rng):
        found = super().__call__(observation, rng=rng)
        for value in observation.released.values():
            value.flatten() @ torch.ones(value.numel(), dtype=torch.float32)
        return found


class Stubborn(Good):
    """Takes Ctrl-C for a step that failed."""

    def __call__(self, observation, *, rng):
        found = torch.rand(observation.batch_size, *observation.input_shape, generator=rng)
        observation.check_covers(self.needs)
        for _ in range(5):
            try:
                observation.forward(found, observation.labels)
            except BaseException:  # noqa: S112  # which is what is wrong with it
                continue
        return self.made(found)


BROKEN = {
    "shows_its_settings": (Named, "Expected a representation such as name(setting=1), found <attack at 0x7f00>."),
    "returns_a_reconstruction": (
        lambda: changed(lambda attack, found, seen: found.estimates),
        "Expected a Reconstruction, found Tensor. Return rr.Reconstruction(estimates, account).",
    ),
    "returns_records": (
        lambda: of_estimates(lambda found: found.flatten(1)),
        "Expected estimates of shape (n, 1, 8, 8), found (1, 64).",
    ),
    "returns_finite_estimates": (
        lambda: of_estimates(lambda found: found.index_fill(-1, torch.tensor([0]), math.nan)),
        "Expected finite estimates, or a status that is a failure, found 8 NaN or infinite values.",
    ),
    "returns_estimates_within_range": (
        lambda: of_estimates(lambda found: found + 2.0),
        "Expected estimates within (0.0, 1.0), found 2.",
    ),
    "returns_no_graph": (
        lambda: of_estimates(lambda found: found.requires_grad_()),
        "Expected estimates without an autograd graph, found requires_grad=True. Return estimates.detach().",
    ),
    "states_its_account": (Unnamed, "Expected account.attack such as name(setting=1), found 'x'. Pass repr(self)."),
    "repeats_with_the_same_rng": (
        lambda: changed(from_global_torch),
        "Expected the same estimates for the same rng, found different estimates after another torch.manual_seed.",
    ),
    "leaves_global_generators": (
        lambda: changed(touches_global_torch),
        "Expected unchanged global generators, found another state after the call.",
    ),
    "refuses_weaker_adversaries": (
        Careless,
        "Expected InvalidInput for a threat model without knows=labels, found Reconstruction. "
        "Call observation.check_covers",
    ),
    "works_in_double_precision": (SinglePrecision, "expected no error, found RuntimeError"),
    "ends_when_interrupted": (
        Stubborn,
        "Expected an interrupted attack, found converged: done. Let KeyboardInterrupt pass",
    ),
}


def failures(attack, *args, **settings):
    with pytest.raises(BrokenContract) as refused:
        check_attack(attack, *args, **settings)
    return refused.value.failures


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_attack_fails_its_rule_with_a_sentence(rule):
    build, sentence = BROKEN[rule]
    found = failures(build())
    assert list(found) == [rule]
    assert sentence in found[rule]


def test_every_rule_has_an_attack_that_breaks_it():
    elsewhere = {"leaves_the_observation", "ignores_the_private_records"}  # tests of their own
    assert set(BROKEN) | elsewhere == {rule.__name__ for rule in RULES}


def test_a_good_attack_keeps_every_rule():
    report = check_attack(Good())
    assert report.passed == tuple(rule.__name__ for rule in RULES)
    assert not report.skipped
    assert str(report).startswith("Good(needs=")


def test_the_error_names_the_attack_and_has_a_line_for_each_rule():
    attack = of_estimates(lambda found: (found + 2.0).requires_grad_())
    with pytest.raises(BrokenContract) as refused:
        check_attack(attack)
    first, *lines = str(refused.value).splitlines()
    assert first.endswith("breaks 2 of 14 rules for attacks.")
    assert [line.split(":")[0].strip() for line in lines] == ["returns_estimates_within_range", "returns_no_graph"]


@pytest.mark.parametrize("change", [touches_global_numpy, touches_python])
def test_other_global_generators_count_too(change):
    assert list(failures(changed(change))) == ["leaves_global_generators"]


def test_something_kept_between_calls_is_found():
    found = failures(Counting())
    assert "found different estimates at the next call" in found["repeats_with_the_same_rng"]


@pytest.mark.parametrize(
    ("change", "place"), [(writes_into_the_release, "released["), (trains_the_model, "the model's ")]
)
def test_what_the_attack_was_handed_must_stay(change, place):
    found = failures(changed(change))
    assert f"Expected an unchanged observation, found changes in {place}" in found["leaves_the_observation"]


def test_more_estimates_than_records_are_refused():
    found = failures(of_estimates(lambda found: found.expand(3, -1, -1, -1)))
    assert "Expected at most batch_size=1 estimates, found 3." in found["returns_records"]


def test_whole_numbers_are_no_estimates():
    found = failures(of_estimates(lambda found: found.round().long()))
    assert "Expected estimates to be a floating-point tensor, found torch.int64." in found["returns_records"]


def test_an_attack_that_raises_is_explained_once():
    @dataclasses.dataclass(frozen=True)
    class Raising(Good):
        def __call__(self, observation, *, rng):
            raise RuntimeError("half written\nand more")

    found = failures(Raising())
    assert (
        "Expected a Reconstruction of the observation, found RuntimeError: half written."
        in (found["returns_a_reconstruction"])
    )
    assert "returns_records" not in found


def test_an_attack_that_looks_at_the_private_records_is_found():
    records = torch.rand(1, 3, generator=torch.Generator().manual_seed(0))
    seen = Observation({"y": records.sum(1)}, lambda inputs, labels: {"y": inputs.sum(1)}, HONEST_BUT_CURIOUS, (3,),
                       (0.0, 1.0))  # fmt: skip

    @dataclasses.dataclass(frozen=True, eq=False)
    class Peeking:
        truth: torch.Tensor = dataclasses.field(repr=False)
        needs: ThreatModel = HONEST_BUT_CURIOUS

        def __call__(self, observation, *, rng):
            account = AttackReport(repr(self), Status(Ending.EXACT, "peeked"), (0.0,), Cost(0.0, 0))
            return Reconstruction(self.truth.clone(), account)

    before = records.clone()
    found = failures(Peeking(records), seen, records=records)
    assert list(found) == ["ignores_the_private_records"]
    assert "found a change when they changed" in found["ignores_the_private_records"]
    assert torch.equal(records, before)
    assert "ignores_the_private_records" in check_attack(Peeking(records), seen).skipped  # nobody can tell


def test_a_failure_that_is_stated_may_have_lost_its_estimates():
    attack = changed(
        lambda attack, found, seen: attack.made(
            torch.full_like(found.estimates, math.nan), Status(Ending.DIVERGED, "lost", "Change it")
        )
    )
    assert "returns_finite_estimates" in check_attack(attack).skipped


def test_needs_that_are_no_threat_are_refused():
    with pytest.raises(rr.InvalidInput, match="to be a ThreatModel"):
        check_attack(dataclasses.replace(Good(), needs="labels"))


def test_a_plain_function_is_checked_as_the_attack_that_it_becomes():
    def middle(observation, *, rng):
        return torch.full((observation.batch_size, *observation.input_shape), 0.5)

    def wrong(observation):
        return observation

    assert check_attack(middle).subject.startswith("middle(code=")
    with pytest.raises(rr.InvalidInput, match="Write def wrong"):
        check_attack(wrong)


def test_attacks_on_trained_models_need_an_observation():
    with pytest.raises(rr.InvalidInput, match="Pass check_attack an observation of a trained model"):
        check_attack(dataclasses.replace(Good(), needs=INFORMED))


def test_whoever_plants_a_layer_plants_it_in_the_small_network():
    report = check_attack(rr.attacks.imprint(bins=8))
    assert "refuses_weaker_adversaries" in report.passed
    assert MALICIOUS_SERVER.covers(rr.attacks.imprint().needs)

"""Trainings that claim more noise than they add are contradicted, sound ones are not."""

import re
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.core.errors import InvalidInput
from reconrisk.defenses import clip, clip_and_noise, gaussian_noise, laplace_noise, prune
from reconrisk.defenses.clipping import NoiseScales
from reconrisk.defenses.noise import NoisyRelease, ParameterNoise
from reconrisk.studies.verify_mechanism.evidence import CONTRIBUTION, REUSE
from reconrisk.studies.verify_mechanism.result import Verdict

SIZE = 738  # values of a small network
CLAIM = rr.mechanisms.Gaussian(noise_multiplier=1.0, clip_norm=1.0)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def update(seed=0):
    return {"weight": torch.randn(700, generator=rng(seed)), "bias": torch.randn(38, generator=rng(seed + 1))}


@dataclass(frozen=True)
class Claiming(NoisyRelease):
    """A defense that claims noise multiplier one whatever it adds, in ``mechanism`` and in ``noise_std``."""

    @property
    def mechanism(self):
        return CLAIM

    def noise_std(self, sent):
        return {name: torch.ones_like(tensor) for name, tensor in sent.items()}


@pytest.mark.parametrize("factor", [0.1, 0.6, 0.8])
@pytest.mark.parametrize("stopping", ["anytime", "fixed"])
def test_one_release_contradicts_missing_noise(factor, stopping):
    for seed in range(5):
        found = rr.verify_mechanism(
            Claiming(factor, 1.0), update(seed), releases=1, stopping=stopping, level=1e-3, rng=rng(seed)
        )
        assert found.verdict is Verdict.CONTRADICTED
        assert found.releases == 1
        assert found.noise_ratio == pytest.approx(factor, rel=0.15)
        assert found.epsilon_within_family > found.epsilon_claimed


def test_noise_that_a_defense_states_does_not_replace_its_claim():
    """Its ``noise_std`` admits less noise than its mechanism claims; the mechanism is what guarantees use."""

    class Honest(Claiming):
        def noise_std(self, sent):
            return NoisyRelease.noise_std(self, sent)

    assert rr.verify_mechanism(Honest(0.6, 1.0), update(), releases=1, rng=rng()).is_contradicted


def test_sound_defenses_are_not_contradicted():
    """At level 0.2 the mean number of alarms in 30 audits is at most 6."""
    sound = [
        clip_and_noise(noise_multiplier=1.0, clip_norm=0.5),
        clip(2.0) >> gaussian_noise(1.0),
        clip(1.0) >> gaussian_noise(2.0) >> prune(0.5),
    ]
    found = [
        rr.verify_mechanism(each, update(seed), releases=16, level=0.2, smallest_ratio=0.99, rng=rng(seed))
        for each in sound
        for seed in range(10)
    ]
    assert sum(each.is_contradicted for each in found) <= 6
    assert all(each.evidence < 7 for each in found)


def test_noise_that_differs_between_parameters_is_verified_in_its_own_units():
    stds = {name: torch.linspace(0.5, 4.0, tensor.numel()) for name, tensor in update().items()}
    defense = clip(1.0) >> ParameterNoise(NoiseScales(stds), "mine")
    assert rr.verify_mechanism(defense, update(), releases=4000, rng=rng()).verdict is Verdict.CONSISTENT
    half = ParameterNoise(NoiseScales({name: std / 2 for name, std in stds.items()}), "half")
    assert rr.verify_mechanism(half, update(), claimed=defense.mechanism, releases=1, rng=rng()).is_contradicted


def test_more_noise_than_claimed_is_consistent():
    found = rr.verify_mechanism(Claiming(3.0, 1.0), update(), releases=4000, rng=rng())
    assert found.verdict is Verdict.CONSISTENT
    assert found.noise_ratio_low > 2.5
    assert "more than claimed" in found.reason


def test_a_defense_that_does_not_clip_is_contradicted():
    class Unclipped(Claiming):
        def _apply(self, released, rng):
            return gaussian_noise(self.std)(released, rng=rng)

    found = rr.verify_mechanism(Unclipped(1.0, 1.0), update(), rng=rng())
    assert found.is_contradicted
    assert "contributes" in found.reason


def test_noise_that_is_drawn_once_is_contradicted():
    class Once(Claiming):
        def _apply(self, released, rng):
            return super()._apply(released, torch.Generator().manual_seed(4))

    assert rr.verify_mechanism(Once(1.0, 1.0), update(), rng=rng()).is_contradicted


class Noise(Claiming):
    """The claimed scale, but ``draw`` makes the noise from the clipped update, the number of the release and rng."""

    def __init__(self, draw, std=1.0):
        super().__init__(std, 1.0)
        object.__setattr__(self, "_draw", draw)
        object.__setattr__(self, "_count", [0])

    @property
    def mechanism(self):
        return rr.mechanisms.Gaussian(noise_multiplier=self.std, clip_norm=1.0)

    def _apply(self, released, rng):
        clipped = self.replay(released)
        self._count[0] += 1
        return {name: value + self.std * self._draw(value, self._count[0], rng) for name, value in clipped.items()}


def draw(value, rng):
    return torch.randn(value.shape, generator=rng, dtype=torch.float64)


def without_noise_along(value, count, rng):
    noise, unit = draw(value, rng), value / value.norm().clamp_min(1e-30)
    return noise - (noise * unit).sum() * unit


@pytest.mark.parametrize("std", [0.2, 1.0])
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda value, count, rng: draw(value, rng).sign(), "shape of a Gaussian"),
        (lambda value, count, rng: draw(value, rng) * (1 + 0.2 * (value.norm() > 0)), "depends on the records"),
        (lambda value, count, rng: draw(value[::10], rng).repeat(10), "correlated|depend on each other"),
        (lambda value, count, rng: draw(value, torch.Generator().manual_seed(count % 7)), "used twice"),
        (without_noise_along, "along the gradient"),
    ],
    ids=["two values", "size of the update", "ten equal parts", "cycle", "not along the gradient"],
)
def test_noise_of_the_right_variance_is_not_enough(std, make, words):
    found = rr.verify_mechanism(
        Noise(make, std), {"weight": torch.randn(700, generator=rng())}, releases=200, rng=rng()
    )
    assert found.verdict is not Verdict.CONSISTENT
    assert re.search(words, found.reason)


def test_more_noise_on_one_parameter_is_no_noise_that_is_used_again():
    class Uneven(Claiming):
        def _apply(self, released, rng):
            sent = super()._apply(released, rng)
            return {**sent, "bias": sent["bias"] + 30 * draw(sent["bias"], rng)}

    found = rr.verify_mechanism(Uneven(1.0, 1.0), update(), releases=40, level=1e-9, rng=rng())
    reuse = next(test for test in found.tests if test.name == REUSE)
    assert reuse.evidence < 0


def test_noise_that_is_partly_used_again_is_contradicted():
    class Half:
        """Fresh noise and noise of the release before, in equal parts: the scale is as claimed."""

        mechanism = CLAIM

        def __init__(self):
            self.before = {name: torch.randn_like(value) for name, value in update().items()}

        def __call__(self, released, *, rng):
            fresh = {name: torch.randn(value.shape, generator=rng) for name, value in released.items()}
            sent = {name: (fresh[name] + self.before[name]) / 2**0.5 for name in released}
            self.before = fresh
            clipped = clip(1.0).replay(released)
            return {name: clipped[name] + sent[name] for name in released}

    torch.manual_seed(0)
    found = rr.verify_mechanism(Half(), update(), rng=rng())
    assert found.is_contradicted
    assert max(found.tests, key=lambda test: test.evidence).name == REUSE


@pytest.mark.parametrize(
    ("defense", "given", "match"),
    [
        (gaussian_noise(1.0), {}, "mechanism of"),
        (laplace_noise(1.0), {}, "mechanism of"),
        (clip(1.0), {}, "mechanism of"),
        (clip_and_noise(noise_multiplier=1.0, clip_norm=1.0), {"claimed": rr.mechanisms.GaussianDP(1.0)}, "state Gaus"),
        (clip_and_noise(noise_multiplier=1.0, clip_norm=1.0), {"stopping": "later"}, "stopping"),
        (clip_and_noise(noise_multiplier=1.0, clip_norm=1.0), {"level": 1.0}, "level"),
        (clip_and_noise(noise_multiplier=1.0, clip_norm=1.0), {"data": [1.0]}, "update of the defense"),
        (clip_and_noise(noise_multiplier=1.0, clip_norm=1.0), {"data": {"w": torch.zeros(9)}}, "norm of the update"),
        ("clip", {}, "mechanism under test"),
    ],
)
def test_claims_that_cannot_be_verified_are_refused(defense, given, match):
    with pytest.raises(InvalidInput, match=match):
        rr.verify_mechanism(defense, **given, rng=rng())


@pytest.mark.parametrize("bad", ["nan", "shape", "name"])
def test_releases_that_are_no_releases_are_refused(bad):
    class Bad(Claiming):
        def _apply(self, released, rng):
            sent = super()._apply(released, rng)
            if bad == "nan":
                sent["bias"][3] = torch.nan
            if bad == "shape":
                sent["bias"] = sent["bias"][:5]
            if bad == "name":
                sent["other"] = sent.pop("bias")
            return sent

    with pytest.raises(InvalidInput, match="release"):
        rr.verify_mechanism(Bad(1.0, 1.0), update(), rng=rng())


@pytest.mark.parametrize("sent", [[torch.zeros(3)], {"w": 1.0}, {}, torch.zeros(3)])
def test_steps_that_return_no_release_are_refused(sent):
    with pytest.raises(InvalidInput, match="release"):
        rr.verify_mechanism(lambda inputs, labels: sent, RECORDS, claimed=CLAIM, rng=rng())


RECORDS = (torch.randn(30, 6, generator=rng(3)), torch.randint(0, 3, (30,), generator=rng(4)))


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3))


def step_function(model, *, noise=1.0, scale=1.0, clip_norm=1.0, seed=0):
    """A step of DP-SGD written by hand: one record after the other."""
    source = rng(seed)

    def step(inputs, labels):
        total = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
        for record, label in zip(inputs, labels, strict=True):
            loss = nn.functional.cross_entropy(model(record[None]), label[None])
            gradient = torch.autograd.grad(loss, list(model.parameters()))
            length = torch.cat([part.flatten() for part in gradient]).norm()
            for (name, value), part in zip(total.items(), gradient, strict=True):
                total[name] = value + part * scale * (clip_norm / length).clamp(max=1)
        return {
            name: value + noise * clip_norm * torch.randn(value.shape, generator=source)
            for name, value in total.items()
        }

    return step


@pytest.mark.parametrize("knows_model", [True, False])
@pytest.mark.parametrize(
    ("noise", "scale", "verdict"),
    [(1.0, 1.0, Verdict.CONSISTENT), (0.5, 1.0, Verdict.CONTRADICTED), (1.0, 8.0, Verdict.CONTRADICTED)],
)
def test_step_functions(noise, scale, verdict, knows_model):
    model = small_model()
    found = rr.verify_mechanism(
        step_function(model, noise=noise, scale=scale),
        RECORDS,
        claimed=rr.mechanisms.dp_sgd(noise_multiplier=1.0, sampling_probability=0.1, steps=10),
        model=model if knows_model else None,
        canary=(torch.full((1, 6), 4.0), torch.tensor([0])),
        releases=120,
        rng=rng(),
    )
    assert found.verdict is verdict, found.reason
    if scale != 1:
        assert max(found.tests, key=lambda test: test.evidence).name == CONTRIBUTION

"""The privacy that defenses claim, tested by telling updates apart: no test may do better than the claim allows."""

import math

import pytest
import torch
from scipy.stats import norm

from reconrisk.accounting.subsampled import epsilon_of_training
from reconrisk.core.mechanism import Gaussian
from reconrisk.defenses import clip, clip_and_noise, gaussian_noise, optimal_noise, optimal_pruning_and_noise, prune
from reconrisk.defenses.registry import defense_by_name
from reconrisk.releases.sensitivity.moments import ReferenceMoments
from reconrisk.statistics.intervals import clopper_pearson

TRIALS = 1000
SIZE = 12
CONFIDENCE = 1 - 1e-6  # of each of the two rates: no sound claim fails by chance


def moments():
    rng = torch.Generator().manual_seed(1)
    wide = {"w": torch.exp(3 * torch.randn(SIZE, generator=rng, dtype=torch.float64))}
    ones = {"w": torch.ones(SIZE, dtype=torch.float64)}
    return ReferenceMoments(wide, {"w": 0 * ones["w"]}, ones, 1, 10)


NOISE = optimal_noise(moments(), like=0.5)


def rates(defense, update, seed=0):
    """How often a test raises an alarm with the update, at least, and without it, at most.

    The test is the likelihood ratio of independent Gaussian noise, whose direction whoever knows the defense knows.
    """
    rng = torch.Generator().manual_seed(seed)
    nothing = {"w": torch.zeros(SIZE, dtype=torch.float64)}
    mean = defense.replay(update)["w"]
    kept = getattr(defense, "kept", lambda _: None)(update)
    mean = mean if kept is None else mean * kept["w"]
    weights = mean / defense.noise_std(update)["w"].square()
    sent = [torch.stack([defense(each, rng=rng)["w"] for _ in range(TRIALS)]) @ weights for each in (update, nothing)]
    level = float(mean @ weights) / 2
    hits, alarms = (clopper_pearson(int((each > level).sum()), TRIALS, CONFIDENCE) for each in sent)
    return hits.low, alarms.high


def power(defense, update, seed=0):
    """Lower limit on how far apart a test puts the update and none: Phi^-1 of both rates, as of two normal laws."""
    hits, alarms = rates(defense, update, seed)
    return float(norm.ppf(hits) - norm.ppf(alarms))


def epsilon(distance):
    """The epsilon of two normal laws so far apart, which the likelihood ratio of Gaussian noise compares."""
    return epsilon_of_training(Gaussian(1 / distance), 1e-5)


def worst_updates():
    """Large updates along each value and at random: what is clipped most."""
    rng = torch.Generator().manual_seed(2)
    axes = [{"w": 100 * row} for row in torch.eye(SIZE, dtype=torch.float64)]
    return [*axes, {"w": 100 * torch.randn(SIZE, generator=rng, dtype=torch.float64)}]


CLAIMS = {
    "clip_and_noise": clip_and_noise(noise_multiplier=0.7, clip_norm=1.0),
    "clip >> gaussian_noise": clip(2.0) >> gaussian_noise(1.5),
    "clip >> optimal_noise": clip(1.0) >> NOISE,
    "clip >> prune >> gaussian_noise": clip(1.0) >> prune(0.5) >> gaussian_noise(0.8),
    "optimal_noise by words": defense_by_name("optimal_noise", noise_multiplier=0.8, clip_norm=0.5).with_moments(
        moments()
    ),
    "clip >> optimal_pruning_and_noise": clip(1.0) >> optimal_pruning_and_noise(moments(), share=0.5, unit=0.7),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_no_update_is_told_from_none_better_than_is_claimed(name):
    defense = CLAIMS[name]
    claimed = 1 / defense.mechanism.noise_multiplier
    found = [power(defense, update, seed) for seed, update in enumerate(worst_updates())]
    assert max(found) <= claimed
    assert max(found) > claimed - _left_by_chance(claimed)


@pytest.mark.parametrize("name", CLAIMS)
def test_the_empirical_epsilon_stays_below_the_stated_one(name):
    defense = CLAIMS[name]
    found = max(power(defense, update, seed) for seed, update in enumerate(worst_updates()))
    assert 0 < epsilon(found) <= epsilon_of_training(defense.mechanism, 1e-5)


def _left_by_chance(claimed):
    """How far below a claim that is attained the lower limit lies: both ends of the intervals, four standard errors."""
    rate = float(norm.cdf(claimed / 2))
    low = clopper_pearson(round(rate * TRIALS), TRIALS, CONFIDENCE).low
    error = math.sqrt(2 * rate * (1 - rate) / TRIALS) / float(norm.pdf(claimed / 2))
    return 2 * (claimed / 2 - float(norm.ppf(low))) + 4 * error


def test_pruning_what_was_sent_cannot_tell_more():
    claimed = 1 / (clip(1.0) >> NOISE).mechanism.noise_multiplier
    after = clip(1.0) >> NOISE >> prune(0.5)
    assert after.mechanism == (clip(1.0) >> NOISE).mechanism
    assert power(after, worst_updates()[-1]) <= claimed


class ClippedInTheWrongNorm:
    """A deliberately broken copy: it clips in the Euclidean norm and claims what the matching one gives."""

    def __init__(self, noise):
        self.noise, self.mechanism, self.noise_std = noise, (clip(1.0) >> noise).mechanism, noise.noise_std

    def __call__(self, released, *, rng):
        return self.noise(self.replay(released), rng=rng)

    def replay(self, released):
        return clip(1.0).replay(released)


def test_a_clip_in_the_wrong_norm_is_caught():
    broken = ClippedInTheWrongNorm(NOISE)
    found = max(power(broken, update, seed) for seed, update in enumerate(worst_updates()))
    assert found > 1 / broken.mechanism.noise_multiplier
    assert epsilon(found) > epsilon_of_training(broken.mechanism, 1e-5)

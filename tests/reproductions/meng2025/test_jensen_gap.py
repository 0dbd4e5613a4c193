"""The Jensen gap against closed forms: squares of normal values, whose gap is their variance."""

import math

import pytest
import torch

import reconrisk as rr
from reconrisk.attacks.with_prior.guided_diffusion import ggss_r
from reconrisk.core.observation import Observation
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows
from reproductions.meng2025.jensen_gap import jensen_gap

THREAT = HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS, Knows.PRIOR, Knows.DEFENSE)
VARIANCES = torch.tensor([0.04, 0.01, 0.02])
PRIOR = rr.priors.gaussian(torch.tensor([0.5, 0.4, 0.6]), VARIANCES.diag())
TIMES = [999, 500, 100]


def seen(forward, size=3, noise=None, records=1):
    std = None if noise is None else {"y": torch.full((size,), noise)}
    return Observation(
        {"y": torch.full((size,), 0.3)},
        lambda batch, labels: {"y": forward(batch)},
        THREAT,
        (3,),
        (0.0, 1.0),
        records,
        labels=torch.zeros(records, dtype=torch.int64),
        noise_std=std,
    )


def squared(batch):
    return batch[0].square()


def linear(batch):
    return 3 * batch[0] - 1


def posterior_variances(time):
    """Of records in [0, 1] that the prior sees in [-1, 1], where their variances are four times as large."""
    share = float(PRIOR.schedule.signal[time])
    inner = 4 * VARIANCES.double()
    return inner * (1 - share) / (share * inner + 1 - share) / 4


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_gap_of_squares_is_the_variance_of_the_posterior():
    found = jensen_gap(PRIOR, seen(squared), of="release", times=TIMES, draws=4000, rng=rng())
    assert found.posterior == "exact"
    assert found.times == (999, 499, 99)  # the path of 100 steps has every tenth time
    for point in found.points:
        exact = posterior_variances(point.time)
        assert point.gap.low <= float(exact.norm()) <= point.gap.high
        # five standard errors of a mean of 4000 squares of normal values, whose relative spread is at most sqrt(2)
        assert point.total_variance == pytest.approx(float(exact.sum()), rel=5 * math.sqrt(2 / 4000))
    assert [gap.value for gap in found.gaps] == sorted((gap.value for gap in found.gaps), reverse=True)


def test_the_gap_of_a_squared_loss_is_the_trace():
    class Squared:
        def __call__(self, candidate, observed):
            return (candidate["y"] - observed["y"]).square().sum()

    attack = ggss_r(PRIOR, distance=Squared())
    found = jensen_gap(PRIOR, seen(linear), attack=attack, times=TIMES, draws=4000, rng=rng())
    for point in found.points:
        assert point.gap.low <= 9 * float(posterior_variances(point.time).sum()) <= point.gap.high


@pytest.mark.parametrize("of", ["release", "loss"])
def test_a_linear_map_has_no_gap_in_its_release_but_in_its_loss(of):
    found = jensen_gap(PRIOR, seen(linear), of=of, times=[999], draws=500, rng=rng(3))
    assert (found.gaps[0].low == 0.0) == (of == "release")


def test_intervals_cover_as_often_as_they_say():
    exact, covered = None, 0
    for seed in range(60):
        (point,) = jensen_gap(
            PRIOR, seen(squared), of="release", times=[999], draws=30, attack=ggss_r(PRIOR, steps=2), rng=rng(seed)
        ).points
        exact = float(posterior_variances(point.time).norm())
        covered += point.gap.low <= exact <= point.gap.high
    assert covered >= 53  # at 95 percent 52 or fewer of 60 have probability 0.005


def test_known_noise_is_the_unit():
    plain, whitened = (
        jensen_gap(PRIOR, seen(squared, noise=noise), of="release", times=[999], rng=rng()).gaps[0].value
        for noise in (None, 0.1)
    )
    # at the first time of the path both are at the same noisy record
    assert whitened == pytest.approx(10 * plain, rel=1e-4)


def test_a_diffusion_is_sampled_approximately_and_says_so():
    exact = jensen_gap(PRIOR, seen(squared), of="release", times=[500], draws=2000, rng=rng())
    found = jensen_gap(
        PRIOR.diffusion, seen(squared), of="release", times=[500], draws=2000, posterior_steps=200, rng=rng()
    )
    assert found.posterior == "approximate, by at most 200 steps of the reverse diffusion"
    assert found.gaps[0].value == pytest.approx(exact.gaps[0].value, rel=0.1)


def test_batches_have_one_gap():
    def both(batch):
        return batch.square().sum(0)

    (point,) = jensen_gap(PRIOR, seen(both, records=2), of="release", times=[999], draws=4000, rng=rng()).points
    assert point.gap.low <= 2 * float(posterior_variances(999).norm()) <= point.gap.high
    assert point.total_variance == pytest.approx(2 * float(posterior_variances(999).sum()), rel=0.15)


def test_by_default_it_looks_at_eight_times_from_noise_to_none():
    found = jensen_gap(PRIOR, seen(squared), draws=4, rng=rng())
    assert len(found.times) == 8
    assert (found.times[0], found.times[-1]) == (999, 9)
    assert len(found.table().splitlines()) == 9
    assert found.table().startswith("Jensen gap of the loss, posterior exact")


def test_chance_is_the_argument_and_nothing_else():
    one = jensen_gap(PRIOR, seen(squared), draws=4, times=[500], rng=rng(7))
    torch.manual_seed(5)
    assert jensen_gap(PRIOR, seen(squared), draws=4, times=[500], rng=rng(7)) == one


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"of": "gradient"}, 'to be "loss" or "release"'),
        ({"draws": 1}, "draws=1 >= 2"),
        ({"times": []}, "one time at least"),
        ({"times": [1000]}, "times=1000 < 1000"),
        ({"times": [-1]}, "times=-1 >= 0"),
        ({"confidence": 0.5}, r"confidence=0.5 in \[0.8, 1\)"),
        ({"posterior_steps": 0}, "posterior_steps=0 >= 1"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(rr.InvalidInput, match=message):
        jensen_gap(PRIOR, seen(squared), rng=rng(), **settings)


def test_an_attack_with_another_prior_is_refused():
    other = rr.priors.gaussian(torch.zeros(3), torch.eye(3))
    with pytest.raises(rr.InvalidInput, match="to have the same prior"):
        jensen_gap(PRIOR, seen(squared), attack=ggss_r(other), rng=rng())


def test_another_attack_has_no_path_to_measure():
    with pytest.raises(rr.InvalidInput, match=r"to be one of rr\.attacks\.ggss_r"):
        jensen_gap(PRIOR, seen(squared), attack=rr.attacks.plug_and_play(PRIOR), rng=rng())


def test_a_map_without_numbers_is_refused():
    with pytest.raises(rr.InvalidInput, match="the loss at time 999 to be finite"):
        jensen_gap(PRIOR, seen(lambda batch: batch[0] * math.nan), times=[999], rng=rng())

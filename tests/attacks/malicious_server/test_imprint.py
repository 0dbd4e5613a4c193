import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributions import Gamma, Laplace, Normal

import reconrisk as rr
from reconrisk.attacks import imprint
from reconrisk.core.reconstruction import Ending
from reconrisk.core.threat import HONEST_BUT_CURIOUS, MALICIOUS_SERVER, Knows

CE = nn.functional.cross_entropy


@pytest.fixture(scope="module")
def digits():
    return rr.load_dataset("mnist", split="test")


@pytest.fixture(scope="module")
def public():
    return rr.load_dataset("mnist", split="train").inputs


def network(seed=0, *layers):
    torch.manual_seed(seed)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(784, 30), nn.ReLU(), nn.Linear(30, 10))


def batch(digits, seed, size=64):
    rows = torch.randperm(len(digits), generator=torch.Generator().manual_seed(seed))[:size]
    return digits.inputs[rows], digits.labels[rows]


def attacked(attack, planted, inputs, labels, *, threat=MALICIOUS_SERVER, **options):
    observation = rr.observe(rr.releases.GradientRelease(planted, CE, inputs, labels), threat=threat, **options)
    return attack(observation, rng=torch.Generator())


def count_of(result):
    return sum(math.isfinite(value) for value in result.account.objective)


def matched(result, inputs):
    """Relative error of each recovered record against the nearest true one, and which that is."""
    flat = inputs.flatten(1).double()
    distances = torch.cdist(result.estimates[: count_of(result)].flatten(1).double(), flat)
    nearest = distances.argmin(1)
    return distances.amin(1) / flat[nearest].norm(dim=1), nearest.tolist()


def alone_in_bin(planted, inputs):
    """Which records have a bin to themselves, by the layer's own thresholds."""
    level = planted.frozen(inputs.flatten(1))
    if planted.isolated:
        active = (level >= 0) & (level <= 1)  # the ends of the range have a derivative too
    else:
        active = nn.functional.one_hot((level > 0).sum(1), level.shape[1] + 1).bool()
    return (active & (active.sum(0) == 1)).any(1).nonzero().flatten().tolist()


@pytest.mark.parametrize(("size", "bins"), [(64, 256), (64, 1000), (256, 500)])
def test_as_many_digits_of_a_batch_are_recovered_as_expected_and_exactly(digits, public, size, bins):
    attack = imprint(bins=bins, public=public)
    planted = attack.plant(network(), (1, 28, 28))
    counts = []
    for seed in range(5):
        inputs, labels = batch(digits, seed, size)
        result = attacked(attack, planted, inputs, labels)
        errors, which = matched(result, inputs)
        assert float(errors.max()) < 1e-4
        assert sorted(which) == alone_in_bin(planted, inputs)
        assert f"recovered {len(which)} of {size}; expected {attack.expected_recovered(size):.1f}" in str(result.status)
        counts.append(len(which))
    # variance of the number of balls alone in one of k urns; four standard errors of the mean of 5 batches
    mean, pairs = size * (1 - 1 / bins) ** (size - 1), size * (size - 1) * (1 - 1 / bins) * (1 - 2 / bins) ** (size - 2)
    error = math.sqrt((pairs + mean - mean**2) / len(counts))
    assert sum(counts) / len(counts) == pytest.approx(attack.expected_recovered(size), abs=4 * error)


@given(size=st.integers(1, 300), bins=st.integers(1, 400))
def test_the_expectation_is_that_of_balls_alone_in_urns(size, bins):
    known = imprint(bins=bins, public=Normal(0.5, 0.1)).expected_recovered(size)
    assert known == pytest.approx(size * (1 - 1 / bins) ** (size - 1))
    many = imprint(bins=bins, public=torch.zeros(1, 1).expand(100_000, 1))  # as good as the law
    assert many.expected_recovered(size) == pytest.approx(known, abs=0.01 * size)


def test_the_expectation_from_public_records_is_that_of_spacings():
    rng = torch.Generator().manual_seed(0)
    attack, counts = imprint(bins=50, public=torch.zeros(199, 1)), []  # (199 + 1) / 50 is whole, the formula exact
    for _ in range(2000):
        edges = torch.rand(199, generator=rng).sort().values[3::4].contiguous()
        places = torch.bucketize(torch.rand(30, generator=rng), edges)
        counts.append(float((places.bincount() == 1).sum()))
    mean, error = torch.tensor(counts).mean(), torch.tensor(counts).std() / math.sqrt(2000)
    assert float(mean) == pytest.approx(attack.expected_recovered(30), abs=4 * float(error))


def test_differences_of_neighbours_recover_the_same_records(digits, public):
    inputs, labels = batch(digits, 1)
    attack = imprint(bins=256, public=public, isolated=False)
    planted = attack.plant(network().double(), (1, 28, 28))
    errors, which = matched(attacked(attack, planted, inputs.double(), labels), inputs)
    assert sorted(which) == alone_in_bin(planted, inputs.double())
    assert float(errors.max()) < 1e-6
    single = attacked(attack, planted.float(), inputs, labels)  # rounding of the sums loses a few, but lets none in
    errors, some = matched(single, inputs)
    assert set(some) <= set(which)
    assert len(some) >= 0.8 * len(which)
    assert float(errors.max()) < 1e-4


@pytest.mark.parametrize("isolated", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_and_dropout_after_the_planted_layer_do_not_matter(digits, public, isolated, training):
    inputs, labels = batch(digits, 2, 32)
    model = network(0, nn.Conv2d(1, 1, 3, padding=1), nn.BatchNorm2d(1), nn.Dropout(0.5)).eval()
    model[1].train(training)
    attack = imprint(bins=256, public=public, isolated=isolated)
    planted = attack.plant(model, (1, 28, 28))
    errors, which = matched(attacked(attack, planted, inputs, labels), inputs)
    alone = alone_in_bin(planted, inputs)
    assert set(which) <= set(alone)
    assert len(which) >= (1.0 if isolated else 0.8) * len(alone)
    assert float(errors.max()) < 1e-4


def test_several_local_steps_are_read_like_one(digits, public):
    inputs, labels = batch(digits, 3, 48)
    attack = imprint(bins=256, public=public)
    planted = attack.plant(network(), (1, 28, 28))
    release = rr.releases.LocalUpdateRelease(planted, CE, inputs, labels, learning_rate=0.05, epochs=3, batch_size=16)
    result = attack(rr.observe(release, threat=MALICIOUS_SERVER), rng=torch.Generator())
    errors, which = matched(result, inputs)
    assert sorted(which) == alone_in_bin(planted, inputs)
    assert float(errors.max()) < 1e-4


@pytest.mark.parametrize("law", [Normal(0.45, 0.02), Laplace(0.45, 0.02)], ids=["normal", "laplace"])
def test_a_law_of_the_measurement_serves_as_well_as_records(law):
    torch.manual_seed(0)
    level = law.sample((64, 1))
    inputs = (level + 0.2 * (torch.rand(64, 50) - 0.5)).clamp(0, 1)
    inputs = inputs - inputs.mean(1, keepdim=True) + level  # records of random detail whose mean has that law
    attack = imprint(bins=400, public=law)
    planted = attack.plant(nn.Linear(50, 3), (50,))
    result = attacked(attack, planted, inputs, torch.randint(3, (64,)))
    mean = attack.expected_recovered(64)
    assert count_of(result) == pytest.approx(
        mean, abs=4 * math.sqrt(mean * (1 - mean / 64) * 2)
    )  # pairs leave together
    assert float(matched(result, inputs)[0].max()) < 1e-4


def test_records_of_one_mean_need_a_random_measurement():
    rng = torch.Generator().manual_seed(0)
    table = nn.functional.one_hot(torch.randint(9, (300, 5), generator=rng), 9).flatten(1).float()
    with pytest.raises(
        rr.InvalidInput, match=r'but public measurements are equal\. Use fewer bins.*measurement="random"'
    ):
        imprint(bins=100, public=table).plant(nn.Linear(45, 2), (45,))
    attack = imprint(bins=100, public=table[20:], measurement="random")
    planted = attack.plant(nn.Linear(45, 2), (45,), rng=rng)
    result = attacked(attack, planted, table[:20], torch.arange(20) % 2)
    errors, which = matched(result, table[:20])
    assert sorted(which) == alone_in_bin(planted, table[:20])
    assert len(which) >= 10
    assert float(errors.max()) < 1e-4


def test_rows_that_are_not_recovered_hold_the_middle_and_say_so(digits, public):
    inputs, labels = batch(digits, 4)
    attack = imprint(bins=64, public=public)
    result = attacked(attack, attack.plant(network(), (1, 28, 28)), inputs, labels)
    count = count_of(result)
    assert 0 < count < 64
    assert result.estimates.shape == (64, 1, 28, 28)
    assert result.estimates.dtype == torch.get_default_dtype()
    assert 0 <= float(result.estimates.min()) <= float(result.estimates.max()) <= 1
    assert bool((result.estimates[count:] == 0.5).all())
    assert set(result.account.objective[count:]) == {math.inf}
    assert result.status.ending is Ending.CONVERGED
    assert result.account.attack == repr(attack)
    assert "public=(4000, 1, 28, 28) records" in repr(attack)


def test_a_batch_of_one_is_always_recovered_and_equal_records_count_once(digits):
    inputs, labels = batch(digits, 5, 1)
    attack = imprint(bins=1)
    planted = attack.plant(network(), (1, 28, 28))
    result = attacked(attack, planted, inputs, labels)
    assert result.status.ending is Ending.EXACT
    torch.testing.assert_close(result.estimates, inputs, rtol=0, atol=1e-5)
    assert attack.expected_recovered(1) == 1
    assert attack.expected_recovered(2) == 0
    twice = attacked(attack, planted, inputs.repeat(2, 1, 1, 1), labels.repeat(2))
    assert count_of(twice) == 1


def test_records_that_the_model_ignores_are_left_out_and_a_silent_layer_is_said(digits, public):
    inputs, labels = batch(digits, 6, 16)
    attack = imprint(bins=256, public=public)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 1), nn.ReLU(), nn.Linear(1, 10))
    nn.init.constant_(model[1].weight, 1.0)
    brightness = inputs.flatten(1).sum(1)
    nn.init.constant_(model[1].bias, -float(brightness.sort().values[7:9].mean()))  # the darker eight activate nothing
    planted = attack.plant(model, (1, 28, 28))
    bright = (-brightness).argsort()[:8]
    _, which = matched(attacked(attack, planted, inputs, labels), inputs)
    assert sorted(which) == sorted(bright[alone_in_bin(planted, inputs[bright])].tolist())
    assert len(which) >= 4
    nn.init.constant_(planted.model[1].bias, -1e4)
    silent = attacked(attack, planted, inputs, labels)
    assert silent.status.ending is Ending.NOT_APPLICABLE
    assert bool((silent.estimates == 0.5).all())


@pytest.mark.parametrize(("std", "share"), [(1e-4, 0.5), (3e-3, 0.02)])
def test_known_noise_is_allowed_for_and_unknown_noise_leaves_nothing_to_claim(digits, public, std, share):
    inputs, labels = batch(digits, 7)
    attack = imprint(bins=256, public=public, strength=10.0)
    planted = attack.plant(network(), (1, 28, 28))
    defense = rr.defenses.gaussian_noise(std)
    threat = attack.needs.with_knowledge(Knows.DEFENSE)
    options = {"defense": defense, "rng": torch.Generator().manual_seed(0)}
    known = attacked(attack, planted, inputs, labels, threat=threat, **options)
    _, which = matched(known, inputs)
    assert "fit within the noise" in known.status.cause
    assert len(which) >= share * len(alone_in_bin(planted, inputs))
    alone = set(alone_in_bin(planted, inputs))
    rows = [row for row, place in enumerate(which) if place in alone]
    rms = (known.estimates[rows] - inputs[[which[row] for row in rows]]).flatten(1).square().mean(1).sqrt()
    assert 0 < float(rms.max()) < 0.08  # a tenth of the range, less what clipping removes on black pixels
    unknown = attacked(attack, planted, inputs, labels, **{**options, "rng": torch.Generator().manual_seed(0)})
    assert count_of(unknown) == 0


def test_clipping_of_each_record_does_not_matter(digits, public):
    inputs, labels = batch(digits, 8, 32)
    attack = imprint(bins=256, public=public)
    planted = attack.plant(network(), (1, 28, 28))
    release = rr.releases.GradientRelease(planted, CE, inputs, labels, clip=rr.releases.HardClip(0.1), reduction="sum")
    result = attack(rr.observe(release, threat=MALICIOUS_SERVER), rng=torch.Generator())
    errors, which = matched(result, inputs)
    assert sorted(which) == alone_in_bin(planted, inputs)
    assert float(errors.max()) < 1e-4


def test_the_same_observation_gives_the_same_estimates_and_less_power_is_refused(digits, public):
    inputs, labels = batch(digits, 9, 16)
    attack = imprint(bins=100, public=public)
    planted = attack.plant(network(), (1, 28, 28))
    observation = rr.observe(rr.releases.GradientRelease(planted, CE, inputs, labels), threat=MALICIOUS_SERVER)
    first, second = (attack(observation, rng=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    assert torch.equal(first.estimates, second.estimates)
    with pytest.raises(rr.InvalidInput, match="to cover what the attack needs"):
        attack(replace(observation, threat=HONEST_BUT_CURIOUS), rng=torch.Generator())
    with pytest.raises(rr.InvalidInput, match=r"to be \(99, 789\)"):
        imprint(bins=99, public=public)(observation, rng=torch.Generator())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bins": 0}, "bins=0 >= 1"),
        ({"strength": 0.0}, "strength=0.0 > 0"),
        ({"tolerance": -1.0}, "tolerance=-1.0 > 0"),
        ({"measurement": "median"}, 'measurement=\'median\' to be "mean" or "random"'),
        ({"public": [0.1, 0.2]}, "public='list' to be a tensor or a distribution"),
        ({"public": torch.zeros(10, 4)}, "records >= 256, the number of bins"),
        ({"public": torch.full((300, 4), math.nan)}, "public to be finite"),
        ({"public": Normal(torch.zeros(2), torch.ones(2))}, "to be the distribution of one number"),
        ({"public": Gamma(1.0, 1.0)}, "to be the distribution of one number, with icdf"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(rr.InvalidInput, match=message):
        imprint(**settings)


def test_public_records_of_another_shape_and_empty_batches_are_refused(public):
    with pytest.raises(rr.InvalidInput, match=r"public.shape=\(4000, 1, 28, 28\) to be \(4000, 3, 8, 8\)"):
        imprint(public=public).plant(nn.Linear(4, 2), (3, 8, 8))
    with pytest.raises(rr.InvalidInput, match="batch_size=0 >= 1"):
        imprint().expected_recovered(0)

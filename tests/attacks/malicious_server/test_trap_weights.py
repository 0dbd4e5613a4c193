import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.attacks import trap_weights
from reconrisk.core.reconstruction import Ending
from reconrisk.core.threat import HONEST_BUT_CURIOUS, MALICIOUS_SERVER, Knows

CE = nn.functional.cross_entropy


@pytest.fixture(scope="module")
def digits():
    return rr.load_dataset("mnist", split="test")


@pytest.fixture(scope="module")
def public():
    return rr.load_dataset("mnist", split="train").inputs


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 30), nn.ReLU(), nn.Linear(30, 10))


def batch(digits, seed, size=64):
    rows = torch.randperm(len(digits), generator=torch.Generator().manual_seed(seed))[:size]
    return digits.inputs[rows], digits.labels[rows]


def attacked(attack, planted, inputs, labels, *, threat=MALICIOUS_SERVER, **options):
    observation = rr.observe(rr.releases.GradientRelease(planted, CE, inputs, labels), threat=threat, **options)
    return attack(observation, rng=torch.Generator())


def matched(result, inputs):
    """Relative error of each recovered record against the nearest true one, and which that is."""
    count = sum(math.isfinite(value) for value in result.account.objective)
    flat = inputs.flatten(1).double()
    distances = torch.cdist(result.estimates[:count].flatten(1).double(), flat)
    nearest = distances.argmin(1)
    return distances.amin(1) / flat[nearest].norm(dim=1), nearest.tolist()


def alone_at_a_neuron(planted, inputs):
    active = planted.frozen(inputs.flatten(1)) > 0
    return (active & (active.sum(0) == 1)).any(1).nonzero().flatten().tolist()


def test_as_many_digits_of_a_batch_are_recovered_as_expected_and_exactly(digits, public):
    attack, counts = trap_weights(neurons=500, scale=0.67), []
    for seed in range(6):
        planted = attack.plant(network(seed), (1, 28, 28), rng=torch.Generator().manual_seed(seed))
        inputs, labels = batch(digits, seed)
        result = attacked(attack, planted, inputs, labels)
        errors, which = matched(result, inputs)
        assert float(errors.max()) < 1e-4
        assert sorted(which) == alone_at_a_neuron(planted, inputs)  # mixtures are left out, what many tell comes once
        assert f"recovered {len(which)} of 64" in str(result.status)
        counts.append(len(which))
    expected = attack.expected_recovered(64, public, trials=12)
    spread = (
        (expected.high - expected.low) / 2 / 2.2 * math.sqrt(12)
    )  # of one trial; 2.2 is the quantile of Student's t
    error = spread * math.sqrt(1 / len(counts) + 1 / 12)
    assert sum(counts) / len(counts) == pytest.approx(expected.value, abs=4 * error)
    assert 20 < expected.value < 64


def test_calibration_finds_the_scale_at_which_most_are_recovered(public):
    attack = trap_weights(neurons=100)
    best = attack.calibrate(32, public, trials=8)
    counts = {
        scale: trap_weights(neurons=100, scale=scale).expected_recovered(32, public, trials=20).value
        for scale in (best.scale, best.scale / 2, (1 + best.scale) / 2)
    }
    assert max(counts, key=counts.get) == best.scale
    assert best.neurons == 100


def test_a_neuron_of_one_half_raised_and_one_lowered_by_the_same_sizes(public):
    for features in (10, 11):
        weight = trap_weights(neurons=50, scale=0.5).plant(nn.Linear(features, 2), (features,)).frozen.weight
        raised, lowered = (weight > 0).sum(1), (weight < 0).sum(1)
        assert set(raised.tolist()) == set(lowered.tolist()) == {5}
        torch.testing.assert_close(
            2 * weight.clamp_min(0).sort(1).values[:, -5:], (-weight).clamp_min(0).sort(1).values[:, -5:]
        )


def test_several_local_steps_are_read_like_one(digits):
    inputs, labels = batch(digits, 3, 48)
    attack = trap_weights(neurons=300, scale=0.67)
    planted = attack.plant(network(), (1, 28, 28))
    release = rr.releases.LocalUpdateRelease(planted, CE, inputs, labels, learning_rate=0.01, epochs=2, batch_size=16)
    errors, which = matched(attack(rr.observe(release, threat=MALICIOUS_SERVER), rng=torch.Generator()), inputs)
    # a step may move a record that is about to activate a neuron, so not all, and records of other steps may come in
    assert len(which) >= 0.8 * len(alone_at_a_neuron(planted, inputs))
    assert float(errors.max()) < 1e-4


def test_known_noise_is_allowed_for(digits):
    inputs, labels = batch(digits, 7)
    attack = trap_weights(neurons=300, scale=0.67, strength=10.0)
    planted = attack.plant(network(), (1, 28, 28))
    options = {"defense": rr.defenses.gaussian_noise(1e-5), "threat": attack.needs.with_knowledge(Knows.DEFENSE)}
    result = attacked(attack, planted, inputs, labels, **options, rng=torch.Generator().manual_seed(0))
    _, which = matched(result, inputs)
    alone = alone_at_a_neuron(planted, inputs)
    assert len(which) >= 0.8 * len(alone)
    assert len(set(which) & set(alone)) >= 0.8 * len(alone)
    assert "fit within the noise" in result.status.cause


def test_contract(digits):
    inputs, labels = batch(digits, 4)
    attack = trap_weights(neurons=50, scale=0.67)
    planted = attack.plant(network(), (1, 28, 28))
    observation = rr.observe(rr.releases.GradientRelease(planted, CE, inputs, labels), threat=MALICIOUS_SERVER)
    first, second = (attack(observation, rng=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    assert torch.equal(first.estimates, second.estimates)
    assert first.estimates.shape == (64, 1, 28, 28)
    assert first.estimates.dtype == torch.get_default_dtype()
    count = len(matched(first, inputs)[1])
    assert 0 < count < 64
    assert bool((first.estimates[count:] == 0.5).all())
    assert first.status.ending is Ending.CONVERGED
    assert first.account.attack == repr(attack) == "trap_weights(neurons=50, scale=0.67, strength=0.1, tolerance=1e-05)"
    with pytest.raises(rr.InvalidInput, match="to cover what the attack needs"):
        attack(replace(observation, threat=HONEST_BUT_CURIOUS), rng=torch.Generator())
    with pytest.raises(rr.InvalidInput, match=r"to be \(51, 789\)"):
        trap_weights(neurons=51)(observation, rng=torch.Generator())


def test_a_layer_that_nobody_activates_is_said(digits):
    inputs, labels = batch(digits, 4, 2)
    attack = trap_weights(neurons=3, scale=0.001)
    result = attacked(attack, attack.plant(network(), (1, 28, 28)), inputs, labels)
    assert result.status.ending is Ending.NOT_APPLICABLE
    assert bool((result.estimates == 0.5).all())


def test_bad_settings_are_refused(public):
    with pytest.raises(rr.InvalidInput, match="neurons=0 >= 1"):
        trap_weights(neurons=0)
    with pytest.raises(rr.InvalidInput, match=r"scale=1.5 <= 1"):
        trap_weights(scale=1.5)
    with pytest.raises(rr.InvalidInput, match=r"scale=0.0 > 0"):
        trap_weights(scale=0.0)
    with pytest.raises(rr.InvalidInput, match="to have at least two values"):
        trap_weights().plant(nn.Linear(1, 2), (1,))
    with pytest.raises(rr.InvalidInput, match="at least 5000 records"):
        trap_weights().expected_recovered(5000, public)
    with pytest.raises(rr.InvalidInput, match="trials=1 >= 2"):
        trap_weights().expected_recovered(5, public, trials=1)
    with pytest.raises(rr.InvalidInput, match="public to be finite"):
        trap_weights().calibrate(1, torch.full((2, 4), math.nan))

import pytest
import torch
from torch import nn

from reconrisk.core.errors import InvalidInput
from reconrisk.defenses import clip, optimal_noise, refreshed
from reconrisk.releases.release import ForwardRelease
from reconrisk.releases.sensitivity.moments import reference_moments
from reconrisk.releases.updates.gradient import GradientRelease

CROSS_ENTROPY = nn.functional.cross_entropy
INPUTS = torch.rand(6, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(6) % 3


def network(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def build(moments):
    return clip(1.0) >> optimal_noise(moments, unit=0.5)


def stds(defense):
    return torch.cat([value.flatten() for value in defense.parts[1].scales.stds.values()])


def test_moments_are_taken_again_when_they_are_due_and_not_before():
    defense, model = refreshed(build, CROSS_ENTROPY, INPUTS, LABELS, every=3, probes=2), network()
    first = stds(defense.for_model(model))
    with torch.no_grad():
        model[0].weight.mul_(3)
    assert torch.equal(stds(defense.for_model(model)), first)
    assert torch.equal(stds(defense.for_model(model)), first)
    again = stds(defense.for_model(model))
    assert not torch.allclose(again, first)
    expected = build(reference_moments(model, CROSS_ENTROPY, INPUTS, LABELS, probes=2))
    torch.testing.assert_close(again, stds(expected))
    assert (defense.sends, defense.refreshes, defense.gradients_spent) == (4, 2, 2 * 6 * (2 + 3))


def test_a_fresh_one_forgets_and_keeps_its_settings():
    defense = refreshed(build, CROSS_ENTROPY, INPUTS, LABELS, every=3, probes=2, by_layer=True)
    defense.for_model(network())
    fresh = defense.fresh()
    assert (fresh.sends, fresh.mechanism) == (0, None)
    assert (fresh.every, fresh.probes, fresh.by_layer) == (3, 2, True)


def test_by_layer_the_noise_differs_between_tensors_only():
    chosen = refreshed(build, CROSS_ENTROPY, INPUTS, LABELS, by_layer=True).for_model(network())
    for std in chosen.parts[1].scales.stds.values():
        assert std.unique().numel() == 1
    assert chosen.mechanism.noise_multiplier == pytest.approx(0.5)


def test_the_records_of_a_release_do_not_matter():
    model, defense = network(), refreshed(build, CROSS_ENTROPY, INPUTS, LABELS)
    found = [
        stds(defense.for_release(GradientRelease(model, CROSS_ENTROPY, inputs, torch.tensor([0]))))
        for inputs in (torch.zeros(1, 4), torch.ones(1, 4))
    ]
    assert torch.equal(*found)


def test_nothing_is_sent_before_the_first_model_and_bad_settings_are_refused():
    defense = refreshed(build, CROSS_ENTROPY, INPUTS, LABELS)
    with pytest.raises(InvalidInput, match="for_model"):
        defense({"w": torch.ones(2)}, rng=torch.Generator())
    with pytest.raises(InvalidInput, match="to be a release of a model"):
        defense.for_release(ForwardRelease(lambda inputs, labels: {"y": inputs}, torch.ones(1, 2), torch.zeros(1)))
    with pytest.raises(InvalidInput, match="every=0"):
        refreshed(build, CROSS_ENTROPY, INPUTS, LABELS, every=0)
    with pytest.raises(InvalidInput, match="function from moments"):
        refreshed(build(reference_moments(network(), CROSS_ENTROPY, INPUTS, LABELS)), CROSS_ENTROPY, INPUTS, LABELS)

import pytest
import torch
from torch import nn

from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import Gaussian
from reconrisk.defenses.registry import defense_by_name
from reconrisk.releases.release import ForwardRelease
from reconrisk.releases.sensitivity.moments import reference_moments
from reconrisk.releases.updates.gradient import GradientRelease
from reconrisk.releases.updates.local_update import LocalUpdateRelease

CROSS_ENTROPY = nn.functional.cross_entropy
INPUTS = torch.rand(6, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(6) % 3


def network(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


@pytest.mark.parametrize(
    ("name", "settings"), [("optimal_noise", {}), ("optimal_pruning_and_noise", {"share": 0.3})], ids=["noise", "both"]
)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_mechanism_is_stated_before_the_choice_and_kept_by_it(name, settings, seed):
    defense = defense_by_name(name, noise_multiplier=0.8, clip_norm=0.5, **settings)
    assert defense.mechanism == Gaussian(0.8, 0.5)
    chosen = defense.with_moments(reference_moments(network(seed), CROSS_ENTROPY, INPUTS, LABELS))
    assert chosen.mechanism.noise_multiplier == pytest.approx(0.8)
    assert chosen.mechanism.clip_norm == 0.5


def test_public_records_choose_at_the_model_that_is_sent():
    defense = defense_by_name("optimal_noise", like=0.1).with_public(INPUTS, LABELS)
    for model in (network(0), network(1)):
        release = GradientRelease(model, CROSS_ENTROPY, torch.rand(1, 4), torch.tensor([1]))
        expected = defense.with_moments(reference_moments(model, CROSS_ENTROPY, INPUTS, LABELS)).scales.stds
        found = defense.for_release(release).scales.stds
        assert all(torch.equal(found[key], expected[key]) for key in expected)
        assert defense.for_release(release) is defense.for_release(release)  # taken once


def test_a_model_that_was_trained_on_chooses_anew():
    defense, model = defense_by_name("optimal_noise", like=0.1).with_public(INPUTS, LABELS), network()
    release = GradientRelease(model, CROSS_ENTROPY, torch.rand(1, 4), torch.tensor([1]))
    before = defense.for_release(release).scales.stds["0.weight"]
    with torch.no_grad():
        model[0].weight.mul_(3)
    assert not torch.allclose(defense.for_release(release).scales.stds["0.weight"], before)


def test_updates_of_several_steps_have_their_noise_too():
    release = LocalUpdateRelease(network(), CROSS_ENTROPY, INPUTS[:2], LABELS[:2], learning_rate=0.1, steps=3)
    chosen = defense_by_name("optimal_noise", noise_multiplier=1.0, clip_norm=1.0).with_public(INPUTS, LABELS)
    sent = chosen.for_release(release)(release.value(), rng=torch.Generator().manual_seed(0))
    assert sent.keys() == release.value().keys()


def test_without_public_records_or_a_model_it_is_refused():
    defense = defense_by_name("optimal_pruning", share=0.5)
    with pytest.raises(
        InvalidInput, match=r"optimal_pruning\(share=0\.5\) to be configured before its first use.*public"
    ):
        defense.for_release(GradientRelease(network(), CROSS_ENTROPY, INPUTS, LABELS))
    bare = ForwardRelease(lambda inputs, labels: {"y": inputs}, torch.ones(1, 2), torch.zeros(1))
    with pytest.raises(InvalidInput, match="to be an update of a model"):
        defense.with_public(INPUTS, LABELS).for_release(bare)
    with pytest.raises(InvalidInput, match="noise_multiplier, clip_norm"):
        defense_by_name("optimal_noise", noise_multiplier=1.0)
    with pytest.raises(InvalidInput, match=r"noise_multiplier=-1\.0"):
        defense_by_name("optimal_noise", noise_multiplier=-1.0, clip_norm=1.0)

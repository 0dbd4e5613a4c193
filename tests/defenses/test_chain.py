import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import Gaussian
from reconrisk.defenses import (
    chain,
    clip,
    clip_and_noise,
    gaussian_noise,
    laplace_noise,
    local_optimal_noise,
    local_optimal_pruning,
    optimal_noise,
    prune,
    random_pruning,
)
from reconrisk.defenses.chain import Chain
from reconrisk.releases.release import ForwardRelease
from reconrisk.releases.sensitivity.moments import ReferenceMoments


def update(seed, scale=1.0):
    rng = torch.Generator().manual_seed(seed)
    return {"w": scale * torch.randn(20, generator=rng), "b": scale * torch.randn(3, generator=rng)}


def moments(seed=7):
    rng = torch.Generator().manual_seed(seed)
    wide = {name: torch.exp(4 * torch.randn(value.shape, generator=rng)) for name, value in update(0).items()}
    ones = {name: torch.ones_like(value) for name, value in wide.items()}
    return ReferenceMoments(wide, {name: 0 * value for name, value in ones.items()}, ones, 1, 10)


@given(st.integers(0, 1000), st.floats(1e-3, 1e3), st.floats(1e-2, 1e2))
def test_the_sensitivity_in_units_of_the_noise_is_what_the_mechanism_says(seed, scale, norm):
    """Computed, not trusted: the largest length of what is sent, divided by its noise, is one over the multiplier."""
    defense = clip(norm) >> optimal_noise(moments(), like=0.3)
    mean = defense.replay(update(seed, scale))
    std = defense.noise_std(mean)
    length = float(torch.cat([mean[name] / std[name] for name in mean]).norm())
    assert length <= (1 + 1e-5) / defense.mechanism.noise_multiplier
    if scale > 1e2 * norm:  # every such update is clipped: the bound is attained
        assert length == pytest.approx(1 / defense.mechanism.noise_multiplier, rel=1e-4)


def test_a_clip_in_the_euclidean_norm_would_break_the_claim():
    """The test above can fail: the same claim with the clip as it was written."""
    noise = optimal_noise(moments(), like=0.3)
    claimed = (clip(1.0) >> noise).mechanism
    worst = 0.0
    for seed in range(50):
        mean = clip(1.0).replay(update(seed, 1e3))
        worst = max(worst, float(torch.cat([mean[name] / noise.scales.stds[name] for name in mean]).norm()))
    assert worst > 1.5 / claimed.noise_multiplier


def test_equal_noise_is_the_plain_mechanism_and_what_follows_does_not_weaken_it():
    assert (clip(0.5) >> gaussian_noise(1.0)).mechanism == Gaussian(2.0, 0.5)
    assert (clip(0.5) >> gaussian_noise(1.0) >> prune(0.5)).mechanism == Gaussian(2.0, 0.5)
    assert (prune(0.5) >> gaussian_noise(1.0)).mechanism is None
    assert (clip(0.5) >> laplace_noise(1.0)).mechanism is None


def test_parts_act_in_order():
    sent = (prune(0.5) >> clip(1.0))({"w": torch.tensor([3.0, 4.0, 0.1, 0.2])}, rng=torch.Generator())
    torch.testing.assert_close(sent["w"], torch.tensor([0.6, 0.8, 0.0, 0.0]))


def test_noise_of_two_parts_adds_up_in_squares():
    std = (gaussian_noise(3.0) >> gaussian_noise(4.0)).noise_std({"w": torch.zeros(2)})
    torch.testing.assert_close(std["w"], torch.tensor([5.0, 5.0]))


def test_clipping_after_noise_is_refused():
    with pytest.raises(InvalidInput, match="to come before the noise"):
        chain(gaussian_noise(1.0), clip(1.0))


def test_a_clip_after_a_mask_is_replayed_on_what_the_mask_keeps():
    mask = random_pruning(0.8)
    defense = mask >> clip(0.5)
    sent = defense(update(1), rng=torch.Generator())
    replayed = defense.replay(update(1))
    assert all(torch.equal(sent[name], replayed[name]) for name in sent)
    assert float(torch.cat([value.flatten() for value in replayed.values()]).norm()) == pytest.approx(0.5)


def test_the_norm_that_is_clipped_to_is_known_where_it_is_the_euclidean_one():
    assert (clip(0.5) >> gaussian_noise(1.0)).clip_norm == 0.5
    assert (prune(0.5) >> gaussian_noise(1.0)).clip_norm is None
    assert (clip(0.5) >> optimal_noise(moments(), like=0.3)).clip_norm is None


def test_what_private_records_choose_leaves_no_mechanism_wherever_it_stands():
    for local in (local_optimal_pruning(share=0.5), local_optimal_noise(like=0.1)):
        assert (clip(1.0) >> gaussian_noise(1.0) >> local).mechanism is None
    release = ForwardRelease(lambda inputs, labels: {"w": inputs[0] ** 2}, torch.ones(1, 4), torch.zeros(1))
    chosen = (clip(1.0) >> gaussian_noise(1.0) >> local_optimal_pruning(share=0.5)).for_release(release)
    assert chosen.mechanism is None


def test_a_clip_in_another_norm_than_that_of_the_noise_is_no_mechanism():
    noise = optimal_noise(moments(), like=0.3)
    assert Chain((clip(1.0), noise)).mechanism is None
    matched = (clip(1.0) >> noise).parts[0]
    assert Chain((matched, gaussian_noise(1.0))).mechanism is None
    assert (matched >> gaussian_noise(1.0)).parts[0].scales is None  # written one after the other, the clip follows


def test_clipping_after_noise_and_what_is_no_defense_are_refused():
    with pytest.raises(InvalidInput, match="to come before the noise"):
        gaussian_noise(5.0) >> clip_and_noise(noise_multiplier=0.01, clip_norm=1.0)
    with pytest.raises(InvalidInput, match="defenses=3 to be configured defenses"):
        clip(1.0) >> 3

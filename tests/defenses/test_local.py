import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.core.errors import InvalidInput
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows
from reconrisk.defenses import clip, gaussian_noise, local_optimal_noise, local_optimal_pruning
from reconrisk.releases.sensitivity.parameters import parameter_sensitivity
from reconrisk.releases.updates.gradient import GradientRelease

CROSS_ENTROPY = nn.functional.cross_entropy


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def release(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    inputs = torch.rand(2, 4, generator=rng(seed), dtype=torch.float64)
    return GradientRelease(model, CROSS_ENTROPY, inputs, torch.tensor([0, 2]))


def test_the_noise_is_that_of_the_paper_at_the_private_records():
    """|grad_x g_i| / |g_i|, from the exact Jacobian: eight record values, so that ten probes are exact."""
    private = release()
    exact = parameter_sensitivity(private, exact=True).values
    noise = local_optimal_noise(noise_norm=0.1).for_release(private)
    shape = {name: exact[name].sqrt() / value.abs().clamp_min(1e-6) for name, value in private.value().items()}
    norm = torch.cat([value.flatten() for value in shape.values()]).norm()
    for name, std in noise.scales.stds.items():
        torch.testing.assert_close(std.square(), 0.1 * shape[name] / norm, rtol=1e-6, atol=1e-12)


def test_the_mask_drops_the_largest_of_the_same_quotients():
    private = release()
    exact = parameter_sensitivity(private, exact=True).values
    mask = local_optimal_pruning(share=0.5).for_release(private).mask
    ratio = torch.cat(
        [(exact[name] / value.square().clamp_min(1e-12)).flatten() for name, value in private.value().items()]
    )
    kept = torch.cat([each.flatten() for each in mask.values()])
    assert int(kept.sum()) == len(kept) - len(kept) // 2
    assert ratio[kept].max() <= ratio[~kept].min()


def test_it_differs_between_records_and_names_no_mechanism_even_after_a_clip():
    stds = [local_optimal_noise(like=0.1).for_release(release(seed)).scales.stds["0.weight"] for seed in (0, 1)]
    assert not torch.allclose(*stds)
    chosen = (clip(1.0) >> local_optimal_noise(like=0.1)).for_release(release())
    assert chosen.mechanism is None
    assert chosen.parts[0].scales is None  # the clip stays as it was written
    assert (clip(1.0) >> gaussian_noise(0.1)).mechanism is not None


def test_the_observation_is_of_what_the_records_chose():
    private, defense = release(), local_optimal_pruning(share=0.5)
    seen = rr.observe(private, defense=defense, threat=HONEST_BUT_CURIOUS.with_knowledge(Knows.DEFENSE), rng=rng())
    expected = defense.for_release(private).mask
    assert all(torch.equal(seen.kept[name], expected[name]) for name in expected)
    assert all(not bool(seen.released[name][~expected[name]].any()) for name in expected)
    unaware = rr.observe(private, defense=defense, rng=rng())
    assert unaware.kept is None


def test_without_a_release_it_sends_nothing():
    for defense in (local_optimal_noise(like=0.1), clip(1.0) >> local_optimal_noise(like=0.1)):
        with pytest.raises(
            InvalidInput, match=r"local_optimal_noise\(like=0\.1\) to be configured before its first use"
        ):
            defense(release().value(), rng=rng())
    with pytest.raises(InvalidInput, match="to have exactly one value"):
        local_optimal_pruning()
    with pytest.raises(InvalidInput, match=r"probes=0"):
        local_optimal_noise(like=0.1, probes=0)

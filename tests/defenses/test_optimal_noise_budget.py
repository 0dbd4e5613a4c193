"""Noise scaled to a budget: each is met, by optimal and by equal noise, and what cannot be met names the nearest."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reconrisk.bounds.mse.bayesian import bayesian_mse_lower_bound
from reconrisk.core.errors import InvalidInput
from reconrisk.defenses import (
    TargetBound,
    clip,
    equal_noise,
    optimal_noise,
    optimal_pruning,
    optimal_pruning_and_noise,
    prune,
    random_pruning,
)
from reconrisk.releases.sensitivity.moments import ReferenceMoments


def moments(seed=0, size=20):
    rng = torch.Generator().manual_seed(seed)
    sensitivity, square = (torch.exp(2 * torch.randn(size, generator=rng, dtype=torch.float64)) for _ in range(2))
    return ReferenceMoments({"w": sensitivity}, {"w": 0 * square}, {"w": square}, 1, 10)


def variance_of(noise, size=20):
    return noise.noise_std({"w": torch.zeros(size, dtype=torch.float64)})["w"].square()


@given(st.integers(0, 100), st.floats(1e-4, 0.9), st.floats(0.1, 100.0), st.integers(1, 50), st.integers(1, 8))
def test_a_target_is_the_bound_that_results(seed, part, prior, dimension, batch):
    """Against the bound itself, which is computed from the trace of the information."""
    target = TargetBound(part / prior, prior, dimension, batch)
    found = moments(seed)
    for noise in (optimal_noise(found, target=target), equal_noise(found, target=target)):
        trace = float((found.sensitivity["w"] / variance_of(noise)).sum()) / batch**2
        bound = bayesian_mse_lower_bound(trace=trace, dimension=dimension, prior_information=prior)
        assert bound.value == pytest.approx(target.mse, rel=1e-6)


def test_laplacian_noise_needs_twice_the_variance_for_a_target():
    target, found = TargetBound(0.01, 12.0, 100), moments()
    laplace = equal_noise(found, target=target, law="laplace")
    assert laplace.std**2 == pytest.approx(2 * equal_noise(found, target=target).std ** 2)


def test_optimal_noise_reaches_a_target_at_less_cost_than_equal_noise():
    target = TargetBound(0.01, 12.0, 100)
    for seed in range(20):
        found = moments(seed)
        costs = [
            float(variance_of(noise) @ found.square["w"])
            for noise in (optimal_noise(found, target=target), equal_noise(found, target=target))
        ]
        assert costs[0] < costs[1]


def test_costs_norms_and_means_are_met():
    found = moments()
    assert float(variance_of(equal_noise(found, utility_loss=2.0)) @ found.square["w"]) == pytest.approx(2.0)
    assert float(variance_of(equal_noise(found, noise_norm=0.5)).norm()) == pytest.approx(0.5)
    assert float((1 / variance_of(optimal_noise(found, unit=0.3))).mean()) == pytest.approx(1 / 0.09)


def test_pruned_noise_counts_what_is_kept_and_sends_the_rest_as_zero():
    found = moments()
    kept = optimal_pruning(found, share=0.5).mask["w"]
    defense = optimal_pruning_and_noise(found, share=0.5, utility_loss=2.0)
    update = torch.ones(20, dtype=torch.float64)
    rng = torch.Generator().manual_seed(0)
    sent = torch.stack([defense({"w": update}, rng=rng)["w"] for _ in range(4000)])
    assert not bool(sent[:, ~kept].any())
    std = variance_of(defense)[kept].sqrt()
    assert float(std.square() @ found.square["w"][kept]) == pytest.approx(2.0)
    # four standard errors of a standard deviation
    assert (sent[:, kept].std(0) / std - 1).abs().max() < 4 / (2 * 4000) ** 0.5
    assert torch.equal(defense.kept({"w": sent[0]})["w"], kept)


@given(st.integers(0, 50), st.floats(1e-2, 1e2))
def test_pruned_noise_after_a_clip_hides_what_it_says(seed, scale):
    """The sensitivity in units of the noise, computed on what is sent."""
    found = moments()
    defense = clip(0.5) >> optimal_pruning_and_noise(found, share=0.4, unit=1.0)
    update = {"w": scale * torch.randn(20, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)}
    mean = defense.replay(update)["w"] * defense.kept(update)["w"]
    length = float((mean / variance_of(defense).sqrt()).norm())
    assert defense.mechanism.noise_multiplier == pytest.approx(2.0)
    assert length <= (1 + 1e-9) / 2.0


def test_what_cannot_be_met_names_the_nearest_value():
    with pytest.raises(
        InvalidInput, match=r"mse=0\.1 < 0\.08333, .* the bound without any release\. Pass at most 0\.0825"
    ):
        TargetBound(0.1, 12.0, 100)
    with pytest.raises(InvalidInput, match=r"share=1\.0 in \[0, 1\).* value, 1 - 1/n, which sends one of n values\."):
        prune(1.0)
    with pytest.raises(InvalidInput, match=r"nearest possible value, 0\.95, which sends one value of 20\."):
        optimal_pruning(moments(), share=1.0)
    with pytest.raises(InvalidInput, match=r"share=-0\.1 in \[0, 1\).* nearest possible value, 0\."):
        optimal_pruning(moments(), share=-0.1)
    with pytest.raises(InvalidInput, match=r"utility=0\.0 > 0\. Pass [0-9.e-]+, for instance: at least one value"):
        optimal_pruning(moments(), utility=0.0)
    with pytest.raises(InvalidInput, match=r"Expected exactly one of utility_loss, noise_norm, .*, got nothing"):
        optimal_noise(moments())
    with pytest.raises(InvalidInput, match="law='normal' to be"):
        equal_noise(moments(), noise_norm=1.0, law="normal")


def test_the_largest_share_still_sends_one_value():
    nearly = 1 - 1e-12
    assert int((prune(nearly)({"w": torch.arange(1.0, 11.0)}, rng=torch.Generator())["w"] != 0).sum()) == 1
    assert int(optimal_pruning(moments(), share=nearly).mask["w"].sum()) == 1
    assert int(random_pruning(nearly)({"w": torch.ones(10)}, rng=torch.Generator())["w"].sum()) == 1

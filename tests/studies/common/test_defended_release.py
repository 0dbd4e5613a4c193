"""Utilities against draws, information against matrices, the bound against what an optimal estimate reaches."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from reconrisk.core.defense import Defense
from reconrisk.defenses.clipping import clip
from reconrisk.defenses.local import local_optimal_noise, local_optimal_pruning
from reconrisk.defenses.noise import clip_and_noise, gaussian_noise, laplace_noise
from reconrisk.defenses.optimal_noise import optimal_noise
from reconrisk.defenses.pruning import prune, random_pruning
from reconrisk.defenses.quantisation import sign
from reconrisk.defenses.refreshed import refreshed
from reconrisk.releases.release import ForwardRelease
from reconrisk.releases.sensitivity.fisher import fisher_matrix
from reconrisk.releases.sensitivity.moments import reference_moments
from reconrisk.releases.updates.gradient import GradientRelease
from reconrisk.studies.common.defended_release import (
    PRIOR_DRAWS,
    draw_from_box,
    information_trace,
    mse_bound_from_traces,
    one_step_utilities,
)


def _rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


_GRADIENT = {"w": torch.tensor([[3.0, -1.0], [0.5, 2.0]]), "b": torch.tensor([1.0, -0.2])}
_MASK = random_pruning(0.5, seed=3).masked(_GRADIENT)
_MOMENTS_MODEL = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def _release(seed: int = 0) -> GradientRelease:
    inputs = torch.rand(2, 3, generator=_rng(seed))
    return GradientRelease(_MOMENTS_MODEL, nn.functional.cross_entropy, inputs, torch.tensor([0, 1]))


def _moments_noise() -> Defense:
    inputs, labels = torch.rand(8, 3, generator=_rng(9)), torch.arange(8) % 2
    return optimal_noise(reference_moments(_MOMENTS_MODEL, nn.functional.cross_entropy, inputs, labels), like=0.3)


@pytest.mark.parametrize(
    "defense",
    [
        gaussian_noise(0.3),
        laplace_noise(0.3),
        clip_and_noise(noise_multiplier=0.2, clip_norm=1.0),
        clip(1.5) >> gaussian_noise(0.3),
        _MASK,
        _MASK >> gaussian_noise(0.3),
        gaussian_noise(0.3) >> _MASK,
        clip(2.0) >> gaussian_noise(0.2) >> laplace_noise(0.1),
    ],
    ids=str,
)
def test_computed_utilities_are_those_of_draws(defense: Defense) -> None:
    """1500 draws: the mean is known to five standard errors, the variance to 5 sqrt(5/1500) = 29 % for any tail."""
    rng, count = _rng(), 1500
    norm = sum(float(value.square().sum()) for value in _GRADIENT.values())
    products = []
    for _ in range(count):
        sent = defense(_GRADIENT, rng=rng)
        products.append(sum(float((sent[name] * value).sum()) for name, value in _GRADIENT.items()))
    drawn = torch.tensor(products, dtype=torch.float64)
    first, second = one_step_utilities(_GRADIENT, defense, rng=rng)
    error = 5 * float(drawn.std()) / math.sqrt(count) + 1e-6
    assert first * norm == pytest.approx(float(drawn.mean()), abs=error)
    assert -second == pytest.approx(float(drawn.var()), rel=0.29, abs=1e-9)


def test_utilities_of_defenses_that_are_not_known_are_drawn() -> None:
    norm = sum(float(value.square().sum()) for value in _GRADIENT.values())
    kept = 9.0 + 1.0 + 4.0 + 1.0  # of six values the four largest
    first, second = one_step_utilities(_GRADIENT, prune(0.34), rng=_rng())
    assert first == pytest.approx(kept / norm, rel=1e-6)
    assert second == 0.0
    assert one_step_utilities(_GRADIENT, None, rng=_rng()) == (1.0, 0.0)
    assert one_step_utilities({"w": torch.zeros(2)}, gaussian_noise(1.0), rng=_rng()) == (1.0, 0.0)


def _exact(release: GradientRelease, defense: Defense, std: dict[str, Tensor] | float) -> Tensor:
    """Traces from the full matrix of what noise is added to."""

    def before(inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        sent = defense.replay(release.forward(inputs, labels))
        kept = defense.kept(sent)
        return sent if kept is None else {name: value * kept[name] for name, value in sent.items()}

    mean = ForwardRelease(before, release.inputs, release.labels)
    matrices = [fisher_matrix(mean, noise_std=std, record=place) for place in range(len(release.inputs))]
    return torch.stack([matrix.trace() for matrix in matrices])


def test_information_is_that_of_the_matrix() -> None:
    """Each trace is estimated to a standard error of a fifth; the mean of 8 such to 7 %; four of them."""
    release = _release()
    mask = random_pruning(0.5, seed=1)
    noise = _moments_noise()
    stds = noise.noise_std(release.value())
    assert stds is not None
    cases = [
        (gaussian_noise(0.3), 0.3),
        (laplace_noise(0.3), 0.3 / math.sqrt(2)),  # the information of a Laplacian value is twice its inverse variance
        (clip_and_noise(noise_multiplier=0.3, clip_norm=0.2), 0.06),
        (clip(0.2) >> gaussian_noise(0.3), 0.3),
        (mask >> gaussian_noise(0.3), 0.3),
        (noise, stds),
    ]
    for defense, std in cases:
        traces = [information_trace(release, defense, rng=_rng(seed)) for seed in range(8)]
        exact = _exact(release, defense, std)
        assert torch.allclose(torch.stack(traces).mean(0), exact, rtol=0.28), str(defense)


def test_what_follows_the_noise_adds_no_information() -> None:
    release = _release()
    bare = information_trace(release, gaussian_noise(0.3), rng=_rng())
    for after in (prune(0.5), sign(), gaussian_noise(0.1)):
        assert torch.equal(information_trace(release, gaussian_noise(0.3) >> after, rng=_rng()), bare)


def test_refreshed_defenses_are_known() -> None:
    release = _release()
    inputs, labels = torch.rand(4, 3, generator=_rng(2)), torch.arange(4) % 2
    defense = refreshed(
        lambda moments: clip(1.0) >> optimal_noise(moments, like=0.3),
        nn.functional.cross_entropy,
        inputs,
        labels,
        every=5,
    )
    chosen = defense.fresh().for_model(_MOMENTS_MODEL)
    expected = information_trace(release, chosen, rng=_rng())
    assert bool(expected.isfinite().all())
    assert torch.equal(information_trace(release, defense, rng=_rng()), expected)


@pytest.mark.parametrize(
    "defense",
    [
        None,
        clip(0.1),
        prune(0.5),
        prune(0.5) >> gaussian_noise(0.3),
        sign() >> gaussian_noise(0.3),
        local_optimal_noise(like=0.3),
        clip(1.0) >> local_optimal_noise(like=0.3),
        local_optimal_pruning(share=0.5) >> gaussian_noise(0.3),
    ],
    ids=str,
)
def test_no_finite_information_where_none_is_proved(defense: Defense | None) -> None:
    assert bool(information_trace(_release(), defense, rng=_rng()).isinf().all())


def test_a_settled_local_choice_is_still_local() -> None:
    release = _release()
    chosen = local_optimal_noise(like=0.3).for_release(release)
    assert bool(information_trace(release, chosen, rng=_rng()).isinf().all())


def test_the_bound_holds_for_the_best_linear_estimate() -> None:
    """y = x + noise with x of the prior: the linear estimate with the right moments has a known error above it."""
    for std in (0.01, 0.1, 0.5, 3.0):
        drawn = draw_from_box(torch.zeros(200_000, 1), (0.0, 1.0), rng=_rng())
        variance = float(drawn.double().var())
        linear = variance * std**2 / (variance + std**2)
        bound = mse_bound_from_traces(torch.full((4,), 1 / std**2), dimension=1, data_range=(0.0, 1.0)).low
        assert bound <= linear
        assert bound >= 0.5 * linear


def test_the_prior_has_its_moments() -> None:
    """Variance of density 2 sin^2(pi u): 1/12 - 1/(2 pi^2); 100,000 values know it to a percent."""
    drawn = draw_from_box(torch.zeros(100_000), (0.0, 1.0), rng=_rng()).double()
    assert float(drawn.var()) == pytest.approx(1 / 12 - 1 / (2 * math.pi**2), rel=0.02)
    assert float(drawn.mean()) == pytest.approx(0.5, abs=0.005)


def test_the_bound_says_nothing_where_it_cannot() -> None:
    assert mse_bound_from_traces(torch.tensor([1.0, math.inf]), dimension=2, data_range=(0.0, 1.0)).low == 0.0
    assert mse_bound_from_traces(torch.tensor([1.0]), dimension=2, data_range=(0.0, 1.0)).low == 0.0
    spread = mse_bound_from_traces(torch.tensor([1.0, 3.0]), dimension=2, data_range=(0.0, 1.0))
    alike = mse_bound_from_traces(torch.tensor([2.0, 2.0]), dimension=2, data_range=(0.0, 1.0))
    assert spread.low < alike.low
    assert spread.value == alike.value
    assert "no proof" in spread.method


def test_the_estimate_of_a_confident_model_is_seldom_above_the_bound() -> None:
    """Few records near the border have nearly all the information: by Student's limit alone the bound from 16 draws is
    too large in a third of the cases. 400 cases know a rate of 5 % to 1.1 %."""
    weight = 30 * torch.randn(2, 4, generator=_rng(5), dtype=torch.float64)
    bias = torch.tensor([12.0, 0.0], dtype=torch.float64) - weight.sum(1) / 2

    def gradient(record: Tensor) -> Tensor:
        slope = torch.softmax(weight @ record + bias, 0) - torch.tensor([1.0, 0.0], dtype=torch.float64)
        return torch.cat([torch.outer(slope, record).flatten(), slope])

    records = draw_from_box(torch.zeros(10_000, 4, dtype=torch.float64), (0.0, 1.0), rng=_rng(1))
    traces = torch.func.vmap(torch.func.jacrev(gradient))(records).square().sum((1, 2))
    assert float(traces.median()) < 0.1 * float(traces.mean())
    truth = mse_bound_from_traces(traces, dimension=4, data_range=(0.0, 1.0)).value
    draws = [traces[torch.randint(10_000, (PRIOR_DRAWS,), generator=_rng(seed))] for seed in range(400)]
    found = [mse_bound_from_traces(each, dimension=4, data_range=(0.0, 1.0)) for each in draws]
    assert sum(each.low > truth for each in found) <= 400 * (0.05 + 3 * 0.011)

"""Theorems 3.5 and 3.6 of chen2025, against a numerical optimiser, random rivals and an exhaustive search."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import nn

from reconrisk.core.errors import InvalidInput
from reconrisk.data.load import load_dataset
from reconrisk.defenses import optimal_noise, optimal_pruning, random_pruning
from reconrisk.releases.release import ForwardRelease
from reconrisk.releases.sensitivity.moments import ReferenceMoments, reference_moments
from reconrisk.releases.updates.gradient import GradientMap

positive = st.lists(st.floats(0.01, 100.0), min_size=2, max_size=6)


def moments(sensitivity, square):
    as_double = [{"w": torch.tensor(values, dtype=torch.float64)} for values in (sensitivity, square)]
    return ReferenceMoments(as_double[0], {"w": 0 * as_double[0]["w"]}, as_double[1], 1, 10)


def variances(noise):
    return noise.scales.stds["w"].square().numpy()


@given(positive, st.randoms(use_true_random=False), st.floats(0.01, 10.0))
def test_no_other_noise_of_equal_utility_tells_less(sensitivity, random, budget):
    square = [random.uniform(0.01, 10.0) for _ in sensitivity]
    s, q = np.array(sensitivity), np.array(square)
    ours = variances(optimal_noise(moments(sensitivity, square), utility_loss=budget))
    assert float(ours @ q) == pytest.approx(budget, rel=1e-9)
    trace = float((s / ours).sum())
    for _ in range(20):
        other = np.array([random.uniform(0.01, 1.0) for _ in s])
        other *= budget / float(other @ q)
        assert trace <= float((s / other).sum()) * (1 + 1e-9)


def test_a_numerical_optimiser_finds_the_same_noise():
    s, q, budget = np.array([9.0, 1.0, 0.04, 4.0]), np.array([0.5, 2.0, 1.0, 0.1]), 2.0
    found = minimize(
        lambda logs: float((s / np.exp(logs)).sum()),
        np.zeros(4),
        constraints={"type": "eq", "fun": lambda logs: float(np.exp(logs) @ q) - budget},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    ours = variances(optimal_noise(moments(s.tolist(), q.tolist()), utility_loss=budget))
    np.testing.assert_allclose(ours, np.exp(found.x), rtol=1e-4)


def test_the_printed_algorithm_is_worse_at_equal_utility():
    """Algorithm 1 squares the numerator only: variances in proportion to |grad|^2 / |g|."""
    rng = np.random.default_rng(0)
    s, q = rng.lognormal(0, 2, 50), rng.lognormal(0, 2, 50)
    ours = variances(optimal_noise(moments(s.tolist(), q.tolist()), utility_loss=1.0))
    printed = s / np.sqrt(q)
    printed /= float(printed @ q)
    assert float((s / printed).sum()) > 1.3 * float((s / ours).sum())


def test_budgets_are_met():
    given_moments = moments([4.0, 1.0, 9.0], [1.0, 2.0, 0.5])
    assert np.linalg.norm(variances(optimal_noise(given_moments, noise_norm=3.0))) == pytest.approx(3.0)
    alike = variances(optimal_noise(given_moments, like=0.2)) @ np.array([1.0, 2.0, 0.5])
    assert alike == pytest.approx(0.2**2 * 3.5)


def test_zero_gradients_do_not_make_the_noise_infinite():
    noise = optimal_noise(moments([1.0, 1.0], [1.0, 0.0]), utility_loss=1.0)
    assert np.isfinite(variances(noise)).all()


@pytest.mark.parametrize("budget", [{}, {"like": 1.0, "noise_norm": 1.0}])
def test_exactly_one_budget_is_stated(budget):
    with pytest.raises(InvalidInput, match="exactly one"):
        optimal_noise(moments([1.0], [1.0]), **budget)


def test_a_negative_budget_and_records_that_do_not_matter_are_refused():
    with pytest.raises(InvalidInput, match=r"utility_loss=-1\.0 > 0"):
        optimal_noise(moments([1.0], [1.0]), utility_loss=-1.0)
    with pytest.raises(InvalidInput, match="gradients that depend on the records"):
        optimal_noise(moments([0.0, 0.0], [1.0, 1.0]), utility_loss=1.0)


@given(positive, st.randoms(use_true_random=False), st.floats(0.05, 0.95))
def test_no_mask_with_as_much_utility_tells_less(sensitivity, random, utility):
    """Against all masks: of those that keep as much of U1 on average, none has a smaller trace, coins allowed."""
    square = [random.uniform(0.1, 10.0) for _ in sensitivity]
    s, q = np.array(sensitivity), np.array(square)
    pruned = optimal_pruning(moments(sensitivity, square), utility=utility)
    kept = pruned.mask["w"].numpy().astype(float)
    if pruned.borderline is not None:
        kept[pruned.borderline[1]] = pruned.borderline_probability
    assert float(kept @ q) == pytest.approx(utility * q.sum(), rel=1e-6)
    for mask in itertools.product((0.0, 1.0), repeat=len(s)):
        if np.array(mask) @ q >= kept @ q:
            assert np.array(mask) @ s >= kept @ s - 1e-6 * s.sum()


def test_a_borderline_value_is_sent_as_often_as_it_must_be():
    pruned = optimal_pruning(moments([9.0, 1.0], [1.0, 1.0]), utility=0.75)  # the first value half of the time
    assert pruned.borderline == ("w", 0)
    rng = torch.Generator().manual_seed(0)
    sent = torch.stack([pruned({"w": torch.ones(2)}, rng=rng)["w"] for _ in range(1000)])
    assert abs(float(sent[:, 0].mean()) - 0.5) < 4 * 0.5 / 1000**0.5
    assert bool((sent[:, 1] == 1).all())
    assert pruned.kept({"w": torch.tensor([0.0, 1.0])})["w"].tolist() == [False, True]


@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5])
def test_shares_outside_are_refused(share):
    with pytest.raises(InvalidInput, match="share="):
        optimal_pruning(moments([1.0], [1.0]), share=share)
    with pytest.raises(InvalidInput, match="share="):
        random_pruning(share)


def test_budgets_hold_for_records_that_were_not_seen():
    """Half of the bundled digits choose, the other half pays: the deviation is that of two samples."""
    digits = load_dataset("digits")
    rows = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    loss = nn.functional.cross_entropy
    reference, held_out = ((digits.inputs[part], digits.class_labels[part]) for part in (rows[:890], rows[890:]))
    chosen = reference_moments(model, loss, *reference, probes=1, chunk=64)
    noise, mask = optimal_noise(chosen, utility_loss=1.0), optimal_pruning(chosen, utility=0.5)
    gradients = torch.func.vmap(lambda x, y: GradientMap(model, loss)(x[None], y[None]))(*held_out)
    squares = {name: value.square() for name, value in gradients.items()}
    cost = sum((squares[name] * std.square()).flatten(1).sum(1) for name, std in noise.scales.stds.items())
    kept = sum((squares[name] * each).flatten(1).sum(1) for name, each in mask.mask.items())
    total = sum(value.flatten(1).sum(1) for value in squares.values())
    error = float(cost.std()) * math.sqrt(2 / len(cost))  # two samples of this size
    assert error < 0.02
    assert float(cost.mean()) == pytest.approx(1.0, abs=4 * error)
    assert float(kept.mean() / total.mean()) == pytest.approx(0.5, rel=0.01)


def test_a_random_mask_depends_on_its_seed_alone():
    """Also within vmap, where torch refuses to draw."""
    updates = {"w": torch.rand(5, 40, generator=torch.Generator().manual_seed(0)) + 0.1}
    defense = random_pruning(0.75, seed=1)
    sent = torch.func.vmap(defense.replay)(updates)["w"]
    kept = defense.kept({"w": updates["w"][0]})["w"]
    assert int(kept.sum()) == 10
    assert torch.equal(sent, updates["w"] * kept)
    assert not torch.equal(kept, random_pruning(0.75).kept({"w": updates["w"][0]})["w"])
    release = ForwardRelease(lambda inputs, labels: {"w": inputs[0] ** 2}, torch.ones(1, 40), torch.zeros(1))
    assert torch.equal(defense.for_release(release).mask["w"], kept)
    assert str(defense) == str(defense.for_release(release)) == "random_pruning(share=0.75, seed=1)"

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import reconrisk as rr
from reconrisk.attacks.matching.regularizers import BatchNormStatistics, GroupConsistency, L2Norm, TotalVariation
from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows

SEEDS = st.integers(0, 2**31 - 1)
EVERY = [TotalVariation, L2Norm, GroupConsistency, BatchNormStatistics]


def seen(shape, data_range=(0.0, 1.0)):
    """An observation of records of this shape, without a model."""
    return Observation({"y": torch.ones(1)}, lambda inputs, labels: {}, HONEST_BUT_CURIOUS, shape, data_range)


def uniform(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(1, 5, 4), (3, 5, 4), (7, 2, 3), (5, 4), (2, 3, 4, 5)])
def test_total_variation_is_the_mean_difference_of_neighbours_for_any_number_of_channels(shape):
    inputs = -2 + 4 * uniform(3, 2, *shape)
    values = inputs.numpy()
    rows, columns = (np.abs(np.diff(values, axis=axis)).reshape(3, -1).mean(1) for axis in (-2, -1))
    found = TotalVariation(1.0).bind(seen(shape, (-2.0, 2.0)))(inputs)
    np.testing.assert_allclose(found.numpy(), (rows + columns) / 4, rtol=1e-12)


@pytest.mark.parametrize("shape", [(1, 1, 6), (1, 6, 1)])
def test_total_variation_of_a_single_row_is_that_of_its_columns(shape):
    inputs = uniform(2, 1, *shape)
    expected = inputs.flatten(1).diff().abs().mean(1)
    torch.testing.assert_close(TotalVariation(1.0).bind(seen(shape))(inputs), expected)


def test_total_variation_of_tables_is_refused_with_the_way_out():
    with pytest.raises(
        InvalidInput, match=r"Expected input_shape=\(5,\) to be the shape of an image.*total_variation=0"
    ):
        TotalVariation(1.0).bind(seen((5,)))


@given(SEEDS, st.floats(-5, 5), st.floats(0.1, 10))
def test_penalties_of_values_do_not_see_the_unit_of_the_data(seed, low, width):
    inputs = uniform(3, 2, 1, 3, 3, seed=seed)
    for part in (TotalVariation(1.0), L2Norm(1.0), GroupConsistency(1.0)):
        plain = part.bind(seen((1, 3, 3)))(inputs)
        moved = part.bind(seen((1, 3, 3), (low, low + width)))(low + width * inputs)
        torch.testing.assert_close(moved, plain, rtol=1e-9, atol=1e-12)


def test_the_norm_is_the_mean_square_from_the_middle():
    inputs = uniform(3, 2, 5)
    found = L2Norm(1.0).bind(seen((5,), (-1.0, 3.0)))(-1 + 4 * inputs)
    np.testing.assert_allclose(found.numpy(), ((inputs.numpy() - 0.5) ** 2).reshape(3, -1).mean(1), rtol=1e-12)
    assert float(L2Norm(1.0).bind(seen((5,), (-1.0, 3.0)))(torch.ones(1, 2, 5))) == 0


@given(SEEDS)
def test_the_group_pulls_each_restart_to_the_mean_of_all(seed):
    inputs = uniform(4, 2, 5, seed=seed).requires_grad_()
    found = GroupConsistency(1.0).bind(seen((5,)))(inputs)
    away = inputs.detach() - inputs.detach().mean(0)
    torch.testing.assert_close(found.detach(), away.square().flatten(1).mean(1))
    (slope,) = torch.autograd.grad(found[1], inputs)
    expected = torch.zeros_like(away)
    expected[1] = 2 * away[1] / 10  # of 10 values; no other restart is moved by this one's penalty
    torch.testing.assert_close(slope, expected)


def test_a_single_restart_is_its_own_group_and_one_that_is_not_a_number_is_left_out():
    penalty = GroupConsistency(1.0).bind(seen((5,)))
    assert float(penalty(uniform(1, 2, 5))) == 0
    inputs = uniform(3, 2, 5)
    broken = torch.cat([inputs, torch.full((1, 2, 5), torch.nan)])
    torch.testing.assert_close(penalty(broken)[:3], penalty(inputs))


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.Tanh())

    def forward(self, inputs):
        return inputs + self.inner(inputs)


def network(*, trained=True, train=False):
    """Batch norm after a convolution, in a residual branch, and on flat features; running statistics of records."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3),
        nn.BatchNorm2d(3),
        nn.Tanh(),
        Residual(3),
        nn.Flatten(),
        nn.BatchNorm1d(48),
        nn.Linear(48, 4),
    )
    if trained:
        with torch.no_grad():
            model.train()(uniform(32, 1, 6, 6, seed=5).float())
    return model.train(train)


LAYERS = ("1", "3.inner.1", "5")


def observed(model, *knows, release=rr.releases.GradientRelease, **settings):
    records, labels = uniform(3, 1, 6, 6, seed=1).float(), torch.tensor([0, 1, 3])
    private = release(model, nn.functional.cross_entropy, records, labels, **settings)
    return records, rr.observe(private, threat=HONEST_BUT_CURIOUS.with_knowledge(*knows))


def received(model, inputs):
    """Inputs of the batch norm layers of a plain call, as arrays (rows, channels, places)."""
    caught, handles = {}, []
    for name, layer in model.named_modules():
        if name in LAYERS:
            handles.append(layer.register_forward_pre_hook(lambda _, given, name=name: caught.update({name: given[0]})))
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        model(inputs)
    model.load_state_dict(kept)
    for handle in handles:
        handle.remove()
    return {name: value.reshape(*value.shape[:2], -1).double().numpy() for name, value in caught.items()}


def penalty_by_hand(model, inputs, expected):
    """Mean over layers of the root mean square of relative errors of mean and variance, eps 1e-5 in the variance."""
    total = 0.0
    for name, values in received(model, inputs).items():
        mean, variance = expected[name]
        shift = (values.mean((0, 2)) - mean) ** 2 / (variance + 1e-5)
        spread = (values.var((0, 2)) - variance) ** 2 / (variance + 1e-5) ** 2
        total += np.sqrt(shift.mean()) + np.sqrt(spread.mean())
    return total / len(LAYERS)


@pytest.mark.parametrize("train", [True, False])
def test_statistics_of_the_batch_are_compared_layer_by_layer_for_each_restart(train):
    model = network(train=train)
    records, observation = observed(model, Knows.BATCH_STATISTICS)
    expected = {name: (v.mean((0, 2)), v.var((0, 2))) for name, v in received(model, records).items()}
    candidates = torch.stack([uniform(3, 1, 6, 6, seed=seed).float() for seed in (2, 3)] + [records])
    found = BatchNormStatistics(1.0).bind(observation)(candidates)
    by_hand = [penalty_by_hand(model, inputs, expected) for inputs in candidates]
    np.testing.assert_allclose(found.numpy(), by_hand, rtol=1e-3, atol=1e-4)  # single precision through the network
    assert by_hand[0] > 0.1


@pytest.mark.parametrize("train", [True, False])
def test_running_statistics_serve_where_those_of_the_batch_are_not_known_but_count_less(train):
    model = network(train=train)
    _, observation = observed(model)
    state = model.state_dict()
    expected = {
        name: (state[f"{name}.running_mean"].double().numpy(), state[f"{name}.running_var"].double().numpy())
        for name in LAYERS
    }
    candidates = uniform(2, 3, 1, 6, 6, seed=7).float()
    by_hand = np.array([penalty_by_hand(model, inputs, expected) for inputs in candidates])
    found = BatchNormStatistics(1.0).bind(observation)(candidates)
    np.testing.assert_allclose(found.numpy(), 0.1 * by_hand, rtol=1e-3)
    full = BatchNormStatistics(1.0, running_share=1.0).bind(observation)(candidates)
    np.testing.assert_allclose(full.numpy(), by_hand, rtol=1e-3)


@pytest.mark.parametrize("train", [True, False])
def test_the_true_records_have_no_penalty_and_a_finite_slope(train):
    records, observation = observed(network(train=train), Knows.BATCH_STATISTICS)
    leaf = records[None].clone().requires_grad_()
    value = BatchNormStatistics(1.0).bind(observation)(leaf)
    (slope,) = torch.autograd.grad(value.sum(), leaf)
    assert value.item() < 1e-4
    assert bool(slope.isfinite().all())


@pytest.mark.parametrize("train", [True, False])
def test_the_penalty_leaves_the_model_as_it_is(train):
    model = network(train=train)
    _, observation = observed(model, Knows.BATCH_STATISTICS)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    BatchNormStatistics(1.0).bind(observation)(uniform(2, 3, 1, 6, 6).float())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(layer._forward_pre_hooks for layer in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_statistics_are_found_behind_local_updates_and_known_defenses():
    candidates = uniform(2, 3, 1, 6, 6, seed=2).float()
    plain = BatchNormStatistics(1.0).bind(observed(network(), Knows.BATCH_STATISTICS)[1])(candidates)
    _, local = observed(
        network(),
        Knows.BATCH_STATISTICS,
        release=rr.releases.LocalUpdateRelease,
        learning_rate=0.1,
        epochs=2,
        batch_size=2,
    )
    torch.testing.assert_close(BatchNormStatistics(1.0).bind(local)(candidates), plain)
    records, labels = uniform(3, 1, 6, 6, seed=1).float(), torch.tensor([0, 1, 3])
    noisy = rr.observe(
        rr.releases.GradientRelease(network(), nn.functional.cross_entropy, records, labels),
        defense=rr.defenses.gaussian_noise(0.1),
        threat=HONEST_BUT_CURIOUS.with_knowledge(Knows.BATCH_STATISTICS, Knows.DEFENSE),
        rng=torch.Generator().manual_seed(0),
    )
    torch.testing.assert_close(BatchNormStatistics(1.0).bind(noisy)(candidates), plain)


@pytest.mark.parametrize(
    "model",
    [
        network(trained=False),
        nn.Sequential(nn.Flatten(), nn.Linear(36, 4)),
        nn.Sequential(nn.BatchNorm2d(1, track_running_stats=False), nn.Flatten(), nn.Linear(36, 4)),
    ],
    ids=["before training", "no batch norm", "no running statistics"],
)
def test_without_statistics_to_go_by_there_is_no_penalty(model):
    _, observation = observed(model)
    found = BatchNormStatistics(1.0).bind(observation)(uniform(2, 3, 1, 6, 6).float())
    assert found.tolist() == [0.0, 0.0]


def test_statistics_without_a_model_are_refused_with_the_way_out():
    with pytest.raises(InvalidInput, match=r"Expected the release of a model.*batch_norm=0"):
        BatchNormStatistics(1.0).bind(seen((1, 6, 6)))


@pytest.mark.parametrize("part", EVERY)
@pytest.mark.parametrize("name", ["weight", "prior_weight", "final_share"])
def test_negative_weights_are_refused_by_name(part, name):
    with pytest.raises(InvalidInput, match=f"Expected {name}=-1.0 >= 0"):
        part(**{"weight": 1.0, name: -1.0})
    with pytest.raises(InvalidInput, match="Expected running_share="):
        BatchNormStatistics(1.0, running_share=-1.0)

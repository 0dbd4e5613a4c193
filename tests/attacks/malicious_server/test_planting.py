import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from reconrisk.attacks import imprint, trap_weights
from reconrisk.attacks.malicious_server.planting import layer_inputs, planted_rows, read_records
from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation
from reconrisk.core.threat import MALICIOUS_SERVER

ATTACKS = [imprint(bins=8), imprint(bins=8, isolated=False), trap_weights(neurons=8)]


def observation(shape=(12,), batch_size=4, data_range=(0.0, 1.0)):
    released = {"planted.weight": torch.ones(1, 1)}
    return Observation(released, lambda inputs, labels: {}, MALICIOUS_SERVER, shape, data_range, batch_size=batch_size)


def rows_of(shares, records):
    """The gradient of neurons, by the share that each record has in each."""
    summed = shares @ layer_inputs(records)
    return planted_rows({"planted.weight": summed}, records.shape[1], len(shares))


def records_for(seed, count, features=12):
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(count, features, generator=rng, dtype=torch.float64)


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_the_planted_model_computes_what_the_users_does_and_leaves_it_and_the_random_numbers_alone(attack):
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Dropout(), nn.Linear(48, 5))
    model[1].eval()
    model[3].eval()
    before, state = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
    planted = attack.plant(model, (1, 6, 6))
    assert torch.equal(torch.random.get_rng_state(), state)
    inputs = torch.rand(7, 1, 6, 6)
    assert torch.equal(planted(inputs), model(inputs))
    assert [layer.training for layer in planted.model.modules()] == [layer.training for layer in model.modules()]
    with torch.no_grad():
        for parameter in planted.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_the_planted_layer_has_the_precision_of_the_model_and_refuses_other_shapes(attack):
    planted = attack.plant(nn.Linear(4, 2).double(), [4])
    assert planted.planted.weight.dtype == torch.float64
    with pytest.raises(InvalidInput, match=r"inputs.shape=\(3, 5\) to be \(3, 4\)"):
        planted(torch.ones(3, 5).double())
    with pytest.raises(InvalidInput, match="input_shape=0 >= 1"):
        attack.plant(nn.Linear(4, 2), (4, 0))
    for nonsense in (4, "4", ()):
        with pytest.raises(InvalidInput, match="to be the shape of one record"):
            attack.plant(nn.Linear(4, 2), nonsense)
    with pytest.raises(InvalidInput, match=r"model='function' to be a torch.nn.Module"):
        attack.plant(lambda inputs: inputs, (4,))
    with pytest.raises(InvalidInput, match=r"rng=0 to be a torch\.Generator"):
        attack.plant(nn.Linear(4, 2), (4,), rng=0)


@given(seed=st.integers(0, 10_000), share=st.floats(1e-6, 1e6), sign=st.sampled_from([-1, 1]))
def test_a_record_alone_is_read_exactly_whatever_its_share(seed, share, sign):
    records = records_for(seed, 1)
    found = read_records(
        observation(), rows_of(torch.tensor([[sign * share]]).double(), records), tolerance=1e-5, variances=None
    )
    torch.testing.assert_close(found.records, records, rtol=0, atol=1e-9)
    assert float(found.doubts) < 1e-9


@given(seed=st.integers(0, 10_000), part=st.floats(0.01, 0.99) | st.floats(-3, -0.01) | st.floats(1.01, 3))
def test_two_records_in_any_mixture_are_never_taken_for_one(seed, part):
    # |doubt| >= part (1 - part) |x - z|^2 / d; of random records at d = 12 that is above 1e-2 * 1e-2
    shares = torch.tensor([[part, 1 - part]]).double()
    rows = rows_of(shares, records_for(seed, 2))
    assert len(read_records(observation(), rows, tolerance=1e-5, variances=None).records) == 0


@given(seed=st.integers(0, 10_000), count=st.integers(3, 6))
def test_more_records_with_shares_of_either_sign_are_never_taken_for_one(seed, count):
    shares = torch.randn(20, count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    rows = rows_of(shares, records_for(seed + 1, count))
    assert len(read_records(observation(), rows, tolerance=1e-5, variances=None).records) == 0


def test_each_record_is_returned_once_and_no_more_than_there_are():
    records = records_for(0, 6)
    rows = rows_of(torch.eye(6).double().repeat_interleave(3, 0), records)
    found = read_records(observation(batch_size=6), rows, tolerance=1e-5, variances=None).records
    assert len(found) == 6
    assert float(torch.cdist(found, records).amin(0).max()) < 1e-9
    assert len(read_records(observation(batch_size=4), rows, tolerance=1e-5, variances=None).records) == 4


def test_silent_rows_and_rows_below_their_rounding_tell_nothing():
    rows = torch.zeros(3, 17, dtype=torch.float64)
    rows[1, 0] = 1.0  # something for x, nothing to divide it by
    rows[2, -1] = 1e-9  # would read as a black record
    found = read_records(observation(), rows, tolerance=1e-5, rounding=torch.full((3,), 1e-8), variances=None)
    assert found.records.shape == (0, 12)
    rows = torch.full((1, 17), math.inf, dtype=torch.float64)
    assert len(read_records(observation(), rows, tolerance=1e-5, variances=None).records) == 0


def test_values_out_of_range_are_not_believed():
    records = records_for(0, 1) + 0.5
    rows = rows_of(torch.ones(1, 1).double(), records)
    assert len(read_records(observation(), rows, tolerance=1e-5, variances=None).records) == 0
    assert len(read_records(observation(data_range=(0.0, 2.0)), rows, tolerance=1e-5, variances=None).records) == 1


def test_an_update_that_was_not_planted_is_refused():
    with pytest.raises(InvalidInput, match=r"released=\['weight'\] to contain planted.weight. Release an update of"):
        planted_rows({"weight": torch.ones(2, 2)}, 12, 8)
    with pytest.raises(InvalidInput, match=r"shape=\(4, 17\) to be \(8, 17\)"):
        planted_rows({"planted.weight": torch.ones(4, 17)}, 12, 8)

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from reconrisk.attacks import analytic
from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import Ending
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Sees, ThreatModel
from reconrisk.releases import GradientMap


def observe(model, inputs, labels):
    forward = GradientMap(model)
    released = {name: value.detach() for name, value in forward(inputs, labels).items()}
    return Observation(
        released, forward, HONEST_BUT_CURIOUS, tuple(inputs.shape[1:]), (0.0, 1.0), batch_size=len(inputs)
    )


@given(seed=st.integers(0, 10_000), features=st.integers(1, 50), hidden=st.integers(2, 30))
def test_a_record_is_rebuilt_exactly_from_any_network_that_begins_with_a_linear_layer(seed, features, hidden):
    rng = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng))
    target = torch.rand(1, features, generator=rng)
    result = analytic()(observe(model.double(), target.double(), torch.tensor([seed % 3])), rng=rng)
    # tanh may saturate: the layer's gradient is then tiny, but its ratio keeps double precision
    torch.testing.assert_close(result.estimates, target, rtol=0, atol=1e-5)
    assert result.status.ending is Ending.EXACT
    assert result.account.objective[0] < 1e-5


def test_a_dead_layer_is_reported_not_guessed_at():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    nn.init.constant_(model[0].weight, -1.0)
    nn.init.constant_(model[0].bias, -1.0)
    result = analytic()(observe(model, torch.ones(1, 3), torch.tensor([0])), rng=torch.Generator())
    assert result.status.ending is Ending.NOT_APPLICABLE
    assert result.estimates.tolist() == [[0.5, 0.5, 0.5]]


def test_batches_and_networks_without_such_a_layer_are_refused():
    model = nn.Linear(3, 2)
    with pytest.raises(InvalidInput, match="batch_size=2 to be 1"):
        analytic()(observe(model, torch.ones(2, 3), torch.tensor([0, 1])), rng=torch.Generator())
    convolution = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2, 2))
    with pytest.raises(InvalidInput, match="linear layer with bias on 9 features"):
        analytic()(observe(convolution, torch.ones(1, 1, 3, 3), torch.tensor([0])), rng=torch.Generator())


def noisy(observation, scale):
    rng = torch.Generator().manual_seed(0)
    released = {
        name: value + scale * torch.randn(value.shape, generator=rng) for name, value in observation.released.items()
    }
    return replace(observation, released=released)


def test_noise_is_reported_and_leaves_a_residual():
    model = nn.Linear(20, 8)
    result = analytic()(noisy(observe(model, torch.rand(1, 20), torch.tensor([0])), 0.1), rng=torch.Generator())
    assert result.status.ending is Ending.CONVERGED
    assert "noisy neurons" in result.status.cause
    assert result.account.objective[0] > 1e-3


def test_a_layer_of_the_right_width_that_reads_features_is_not_called_exact():
    model = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(16, 4))
    result = analytic()(observe(model, torch.rand(1, 1, 4, 4), torch.tensor([2])), rng=torch.Generator())
    assert result.status.ending is Ending.NOT_APPLICABLE
    assert "does not read the record" in result.status.cause


def test_an_adversary_without_an_update_cannot_run_it():
    observation = observe(nn.Linear(3, 2), torch.ones(1, 3), torch.tensor([0]))
    with pytest.raises(InvalidInput, match="to cover what the attack needs"):
        analytic()(replace(observation, threat=ThreatModel(Sees.FINAL_MODEL)), rng=torch.Generator())

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from reconrisk.core.errors import InvalidInput
from reconrisk.releases import GradientMap


@given(seed=st.integers(0, 1000), batch=st.integers(1, 4))
def test_it_equals_the_gradient_that_backward_leaves(seed, batch):
    rng = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    inputs, labels = torch.rand(batch, 5, generator=rng), torch.randint(3, (batch,), generator=rng)
    released = GradientMap(model)(inputs, labels)
    nn.functional.cross_entropy(model(inputs), labels).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(released[name], parameter.grad)


def test_frozen_parameters_are_not_released_and_the_model_is_untouched():
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert list(GradientMap(model)(torch.ones(1, 2), torch.tensor([0]))) == ["weight"]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.weight.grad is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batch_norm_and_frozen_layers_follow_the_precision_of_the_records(dtype):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2)).eval()
    model[0].requires_grad_(False)
    model[1].running_mean += 0.5
    released = GradientMap(model)(torch.ones(1, 1, 4, 4, dtype=dtype), torch.tensor([1]))
    assert list(released) == ["1.weight", "1.bias", "3.weight", "3.bias"]
    model.to(dtype)
    nn.functional.cross_entropy(model(torch.ones(1, 1, 4, 4, dtype=dtype)), torch.tensor([1])).backward()
    torch.testing.assert_close(released["1.weight"], model[1].weight.grad)
    assert released["3.bias"].dtype == dtype


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(2), nn.Dropout(0.5)])
def test_layers_that_draw_or_remember_are_refused_in_training_mode(layer):
    model = nn.Sequential(nn.Linear(2, 2), layer)
    with pytest.raises(InvalidInput, match=rf"1\.training=True to be False for {type(layer).__name__}"):
        GradientMap(model)(torch.ones(2, 2), torch.tensor([0, 1]))
    GradientMap(model.eval())(torch.ones(2, 2), torch.tensor([0, 1]))


def test_it_is_differentiable_in_the_records():
    inputs = torch.rand(1, 2, dtype=torch.float64, requires_grad=True)
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
    assert torch.autograd.gradcheck(lambda x: GradientMap(model)(x, torch.tensor([1]))["0.weight"], inputs)


def test_empty_batches_and_missing_labels_are_refused():
    with pytest.raises(InvalidInput, match="inputs with at least one"):
        GradientMap(nn.Linear(2, 2))(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64))
    with pytest.raises(InvalidInput, match="2 records came with 1 labels"):
        GradientMap(nn.Linear(2, 2))(torch.zeros(2, 2), torch.tensor([0]))

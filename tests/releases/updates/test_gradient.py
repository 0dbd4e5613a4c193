import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from reconrisk.core.errors import InvalidInput
from reconrisk.releases import GradientMap, HardClip, SmoothClip


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


def test_dropout_is_refused_in_training_mode():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    with pytest.raises(InvalidInput, match=r"1\.training=True to be False for Dropout. Call model.eval\(\) first"):
        GradientMap(model)(torch.ones(2, 2), torch.tensor([0, 1]))
    GradientMap(model.eval())(torch.ones(2, 2), torch.tensor([0, 1]))


def test_batch_norm_in_training_mode_uses_the_batch_and_leaves_the_running_statistics_alone():
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    inputs, labels = torch.rand(5, 2), torch.tensor([0, 1, 0, 1, 1])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    released = GradientMap(model)(inputs, labels)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    nn.functional.cross_entropy(model(inputs), labels).backward()
    torch.testing.assert_close(released["0.weight"], model[0].weight.grad)


def test_batch_norm_in_training_mode_cannot_be_clipped_per_record():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with pytest.raises(InvalidInput, match=r"1\.training=True to be False for BatchNorm1d.*group_norm"):
        GradientMap(model, reduction="sum", clip=HardClip(1.0))(torch.ones(2, 2), torch.tensor([0, 1]))


@pytest.mark.parametrize("clip", [HardClip(0.2), SmoothClip(0.2), HardClip(1e3)])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_clipped_gradients_are_those_of_single_records_added(clip, reduction):
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    inputs, labels = torch.rand(4, 5, dtype=torch.float64), torch.tensor([0, 1, 2, 1])
    released = GradientMap(model, reduction=reduction, clip=clip)(inputs, labels)
    total = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    for record, label in zip(inputs, labels, strict=True):
        single = GradientMap(model)(record[None], label[None])
        norm = torch.cat([value.flatten() for value in single.values()]).norm()
        for name, value in single.items():
            total[name] += value * clip.factor(norm) / (4 if reduction == "mean" else 1)
    for name, value in total.items():
        torch.testing.assert_close(released[name], value)


def test_chosen_layers_are_released_also_if_frozen():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).requires_grad_(False)
    assert list(GradientMap(model, parameters=["1"])(torch.ones(1, 2), torch.tensor([0]))) == ["1.weight", "1.bias"]
    with pytest.raises(InvalidInput, match=r"parameters='2' to name one of 0\.weight, 0\.bias"):
        GradientMap(model, parameters=["2"])(torch.ones(1, 2), torch.tensor([0]))
    with pytest.raises(InvalidInput, match="to name at least one parameter"):
        GradientMap(model)(torch.ones(1, 2), torch.tensor([0]))


def test_clip_needs_a_stated_reduction():
    with pytest.raises(InvalidInput, match="reduction=None to be stated if clip is given"):
        GradientMap(nn.Linear(2, 2), clip=HardClip(1.0))


def test_it_is_differentiable_in_the_records():
    inputs = torch.rand(1, 2, dtype=torch.float64, requires_grad=True)
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
    assert torch.autograd.gradcheck(lambda x: GradientMap(model)(x, torch.tensor([1]))["0.weight"], inputs)


def test_empty_batches_and_missing_labels_are_refused():
    with pytest.raises(InvalidInput, match="inputs with at least one"):
        GradientMap(nn.Linear(2, 2))(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64))
    with pytest.raises(InvalidInput, match="got 2 records with 1 labels"):
        GradientMap(nn.Linear(2, 2))(torch.zeros(2, 2), torch.tensor([0]))

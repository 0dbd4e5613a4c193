from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from reconrisk.models import group_norm, parameter_count
from reconrisk.models.building import dense, norm_layers


@given(st.integers(1, 300))
def test_groups_divide_the_channels(channels: int) -> None:
    norm = group_norm(channels)
    assert channels % norm.num_groups == 0
    assert norm.num_groups == max(g for g in range(1, channels + 1) if channels % g == 0 and g <= 32)


@pytest.mark.parametrize("channels", [64, 128, 256, 512, 1024, 2048])
def test_the_usual_widths_get_32_groups(channels: int) -> None:
    assert group_norm(channels).num_groups == 32


def test_no_norm_is_no_layer() -> None:
    assert norm_layers(None, 4) == []
    assert [type(layer) for layer in norm_layers(nn.BatchNorm2d, 4)] == [nn.BatchNorm2d]


def test_activations_stand_between_layers_only() -> None:
    kinds = [type(layer) for layer in dense((4, 3, 2), nn.Tanh)]
    assert kinds == [nn.Linear, nn.Tanh, nn.Linear]
    assert [type(layer) for layer in dense((4, 2), nn.Tanh)] == [nn.Linear]


def test_parameter_count_leaves_out_buffers_and_frozen_parameters() -> None:
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Linear(2, 2))
    assert parameter_count(model) == 6 + 6
    model[1].requires_grad_(False)
    assert parameter_count(model) == 6
    assert parameter_count(nn.Sequential()) == 0
    assert torch.tensor([parameter.numel() for parameter in model.parameters()]).sum() == 12

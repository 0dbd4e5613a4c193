from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from reconrisk.models import group_norm, parameter_count, resnet18, resnet101


def expected_layout(depths: list[int], kernels: list[int], expansion: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of torchvision's state dict for 1000 classes, from its naming rule and He et al., Table 1."""
    layout: dict[str, tuple[int, ...]] = {}

    def norm(name: str, width: int) -> None:
        layout.update({f"{name}.{part}": (width,) for part in ("weight", "bias", "running_mean", "running_var")})
        layout[f"{name}.num_batches_tracked"] = ()

    layout["conv1.weight"] = (64, 3, 7, 7)
    norm("bn1", 64)
    fan_in = 64
    for stage, depth in enumerate(depths, start=1):
        width = 32 * 2**stage
        for place in range(depth):
            block = f"layer{stage}.{place}"
            widths = [fan_in, *[width] * (len(kernels) - 1), width * expansion]
            for i, kernel in enumerate(kernels):
                layout[f"{block}.conv{i + 1}.weight"] = (widths[i + 1], widths[i], kernel, kernel)
                norm(f"{block}.bn{i + 1}", widths[i + 1])
            if place == 0 and fan_in != width * expansion:
                layout[f"{block}.downsample.0.weight"] = (width * expansion, fan_in, 1, 1)
                norm(f"{block}.downsample.1", width * expansion)
            fan_in = width * expansion
    layout["fc.weight"], layout["fc.bias"] = (1000, fan_in), (1000,)
    return layout


@pytest.mark.parametrize(
    ("build", "depths", "kernels", "expansion", "known"),
    [
        (resnet18, [2, 2, 2, 2], [3, 3], 1, 11_689_512),
        (resnet101, [3, 4, 23, 3], [1, 3, 1], 4, 44_549_160),
    ],
)
def test_names_shapes_and_count_are_those_of_torchvision(
    build: Callable[..., nn.Module], depths: list[int], kernels: list[int], expansion: int, known: int
) -> None:
    """The counts are those torchvision documents; riess2025, Figure 4: "ResNet-101 architecture (about 45M)"."""
    with torch.device("meta"):
        model = build((3, 224, 224), 1000)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert shapes == expected_layout(depths, kernels, expansion)
    assert parameter_count(model) == known


def test_pixels_after_each_stage_as_in_table_1_of_he_et_al() -> None:
    """112, 56, 56, 28, 14, 7 for an input of 224."""
    with torch.device("meta"):
        for build in (resnet18, resnet101):
            model, hidden = build((3, 224, 224), 1000), torch.zeros(1, 3, 224, 224)
            sides = {}
            for name, layer in model.named_children():
                hidden = layer(hidden)
                sides[name] = hidden.shape[-1]
            stages = ("conv1", "maxpool", "layer1", "layer2", "layer3", "layer4")
            assert [sides[stage] for stage in stages] == [112, 56, 56, 28, 14, 7]


def test_the_stride_of_a_bottleneck_is_in_its_3x3_convolution() -> None:
    with torch.device("meta"):
        block = resnet101((3, 64, 64), 10).layer2[0]
    assert [block.conv1.stride, block.conv2.stride, block.conv3.stride] == [(1, 1), (2, 2), (1, 1)]


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 4), st.integers(1, 70), st.integers(1, 70), st.integers(2, 12))
def test_images_of_any_size(channels: int, height: int, width: int, classes: int) -> None:
    with torch.device("meta"):
        model = resnet18((channels, height, width), classes)
        assert model(torch.zeros(2, channels, height, width)).shape == (2, classes)
    assert parameter_count(model) == 11_176_512 + (channels - 3) * 64 * 49 + 513 * classes


def test_a_block_adds_both_ways_before_its_last_activation() -> None:
    """With zero weights in the last convolution only the way around is left."""
    model = resnet18((3, 8, 8), 2, norm=None, rng=torch.Generator().manual_seed(0))
    block = model.layer1[0]
    nn.init.zeros_(block.conv2.weight)
    inputs = torch.randn(2, 64, 4, 4, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(block(inputs), inputs.relu())


@pytest.mark.parametrize("norm", [None, group_norm])
@pytest.mark.parametrize("build", [resnet18, resnet101])
def test_outputs_begin_in_scale_without_batch_norm(build: Callable[..., nn.Module], norm: object) -> None:
    """Unscaled branches without norm multiply the variance by 2 a block: 2^33 in ResNet-101."""
    rng = torch.Generator().manual_seed(0)
    outputs = build((3, 32, 32), 100, norm=norm, rng=rng)(torch.randn(2, 3, 32, 32, generator=rng))
    assert 1e-3 < outputs.std() < 10


def test_without_norm_convolutions_have_biases_and_there_are_no_buffers() -> None:
    model = resnet18((3, 8, 8), 2, norm=None)
    assert all(layer.bias is not None for layer in model.modules() if isinstance(layer, nn.Conv2d))
    assert not list(model.buffers())
    assert not any("bn" in name for name, _ in model.named_parameters())


def test_the_activation_is_an_option() -> None:
    model = resnet18((3, 8, 8), 2, activation=nn.GELU)
    assert sum(isinstance(layer, nn.GELU) for layer in model.modules()) == 1 + 8
    assert not any(isinstance(layer, nn.ReLU) for layer in model.modules())

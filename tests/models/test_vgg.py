from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from reconrisk.core.errors import InvalidInput
from reconrisk.models import parameter_count, vgg16

# Places of the convolutions in torchvision's vgg16.features and vgg16_bn.features.
PLAIN = [0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28]
NORMED = [0, 3, 7, 10, 14, 17, 20, 24, 27, 30, 34, 37, 40]
WIDTHS = [3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]


def expected_layout(places: list[int], *, normed: bool) -> dict[str, tuple[int, ...]]:
    layout: dict[str, tuple[int, ...]] = {}
    for i, place in enumerate(places):
        layout[f"features.{place}.weight"] = (WIDTHS[i + 1], WIDTHS[i], 3, 3)
        layout[f"features.{place}.bias"] = (WIDTHS[i + 1],)
        if normed:
            parts = ("weight", "bias", "running_mean", "running_var")
            layout.update({f"features.{place + 1}.{part}": (WIDTHS[i + 1],) for part in parts})
            layout[f"features.{place + 1}.num_batches_tracked"] = ()
    for place, fan_in, fan_out in ((0, 512 * 49, 4096), (3, 4096, 4096), (6, 4096, 1000)):
        layout[f"classifier.{place}.weight"], layout[f"classifier.{place}.bias"] = (fan_out, fan_in), (fan_out,)
    return layout


@pytest.mark.parametrize(
    ("norm", "places", "known"), [(None, PLAIN, 138_357_544), (nn.BatchNorm2d, NORMED, 138_365_992)]
)
def test_names_shapes_and_count_are_those_of_torchvision(
    norm: type[nn.Module] | None, places: list[int], known: int
) -> None:
    with torch.device("meta"):
        model = vgg16((3, 224, 224), 1000, norm=norm)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert shapes == expected_layout(places, normed=norm is not None)
    assert parameter_count(model) == known


@settings(deadline=None, max_examples=10)
@given(st.integers(1, 4), st.integers(32, 80), st.integers(32, 80), st.integers(2, 12), st.integers(1, 7))
def test_images_of_any_size_from_32(channels: int, height: int, width: int, classes: int, side: int) -> None:
    with torch.device("meta"):
        model = vgg16((channels, height, width), classes, pooled_side=side)
        assert model(torch.zeros(2, channels, height, width)).shape == (2, classes)
    counted = 14_714_688 + (channels - 3) * 9 * 64 + (512 * side**2 + 1) * 4096 + 4097 * 4096 + 4097 * classes
    assert parameter_count(model) == counted


def test_one_pooled_pixel_loses_nothing_at_32() -> None:
    """The features of a 32 x 32 image are one pixel; pooled to 2 x 2 they repeat."""
    rng = torch.Generator().manual_seed(0)
    inputs = torch.randn(2, 3, 32, 32, generator=rng)
    model = vgg16((3, 32, 32), 10, pooled_side=2, rng=rng).eval()
    features = model.features(inputs)
    assert features.shape == (2, 512, 1, 1)
    torch.testing.assert_close(model.avgpool(features), features.expand(2, 512, 2, 2))


def test_laws_of_the_initial_weights() -> None:
    model = vgg16((3, 32, 32), 10, pooled_side=1, rng=torch.Generator().manual_seed(0))
    # n normal draws: relative error of the std 1 / sqrt(2 n), 0.05 % and 0.02 %; 4 of those.
    assert model.features[28].weight.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=2e-3)
    assert model.classifier[3].weight.std().item() == pytest.approx(0.01, rel=1e-3)
    assert not any(value.any() for name, value in model.named_parameters() if name.endswith("bias"))


def test_dropout_is_an_option() -> None:
    model = vgg16((3, 32, 32), 2, pooled_side=1, dropout=0.0).train()
    inputs = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model(inputs), model(inputs))
    with pytest.raises(InvalidInput, match=r"Expected dropout=1.5 in \[0, 1\]"):
        vgg16((3, 32, 32), 2, dropout=1.5)


def test_a_pooled_side_of_zero_is_refused() -> None:
    with pytest.raises(InvalidInput, match="Expected pooled_side=0 >= 1"):
        vgg16((3, 32, 32), 2, pooled_side=0)

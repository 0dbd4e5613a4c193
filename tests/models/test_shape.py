from __future__ import annotations

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from reconrisk.models.building import check_shape, flat_features, smallest_side

windows = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(0, 2)), min_size=1, max_size=4)


def chain(windows: list[tuple[int, int, int]]) -> nn.Sequential:
    """A convolution, then pooling and convolutions in turn; torch limits the padding of pooling to half its window."""
    layers: list[nn.Module] = [nn.Conv2d(1, 2, 1)]
    for place, (kernel, stride, padding) in enumerate(windows):
        if place % 2:
            layers += [nn.AvgPool2d(kernel, stride, min(padding, kernel // 2)), nn.Tanh()]
        else:
            layers += [nn.Conv2d(2, 2, kernel, stride, padding), nn.Tanh()]
    return nn.Sequential(*layers)


@settings(deadline=None, max_examples=60)
@given(windows, st.integers(0, 6), st.integers(0, 6))
def test_flat_features_is_what_the_layers_leave(windows: list[tuple[int, int, int]], taller: int, wider: int) -> None:
    body = chain(windows)
    smallest = smallest_side(body)
    height, width = smallest + taller, smallest + wider
    assert flat_features(body, (1, height, width)) == body(torch.zeros(1, 1, height, width)).numel()


@settings(deadline=None, max_examples=60)
@given(windows)
def test_torch_cannot_run_anything_smaller_than_the_smallest_side(windows: list[tuple[int, int, int]]) -> None:
    body = chain(windows)
    side = smallest_side(body) - 1
    assume(side >= 1)
    try:
        left = body(torch.zeros(1, 1, side, side)).numel()
    except RuntimeError:
        return
    assert left == 0


def test_shapes_of_tensors_and_lists_serve() -> None:
    assert check_shape(torch.zeros(4, 3, 8, 9).shape[1:]) == (3, 8, 9)
    assert check_shape([3, 8, 9]) == (3, 8, 9)

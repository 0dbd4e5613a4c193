from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from reconrisk.core.errors import InvalidInput
from reconrisk.models import linear, logistic, mlp, parameter_count

counts = st.integers(1, 40)


@given(counts, counts, st.booleans())
def test_linear_has_features_times_outputs(features: int, outputs: int, bias: bool) -> None:
    assert parameter_count(linear(features, outputs, bias=bias)) == features * outputs + bias * outputs


@given(counts, st.integers(2, 12), st.booleans())
def test_logistic_has_one_row_per_class(features: int, classes: int, bias: bool) -> None:
    assert parameter_count(logistic(features, classes, bias=bias)) == (features + bias) * classes


@settings(deadline=None)
@given(counts, st.lists(counts, min_size=1, max_size=4), st.integers(2, 12))
def test_mlp_has_the_sum_over_neighbours(features: int, hidden: list[int], classes: int) -> None:
    model, widths = mlp(features, hidden, classes), [features, *hidden, classes]
    assert parameter_count(model) == sum((widths[i] + 1) * widths[i + 1] for i in range(len(widths) - 1))
    assert model(torch.zeros(2, features)).shape == (2, classes)


def test_linear_is_linear() -> None:
    model = linear(6, 2, bias=False, rng=torch.Generator().manual_seed(0)).double()
    one, two = torch.rand(2, 5, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(one + 2 * two), model(one) + 2 * model(two))


def test_the_last_layer_of_an_mlp_has_no_activation() -> None:
    model = mlp(2, (3,), 2, activation=nn.Tanh)
    assert [type(layer) for layer in model.layers] == [nn.Linear, nn.Tanh, nn.Linear]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: linear(0), "Expected features=0 >= 1"),
        (lambda: linear(2.5), "Expected features=2.5 to be a whole number"),
        (lambda: linear(2, 0), "Expected outputs=0 >= 1"),
        (lambda: logistic(4, 1), "Expected classes=1 >= 2"),
        (lambda: mlp(4, (), 2), r"Expected hidden with at least one element.*logistic\(features, classes\)"),
        (lambda: mlp(4, (3, 0), 2), r"Expected hidden\[1\]=0 >= 1"),
        (lambda: mlp("4", (3,), 2), "Expected features='4' to be a whole number"),
    ],
)
def test_counts_that_make_no_sense_are_refused(build: object, message: str) -> None:
    assert callable(build)
    with pytest.raises(InvalidInput, match=message):
        build()

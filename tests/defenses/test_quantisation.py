import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reconrisk.core.errors import InvalidInput
from reconrisk.defenses import quantise


@given(st.integers(3, 300), st.integers(0, 1000))
def test_values_move_by_at_most_half_a_step_and_take_few_levels(levels, seed):
    values = torch.randn(500, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    sent = quantise(levels)({"w": values}, rng=torch.Generator())["w"]
    step = 2 * float(values.abs().max()) / (levels - 1)
    assert float((sent - values).abs().max()) <= step / 2 * (1 + 1e-9)
    assert len(sent.unique()) <= levels


def test_the_stated_noise_is_that_of_rounding():
    values = torch.randn(100_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    defense = quantise(200)
    sent = defense({"w": values}, rng=torch.Generator())
    error = float((sent["w"] - values).square().mean().sqrt())
    # within the values of a bell curve a step is nearly uniform; a hundred thousand of them leave 0.3 %
    assert error == pytest.approx(float(defense.noise_std(sent)["w"][0]), rel=0.02)


def test_fewer_than_two_levels_are_refused():
    with pytest.raises(InvalidInput, match="levels=1 >= 2"):
        quantise(1)

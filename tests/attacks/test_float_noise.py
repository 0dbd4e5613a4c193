"""Feasibility of sums in floating point against all floats, in half precision."""

import math

import pytest
import torch

from reconrisk.attacks.float_noise import can_be_sum, check_precision, count_infeasible, has_preimage
from reconrisk.core.errors import InvalidInput


def every_float(dtype):
    """All finite floats of 16 bits."""
    found = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    return found[found.isfinite()]


def reachable(chain, dtype):
    """True for every float that the chain makes of some float, by trying them all."""
    floats = every_float(dtype)

    def place(values):
        return (values + 0.0).view(torch.int16).long() + 2**15  # + 0.0 makes both zeros equal

    found, made = torch.zeros(2**16, dtype=torch.bool), chain(floats)
    found[place(made[made.isfinite()])] = True
    return found[place(floats)]


SPECIAL = (0.0, 1.0, -1.0, 1.5, 2**-14, -(2**-14), 2**-24, 65504.0, 0.3, 1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_feasible_sums_are_those_that_some_float_makes(dtype):
    drawn = every_float(dtype)[torch.randint(2**15, (30,), generator=torch.Generator().manual_seed(0))]
    infeasible = 0
    for value in (*torch.tensor(SPECIAL, dtype=dtype), *drawn):
        expected = reachable(lambda noise, value=value: value + noise, dtype)
        assert torch.equal(can_be_sum(value, every_float(dtype)), expected), value
        infeasible += int((~expected).sum())
    assert infeasible > 1e5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_preimages_of_a_training_step_are_those_that_some_float_has(dtype):
    rng = torch.Generator().manual_seed(0)
    for _ in range(5):
        total, weight = torch.randn(2, generator=rng).to(dtype)

        def chain(noise, total=total, weight=weight):
            return weight + 0.1 * ((total + noise) / 7)

        assert torch.equal(has_preimage(chain, every_float(dtype)), reachable(chain, dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_ways_agree_where_all_floats_cannot_be_tried(dtype):
    rng = torch.Generator().manual_seed(0)

    def draw():
        return torch.randn(20_000, generator=rng, dtype=dtype) * torch.rand(20_000, generator=rng, dtype=dtype) ** 9

    noiseless, released = draw(), draw()
    found = can_be_sum(noiseless, released)
    assert torch.equal(found, has_preimage(lambda noise: noiseless + noise, released))
    assert 0.1 < found.double().mean() < 0.9
    assert bool(can_be_sum(noiseless, noiseless + released).all())


def test_values_that_are_not_finite_are_infeasible():
    one, odd = torch.ones(3), torch.tensor([math.inf, math.nan, -math.inf])
    assert not can_be_sum(one, odd).any()
    assert not can_be_sum(odd, one).any()


def test_the_precision_of_the_noise_and_the_sent_values_decide_what_counts():
    noiseless, rng = {"w": torch.full((1000,), 0.3)}, torch.Generator().manual_seed(0)
    noise = torch.randn(1000, generator=rng, dtype=torch.float64)
    half = {"w": (noiseless["w"].bfloat16() + noise.bfloat16()).float()}
    assert count_infeasible(noiseless, half, precision=torch.bfloat16) == 0
    single = {"w": noiseless["w"] + noise.float()}
    assert count_infeasible(noiseless, single) == 0
    assert count_infeasible(noiseless, single, precision=torch.bfloat16) > 900  # not even floats of that precision
    wrong = {"w": noiseless["w"] + 0.01}
    count = count_infeasible(wrong, single)
    assert count > 0
    none = {"w": torch.zeros(1000, dtype=torch.bool)}
    assert count_infeasible(wrong, single, kept=none) == 0


def test_names_of_precisions():
    assert check_precision("precision", "bfloat16") is torch.bfloat16
    with pytest.raises(InvalidInput, match="precision='half' to be one of float64, float32"):
        check_precision("precision", "half")

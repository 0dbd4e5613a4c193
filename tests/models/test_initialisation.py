from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from reconrisk.core.errors import InvalidInput
from reconrisk.models.building import build_with_rng, he_normal, lecun_normal, redraw


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_generator_moves_on_so_that_the_next_model_differs() -> None:
    rng = seeded(0)
    one, two = (build_with_rng(lambda: nn.Linear(3, 3), rng) for _ in range(2))
    assert not torch.equal(one.weight, two.weight)


def test_without_a_generator_the_global_one_is_used() -> None:
    before = torch.get_rng_state()
    torch.manual_seed(3)
    one = build_with_rng(lambda: nn.Linear(3, 3), None)
    assert not torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(3)
    assert torch.equal(one.weight, nn.Linear(3, 3).weight)
    torch.set_rng_state(before)


def test_the_global_generator_is_put_back_when_building_fails() -> None:
    before = torch.get_rng_state()

    def fail() -> nn.Module:
        nn.Linear(3, 3)
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        build_with_rng(fail, seeded(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_default_device_is_kept() -> None:
    with torch.device("meta"):
        assert build_with_rng(lambda: nn.Linear(2, 2), seeded(0)).weight.device.type == "meta"
    assert build_with_rng(lambda: nn.Linear(2, 2), seeded(0)).weight.device.type == "cpu"


def test_a_seed_is_not_a_generator() -> None:
    with pytest.raises(InvalidInput, match=r"Expected rng=0 to be a torch.Generator. Pass torch.Generator"):
        build_with_rng(lambda: nn.Linear(2, 2), 0)  # type: ignore[arg-type]  # the mistake under test


def test_redraw_touches_one_kind_only() -> None:
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Linear(2, 2), nn.Linear(2, 2, bias=False))
    kept = model[0].weight.clone()
    redraw(model, nn.Linear, nn.init.ones_)
    assert torch.equal(model[0].weight, kept)
    assert torch.equal(model[1].weight, torch.ones(2, 2))
    assert torch.equal(model[1].bias, torch.zeros(2))
    assert torch.equal(model[2].weight, torch.ones(2, 2))


def test_laws_of_the_initial_weights() -> None:
    layer = build_with_rng(lambda: redraw(nn.Conv2d(16, 64, 3), nn.Conv2d, he_normal), seeded(0))
    # 9216 draws: the sample std is off by a relative 1 / sqrt(2 * 9216) = 0.7 %; 4 of those.
    assert layer.weight.std().item() == pytest.approx(math.sqrt(2 / (64 * 9)), rel=0.03)
    dense = build_with_rng(lambda: redraw(nn.Linear(400, 100), nn.Linear, lecun_normal), seeded(0))
    # A standard normal cut at 2 has std 0.8796; 40,000 draws.
    assert dense.weight.std().item() == pytest.approx(0.8796 / 20, rel=0.015)
    assert dense.weight.abs().max() <= 2 / 20

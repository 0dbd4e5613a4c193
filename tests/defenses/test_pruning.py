import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reconrisk as rr
from reconrisk.defenses import prune


@given(share=st.floats(0, 0.99))
def test_the_largest_values_stay_and_the_stated_share_goes(share):
    values = torch.randn(500, generator=torch.Generator().manual_seed(0))
    clean = {"a": values[:300].view(30, 10), "b": values[300:]}
    defense = prune(share)
    sent = defense(clean, rng=torch.Generator())
    after = torch.cat([value.flatten() for value in sent.values()])
    assert int((after == 0).sum()) == int(share * 500 + 1e-6)
    kept = after != 0
    assert torch.equal(after[kept], values[kept])
    assert float(values[kept].abs().min()) >= float(values[~kept].abs().max() if bool((~kept).any()) else 0)
    mask = defense.kept(sent)
    assert torch.equal(torch.cat([value.flatten() for value in mask.values()]), kept)
    assert defense.noise_std(sent) is None
    assert defense.mechanism is None


@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5, math.nan])
def test_shares_that_are_none_are_refused(share):
    with pytest.raises(rr.InvalidInput, match="share"):
        prune(share)


def test_repr_shows_every_setting():
    assert repr(prune(0.25)) == "Pruning(share=0.25)"


def test_ties_with_the_smallest_kept_value_are_kept_and_share_zero_sends_all():
    clean = {"w": torch.tensor([1.0, -1.0, 1.0, 0.5])}
    assert prune(0.5)(clean, rng=torch.Generator())["w"].tolist() == [1.0, -1.0, 1.0, 0.0]
    assert prune(0.0)(clean, rng=torch.Generator())["w"].tolist() == clean["w"].tolist()


def test_shares_that_are_whole_numbers_of_values_are_met_despite_rounding():
    clean = {"w": torch.arange(1.0, 101.0)}
    sent = prune(0.29)(clean, rng=torch.Generator())["w"]  # 0.29 * 100 is 28.999999999999996
    assert int((sent == 0).sum()) == 29


def test_candidates_are_replayed_whole():
    clean = {"w": torch.tensor([1.0, 0.1])}
    assert torch.equal(prune(0.5).replay(clean)["w"], clean["w"])

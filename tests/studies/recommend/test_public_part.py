"""The public part of data: split off by rows, and what defenses cost at its updates."""

import math

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.core.errors import InvalidInput
from reconrisk.data.dataset import Dataset
from reconrisk.studies.common.subjects.model_updates import ModelUpdates
from reconrisk.studies.common.subjects.subject import UpdateRecipe
from reconrisk.studies.recommend.public_part import compute_public_part, split_public_records

DATA = Dataset("toy", torch.rand(20, 3, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2)


def part(dataset=DATA, model=None, batch_size=1):
    torch.manual_seed(0)
    model = nn.Linear(3, 2) if model is None else model
    return compute_public_part(ModelUpdates(model, dataset, UpdateRecipe(batch_size)), seed=0)


def test_rows_are_public_or_private_never_both():
    public, rows = split_public_records(DATA, None, torch.Generator().manual_seed(0))
    private = {tuple(DATA.inputs[row].tolist()) for row in rows}
    assert len(public) == 5
    assert len(set(rows)) == 15
    assert not private & {tuple(row.tolist()) for row in public.inputs}
    assert split_public_records(DATA, DATA, torch.Generator())[1] != tuple(range(20))


def test_utility_is_that_of_the_formula():
    """U1 = 1 and -U2 = std^2 |g|^2 for equal noise: a deviation of std over the root mean square norm."""
    known = part()
    squares = [sum(float(value.square().sum()) for value in update.values()) for update in known.reference.updates]
    kept, deviation = known.utility(rr.defenses.gaussian_noise(0.1))
    assert known.utility(None) == (1.0, 0.0)
    assert kept == pytest.approx(1.0)
    assert deviation == pytest.approx(0.1 / math.sqrt(sum(squares) / len(squares)), rel=1e-5)


def test_the_bound_grows_with_noise_and_says_nothing_without():
    known = part()
    bounds = [known.mse_bound(rr.defenses.gaussian_noise(std)).low for std in (0.01, 0.1, 1.0)]
    assert 0 < bounds[0] < bounds[1] < bounds[2] < 1 / (4 * math.pi**2)
    assert known.mse_bound(None).low == 0
    assert known.mse_bound(rr.defenses.prune(0.5)).low == 0
    assert known.is_smooth
    assert not part(model=nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))).is_smooth
    assert not part(model=nn.Sequential(nn.Linear(3, 4), nn.SELU(), nn.Linear(4, 2))).is_smooth


def test_too_few_records_are_refused():
    with pytest.raises(InvalidInput, match=r"len\(data\)=2 >= 4"):
        split_public_records(DATA.subset([0, 1]), None, torch.Generator())
    with pytest.raises(InvalidInput, match="two updates"):
        part(DATA.subset([0, 1, 2]), batch_size=2)

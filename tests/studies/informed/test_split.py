"""Who is known: targets, fixed records and the rest are a partition, and guesses use known records alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reconrisk.data.dataset import Dataset
from reconrisk.studies.informed.split import informed_split

RECORDS = 12
DATA = Dataset("toy", torch.rand(RECORDS, 2, generator=torch.Generator().manual_seed(0)), torch.arange(RECORDS) % 3)


@given(st.sets(st.integers(0, RECORDS - 1), min_size=1, max_size=5), st.integers(1, 7), st.booleans())
def test_targets_fixed_records_and_the_rest_are_a_partition(targets, fixed, together):
    split = informed_split(DATA, sorted(targets), fixed=fixed, together=together)
    parts = [*split.targets, *split.fixed.tolist(), *split.left.tolist()]
    assert sorted(parts) == list(range(RECORDS))
    assert len(split.fixed) == fixed
    for place, target in enumerate(split.targets):
        known = split.known_rows(place).tolist()
        assert target not in known
        assert sorted(known) == known
        assert len(known) == split.known_count == fixed + (len(targets) - 1) * together
        assert split.guess(place).neighbour in known


def test_a_class_without_known_records_has_the_mean_of_all():
    data = Dataset("toy", torch.tensor([[0.0], [0.5], [1.0]]), torch.tensor([0, 1, 2]))
    assert informed_split(data, [2]).guess(0).class_mean.item() == pytest.approx(0.25)


def test_membership_follows_the_distance_to_known_records():
    data = Dataset("toy", torch.tensor([[0.0], [0.5], [1.0]]), torch.tensor([0, 1, 1]))
    split = informed_split(data, [2])  # half the distance to the nearest known record is 0.25
    answers = [
        split.membership(0, torch.tensor([value]), error) for value, error in ((0.8, 0.1), (0.7, 0.1), (1.0, 0.3))
    ]
    assert answers == ["in", "not in", "undecided"]
    assert split.membership(0, torch.tensor([1.0]), None) == "undecided"

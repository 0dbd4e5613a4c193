"""Who is attacked and how well guesses do: laws of the draws, and guesses counted one by one."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from reconrisk.core.errors import InvalidInput
from reconrisk.core.threat import Knows
from reconrisk.data.dataset import Dataset
from reconrisk.studies.common.population import LARGEST, Population, draw_population


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def population(points, labels=None):
    inputs = torch.tensor(points, dtype=torch.float32).reshape(len(points), -1)
    return draw_population(Dataset("toy", inputs, labels, data_range=(-1000.0, 1000.0)), None, rng())


@given(records=st.integers(1, 12), count=st.integers(1, 40), seed=st.integers(0, 99))
def test_no_single_record_comes_twice_before_all_had_their_turn(records, count, seed):
    updates = population(range(records)).updates(count, 1, rng(seed))
    assert len(updates) == count
    for begin in range(0, count, records):
        turn = updates[begin : begin + records]
        assert len(set(turn)) == len(turn)


@given(size=st.integers(1, 5), count=st.integers(1, 30), more=st.integers(0, 30), seed=st.integers(0, 99))
def test_more_updates_begin_with_the_same_ones_and_hold_different_records(size, count, more, seed):
    few, many = (population(range(6)).updates(n, size, rng(seed)) for n in (count, count + more))
    assert many[:count] == few
    assert all(len(set(update)) == size and set(update) <= set(range(6)) for update in many)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_choice_of_records_is_equally_likely(size):
    whom = population(range(4))
    draws = [frozenset(whom.updates(1, size, rng(seed))[0]) for seed in range(3000)]
    choices = [frozenset(each) for each in itertools.combinations(range(4), size)]
    assert stats.chisquare([draws.count(choice) for choice in choices]).pvalue > 1e-3


def test_updates_of_several_records_do_not_depend_on_each_other():
    # In a partition of four records into pairs both pairs are {0, 1}, {2, 3} or neither is; independent draws agree in
    # a third of cases on either, so that the second is one of the two with probability 1/3 whatever the first was.
    whom, told = population(range(4)), {frozenset({0, 1}), frozenset({2, 3})}
    pairs = [tuple(frozenset(each) in told for each in whom.updates(2, 2, rng(seed))) for seed in range(3000)]
    second = [after for first, after in pairs if first]
    assert stats.binomtest(sum(second), len(second), 1 / 3).pvalue > 1e-3


def test_rows_are_those_of_the_data():
    dataset = Dataset("toy", torch.zeros(9, 2))
    chosen = draw_population(dataset, [7, 2, 5], rng())
    assert {row for (row,) in chosen.updates(3, 1, rng())} == {2, 5, 7}
    assert draw_population(dataset, None, rng()).rows == tuple(range(9))


def test_of_many_records_a_sample_is_the_population():
    dataset = Dataset("many", torch.zeros(LARGEST + 9, 1))
    one, other = (draw_population(dataset, None, rng(seed)).rows for seed in (0, 1))
    assert len(set(one)) == LARGEST
    assert one != other
    assert one == draw_population(dataset, None, rng(0)).rows


@pytest.mark.parametrize("records", [[], [0, 0], [3], [-1], [0.5]])
def test_records_that_are_not_there_are_refused(records):
    with pytest.raises(InvalidInput, match="records"):
        draw_population(Dataset("toy", torch.zeros(3, 1)), records, rng())


def test_a_batch_larger_than_the_population_is_refused():
    with pytest.raises(InvalidInput, match="Expected batch_size=4 <= 3, the records that targets are drawn from"):
        population(range(3)).updates(1, 4, rng())


def best_of_guesses(points, reach, guesses):
    """The largest number of points within reach of one of so many guesses, by trying a fine grid."""
    grid = np.arange(-1, max(points) + 1, 0.05)
    hit = np.abs(grid[:, None] - np.array(points)[None]) <= reach + 1e-9
    return max(hit[list(each)].any(0).sum() for each in itertools.combinations(range(len(grid)), guesses))


@given(points=st.lists(st.integers(0, 6), min_size=1, max_size=6), reach=st.sampled_from([0.0, 0.5, 1.0]))
def test_no_guess_does_better_than_the_prior_success(points, reach):
    prior = population(points).prior_success(reach**2, knows=frozenset(), batch_size=1)
    assert prior.value >= best_of_guesses(points, reach, 1) / len(points) - 1e-9
    assert prior.value <= 1


def test_far_apart_records_are_guessed_one_at_a_time():
    whom = population([0, 10, 20, 30])
    assert whom.prior_success(0.01, knows=frozenset(), batch_size=1).value == pytest.approx(1 / 4)
    assert whom.prior_success(0.0, knows=frozenset(), batch_size=1).value == pytest.approx(1 / 4)


def test_copies_of_a_record_are_guessed_together():
    whom = population([5, 5, 5, 30])
    assert whom.prior_success(0.0, knows=frozenset(), batch_size=1).value == pytest.approx(3 / 4)


def test_known_labels_are_guessed_within():
    whom = population([0, 10, 20, 30, 40], torch.tensor([0, 0, 0, 0, 1]))
    unknown = whom.prior_success(0.01, knows=frozenset(), batch_size=1)
    known = whom.prior_success(0.01, knows=frozenset({Knows.LABELS}), batch_size=1)
    assert unknown.value == pytest.approx(1 / 5)
    assert known.value == pytest.approx(4 / 5 * 1 / 4 + 1 / 5 * 1)
    assert "known label" in known.belief


@pytest.mark.parametrize("power", [Knows.RECORD_NORM, Knows.BATCH_STATISTICS])
def test_what_may_tell_records_apart_leaves_nothing_to_guess(power):
    prior = population([0, 10]).prior_success(0.01, knows=frozenset({power}), batch_size=1)
    assert prior.value == 1
    assert power.value in prior.belief


@given(size=st.integers(1, 5), records=st.integers(5, 40))
def test_of_a_batch_the_target_is_one_of_those_not_yet_found(size, records):
    # Whoever has found all others of the batch has as many guesses as estimates at the records that are left.
    whom = population([10 * row for row in range(records)])
    prior = whom.prior_success(0.01, knows=frozenset(), batch_size=size)
    assert prior.value == pytest.approx(min(1.0, size / (records - size + 1)))


def test_in_a_batch_of_all_but_one_nothing_is_left_to_guess():
    # Three records, two of them in the update: whoever reads one of them off has two guesses at the two that are left.
    assert population([0, 10, 20]).prior_success(0.01, knows=frozenset(), batch_size=2).value == 1


@given(one=st.floats(0, 30), other=st.floats(0, 30), size=st.integers(1, 3))
def test_a_looser_criterion_is_guessed_at_least_as_often(one, other, size):
    whom = population([0, 1, 3, 7, 15, 31])
    strict, loose = (
        whom.prior_success(mse, knows=frozenset(), batch_size=size) for mse in (min(one, other), max(one, other))
    )
    assert strict.log_value <= loose.log_value + 1e-12
    assert math.log(1 / 6) <= strict.log_value + 1e-9


def test_the_least_norm_is_that_of_the_chosen_records():
    dataset = Dataset("toy", torch.tensor([[0.1, 0.0], [0.6, 0.8], [1.0, 1.0]]))
    assert Population(dataset, (1, 2)).least_norm == pytest.approx(1.0)

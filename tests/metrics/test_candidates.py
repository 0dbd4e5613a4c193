"""Identification against counting in whole numbers, ties, and the interval of its rate."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from reconrisk.core.errors import InvalidInput
from reconrisk.metrics import candidates as module
from reconrisk.metrics import identification, identification_rate
from reconrisk.statistics.intervals import clopper_pearson

law = settings(deadline=None, derandomize=True, max_examples=60)
seeds = st.integers(0, 2**32 - 1)


def _reference_numpy_identification(estimates: Tensor, candidates: Tensor, truth: Tensor) -> list[float]:
    """In whole numbers distances are exact, and so are ties."""
    distances = ((estimates.numpy()[:, None] - candidates.numpy()[None]) ** 2).sum(2)
    nearest = distances == distances.min(1, keepdims=True)
    return (nearest[np.arange(len(truth)), truth.numpy()] / nearest.sum(1)).tolist()


@law
@given(seeds, st.integers(1, 12), st.integers(1, 20), st.integers(1, 4), st.integers(2, 6))
def test_agrees_with_counting(seed: int, records: int, size: int, width: int, levels: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    estimates = torch.randint(levels, (records, width), generator=rng)
    candidates = torch.randint(levels, (size, width), generator=rng)
    truth = torch.randint(size, (records,), generator=rng)
    expected = _reference_numpy_identification(estimates, candidates, truth)
    # A tenth is no binary fraction: equal distances differ in their last digits and must still count as equal.
    measured = identification(0.1 * estimates.double(), 0.1 * candidates.double(), truth)
    assert measured.tolist() == pytest.approx(expected, abs=1e-15)


@law
@given(seeds, st.integers(2, 30))
def test_the_order_of_candidates_does_not_matter(seed: int, size: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    candidates = torch.randn(size, 50, generator=rng)
    truth = torch.randint(size, (10,), generator=rng)
    estimates = candidates[truth] + torch.randn(10, 50, generator=rng)
    order = torch.randperm(size, generator=rng)
    place = torch.argsort(order)
    assert torch.equal(
        identification(estimates, candidates, truth), identification(estimates, candidates[order], place[truth])
    )


@law
@given(seeds, st.integers(1, 30), st.integers(1, 8))
def test_success_over_all_truths_sums_to_one(seed: int, size: int, width: int) -> None:
    # Whatever the estimate, exactly one candidate is named: no estimate beats chance on average over candidates.
    rng = torch.Generator().manual_seed(seed)
    candidates = torch.randint(3, (size, width), generator=rng).float()
    estimates = torch.randint(3, (1, width), generator=rng).float().expand(size, width)
    assert float(identification(estimates, candidates, torch.arange(size)).sum()) == pytest.approx(1, abs=1e-12)


def test_an_estimate_that_says_nothing_succeeds_by_chance() -> None:
    candidates = torch.eye(8)
    assert identification(torch.zeros(8, 8), candidates, torch.arange(8)).tolist() == [1 / 8] * 8


def test_exact_estimates_are_identified() -> None:
    candidates = torch.rand(300, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    truth = torch.arange(299, -1, -1)
    assert identification(candidates[truth], candidates, truth).tolist() == [1.0] * 300


def test_copies_far_apart_in_a_large_pool_tie() -> None:
    # Places in a matrix product are summed in different orders: copies come out with different last digits.
    rng = torch.Generator().manual_seed(1)
    candidates = torch.randn(203, 3001, generator=rng)
    candidates[202] = candidates[1]
    estimates = candidates[[1, 202, 5]] + 0.1 * torch.randn(3, 3001, generator=rng)
    assert identification(estimates, candidates, torch.tensor([1, 202, 5])).tolist() == [0.5, 0.5, 1.0]
    assert identification(estimates, candidates, torch.tensor([202, 1, 1])).tolist() == [0.5, 0.5, 0.0]


def test_close_candidates_on_a_large_offset_are_told_apart() -> None:
    candidates = 1e6 + 1e-6 * torch.arange(5, dtype=torch.float64)[:, None].expand(5, 100)
    assert identification(candidates + 1e-7, candidates, torch.arange(5)).tolist() == [1.0] * 5


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_broken_estimates_fail(poison: float) -> None:
    candidates = torch.eye(3)
    estimates = candidates.clone()
    estimates[1, 1] = poison
    assert identification(estimates, candidates, torch.arange(3)).tolist() == [1.0, 0.0, 1.0]
    assert identification(torch.full((3, 3), poison), candidates, torch.arange(3)).tolist() == [0.0] * 3


def test_a_diverged_estimate_is_no_error() -> None:
    estimates = torch.tensor([[1e200, 0.0]], dtype=torch.float64)
    assert identification(estimates, torch.eye(2, dtype=torch.float64), torch.tensor([0])).tolist() == [0.5]


def test_one_candidate_is_always_found() -> None:
    assert identification(torch.tensor([[3.0]]), torch.tensor([[9.0]]), torch.tensor([0])).tolist() == [1.0]


def test_blocks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = torch.Generator().manual_seed(2)
    candidates = torch.randint(3, (20, 4), generator=rng).float()
    estimates, truth = torch.randint(3, (30, 4), generator=rng).float(), torch.randint(20, (30,), generator=rng)
    expected = identification(estimates, candidates, truth)
    monkeypatch.setattr(module, "_VALUES_AT_ONCE", 37)
    assert torch.equal(identification(estimates, candidates, truth), expected)


@pytest.mark.parametrize(
    ("truth", "message"),
    [
        ([0.0, 1.0], r"target_indices.dtype=torch.float32 to be an integer type"),
        ([True, False], r"target_indices.dtype=torch.bool to be an integer type"),
        ([0, 1, 2], r"target_indices.shape=\(3,\) to be \(2,\), one per estimate"),
        ([0, 3], r"target_indices=\(0, 3\) in \[0, 2\], the indices of the candidates"),
        ([-1, 0], r"target_indices=\(-1, 0\) in \[0, 2\], the indices of the candidates"),
    ],
)
def test_bad_indices_are_refused(truth: list[float], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        identification(torch.eye(3)[:2], torch.eye(3), torch.tensor(truth))


def test_bad_batches_are_refused() -> None:
    with pytest.raises(InvalidInput, match="Expected candidates to be finite"):
        identification(torch.eye(2), torch.eye(2) / 0, torch.arange(2))
    with pytest.raises(
        InvalidInput, match=r"estimates.shape=\(2, 2\) to have records of shape \(3,\), as in candidates"
    ):
        identification(torch.eye(2), torch.eye(3), torch.arange(2))
    with pytest.raises(InvalidInput, match="Expected estimates with at least one element"):
        identification(torch.eye(2)[:0], torch.eye(2), torch.arange(0))


@law
@given(st.lists(st.booleans(), min_size=1, max_size=50), st.floats(0.5, 0.999))
def test_without_ties_the_rate_is_clopper_pearson(outcomes: list[bool], confidence: float) -> None:
    rate = identification_rate(torch.tensor(outcomes, dtype=torch.float64), confidence=confidence)
    assert rate == clopper_pearson(sum(outcomes), len(outcomes), confidence)


def test_ties_widen_the_interval_on_both_sides() -> None:
    rate = identification_rate(torch.tensor([1.0, 0.5, 0.5, 0.0, 0.0]))
    assert rate.value == pytest.approx(0.4)
    assert rate.low == clopper_pearson(1, 5).low
    assert rate.high == clopper_pearson(3, 5).high
    assert (rate.samples, rate.confidence) == (5, 0.95)


def test_rates_of_nothing_and_of_other_things_are_refused() -> None:
    with pytest.raises(InvalidInput, match="Expected identified with at least one element"):
        identification_rate(torch.zeros(0))
    for wrong in (2.0, -0.5, math.nan):
        with pytest.raises(InvalidInput, match=r"in \[0, 1\]. Pass the result of identification."):
            identification_rate(torch.tensor([0.0, wrong]))

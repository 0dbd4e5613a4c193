"""Matching against all permutations, its invariances, and estimates that are missing, surplus, broken or diverged."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from reconrisk.core.errors import InvalidInput
from reconrisk.metrics import match_indices, match_records, mse

law = settings(deadline=None, derandomize=True, max_examples=60)
seeds = st.integers(0, 2**32 - 1)


def random_records(seed: int, records: int, width: int = 3) -> Tensor:
    return torch.rand(records, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def total_cost(estimates: Tensor, targets: Tensor, indices: Tensor) -> float:
    found = indices >= 0
    distances = (estimates[indices[found]] - targets[found]).square().mean(1).sqrt()
    spread = targets.var(0, correction=0).mean().sqrt() if len(targets) > 1 else torch.tensor(1.0)
    return float((distances / (distances + spread)).sum())


@law
@given(seeds, st.integers(1, 5), st.integers(1, 5))
def test_no_assignment_is_better(seed: int, estimated: int, records: int) -> None:
    estimates, targets = random_records(seed, estimated), random_records(seed + 1, records)
    indices = match_indices(estimates, targets)
    used = indices[indices >= 0].tolist()
    assert len(used) == len(set(used)) == min(estimated, records)
    if estimated >= records:
        choices = (torch.tensor(each) for each in itertools.permutations(range(estimated), records))
    else:
        padded = [*range(estimated), *[-1] * (records - estimated)]
        choices = (torch.tensor(each) for each in set(itertools.permutations(padded)))
    best = min(total_cost(estimates, targets, choice) for choice in choices)
    assert total_cost(estimates, targets, indices) == pytest.approx(best, abs=1e-12)


@law
@given(seeds, st.integers(1, 12))
def test_the_order_of_estimates_does_not_matter(seed: int, records: int) -> None:
    estimates, targets = random_records(seed, records), random_records(seed + 1, records)
    order = torch.randperm(records, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(match_records(estimates[order], targets), match_records(estimates, targets))


@law
@given(seeds, st.integers(1, 12))
def test_the_order_of_targets_is_followed(seed: int, records: int) -> None:
    estimates, targets = random_records(seed, records), random_records(seed + 1, records)
    order = torch.randperm(records, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(match_records(estimates, targets[order]), match_records(estimates, targets)[order])


@law
@given(seeds, st.integers(1, 20))
def test_a_permuted_batch_is_recovered(seed: int, records: int) -> None:
    targets = random_records(seed, records)
    order = torch.randperm(records, generator=torch.Generator().manual_seed(seed))
    indices = match_indices(targets[order], targets)
    assert torch.equal(order[indices], torch.arange(records))
    assert torch.equal(match_records(targets[order], targets), targets)


@law
@given(seeds, st.integers(2, 8), st.integers(1, 3), st.sampled_from([0.1, 1.0, 100.0, 1e8]), st.booleans())
def test_exact_estimates_keep_their_targets_whatever_the_others_are(
    seed: int, records: int, width: int, size: float, whole: bool
) -> None:
    # In one dimension stray estimates lie in line with two targets, where a sum of distances would tie.
    rng = torch.Generator().manual_seed(seed)
    targets = torch.randn(records, width, generator=rng, dtype=torch.float64)
    estimates = size * torch.randn(records, width, generator=rng, dtype=torch.float64)
    if whole:
        targets, estimates = (3 * targets).round(), (3 * estimates).round()
    exact = torch.rand(records, generator=rng) < 0.5
    estimates[exact] = targets[exact]
    assert (mse()(match_records(estimates, targets), targets)[exact] < 1e-12).all()


def test_images_keep_their_shape_type_and_values() -> None:
    targets = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    matched = match_records(targets.flip(0), targets)
    assert matched.dtype == torch.float32
    assert torch.equal(matched, targets)


def test_missing_estimates_leave_rows_that_score_worst() -> None:
    targets = random_records(0, 4)
    matched = match_records(targets[[2, 0]], targets)
    assert matched.isnan().all(1).tolist() == [False, True, False, True]
    assert mse()(matched, targets).tolist() == [0.0, math.inf, 0.0, math.inf]


def test_surplus_estimates_are_left_over() -> None:
    targets = random_records(1, 2)
    estimates = torch.cat([targets + 0.3, targets, targets - 0.2])
    assert match_indices(estimates, targets).tolist() == [2, 3]


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_broken_estimates_never_win(poison: float) -> None:
    targets = random_records(2, 3)
    estimates = targets[[1, 2, 0]].clone()
    estimates[1, 0] = poison
    assert match_indices(estimates, targets).tolist() == [2, 0, -1]
    spare = torch.cat([estimates, targets[2:] + 100])
    assert match_indices(spare, targets).tolist() == [2, 0, 3]
    assert match_indices(torch.full_like(targets, poison), targets).tolist() == [-1, -1, -1]


def test_no_estimates_at_all() -> None:
    targets = random_records(3, 2)
    assert match_indices(targets[:0], targets).tolist() == [-1, -1]
    assert match_records(targets[:0], targets).isnan().all()


@pytest.mark.parametrize("size", [1e10, 1e25, 1e160, 1e300])
def test_a_diverged_estimate_does_not_disturb_the_others(size: float) -> None:
    targets = random_records(4, 30, width=20)
    estimates = (targets + 1e-3 * random_records(5, 30, width=20)).flip(0)
    for wild in (0, 7, 29):
        spoilt = estimates.clone()
        spoilt[wild] = size * random_records(6, 1, width=20)
        expected = torch.arange(30).flip(0)
        assert torch.equal(match_indices(spoilt, targets), expected)


@pytest.mark.parametrize("estimates", [[[5.0], [2.0], [3.0]], [[1e200], [2.0], [3e150]]])
def test_targets_of_zero_still_tell_near_from_far(estimates: list[list[float]]) -> None:
    assert match_indices(torch.tensor(estimates, dtype=torch.float64), torch.zeros(1, 1)).tolist() == [1]


def test_integers_become_numbers_that_can_be_missing() -> None:
    targets = torch.tensor([[0, 255], [255, 0], [9, 9]], dtype=torch.uint8)
    matched = match_records(targets[[1, 0]], targets)
    assert matched.dtype == torch.float64
    assert matched[:2].tolist() == [[0.0, 255.0], [255.0, 0.0]]
    assert matched[2].isnan().all()


def test_gradients_pass_through() -> None:
    targets = random_records(7, 3)
    estimates = (targets.flip(0) + 0.01).requires_grad_()
    match_records(estimates, targets)[0].sum().backward()
    assert estimates.grad.sum(1).tolist() == [0.0, 0.0, 3.0]


def test_bad_batches_are_refused() -> None:
    records = random_records(8, 3)
    with pytest.raises(InvalidInput, match=r"estimates.shape=\(3, 2\) to have records of shape \(3,\), as in targets"):
        match_indices(records[:, :2], records)
    with pytest.raises(InvalidInput, match="Expected targets with at least one element"):
        match_indices(records, records[:0])
    with pytest.raises(InvalidInput, match="Expected targets to be finite"):
        match_indices(records, records * math.nan)
    with pytest.raises(InvalidInput, match=r"Expected type\(estimates\)='ndarray' to be torch.Tensor"):
        match_indices(records.numpy(), records)
    with pytest.raises(InvalidInput, match=r"Expected targets.shape=\(\) to have a first axis of records. Pass"):
        match_indices(records, torch.tensor(1.0))
    with pytest.raises(InvalidInput, match=r"targets.shape=\(2, 0\) to have at least one value per record"):
        match_indices(records, torch.zeros(2, 0))

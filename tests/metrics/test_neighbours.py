"""The nearest-neighbour oracle against all pairs, block by block, for any metric."""

from __future__ import annotations

import gzip
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import cKDTree
from torch import Tensor

from reconrisk.core.errors import InvalidInput
from reconrisk.core.metric import Metric
from reconrisk.metrics import mse, ncc, nearest_neighbour_oracle, neighbours, psnr, ssim

law = settings(deadline=None, derandomize=True, max_examples=60)


def random_records(seed: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


@law
@given(
    st.integers(0, 2**31), st.integers(1, 20), st.integers(1, 60), st.integers(1, 6), st.sampled_from([1, 7, 50, 2**22])
)
def test_agrees_with_a_search_tree(seed: int, records: int, size: int, width: int, values_at_once: int) -> None:
    targets, known = random_records(seed, records, width), random_records(seed + 1, size, width)
    distances, indices = cKDTree(known.double().numpy()).query(targets.double().numpy())
    found = nearest_neighbour_oracle(targets, known, values_at_once=values_at_once)
    np.testing.assert_allclose(found.scores, distances**2 / width, rtol=1e-9, atol=1e-12)
    assert found.indices.tolist() == indices.tolist()


@pytest.mark.parametrize("metric", [psnr(data_range=(0, 1)), ncc(), ssim(data_range=(0, 1)), mse()], ids=repr)
@pytest.mark.parametrize("values_at_once", [1, 1000, 2**22])
def test_any_metric_agrees_with_all_pairs(metric: Metric, values_at_once: int) -> None:
    targets, known = random_records(0, 5, 1, 12, 12), random_records(1, 9, 1, 12, 12)
    table = torch.stack([metric(known, target.expand_as(known)) for target in targets])
    best = table.max(1) if metric.higher_is_better else table.min(1)
    found = nearest_neighbour_oracle(targets, known, metric, values_at_once=values_at_once)
    torch.testing.assert_close(found.scores, best.values, rtol=1e-12, atol=0)
    assert torch.equal(found.indices, best.indices)


def test_the_known_record_is_the_estimate_and_the_target_the_target() -> None:
    # A metric without symmetry, so that swapped arguments show.
    shortfall = Metric("shortfall", lambda e, t: (t - e).clamp_min(0).sum(1).double(), best=0.0, worst=math.inf)
    found = nearest_neighbour_oracle(torch.tensor([[2.0]]), torch.tensor([[1.0], [5.0]]), shortfall)
    assert (found.scores.tolist(), found.indices.tolist()) == ([0.0], [1])


def test_a_known_target_is_found_exactly() -> None:
    known = random_records(2, 500, 3, 8, 8) + 1000
    order = torch.randperm(500, generator=torch.Generator().manual_seed(3))[:40]
    found = nearest_neighbour_oracle(known[order], known)
    assert torch.equal(found.indices, order)
    assert found.scores.tolist() == [0.0] * 40


def test_more_knowledge_never_hurts_the_oracle() -> None:
    targets, known = random_records(4, 30, 6), random_records(5, 200, 6)
    scores = [nearest_neighbour_oracle(targets, known[:size]).scores for size in (1, 10, 50, 200)]
    for fewer, more in itertools.pairwise(scores):
        assert (more <= fewer).all()


def test_blocks_stay_below_the_stated_size(monkeypatch: pytest.MonkeyPatch) -> None:
    targets, known, limit = random_records(6, 40, 10), random_records(7, 300, 10), 500
    sizes = []

    def watched(left: Tensor, right: Tensor) -> Tensor:
        sizes.append(max(left.numel(), right.numel(), len(left) * len(right)))
        return neighbours_pairwise(left, right)

    def watched_error(estimates: Tensor, others: Tensor) -> Tensor:
        sizes.append(estimates.numel())
        return (estimates - others).square().mean(1)

    neighbours_pairwise = neighbours.pairwise_mse
    monkeypatch.setattr(neighbours, "pairwise_mse", watched)
    fast = nearest_neighbour_oracle(targets, known, values_at_once=limit)
    assert len(sizes) > 1
    assert max(sizes) <= limit
    sizes.clear()
    other = nearest_neighbour_oracle(
        targets, known, Metric("watched", watched_error, 0.0, math.inf), values_at_once=limit
    )
    assert max(sizes) <= limit
    assert torch.equal(other.indices, fast.indices)


def test_bytes_are_read_as_numbers() -> None:
    targets, known = torch.tensor([[250]], dtype=torch.uint8), torch.tensor([[4], [100]], dtype=torch.uint8)
    found = nearest_neighbour_oracle(targets, known)
    assert (found.scores.tolist(), found.indices.tolist()) == ([150.0**2], [1])


def test_bad_batches_are_refused() -> None:
    records = random_records(8, 3, 4)
    with pytest.raises(InvalidInput, match="Expected known with at least one element"):
        nearest_neighbour_oracle(records, records[:0])
    with pytest.raises(InvalidInput, match="Expected known to be finite"):
        nearest_neighbour_oracle(records, records / 0)
    with pytest.raises(InvalidInput, match="Expected targets to be finite"):
        nearest_neighbour_oracle(records * math.nan, records)
    with pytest.raises(InvalidInput, match=r"known.shape=\(3, 2\) to have records of shape \(4,\), as in targets"):
        nearest_neighbour_oracle(records, records[:, :2])
    with pytest.raises(InvalidInput, match="Expected values_at_once=0 >= 1"):
        nearest_neighbour_oracle(records, records, values_at_once=0)


def test_the_papers_value_on_mnist(data_folder: Path) -> None:
    # 0.0232 over 1,000 targets against the other 69,000 digits: Section V-B d), balle2022. Over these 300 targets the
    # standard error of the mean is 0.0007; three of them on either side.
    files = [data_folder / "mnist" / f"{part}-images-idx3-ubyte.gz" for part in ("train", "t10k")]
    if not all(path.is_file() for path in files):
        pytest.skip(f"absent: {', '.join(str(path) for path in files)}")
    digits = np.concatenate([np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=16) for path in files])
    order = torch.randperm(70_000, generator=torch.Generator().manual_seed(0))
    records = torch.from_numpy(digits.reshape(-1, 784).astype(np.float32) / 255)[order]
    found = nearest_neighbour_oracle(records[:300], records[1000:])
    assert float(found.scores.mean()) == pytest.approx(0.0232, abs=0.0021)

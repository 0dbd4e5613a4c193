"""What every metric promises, one row per metric: a new metric is a new row."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from reconrisk.core.errors import InvalidInput
from reconrisk.core.metric import Metric
from reconrisk.metrics import judge_kl, lpips, mse, ncc, psnr, ssim
from reconrisk.testing import check_metric

SHAPE = (3, 16, 16)


class Linear(torch.nn.Module):
    """A judge with fixed weights."""

    def __init__(self) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(3)
        self.weight = torch.nn.Parameter(torch.randn(math.prod(SHAPE), 10, generator=rng) / 8)

    def forward(self, records: Tensor) -> Tensor:
        return records.flatten(1) @ self.weight


class Row(NamedTuple):
    build: Callable[[Path], Metric]
    symmetric: bool
    shown: str


ROWS = {
    "mse": Row(lambda _: mse(), True, "mse()"),
    "psnr": Row(lambda _: psnr(data_range=(0, 1)), True, "psnr(data_range=(0.0, 1.0))"),
    "ncc": Row(lambda _: ncc(), True, "ncc()"),
    "ssim": Row(lambda _: ssim(data_range=(0, 1)), True, "ssim(data_range=(0.0, 1.0))"),
    "lpips": Row(lambda path: lpips(path, data_range=(0, 1)), True, "lpips(backbone='random.safetensors#"),
    "judge_kl": Row(lambda _: judge_kl(Linear().eval()), False, "judge_kl(judge='Linear')"),
}


@pytest.fixture(params=ROWS, scope="module")
def row(request: pytest.FixtureRequest, random_backbone: Path) -> tuple[Metric, Row]:
    row = ROWS[request.param]
    return row.build(random_backbone), row


@pytest.fixture(scope="module")
def metric(row: tuple[Metric, Row]) -> Metric:
    return row[0]


def batch(records: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(records, *SHAPE, generator=torch.Generator().manual_seed(seed)).to(dtype)


def test_it_keeps_the_rules_for_metrics(metric: Metric) -> None:
    """The rules of reconrisk.testing.check_metric, on images of its own shape."""
    assert not check_metric(metric, shape=SHAPE).skipped


def test_symmetry_is_as_declared(row: tuple[Metric, Row]) -> None:
    metric, declared = row
    one, other = batch(4, 7), batch(4, 8)
    same = torch.allclose(metric(one, other), metric(other, one), rtol=1e-6, atol=1e-9)
    assert same == declared.symmetric


def test_scores_have_gradients_in_the_estimates(metric: Metric) -> None:
    estimates = batch(2, 15).requires_grad_()
    metric(estimates, batch(2, 16)).sum().backward()
    assert estimates.grad is not None
    assert estimates.grad.isfinite().all()
    assert estimates.grad.abs().sum() > 0


def test_survives_copies_and_pickle(metric: Metric) -> None:
    estimates, targets = batch(2, 19), batch(2, 20)
    expected = metric(estimates, targets)
    for copied in (copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):  # noqa: S301  # our own bytes
        assert torch.equal(copied(estimates, targets), expected)


def test_repr_shows_every_setting(row: tuple[Metric, Row]) -> None:
    metric, declared = row
    assert repr(metric).startswith(declared.shown)


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_bad_target_is_refused(metric: Metric, poison: float) -> None:
    targets = batch(2, 21)
    targets[1, 0, 0, 0] = poison
    with pytest.raises(InvalidInput, match=r"Expected targets to be finite, 1 of 1536 .* index \(1, 0, 0, 0\)"):
        metric(batch(2, 22), targets)


def test_shapes_that_differ_are_refused(metric: Metric) -> None:
    with pytest.raises(InvalidInput, match=r"Expected estimates.shape=\(3, 3, 16, 16\) to equal targets.shape=\(2, "):
        metric(batch(3, 23), batch(2, 24))


def test_an_empty_batch_is_refused(metric: Metric) -> None:
    with pytest.raises(InvalidInput, match="Expected targets with at least one element, it is empty"):
        metric(batch(0, 25), batch(0, 26))


def test_complex_records_are_refused(metric: Metric) -> None:
    records = batch(2, 27, torch.complex64)
    with pytest.raises(InvalidInput, match=r"dtype=torch.complex64 to be real"):
        metric(records, records)

"""Scores of a reconstruction: matched, by every metric, with the most exposed record shown."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from reconrisk.core.errors import InvalidInput
from reconrisk.core.reconstruction import AttackReport, Cost, Ending, Reconstruction, Status
from reconrisk.metrics import ExposedScore, match_records, mse, ncc, psnr, score, ssim

law = settings(deadline=None, derandomize=True, max_examples=60)
METRICS = [mse(), psnr(data_range=(0, 1)), ncc(), ssim(data_range=(0, 1))]


def random_images(seed: int, records: int = 5) -> Tensor:
    return torch.rand(records, 1, 12, 12, generator=torch.Generator().manual_seed(seed))


@law
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 6))
def test_every_metric_scores_the_matched_pairs_in_any_order(seed: int, estimated: int, records: int) -> None:
    estimates, targets = random_images(seed, estimated), random_images(seed + 1, records)
    scores = score(estimates, targets, METRICS)
    assert list(scores) == ["mse", "psnr", "ncc", "ssim"]
    order = torch.randperm(estimated, generator=torch.Generator().manual_seed(seed))
    permuted = score(estimates[order], targets, METRICS)
    matched = match_records(estimates, targets)
    for metric in METRICS:
        assert torch.equal(scores[metric.name], metric(matched, targets))
        assert torch.equal(permuted[metric.name], scores[metric.name])
    assert int((scores.matched < 0).sum()) == max(0, records - estimated)


def test_a_reconstruction_is_scored_by_its_estimates() -> None:
    targets = random_images(0)
    account = AttackReport("guess", Status(Ending.CONVERGED, "done"), (0.0,) * 5, Cost(0.1, 1))
    scores = score(Reconstruction(targets.flip(0), account), targets, mse())
    assert scores["mse"].tolist() == [0.0] * 5
    assert scores.matched.tolist() == [4, 3, 2, 1, 0]


def test_rows_in_order_are_not_matched() -> None:
    targets = random_images(1)
    scores = score(targets.flip(0), targets, [mse()], in_order=True)
    assert torch.equal(scores["mse"], mse()(targets.flip(0), targets))
    assert scores.matched.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(
        InvalidInput, match=r"estimates.shape=\(4, 1, 12, 12\) to equal targets.shape=.* with in_order=True"
    ):
        score(targets[:4], targets, mse(), in_order=True)


def test_missing_and_broken_estimates_get_the_worst_score_of_each_metric() -> None:
    targets = random_images(2)
    estimates = targets[[3, 1, 0]].clone()
    estimates[1, 0, 0, 0] = math.nan
    scores = score(estimates, targets, METRICS)
    for metric in METRICS:
        assert (scores[metric.name] == metric.worst).tolist() == [False, True, True, False, True]


def test_mean_and_most_exposed_follow_the_direction() -> None:
    targets = random_images(3)
    estimates = (targets + torch.tensor([0.3, 0.1, 0.4, 0.2, 0.5]).view(5, 1, 1, 1)).flip(0)
    scores = score(estimates, targets, METRICS[:2])
    assert scores.mean["mse"] == pytest.approx(0.11, abs=1e-6)
    assert scores.most_exposed["mse"] == ExposedScore(1, pytest.approx(0.01, abs=1e-6))
    assert scores.most_exposed["psnr"] == ExposedScore(1, pytest.approx(20, abs=1e-4))


def test_one_lost_record_makes_an_unbounded_mean_the_worst() -> None:
    # An exact record (infinite PSNR) and a lost one (minus infinity) have no arithmetic mean.
    targets = random_images(4)
    scores = score(targets[:4], targets, METRICS)
    assert scores.mean == {"mse": math.inf, "psnr": -math.inf, "ncc": pytest.approx(0.6), "ssim": pytest.approx(0.6)}
    assert scores.most_exposed["psnr"].score == math.inf


def test_repr_is_a_table() -> None:
    targets = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]])
    scores = score(torch.tensor([[1.0, 0.0], [0.0, 0.5]]), targets, [mse(), psnr(data_range=(0, 1))])
    assert repr(scores).splitlines() == [
        "Scores of 3 records, 1 without an estimate",
        "  mse()                        mean inf         best 0 (record 1)",
        "  psnr(data_range=(0.0, 1.0))  mean -inf        best inf (record 1)",
    ]


def test_scores_are_a_mapping() -> None:
    scores = score(random_images(5), random_images(6), METRICS)
    assert len(scores) == 4
    assert {name: values.shape for name, values in scores.items()} == dict.fromkeys(scores, (5,))
    assert "mse" in scores
    assert "lpips" not in scores
    assert scores.get("lpips") is None
    with pytest.raises(KeyError, match="Expected metric='lpips' to be one of mse, psnr, ncc, ssim"):
        scores["lpips"]
    assert scores == scores
    assert scores != score(random_images(5), random_images(6), METRICS)
    with pytest.raises(dataclasses.FrozenInstanceError):
        scores.metrics = ()


def test_metrics_must_be_configured_and_told_apart() -> None:
    targets = random_images(7)
    with pytest.raises(InvalidInput, match=r"Expected metrics with at least one element, it is empty. Pass mse\(\)"):
        score(targets, targets, [])
    with pytest.raises(InvalidInput, match=r"to contain only metrics. Pass a configured metric, such as mse\(\)"):
        score(targets, targets, [mse])
    twice = [psnr(data_range=(0, 1)), psnr(data_range=(0, 2))]
    with pytest.raises(InvalidInput, match=r"to contain 'psnr' once. Rename one of them: dataclasses.replace"):
        score(targets, targets, twice)
    renamed = [twice[0], dataclasses.replace(twice[1], name="psnr_wide")]
    assert list(score(targets, targets, renamed)) == ["psnr", "psnr_wide"]


def test_bad_batches_are_refused() -> None:
    targets = random_images(8)
    with pytest.raises(InvalidInput, match="Expected targets to be finite"):
        score(targets, targets * math.nan, mse())
    with pytest.raises(InvalidInput, match="Expected targets with at least one element"):
        score(targets, targets[:0], mse())
    with pytest.raises(InvalidInput, match=r"to have records of shape \(1, 12, 12\), as in targets"):
        score(targets[..., :6], targets, mse())

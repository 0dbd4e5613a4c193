"""Divergence of a judge's predictions against SciPy, its direction, and judges that cannot judge."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats
from torch import nn

from reconrisk.core.errors import InvalidInput
from reconrisk.metrics import judge_kl

law = settings(deadline=None, derandomize=True, max_examples=60)

identity = nn.Identity().eval()


@law
@given(st.integers(0, 2**32 - 1), st.floats(0.1, 30), st.integers(2, 12))
def test_agrees_with_scipy_with_the_target_first(seed: int, scale: float, classes: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    estimates, targets = (scale * torch.randn(4, classes, generator=rng) for _ in range(2))
    of_targets, of_estimates = (special.softmax(each.double().numpy(), axis=1) for each in (targets, estimates))
    expected = stats.entropy(of_targets, of_estimates, axis=1)
    np.testing.assert_allclose(judge_kl(identity)(estimates, targets), expected, rtol=1e-6, atol=1e-9)


def test_direction_by_hand() -> None:
    # Target (1/2, 1/2), estimate (1/4, 3/4): KL(target || estimate) = log 2 - log(3) / 2; the reverse is 0.1308.
    targets, estimates = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.75]]).log()
    assert float(judge_kl(identity)(estimates, targets)) == pytest.approx(math.log(2) - math.log(3) / 2, rel=1e-6)
    assert float(judge_kl(identity)(targets, estimates)) == pytest.approx(0.75 * math.log(3) - math.log(2), rel=1e-6)


def test_what_the_judge_does_not_see_costs_nothing() -> None:
    first_two = nn.Sequential(nn.Linear(3, 2, bias=False)).eval()
    with torch.no_grad():
        first_two[0].weight.copy_(torch.eye(3)[:2])
    targets = torch.rand(5, 3, generator=torch.Generator().manual_seed(0))
    estimates = targets.clone()
    estimates[:, 2] += 7
    assert judge_kl(first_two)(estimates, targets).tolist() == [0.0] * 5


def test_rounding_never_makes_it_negative() -> None:
    targets = torch.randn(500, 10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert (judge_kl(identity)(targets * (1 + 1e-12), targets) >= 0).all()


def test_confident_judges_do_not_overflow() -> None:
    targets, estimates = torch.tensor([[2000.0, 0.0]]), torch.tensor([[0.0, 2000.0]])
    assert judge_kl(identity)(estimates, targets).tolist() == [2000.0]


def test_an_estimate_that_breaks_the_judge_is_worst() -> None:
    judge = nn.Sequential(nn.Linear(2, 2, bias=False)).eval()
    with torch.no_grad():
        judge[0].weight.copy_(1e20 * torch.eye(2))
    scores = judge_kl(judge)(torch.tensor([[1e30, 0.0], [0.0, 0.0]]), torch.zeros(2, 2))
    assert scores.tolist() == [math.inf, 0.0]


def test_a_target_that_breaks_the_judge_is_refused() -> None:
    def judge(records: torch.Tensor) -> torch.Tensor:
        return records / 0

    with pytest.raises(InvalidInput, match=r"Expected judge\(targets\) to be finite.*another judge"):
        judge_kl(judge)(torch.ones(1, 2), torch.ones(1, 2))


def test_integers_reach_the_judge_as_numbers() -> None:
    records, others = torch.tensor([[1, 0]], dtype=torch.uint8), torch.tensor([[0, 3]], dtype=torch.uint8)
    assert torch.equal(judge_kl(identity)(records, others), judge_kl(identity)(records.float(), others.float()))
    double = nn.Linear(2, 3).double().eval()
    assert torch.equal(judge_kl(double)(records, others), judge_kl(double)(records.double(), others.double()))


def test_a_plain_function_may_judge_and_is_named() -> None:
    def brightness(records: torch.Tensor) -> torch.Tensor:
        return torch.stack([records.sum(1), -records.sum(1)], 1)

    metric = judge_kl(brightness)
    assert repr(metric) == "judge_kl(judge='brightness')"
    assert metric(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]])).tolist() == [0.0]


def test_a_judge_in_training_mode_is_refused_when_built_and_when_called() -> None:
    judge = nn.Linear(2, 2).train()
    with pytest.raises(InvalidInput, match=r"Expected judge.training=True to be False. Call judge.eval\(\) first."):
        judge_kl(judge)
    metric = judge_kl(judge.eval())
    judge.train()
    with pytest.raises(InvalidInput, match=r"judge\.training"):
        metric(torch.ones(1, 2), torch.ones(1, 2))


@pytest.mark.parametrize("judge", [lambda x: x.sum(1), lambda x: x[:1], lambda x: x[:, :1], lambda x: x[:, :, None]])
def test_a_judge_without_rows_of_logits_is_refused(judge: object) -> None:
    with pytest.raises(InvalidInput, match=r"judge\(records\).shape=.* to be \(2, classes\) with at least two classes"):
        judge_kl(judge)(torch.ones(2, 3), torch.zeros(2, 3))


def test_what_cannot_be_called_is_no_judge() -> None:
    with pytest.raises(InvalidInput, match=r"Expected judge='lenet.pth' to be callable with records and return logits"):
        judge_kl("lenet.pth")

"""Deliberately broken metrics: each rule fails with its sentence, and no other rule does."""

import math
from dataclasses import dataclass

import pytest
import torch

import reconrisk as rr
from reconrisk.core.metric import Metric
from reconrisk.metrics.records import rows
from reconrisk.testing import BrokenContract, check_metric
from reconrisk.testing.metric_rules import RULES


def error(estimates, targets):
    return (rows(estimates) - rows(targets)).abs().mean(1)


def of(function, best=0.0, worst=math.inf):
    return Metric("mine", function, best, worst)


def in_single_precision(estimates, targets):
    return error(estimates, targets).float()


def of_the_batch(estimates, targets):
    found = error(estimates, targets)
    return found * (1 + found.mean())


def in_place(estimates, targets):
    found = error(estimates, targets)
    targets.mul_(1 + 1e-6)
    return found


def of_complex_numbers(estimates, targets):
    return (estimates - targets).abs().double().flatten(1).mean(1)


@dataclass(frozen=True, repr=False)
class Lenient(Metric):
    """Replaces values that are no numbers, where a Metric calls the estimate lost."""

    def __call__(self, estimates, targets):
        if estimates.shape == targets.shape and len(targets) and not estimates.is_complex():
            return super().__call__(estimates.nan_to_num(0.0, 0.0, 0.0), targets)
        return super().__call__(estimates, targets)


BROKEN = {
    "scores_each_record": (
        lambda: of(lambda one, other: error(one, other).mean()),
        "Expected one score per record, found InvalidInput: Expected shape of the scores of mine=() to be (5,), one "
        "per record",
    ),
    "scores_in_double_precision": (lambda: of(in_single_precision), "Expected float64 scores, found torch.float32."),
    "has_a_scale": (
        lambda: of(error, worst=0.1),
        "Expected scores from 0 to 0.1, found ",
    ),
    "is_best_at_equality": (
        lambda: of(lambda one, other: error(one, other) + 1e-6),
        "Expected best=0 for exact estimates, found [1",
    ),
    "gets_worse_with_noise": (
        lambda: of(lambda one, other: 1 / (1 + error(one, other)) * (error(one, other) > 0)),
        "By best and worst, lower is better: exchange them if that is wrong.",
    ),
    "gives_the_worst_score_to_lost_estimates": (
        lambda: Lenient("mine", error, 0.0, math.inf),
        "with nan in record 2, found ",
    ),
    "scores_records_by_themselves": (
        lambda: of(of_the_batch),
        "Expected the same score for a record alone and in a batch, found a difference of 0.",
    ),
    "leaves_its_inputs": (lambda: of(in_place), "Expected unchanged estimates and targets, found changes in them."),
    "refuses_what_it_cannot_compare": (
        lambda: of(of_complex_numbers),
        "Expected InvalidInput for complex records, found scores. Call reconrisk.metrics.records.check_records",
    ),
}


def failures(metric, **settings):
    with pytest.raises(BrokenContract) as refused:
        check_metric(metric, **settings)
    return refused.value.failures


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_metric_fails_its_rule_with_a_sentence(rule):
    build, sentence = BROKEN[rule]
    found = failures(build())
    assert sentence in found[rule]
    assert set(found) - SPOILT.get(rule, set()) == {rule}


SPOILT = {
    # a statistic of the batch changes with a record that is lost
    "scores_records_by_themselves": {"gives_the_worst_score_to_lost_estimates"},
}


def test_every_rule_has_a_metric_that_breaks_it():
    assert set(BROKEN) == {rule.__name__ for rule in RULES}


@pytest.mark.parametrize("metric", [of(error), rr.metrics.ncc(), rr.metrics.psnr(data_range=1.0)])
def test_a_good_metric_keeps_every_rule(metric):
    assert check_metric(metric).passed == tuple(rule.__name__ for rule in RULES)


def test_records_of_another_shape_and_range():
    metric = rr.metrics.psnr(data_range=(0, 255))
    assert check_metric(metric, shape=(30,), data_range=(0.0, 255.0)).kind == "metric"
    assert "Pass check_metric the shape of the records" in failures(
        rr.metrics.ssim(data_range=1.0), shape=(30,)
    )["scores_each_record"]  # fmt: skip


def test_a_network_with_a_graph_is_found():
    layer = torch.nn.Linear(1, 1)
    found = failures(of(lambda one, other: error(one, other) * (1 + 0 * layer.weight.sum())))
    assert "Freeze the parameters of a network." in found["leaves_its_inputs"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [(rr.metrics.mse, "metric='mse' to be a Metric"), (3, "metric='int' to be a Metric"), (error, "call the function")],
)
def test_what_is_no_metric_is_refused(wrong, message):
    with pytest.raises(rr.InvalidInput, match=message):
        check_metric(wrong)

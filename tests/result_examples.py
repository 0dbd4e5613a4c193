"""One result of every kind, each from the study or calculator that returns it where that takes no second."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

import reconrisk as rr
from reconrisk.core.guarantee import Estimate
from reconrisk.core.metric import Goal, Limit
from reconrisk.core.storage.result import Result
from reconrisk.core.threat import HONEST_BUT_CURIOUS
from reconrisk.data.dataset import Dataset
from reconrisk.studies.audit.comparison import compare
from reconrisk.studies.prior_value.result import LeakageOverPrior, OverPrior
from reconrisk.studies.recommend.result import DefenseOption, Recommendation, TargetStatus, TrainingCost
from reconrisk.studies.tradeoff.result import AttackScore, TradeoffCell, TradeoffResult, rows_from_cells
from tests.integrations.fisher_accountant.clipped_linear import STEP, half_square, linear_task
from tests.reports.audit.audit_example import example_result

TRAINING = rr.mechanisms.dp_sgd(noise_multiplier=1.1, sampling_probability=0.01, steps=100)
ESTIMATE = Estimate(1.0, 0.5, float("inf"), 0.95, 6, "Student over updates")


@cache
def result_examples() -> dict[str, Result]:
    """Return a result of every kind, by its tag."""
    found = [*_calculated(), *_measured(), *_accounted(), _recommendation(), _frontier(), _over_prior()]
    return {result.kind: result for result in found}


def _calculated() -> list[Result]:
    corridor = rr.risk(TRAINING, dimension=64, norm=3.0, prior_success=0.05, mse=0.01)
    risks = [rr.bounds.risks.identification(candidates=100, at_most=0.05), rr.bounds.risks.unbiased_mse(at_least=0.05)]
    return [
        corridor,
        corridor.simple_guesses,
        corridor.identification,
        rr.calibrate(TRAINING, risks=risks),
        rr.bounds.prior_success.uniform_ball(dimension=2, radius=1.0, mse=0.02),
        rr.bounds.analytic_inversion_law(rr.mechanisms.Gaussian(0.1), dimension=4, norm=2.0),
        rr.bounds.training_run_law(TRAINING, dimension=4, norm=2.0),
        rr.bounds.prior_success.empirical(torch.rand(40, 2, generator=_rng()).numpy(), mse=0.1),
    ]


def _measured() -> list[Result]:
    audit = example_result(training=True)
    data = Dataset("toy", torch.rand(20, 1, 2, 2, generator=_rng()), torch.arange(20) % 2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    rebuilt = rr.rebuild("analytic", model, data, records=[0, 1], rng=_rng())
    informed = rr.rebuild_informed_linear("logistic", data, [4, 5], rng=_rng())
    leakage = rr.leakage(model, data.subset(range(3)), noise_multiplier=0.5, clip_norm=1.0, rng=_rng())
    comparison = compare(audit, example_result(name="x"))
    verdict = rr.verify_mechanism(
        rr.defenses.clip_and_noise(noise_multiplier=1.0, clip_norm=1.0), releases=3, rng=_rng()
    )
    return [audit, comparison, rebuilt, rebuilt.report, informed, informed.report, leakage, verdict]


def _accounted() -> list[Result]:
    model, inputs, labels = linear_task(records=8)
    accountant = rr.integrations.FisherAccountant(
        model, inputs, labels, loss_fn=half_square, probes=3, records=range(5)
    )
    for _ in range(3):
        accountant.step(**STEP)
    account = accountant.account()
    return [account, account.summary(data_range=(-4.0, 4.0))]


def _recommendation() -> Recommendation:
    share = Estimate(0.1, 0.02, 0.3, 0.95, 40, "Clopper-Pearson")
    cost = TrainingCost(share, ESTIMATE, 100, 3)
    noise = DefenseOption(
        "gaussian_noise",
        "gaussian_noise(std=0.1)",
        0.1,
        TargetStatus.CONFIRMED,
        (share,),
        (1.0,),
        ESTIMATE,
        0.9,
        0.1,
        cost,
        7,
    )
    untried = DefenseOption("prune", "", None, TargetStatus.UNTRIED, (), (), None, None, None, remark="out of time")
    return Recommendation(
        subject="Linear",
        data="toy",
        accept=(Limit(Goal("psnr", 20.0, higher_is_better=True), 0.5),),
        mse_bound=None,
        evidence="measured",
        threat=HONEST_BUT_CURIOUS,
        attacks=("analytic",),
        options=(noise, untried),
        best="gaussian_noise",
        runner_up=None,
        undefended=cost,
        guess=(0.0,),
        is_smooth=True,
        prior_information=39.5,
        data_range=(0.0, 1.0),
        reference_records=10,
        search_trials=8,
        confirm_trials=40,
        confidence=0.95,
        seed=0,
        seconds=1.0,
        ended="complete",
    )


def _frontier() -> TradeoffResult:
    cells = [_cell("none", None, 0.9, 0.0, float("inf")), _cell("noise", 0.1, 0.8, 0.2, 7.0)]
    rows = rows_from_cells(cells, confidence=0.95)
    return TradeoffResult(rows, tuple(cells), "test_accuracy", "mse", 0.95, True, ("a note",), "rr.tradeoff(...)")


def _cell(family: str, strength: float | None, accuracy: float, mse: float, psnr: float) -> TradeoffCell:
    return TradeoffCell(
        family=family,
        strength=strength,
        seed=0,
        training_loss=0.1,
        test_loss=0.2,
        test_accuracy=accuracy,
        diverged=False,
        utility_1=1.0,
        utility_2=0.0,
        fisher_trace=float("inf"),
        mse_bound=0.0,
        scores=tuple(AttackScore(attacker, "analytic", False, mse, psnr) for attacker in ("unaware", "aware")),
        seconds=1.0,
    )


def _over_prior() -> LeakageOverPrior:
    row = OverPrior("psnr(data_range=(0, 1))", "psnr", *(ESTIMATE,) * 5)
    return LeakageOverPrior("analytic()", "normal", "none", 6, 1, (row,))


def _rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)

"""Results of audits that never ran: small, complete, and with any name in them."""

from __future__ import annotations

import numpy as np

from reconrisk.bounds.corridor import risk
from reconrisk.core.guarantee import Estimate, Guarantee, Quantity, Scope
from reconrisk.core.mechanism import Gaussian, dp_sgd
from reconrisk.core.metric import Goal, Limit
from reconrisk.core.papers import Reference
from reconrisk.core.threat import STRONGEST, Knows, Sees, ThreatModel
from reconrisk.metrics.goals import mse_at_most, psnr_at_least
from reconrisk.studies.audit.result import (
    AttackSummary,
    AuditLine,
    AuditResult,
    Comparison,
    DefenseSummary,
    Environment,
    Exposure,
    LeakageHistogram,
    LimitCheck,
    Outcome,
    Picture,
    Standing,
    Subject,
    TrainingAudit,
    Verdict,
)

GOALS = (psnr_at_least(20), mse_at_most(0.05))


def share(value: float, low: float, high: float, samples: int = 40) -> Estimate:
    return Estimate(value, low, high, 0.95, samples, "Clopper-Pearson")


def example_result(
    *,
    name: str = "",
    bundled: bool = True,
    pictures: int = 4,
    side: int = 8,
    channels: int = 1,
    standing: Standing | None = Standing.ABOVE,
    contradicted: bool = False,
    training: bool = False,
) -> AuditResult:
    """Two goals under two defenses; ``name`` becomes part of every name there is."""
    bare, noisy = "none", f"noise{name}"
    lines = tuple(
        _line(label, goal, name, standing if goal == GOALS[0] else None, contradicted)
        for goal in GOALS
        for label in (bare, noisy)
    )
    exposures = tuple(
        _exposure(label, place, name) for label in (bare, noisy) for place in range(max(pictures // 2, 1))
    )
    rng = np.random.default_rng(0)
    shown = [
        Picture(each, *(rng.random((channels, side, side)).astype(np.float32) for _ in range(2)))
        for each in exposures[:pictures]
    ]
    return AuditResult(
        run="0123456789ab",
        created="2026-01-02T03:04:05+00:00",
        subject=Subject(f"LeNet{name}", "aaaa", f"digits{name}", "bbbb", 1000, (channels, side, side), (0.0, 1.0),
                        f"gradient{name}", 1, bundled),
        threat=ThreatModel(Sees.ONE_UPDATE, knows=frozenset({Knows.DEFENSE})),
        goals=GOALS,
        confidence=0.95,
        defenses=(DefenseSummary(bare, "none", None, 0.0), DefenseSummary(noisy, f"Noise{name}", Gaussian(1.0), 12.5)),
        attacks=(
            AttackSummary(f"sharp{name}", f"Sharp{name}", False, 80, 80, 2, 12.0, 4000, f"diverged{name}"),
            AttackSummary(f"guess{name}", f"Guess{name}", True, 80, 78, 0, 0.1, 0),
        ),
        lines=lines,
        exposures=exposures,
        seed=7,
        planned=160,
        done=158,
        seconds=12.3,
        environment=Environment((("reconrisk", "0.1.0"), ("python", "3.11")), 1, f"Linux{name}"),
        signature=f"rr.audit(LeNet{name}, digits)",
        assumptions=(f"records are drawn{name}",),
        training=_training() if training else None,
        pictures=tuple(shown),
    )  # fmt: skip


def _line(defense: str, goal: Goal, name: str, standing: Standing | None, contradicted: bool) -> AuditLine:
    bare = defense == "none"
    success = share(0.9, 0.75, 0.98) if bare else share(0.1, 0.02, 0.25)
    guess = share(0.05, 0.01, 0.2)
    highest = share(0.6, 0.5, 0.7) if contradicted else success
    proved = _guarantee(Quantity.SUCCESS_PROBABILITY, 0.3, Scope.ANY_ADVERSARY_WITH_PRIOR, name)
    other = _guarantee(Quantity.MEAN_SQUARED_ERROR, 0.01, Scope.UNBIASED_ESTIMATORS, name)
    comparisons = () if bare else (
        Comparison(proved, True, f"targets are drawn{name}", 0.1 / 0.3, contradicted, f"sharp{name}", highest),
        Comparison(other, False, "attacks may be biased"),
    )  # fmt: skip
    verdict = Verdict.LEAKS if bare else Verdict.CONTRADICTION if contradicted else Verdict.LEAKS
    checks = () if standing is None else (LimitCheck(Limit(goal, 0.05), standing),)
    return AuditLine(
        defense=defense,
        goal=goal,
        verdict=verdict,
        success=success,
        best_attack=f"sharp{name}",
        worst_record=17,
        worst_score=31.5,
        baseline=guess,
        best_baseline=f"guess{name}",
        outcomes=(Outcome(f"sharp{name}", False, success), Outcome(f"guess{name}", True, guess)),
        comparisons=comparisons,
        limits=checks,
    )


def _guarantee(quantity: Quantity, value: float, scope: Scope, name: str) -> Guarantee:
    reference = Reference("Theorem 1", f"somebody2020{name}")
    return Guarantee(quantity, value, Gaussian(1.0), scope, STRONGEST, reference, (f"it holds{name}",))


def _exposure(defense: str, place: int, name: str) -> Exposure:
    score = float("inf") if place == 0 else 40.0 - place
    return Exposure(defense, 17 + place, f"sharp{name}", place, 0, score, (score >= 20, True))


def _training() -> TrainingAudit:
    run = dp_sgd(noise_multiplier=1.1, sampling_probability=0.01, steps=100)
    corridor = risk(run, dimension=64, norm=3.0, prior_success=0.05, mse=0.01)
    leakage = LeakageHistogram(100, 50, (1e-4, 1e-3, 1e-2), (60, 38), 2, 5e-4, 8e-3, 0.2, 0.95)
    return TrainingAudit(run, corridor, leakage)

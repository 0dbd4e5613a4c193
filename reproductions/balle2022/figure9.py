"""Figures 9 and 10 of balle2022: reconstruction from models trained with full-batch DP gradient descent, by epsilon.

The paper draws curves and pictures: already at large epsilon the attack fails. Clip norm 1, delta 1e-5; its epsilons
can only be read off the picture. Two attacks are measured, the reconstructor and inverting the training map, with
labels unknown to both; the latter, at the small scale, on digits of 14 x 14 pixels and 30 steps. Beside the error
stands the share of targets rebuilt to an error, at the paper's oracle and at its error without privacy, and the bound
gamma on that share for any adversary. The prior success kappa in it is certified from pairs of digits, which is loose;
the second number takes the best single guess that a search finds.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor
from torch.nn.functional import avg_pool2d

from reconrisk.accounting.trade_off import epsilon_from_gaussian
from reconrisk.attacks.informed.invert_training.attack import invert_training
from reconrisk.attacks.informed.reconstructor.features import query_logits
from reconrisk.bounds import success_upper_bound
from reconrisk.bounds.prior_success import empirical
from reconrisk.core.guarantee import Estimate
from reconrisk.core.mechanism import Gaussian, dp_sgd
from reconrisk.metrics import mse
from reconrisk.models import balle2022_mlp
from reconrisk.releases.shadow.training import ShadowTraining
from reconrisk.releases.training.optimizers import sgd
from reconrisk.reports.leakage import write_leakage
from reconrisk.statistics.intervals import clopper_pearson
from reproductions.balle2022.table2 import (
    LARGE,
    QUICK,
    Models,
    Outcome,
    Setting,
    attacked,
    estimate,
    pool,
    rows_of,
    trained,
)
from reproductions.frame import Drawing, Finding, Scale, need_data, reproduce

DELTA = 1e-5
THRESHOLDS = (0.0232, 0.0089)
EPSILONS = {"small": (1.0, 1e1, 1e2, 1e4), "paper": (1.0, 1e1, 1e2, 1e3, 1e4, 1e5)}
SAMPLE = 4_000
SHOWN = 6


@dataclass(frozen=True)
class PriorSuccess:
    """What one guess reaches without the model: certified, and by the best guess found."""

    certified: float
    found: float


def run(scale: Scale) -> Sequence[Finding | Drawing]:
    """Error and success of both attacks by epsilon, beside the bound on success, and test accuracy."""
    need_data()
    small = scale == "small"
    learned = replace(QUICK, shadows=600) if small else LARGE
    inverted, pooled = (
        (replace(QUICK, fixed=30, steps=30, targets=10), 2) if small else (replace(LARGE, targets=100), 1)
    )
    priors = {by: {limit: prior_success(by, limit) for limit in THRESHOLDS} for by in {1, pooled}}
    findings: list[Finding | Drawing] = []
    outcomes: dict[str, Outcome] = {}
    for epsilon in (None, *EPSILONS[scale]):
        what = "no privacy" if epsilon is None else f"DP-GD, epsilon {epsilon:g}"
        setting = protected(learned, epsilon)
        outcomes[what] = outcome = attacked(setting)
        found = [*_findings(f"reconstructor, MNIST, {what}", _errors(outcome), setting, setting.sizes, priors[1])]
        setting = protected(inverted, epsilon)
        sizes = f"{setting.fixed} fixed, {setting.targets} targets, {setting.steps} steps, {28 // pooled} pixels a side"
        errors = _inverted_errors(setting, pooled)
        found += _findings(f"inverting the training map, MNIST, {what}", errors, setting, sizes, priors[pooled])
        accuracy = _accuracy(trained(protected(learned, epsilon).trained, 0))
        found.append(Finding(f"test accuracy of released models, MNIST, {what}", "curve", accuracy, learned.sizes))
        findings += found
        print("\n".join(f"{each.what}: {each.ours} ({each.remark})" for each in found), file=sys.stderr)
    return [*findings, Drawing("figure10.png", partial(_draw, outcomes))]


def protected(setting: Setting, epsilon: float | None) -> Setting:
    """The same training with noise such that all steps together have so much epsilon at delta 1e-5."""
    if epsilon is None:
        return setting
    mu = brentq(lambda mu: epsilon_from_gaussian(mu, DELTA) - epsilon, 1e-3, 1e3)
    return replace(setting, private=Gaussian(noise_multiplier=float(np.sqrt(setting.steps) / mu), clip_norm=1.0))


def prior_success(pooled: int, limit: float) -> PriorSuccess:
    """How often one guess comes within an error of a digit, whose pixels are averaged over squares of this side.

    The search moves each of the best digits to the mean of those it reaches, which reaches more.
    """
    digits = pool()[0]
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(1))[:SAMPLE]
    sample = avg_pool2d(digits[order], pooled).flatten(1)
    near = _near(sample, sample, limit)
    centres, best = sample[near.mean(1).topk(50).indices], [near.mean(1)]
    for _ in range(10):
        near = _near(centres, sample, limit)
        centres = near @ sample / near.sum(1, keepdim=True).clamp(min=1)
        best.append(_near(centres, sample, limit).mean(1))
    return PriorSuccess(empirical(sample.double().numpy(), mse=limit).high, float(torch.cat(best).max()))


def _near(centres: Tensor, sample: Tensor, limit: float) -> Tensor:
    return ((torch.cdist(centres, sample).square() / sample.shape[1]) <= limit).to(sample.dtype)


def _errors(outcome: Outcome) -> Tensor:
    return mse()(outcome.estimates, outcome.targets)


def _inverted_errors(setting: Setting, pooled: int) -> Tensor:
    """Errors of inverting the training map, which knows the noise but not the label."""
    inputs, labels = pool()
    targets, fixed, _ = rows_of(setting, 0)
    inputs = avg_pool2d(inputs[torch.cat([targets, fixed])], pooled)
    aimed, known = inputs[: len(targets)], inputs[len(targets) :]
    training = ShadowTraining(
        balle2022_mlp(tuple(inputs.shape[1:]), rng=torch.Generator().manual_seed(0)),
        known,
        labels[fixed],
        sgd(setting.learning_rate, setting.momentum),
        setting.steps,
        private=setting.private,
    )
    released = training.train(aimed, labels[targets], rng=torch.Generator().manual_seed(0))
    found = invert_training(training, directions=24, iterations=12, refreshes=1, labels_tried=1).rebuild(released)
    return mse()(found.estimates, aimed)


def _findings(
    what: str, errors: Tensor, setting: Setting, sizes: str, priors: Mapping[float, PriorSuccess]
) -> list[Finding]:
    """The mean error, and each share of successes beside the bound on it."""
    findings = [Finding(f"{what}, mean MSE", "curve", estimate(errors), sizes)]
    for limit, prior in priors.items():
        share = clopper_pearson(int((errors <= limit).sum()), len(errors))
        remark = "no bound without privacy"
        if setting.private is not None:
            run = dp_sgd(noise_multiplier=setting.private.noise_multiplier, steps=setting.steps)
            gammas = [success_upper_bound(run, prior_success=kappa).value for kappa in (prior.certified, prior.found)]
            kept = "kept" if share.low <= min(gammas) else "exceeded"
            remark = (
                f"gamma {gammas[0]:.3g} at certified kappa {prior.certified:.3g}, {gammas[1]:.3g} at the best guess's "
                f"{prior.found:.3g}: {kept}"
            )
        findings.append(Finding(f"{what}, share with MSE below {limit}", "not given", share, remark))
    return findings


def _accuracy(models: Models) -> Estimate:
    """Of released models on digits that none of them was trained on."""
    inputs, labels = pool()
    rest = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))[-1_000:]
    said = query_logits(models.knowledge.training, models.released[:20], inputs[rest]).argmax(-1)
    return estimate((said == labels[rest]).double().mean(1))


def _draw(outcomes: Mapping[str, Outcome], path: Path) -> None:
    """Figure 10: targets above what the reconstructor makes of models trained with each epsilon."""
    targets = next(iter(outcomes.values())).targets
    shown = {"target": targets} | {name: outcome.estimates for name, outcome in outcomes.items()}
    rows = [(name, [("", one.numpy()) for one in pictures[:SHOWN]]) for name, pictures in shown.items()]
    write_leakage(path, rows, data_range=(0.0, 1.0), note="reconstructor, by the epsilon of training")


if __name__ == "__main__":
    sys.exit(reproduce(run))

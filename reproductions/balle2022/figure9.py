"""Figures 9 and 10 of balle2022: reconstruction from models trained with full-batch DP gradient descent, by epsilon.

The paper draws curves and pictures: already at large epsilon the attack fails. Clip norm 1, delta 1e-5; its epsilons
can only be read off the picture. Two attacks are measured, the reconstructor and inverting the training map, with
labels unknown to both. Beside the error stands the share of targets rebuilt to an error, at the paper's oracle and at
its error without privacy, and the bound gamma on that share for any adversary. The prior success kappa in it is
certified from pairs of digits, which is loose; the second number takes the best single guess that a search finds.
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

from reconrisk.accounting.confidence import clopper_pearson
from reconrisk.accounting.trade_off import epsilon_from_gaussian
from reconrisk.attacks.invert_training import InvertTraining, invert_training
from reconrisk.attacks.reconstructor_features import logits_of
from reconrisk.bounds import success_upper_bound
from reconrisk.bounds.prior_success import empirical
from reconrisk.core.guarantee import Estimate
from reconrisk.core.mechanism import Gaussian, dp_sgd
from reconrisk.metrics import mse
from reconrisk.reports.leakage import write_leakage
from reproductions.balle2022.table2 import LARGE, QUICK, Models, Setting, attacked, estimate, pool, trained
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
    sizes = QUICK if scale == "small" else LARGE
    inverted = 40 if scale == "small" else 100
    digits = pool()[0]
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(1))[:SAMPLE]
    priors = {limit: prior_success(digits[order].flatten(1), limit) for limit in THRESHOLDS}
    findings: list[Finding | Drawing] = []
    pictures: dict[str, Tensor] = {}
    for epsilon in (None, *EPSILONS[scale]):
        setting = replace(sizes, private=None if epsilon is None else private(epsilon, sizes.steps))
        what = "no privacy" if epsilon is None else f"DP-GD, epsilon {epsilon:g}"
        outcome = attacked(setting)
        models = trained(setting.trained, 0)
        found = inversion(models, epsilon is not None).rebuild(models.released[:inverted])
        rebuilt = {"reconstructor": outcome.estimates, "inverting the training map": found.estimates}
        for attack, estimates in rebuilt.items():
            errors = mse()(estimates, outcome.targets[: len(estimates)])
            findings += _findings(f"{attack}, MNIST, {what}", errors, setting, priors)
        findings.append(Finding(f"test accuracy, MNIST, {what}", "curve", _accuracy(models, inverted), setting.sizes))
        pictures[what] = outcome.estimates[:SHOWN]
        print("\n".join(f"{each.what}: {each.ours} ({each.remark})" for each in findings[-7:]), file=sys.stderr)
    return [*findings, Drawing("figure10.png", partial(_draw, {"target": outcome.targets[:SHOWN]} | pictures))]


def private(epsilon: float, steps: int) -> Gaussian:
    """The noise of each step with which all of them have so much epsilon at delta 1e-5."""
    mu = brentq(lambda mu: epsilon_from_gaussian(mu, DELTA) - epsilon, 1e-3, 1e3)
    return Gaussian(noise_multiplier=float(np.sqrt(steps) / mu), clip_norm=1.0)


def inversion(models: Models, noisy: bool) -> InvertTraining:
    """The attack that needs no shadow models; under noise, which limits it, one derivative for each class serves."""
    if not noisy:
        return invert_training(models.knowledge.training, directions=40, iterations=24, refreshes=2)
    return invert_training(models.knowledge.training, directions=16, iterations=8, refreshes=0, labels_tried=2)


def prior_success(sample: Tensor, limit: float) -> PriorSuccess:
    """How often one guess comes within an error of a digit drawn like the sample.

    The search moves each of the best digits to the mean of those it reaches, which reaches more.
    """
    found = [_reached(sample, sample, limit)]
    centres = sample[found[0].topk(50).indices]
    for _ in range(10):
        near = ((torch.cdist(centres, sample).square() / sample.shape[1]) <= limit).to(sample.dtype)
        centres = near @ sample / near.sum(1, keepdim=True).clamp(min=1)
        found.append(_reached(centres, sample, limit))
    certified = empirical(sample.double().numpy(), mse=limit).high
    return PriorSuccess(certified, float(torch.cat(found).max()))


def _reached(centres: Tensor, sample: Tensor, limit: float) -> Tensor:
    return ((torch.cdist(centres, sample).square() / sample.shape[1]) <= limit).double().mean(1)


def _findings(what: str, errors: Tensor, setting: Setting, priors: Mapping[float, PriorSuccess]) -> list[Finding]:
    """The mean error, and each share of successes beside the bound on it."""
    sizes = replace(setting, targets=len(errors)).sizes
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


def _accuracy(models: Models, count: int) -> Estimate:
    """Of released models on digits that none of them was trained on."""
    inputs, labels = pool()
    rest = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))[-1_000:]
    said = logits_of(models.knowledge.training, models.released[:count], inputs[rest]).argmax(-1)
    return estimate((said == labels[rest]).double().mean(1))


def _draw(shown: Mapping[str, Tensor], path: Path) -> None:
    """Figure 10: targets above what the reconstructor makes of models with less and less noise."""
    rows = [(name, [("", picture.numpy()) for picture in pictures]) for name, pictures in shown.items()]
    write_leakage(path, rows, data_range=(0.0, 1.0), note="reconstructor, by the epsilon of training")


if __name__ == "__main__":
    sys.exit(reproduce(run))

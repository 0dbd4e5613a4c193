"""Figure 9 of balle2022: reconstruction from models trained with full-batch DP gradient descent, by epsilon.

The paper draws curves and pictures (Figure 10): already at large epsilon the attack fails. Clip norm 1, delta 1e-5.
Beside the error stand the share of targets rebuilt to the error of the paper's oracle and the bound on it, whose prior
success is what the best of the known records reaches as a guess.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor

from reconrisk.accounting.trade_off import epsilon_from_gaussian, log_success_from_gaussian
from reconrisk.core.mechanism import Gaussian
from reconrisk.metrics import mse
from reproductions.balle2022.table2 import LARGE, QUICK, attacked, estimate, finding
from reproductions.frame import Finding, Scale, need_data, reproduce

DELTA = 1e-5
ORACLE = 0.0232


def run(scale: Scale) -> Sequence[Finding]:
    """Mean squared error and success by epsilon, beside the bound on success."""
    need_data()
    sizes = QUICK if scale == "small" else LARGE
    findings = []
    for epsilon in (1e1, 1e3) if scale == "small" else (1e0, 1e1, 1e2, 1e3, 1e4, 1e5):
        mu = mu_from_epsilon(epsilon)
        private = Gaussian(noise_multiplier=float(np.sqrt(sizes.steps)) / mu, clip_norm=1.0)
        setting = replace(sizes, private=private)
        outcome = attacked(setting)
        what = f"DP-GD, epsilon {epsilon:g}"
        findings.append(finding(what, "curve", outcome, setting))
        rebuilt = (mse()(outcome.estimates, outcome.targets) <= ORACLE).double()
        bound = float(np.exp(log_success_from_gaussian(mu, float(np.log(best_guess(outcome.known))))))
        remark = f"at most {bound:.3g} by the bound"
        findings.append(Finding(f"{what}, share with MSE below {ORACLE}", "none", estimate(rebuilt), remark))
    return findings


def mu_from_epsilon(epsilon: float) -> float:
    """The Gaussian DP of so much epsilon at delta 1e-5."""
    return float(brentq(lambda mu: epsilon_from_gaussian(mu, DELTA) - epsilon, 1e-3, 1e3))


def best_guess(known: Tensor) -> float:
    """How many of the known records the best one of them comes near to, itself included."""
    flat = known.flatten(1)
    return float(((torch.cdist(flat, flat).square() / flat.shape[1]) <= ORACLE).double().mean(1).max())


if __name__ == "__main__":
    sys.exit(reproduce(run))

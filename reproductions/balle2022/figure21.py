"""Figure 21 of balle2022: the norm of a target's gradient through training, and how well the target is rebuilt.

The paper sums the norm over training and finds the two weakly correlated, larger norms with larger errors.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from reconrisk.metrics import mse
from reconrisk.releases.shadow.training import ShadowTraining
from reproductions.balle2022.table2 import LARGE, QUICK, Models, attacked, trained
from reproductions.frame import Finding, Scale, need_data, reproduce
from reproductions.guo2022.figure3 import rank_correlation

EVERY = 10


def run(scale: Scale) -> Sequence[Finding]:
    """Rank correlation between errors of reconstructors and gradient norms summed over training."""
    need_data()
    setting = QUICK if scale == "small" else LARGE
    errors = mse()(attacked(setting).estimates, trained(setting.trained, 0).targets)
    norms = summed_norms(trained(setting.trained, 0), setting.steps)
    remark = f"{setting.sizes}; norms of every tenth step"
    what = "rank correlation of the target's summed gradient norm and its MSE, MNIST"
    return [Finding(what, "weak, positive", rank_correlation(norms.numpy(), errors.double().numpy()), remark)]


def summed_norms(models: Models, steps: int) -> Tensor:
    """For each target the norm of its loss's gradient, summed over every tenth model of its training."""
    training = models.knowledge.training
    total = norms(training, training.start().expand(len(models.targets), -1), models.targets, models.labels)
    for step in range(EVERY, steps, EVERY):
        rows = replace(training, steps=step).train(models.targets, models.labels)
        total += norms(training, rows, models.targets, models.labels)
    return total


def norms(training: ShadowTraining, rows: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
    """The norm of each record's gradient in the model of its row."""

    def loss(row: Tensor, record: Tensor, label: Tensor) -> Tensor:
        return cross_entropy(functional_call(training.model, training.unflatten(row), (record[None],)), label[None])

    return vmap(grad(loss))(rows, inputs, labels).norm(dim=1).double()


if __name__ == "__main__":
    sys.exit(reproduce(run))

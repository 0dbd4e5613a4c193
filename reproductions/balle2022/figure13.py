"""Figure 13 of balle2022: the adversary first sees a model that was trained before, on other records.

The paper pre-trains on 10,000 digits (test accuracy above 92 %), goes on as by default, and draws histograms of errors:
reconstruction is worse than from the initialisation. Here shadow models are fewer, and attacked by the closed form.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from dataclasses import replace

import torch

from reconrisk.attacks.informed.reconstructor.features import query_logits
from reconrisk.attacks.informed.reconstructor.shadow_knowledge import ShadowKnowledge
from reconrisk.metrics import mse
from reproductions.balle2022.table2 import LARGE, QUICK, models_of, oracle, pool, rebuilt, rows_of, training
from reproductions.balle2022.table2 import finding as error_of
from reproductions.frame import Finding, Scale, need_data, reproduce

ORACLE = 0.0232


def run(scale: Scale) -> Sequence[Finding]:
    """Mean squared error from the initialisation and from a pre-trained model."""
    need_data()
    setting = QUICK if scale == "small" else LARGE
    inputs, labels = pool()
    targets, fixed, shadows = rows_of(setting, 0)
    first = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))[-10_000:]
    held, first = first[:1_000], first[1_000:]  # tested on; nine thousand others are pre-trained on
    fresh = training(setting, inputs[fixed], labels[fixed])
    before = training(setting, inputs[first[1:]], labels[first[1:]])
    row = before.train(inputs[first[:1]], labels[first[:1]])
    model = copy.deepcopy(fresh.model)
    model.load_state_dict(before.unflatten(row[0]))
    right = query_logits(before, row, inputs[held])[0].argmax(-1) == labels[held]
    remark = f"{len(first):,} records, {len(held):,} tested"
    findings = [
        Finding("test accuracy, MNIST, pre-trained start", "above 0.92", f"{right.double().mean():.3f}", remark)
    ]
    for name, start in {"initialisation": fresh, "pre-trained": replace(fresh, model=model)}.items():
        knowledge = ShadowKnowledge(start, inputs[shadows], labels[shadows])
        outcome = rebuilt(models_of(knowledge, inputs[targets], labels[targets], 0), setting)
        findings += [oracle(outcome, setting)] if name == "initialisation" else []
        findings.append(error_of(f"start: {name}", "histogram", outcome, setting))
        errors = mse()(outcome.estimates, outcome.targets)
        quarters = " / ".join(
            f"{value:.4f}" for value in errors.double().quantile(torch.tensor([0.25, 0.5, 0.75]).double()).tolist()
        )
        shares = f"{quarters}; {float((errors < ORACLE).double().mean()):.3f} below {ORACLE}"
        findings.append(Finding(f"quartiles of MSE, MNIST, start: {name}", "histogram", shares, setting.sizes))
        print(f"{name}: {findings[-2].ours}, {shares}", file=sys.stderr)
    return findings


if __name__ == "__main__":
    sys.exit(reproduce(run))

"""Figure 12 of balle2022: a reconstructor network taken over to other fixed records with few shadow models.

The paper draws curves by the number of shadow models that fine-tune it, none included. The network here is narrower
than the paper's at the small scale.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import torch

from reconrisk.attacks.informed.reconstructor.attack import fine_tune_reconstructor, reconstructor
from reconrisk.attacks.informed.reconstructor.settings import balle2022_reconstructor
from reconrisk.attacks.informed.reconstructor.shadow_knowledge import ShadowKnowledge
from reconrisk.metrics import mse
from reproductions.balle2022.table2 import DEFAULT, estimate, pool, training
from reproductions.frame import Finding, Scale, need_data, reproduce


def run(scale: Scale) -> Sequence[Finding]:
    """Mean squared error against models with other fixed records: untouched, fine-tuned, from scratch."""
    need_data()
    small = scale == "small"
    fixed, shadows, targets = (100, 1_000, 200) if small else (1_000, 10_000, 1_000)
    few = (50, 200) if small else (100, 1_000)
    inputs, labels = pool()
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    first, other, aimed, pairs = order.split([fixed, fixed, targets, len(order) - 2 * fixed - targets])
    settings = balle2022_reconstructor()
    settings = replace(settings, hidden=(300, 300), epochs=30) if small else settings
    rng = torch.Generator().manual_seed(0)
    before = training(DEFAULT, inputs[first], labels[first])
    shadow = pairs[:shadows]
    attack = reconstructor(ShadowKnowledge(before, inputs[shadow], labels[shadow]), settings, rng=rng)
    after = training(DEFAULT, inputs[other], labels[other])
    released = after.train(inputs[aimed], labels[aimed])
    made = {"untouched": attack}
    for count in few:
        some = pairs[shadows : shadows + count]
        knowledge = ShadowKnowledge(after, inputs[some], labels[some])
        models = knowledge.shadow_models(rng=rng)
        made[f"fine-tuned with {count}"] = fine_tune_reconstructor(attack, knowledge, shadow_models=models, rng=rng)
        made[f"from scratch with {count}"] = reconstructor(knowledge, settings, shadow_models=models, rng=rng)
    remark = f"{fixed:,} fixed, first trained with {shadows:,} shadow models, {targets:,} targets"
    return [
        Finding(
            f"transfer, {name}, mean MSE", "curve", estimate(mse()(each.estimates(released), inputs[aimed])), remark
        )
        for name, each in made.items()
    ]


if __name__ == "__main__":
    sys.exit(reproduce(run))

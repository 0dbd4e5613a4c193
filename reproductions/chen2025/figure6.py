"""Training under pruning on MNIST: chen2025's Figure 6, 80 % and 90 % magnitude and 80 % optimal pruning.

The paper's optimal pruning is chosen by each client's own records at each step; the global form here takes its moments
from public digits at the present network, again every 16 steps.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from torch import nn

from reconrisk.core.defense import Defense
from reconrisk.defenses import local_optimal_pruning, optimal_pruning, prune, refreshed
from reproductions.frame import Drawing, Finding, Scale, need_data, reproduce
from reproductions.training_curves import (
    CLIENTS,
    Course,
    curve_in_words,
    curve_plot,
    loss_difference,
    mnist_course,
    trained,
)

STRONG = "90 % magnitude pruning"


def run(scale: Scale) -> Sequence[Finding | Drawing]:
    """Training losses of four ways to prune, and which is faster."""
    need_data()
    return compared(mnist_course(scale, learning_rate=5e-4))


def compared(course: Course) -> list[Finding | Drawing]:
    """The rows of the figure and its curves."""
    defenses: dict[str, Callable[[], Defense | None]] = {
        "no defense": lambda: None,
        "80 % magnitude pruning": lambda: prune(0.8),
        STRONG: lambda: prune(0.9),
        "80 % optimal pruning, local": lambda: local_optimal_pruning(share=0.8),
        "80 % optimal pruning, global": lambda: refreshed(
            lambda moments: optimal_pruning(moments, share=0.8),
            nn.functional.cross_entropy,
            course.public.inputs,
            course.public.class_labels,
            every=16 * CLIENTS,
        ),
    }
    runs = trained(course, defenses)
    rows: list[Finding | Drawing] = []
    for name, found in runs.items():
        what = f"Figure 6, {name}: training loss after 1/4, 1/2 and all of the training"
        rows.append(Finding(what, "curve only", curve_in_words(found), course.remark))
        if "optimal" in name:
            what = f"Figure 6, {name} minus {STRONG}: mean training loss"
            paper = "faster" if "local" in name else "-"
            rows.append(Finding(what, paper, loss_difference(found, runs[STRONG]), course.remark))
    return [*rows, curve_plot("chen2025_figure6.png", runs)]


if __name__ == "__main__":
    sys.exit(reproduce(run))

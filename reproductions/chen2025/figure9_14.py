"""Training under noise on MNIST: chen2025's Figure 9, its test accuracies (D.2), Figure 14 and Table 1.

Noise scale 0.1, clipping to norm 1. The paper's optimal noise is chosen by each client's own records at each step; the
global forms here take their moments from public digits at the present network, again every 16 steps. ``euclidean``
clips as the paper does and has no guarantee, ``guaranteed`` in the norm that matches the noise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import nn

from reconrisk.core.defense import Defense
from reconrisk.defenses import clip, gaussian_noise, optimal_noise, refreshed
from reconrisk.defenses.chain import Chain
from reconrisk.defenses.local import LocalDefense
from reconrisk.models import chen2025_mnist
from reconrisk.releases.release import Release
from reconrisk.releases.sensitivity.moments import ReferenceMoments
from reconrisk.studies.common.defended_training import DefendedTraining
from reproductions.chen2025.settings import CLIP, equal_std, local_noise
from reproductions.frame import Drawing, Finding, Scale, need_data, reproduce
from reproductions.gradient_inversion import mean_over
from reproductions.training_curves import (
    CLIENTS,
    Course,
    curve_in_words,
    curve_plot,
    loss_difference,
    mnist_course,
    trained,
)

NOISE_SCALE = 0.1
EQUAL, LOCAL = "equal noise", "optimal noise, local"
ACCURACY = {EQUAL: "0.886", LOCAL: "0.910"}


@dataclass(frozen=True)
class Recorded(LocalDefense):
    """A local defense that writes down the mean standard deviation of its noise in each layer, send by send."""

    inner: LocalDefense
    record: list[dict[str, float]] = field(default_factory=list)

    def for_release(self, release: Release) -> Defense:
        """What the inner defense chooses."""
        chosen = self.inner.for_release(release)
        stds = chosen.noise_std(release.value()) or {}
        self.record.append({name: float(std.mean()) for name, std in stds.items()})
        return chosen

    def __str__(self) -> str:
        """That of the inner defense."""
        return str(self.inner)


def run(scale: Scale) -> Sequence[Finding | Drawing]:
    """Training losses and test accuracies of four kinds of noise, and how the local one is spread over layers."""
    need_data()
    return compared(mnist_course(scale, learning_rate=1e-3))


def compared(course: Course) -> list[Finding | Drawing]:
    """The rows of both figures and of Table 1, and the curves."""
    local = Recorded(local_noise(NOISE_SCALE))
    std = equal_std(chen2025_mnist(), NOISE_SCALE)
    defenses: dict[str, Callable[[], Defense | None]] = {
        "no defense": lambda: None,
        EQUAL: lambda: clip(CLIP) >> gaussian_noise(std),
        LOCAL: lambda: local,
        "optimal noise, global, euclidean": partial(_refreshed, course, _euclidean),
        "optimal noise, global, guaranteed": partial(_refreshed, course, _guaranteed),
    }
    runs = trained(course, defenses)
    rows: list[Finding | Drawing] = [*_training_rows(course, runs), *_layer_rows(course, local.record)]
    return [*rows, curve_plot("chen2025_figure9.png", runs)]


def _refreshed(course: Course, build: Callable[[ReferenceMoments], Defense]) -> Defense:
    inputs, labels = course.public.inputs, course.public.class_labels
    return refreshed(build, nn.functional.cross_entropy, inputs, labels, every=16 * CLIENTS)


def _euclidean(moments: ReferenceMoments) -> Defense:
    return Chain((clip(CLIP), optimal_noise(moments, noise_norm=NOISE_SCALE)))


def _guaranteed(moments: ReferenceMoments) -> Defense:
    return clip(CLIP) >> optimal_noise(moments, noise_norm=NOISE_SCALE)


def _training_rows(course: Course, runs: Mapping[str, Sequence[DefendedTraining]]) -> list[Finding]:
    accuracy = {name: torch.tensor([run.test_accuracy or 0.0 for run in found]) for name, found in runs.items()}
    rows = []
    for name, found in runs.items():
        what = f"Figure 9, {name}: training loss after 1/4, 1/2 and all of the training"
        rows.append(Finding(what, "curve only", curve_in_words(found)))
        what = f"test accuracy (D.2), {name}" + (f", noise scale {NOISE_SCALE:g}" if "noise" in name else "")
        rows.append(Finding(what, ACCURACY.get(name, "-"), mean_over(accuracy[name], "seeds")))
        if "optimal" in name:
            paper = "faster" if name == LOCAL else "-"
            what = f"Figure 9, {name} minus {EQUAL}: mean training loss"
            rows.append(Finding(what, paper, loss_difference(found, runs[EQUAL])))
            paper = "0.024" if name == LOCAL else "-"
            difference = mean_over(accuracy[name] - accuracy[EQUAL], "seeds")
            rows.append(Finding(f"test accuracy (D.2), {name} minus {EQUAL}", paper, difference))
    return [Finding(row.what, row.paper, row.ours, course.remark) for row in rows]


def _layer_rows(course: Course, record: Sequence[Mapping[str, float]]) -> list[Finding]:
    """Table 1, and the noise of each layer in the first and the last tenth of the training of every seed."""
    sizes = {name: value.numel() for name, value in chen2025_mnist().named_parameters()}
    each = len(record) // course.seeds
    tenth = max(1, each // 10)
    rows = []
    for name, size in sizes.items():
        stds = torch.tensor([step[name] for step in record]).view(course.seeds, each)
        begin, end = (mean_over(part.mean(1), "seeds") for part in (stds[:, :tenth], stds[:, -tenth:]))
        what = f"Figure 14 and Table 1, {name}: parameters; mean noise std in the first and last tenth of the sends"
        remark = f"equal noise has {equal_std(chen2025_mnist(), NOISE_SCALE):.4g} everywhere; {course.remark}"
        rows.append(Finding(what, f"{size}; curve only", f"{size}; {begin}; {end}", remark))
    return rows


if __name__ == "__main__":
    sys.exit(reproduce(run))

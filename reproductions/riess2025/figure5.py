"""Figure 5 of riess2025: as Figure 4, on whole CIFAR-10 images of 3,072 values."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from reconrisk.attacks import optimal_analytic
from reproductions.frame import Drawing, Finding, Scale, need_data, reproduce
from reproductions.riess2025.figure4 import (
    DIRECTED,
    IMAGES,
    REPLAYED,
    against_whole,
    along_the_row,
    by_the_norm,
    compared,
    draw,
    images,
    linear_beside,
    measured,
    resnet_beside,
)

DIMENSION = 3072


def run(scale: Scale) -> Sequence[Finding | Drawing]:
    """Errors on 500 CIFAR-10 images of norm 1.01 against the law; ResNet-101 on few of them at small scale."""
    need_data()
    targets = images(IMAGES)
    alone = measured(optimal_analytic(neurons=1), None, targets, seed=1)
    linear = measured(by_the_norm(), linear_beside(DIMENSION), targets, seed=2)
    few, draws = (targets[:10], 50) if scale == "small" else (targets, 1)
    resnet = resnet_beside((), 32)
    deep = measured(by_the_norm(), resnet, few, draws=draws, seed=3)
    again = measured(optimal_analytic(neurons=1), resnet, few, seed=4)
    directed = measured(along_the_row(), resnet, few, draws=draws, seed=5)
    pictures = f"{IMAGES} images, 3x32x32, norm 1.01"
    fewer = f"{len(few)} images, 3x32x32, norm 1.01, {draws} draws of noise each"
    settings = {"Optimal": alone, "Linear (1M)": linear, "ResNet-101": deep}
    return [
        *compared("Figure 5, Optimal", alone, DIMENSION, pictures),
        *compared("Figure 5, Linear (1M)", linear, DIMENSION, f"{pictures}, rescaled by the norm"),
        *compared("Figure 5, ResNet-101", deep, DIMENSION, f"{fewer}, rescaled by the norm"),
        against_whole("Figure 5, ResNet-101", REPLAYED, again, f"{len(few)} images"),
        against_whole("Figure 5, ResNet-101", DIRECTED, directed, fewer),
        Drawing("figure5.png", partial(draw, settings, DIMENSION)),
    ]


if __name__ == "__main__":
    sys.exit(reproduce(run))

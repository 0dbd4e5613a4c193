"""Inverting Gradients: cosine distance, signed Adam, total variation."""

from __future__ import annotations

from reconrisk.attacks.distances import Cosine
from reconrisk.attacks.matching import GradientMatching
from reconrisk.attacks.parametrizations import Parametrization, Values
from reconrisk.attacks.regularizers import TotalVariation
from reconrisk.attacks.updates import Adam


def inverting_gradients(
    *,
    steps: int = 1000,
    restarts: int = 1,
    total_variation: float = 0.1,
    learning_rate: float = 0.1,
    seconds: float | None = None,
    patience: int | None = None,
    parametrization: Parametrization | None = None,
) -> GradientMatching:
    """Inverting Gradients: cosine between gradients, Adam on signs, total variation, within the data range.

    Assumes: nothing of the network; the scale of the update may be unknown.
    Notation: the learning rate is in units of the data range; ``total_variation`` weighs the variation against the
    distance at the start and falls to a hundredth of itself over the budget. The paper keeps a fixed weight, lets the
    rate fall in three steps and takes 4800 to 24000 of them; this way 200 to 1000 reach a smaller error.
    Edge cases: ``total_variation=0`` for records that are not images.
    Reference: equation 4 and Section 4, `Geiping et al. (2020) <https://arxiv.org/abs/2003.14053>`_; the attack of
    chen2025 and a baseline of meng2025.

    >>> inverting_gradients(restarts=8).update
    Adam(learning_rate=0.1, signed=True, schedule='cosine', momentum=0.9, second=0.999)
    """
    return GradientMatching(
        name="inverting_gradients",
        distance=Cosine(),
        update=Adam(learning_rate, signed=True, schedule="cosine"),
        steps=steps,
        regularizers=(TotalVariation(total_variation, final_share=0.01),),
        parametrization=Values() if parametrization is None else parametrization,
        restarts=restarts,
        seconds=seconds,
        patience=patience,
    )

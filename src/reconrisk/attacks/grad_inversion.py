"""GradInversion: layer-wise gradients, batch norm statistics, and restarts that work together."""

from __future__ import annotations

from reconrisk.attacks.distances import SquaredError
from reconrisk.attacks.matching import GradientMatching
from reconrisk.attacks.regularizers import BatchNormStatistics, GroupConsistency, L2Norm, TotalVariation
from reconrisk.attacks.updates import Adam


def grad_inversion(
    *,
    steps: int = 20_000,
    restarts: int = 4,
    total_variation: float = 1e-2,
    l2_norm: float = 1e-4,
    batch_norm: float = 1e-2,
    group: float = 1e-2,
    learning_rate: float = 0.03,
    seconds: float | None = None,
    patience: int | None = None,
) -> GradientMatching:
    """GradInversion: squared error of gradients, batch norm statistics and image priors, restarts that pull together.

    Assumes: as :func:`inverting_gradients`, but the scale of the update is known.
    Reference: equations 1 to 12 and Section 4.1, `Yin et al. (2021) <https://arxiv.org/abs/2104.07586>`_.

    >>> grad_inversion(restarts=8).update
    Adam(learning_rate=0.03, signed=False, schedule='cosine', momentum=0.9, second=0.999)
    """
    return GradientMatching(
        name="grad_inversion",
        distance=SquaredError(),
        update=Adam(learning_rate, schedule="cosine"),
        steps=steps,
        regularizers=(
            TotalVariation(total_variation),
            L2Norm(l2_norm),
            BatchNormStatistics(batch_norm),
            GroupConsistency(group),
        ),
        restarts=restarts,
        seconds=seconds,
        patience=patience,
    )

"""GradInversion: gradients, batch norm statistics, and restarts that pull together."""

from __future__ import annotations

from reconrisk.attacks.distances import SquaredError
from reconrisk.attacks.matching import GradientMatching
from reconrisk.attacks.regularizers import BatchNormStatistics, GroupConsistency, L2Norm, TotalVariation
from reconrisk.attacks.updates import Adam


def grad_inversion(
    *,
    steps: int = 2000,
    restarts: int = 4,
    total_variation: float = 0.1,
    l2_norm: float = 1e-4,
    batch_norm: float = 0.3,
    group: float = 0.01,
    learning_rate: float = 0.03,
    seconds: float | None = None,
    patience: int | None = None,
) -> GradientMatching:
    r"""GradInversion: squared error of gradients, batch norm statistics, image priors, restarts that pull together.

    .. math:: \sum_l |\nabla_l(x) - y_l|^2 + \alpha_{tv} R_{tv} + \alpha_2 R_{2} + \alpha_{bn} R_{bn} + \alpha_g R_{g}

    Labels are known or inferred first. Batch norm statistics are those of the batch where the threat knows them, else
    the running ones of the model. In train mode the gradient does not change with the contrast of the records, which
    the first batch norm takes away: statistics are then the only way to it. In eval mode they only guide the search.

    Assumes: as :func:`inverting_gradients`, but the scale of the update is known.
    Notation: the paper weighs sums over pixels, channels and parameters by 1e-3 (gradient), 1e-4 (total variation),
    1e-6 (norm) and 0.1 (statistics) for ImageNet, at learning rate 0.1 for images of unit variance, 20,000 steps and
    noise on the pixels. Here every term is a mean, relative to the data range, to the variance of a channel or to the
    gradient's distance at the start; the weights are chosen anew, the rate is in units of the data range, total
    variation falls to a hundredth, and there is no noise, since each restart keeps the best it has seen.
    Edge cases: ``total_variation=0`` for records that are not images; without batch norm that term is zero. Agreement
    of restarts is by the pixel-wise mean, without registration; batches with equal labels may come in another order
    in each restart: pass ``group=0``.
    Reference: Section 3, `Yin et al. (2021) <https://arxiv.org/abs/2104.07586>`_.

    >>> grad_inversion(restarts=8).update
    Adam(learning_rate=0.03, signed=False, schedule='cosine', momentum=0.9, second=0.999)
    """
    return GradientMatching(
        name="grad_inversion",
        distance=SquaredError(),
        update=Adam(learning_rate, schedule="cosine"),
        steps=steps,
        regularizers=(
            TotalVariation(total_variation, final_share=0.01),
            L2Norm(l2_norm),
            BatchNormStatistics(batch_norm),
            GroupConsistency(group),
        ),
        restarts=restarts,
        seconds=seconds,
        patience=patience,
    )

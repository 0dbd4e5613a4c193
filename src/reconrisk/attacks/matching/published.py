"""Published attacks, assembled from the parts of this folder.

- :func:`dlg` and :func:`idlg`: Deep Leakage from Gradients, with varied and with inferred labels.
- :func:`inverting_gradients`: cosine distance, signed Adam, total variation.
- :func:`grad_inversion`: batch norm statistics, and restarts that are pulled together.
"""

from __future__ import annotations

from reconrisk.attacks.matching.distances import Cosine, SquaredError
from reconrisk.attacks.matching.initialization import GivenLabels, NormalStart, VariedLabels
from reconrisk.attacks.matching.loop import GradientMatching
from reconrisk.attacks.matching.optimizers import LBFGS, Adam
from reconrisk.attacks.matching.parametrizations import Parametrization, Values
from reconrisk.attacks.matching.regularizers import BatchNormStatistics, GroupConsistency, L2Norm, TotalVariation


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


_EXACT = 1e-12  # of a relative squared error: float32 gradients do not get nearer


def dlg(
    *,
    steps: int = 300,
    restarts: int = 4,
    seconds: float | None = None,
    parametrization: Parametrization | None = None,
) -> GradientMatching:
    """Deep Leakage from Gradients: squared error over records and soft labels by L-BFGS from normal noise.

    Assumes: a smooth network; a loss that takes probabilities, unless the labels are known.
    Notation: 300 steps are the paper's; its single start often fails, so several are made at once.
    Edge cases: as :class:`GradientMatching`.
    Reference: Algorithm 1 and Section 4.1, `Zhu et al. (2019) <https://arxiv.org/abs/1906.08935>`_; baseline of
    meng2025, Table 3.

    >>> dlg(steps=10).update
    LBFGS(memory=30, trials=12, decrease=0.0001)
    """
    return GradientMatching(
        name="dlg",
        distance=SquaredError(),
        update=LBFGS(),
        steps=steps,
        start=NormalStart(),
        parametrization=Values() if parametrization is None else parametrization,
        labels=VariedLabels(),
        restarts=restarts,
        seconds=seconds,
        patience=40,
        tolerance=_EXACT,
    )


def idlg(
    *,
    steps: int = 300,
    restarts: int = 4,
    seconds: float | None = None,
    parametrization: Parametrization | None = None,
) -> GradientMatching:
    """Improved DLG: the labels are read off the gradient first, then only the records are varied.

    Assumes: as :func:`dlg`; cross-entropy, for the labels.
    Reference: Algorithm 1, `Zhao et al. (2020) <https://arxiv.org/abs/2001.02610>`_.

    >>> idlg().labels
    GivenLabels()
    """
    return GradientMatching(
        name="idlg",
        distance=SquaredError(),
        update=LBFGS(),
        steps=steps,
        start=NormalStart(),
        parametrization=Values() if parametrization is None else parametrization,
        labels=GivenLabels(),
        restarts=restarts,
        seconds=seconds,
        patience=40,
        tolerance=_EXACT,
    )

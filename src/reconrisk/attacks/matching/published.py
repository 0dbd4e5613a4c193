"""Published attacks, assembled from the parts of this folder.

- :func:`dlg` and :func:`idlg`: Deep Leakage from Gradients, with optimised and with inferred labels.
- :func:`inverting_gradients`: cosine distance, signed Adam, total variation.
- :func:`grad_inversion`: batch norm statistics, and restarts that are pulled together.
"""

from __future__ import annotations

from reconrisk.attacks.matching.distances import Cosine, SquaredError
from reconrisk.attacks.matching.loop import GradientMatching
from reconrisk.attacks.matching.optimizers import LBFGS, Adam
from reconrisk.attacks.matching.regularizers import BatchNormStatistics, GroupConsistency, L2Norm, TotalVariation
from reconrisk.attacks.matching.variables import FixedLabels, NormalStart, Parametrization, SoftLabels, Values


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
    r"""Configure GradInversion: squared error of gradients, batch norm statistics, image priors, consistent restarts.

    .. math:: \sum_l |\nabla_l(x) - y_l|^2 + \alpha_{tv} R_{tv} + \alpha_2 R_{2} + \alpha_{bn} R_{bn} + \alpha_g R_{g}

    Here :math:`\nabla_l(x)` is the gradient of tensor l at the records x, and :math:`y_l` the released gradient. The
    terms R are total variation, norm, batch norm statistics and agreement of the restarts, with the weights
    ``total_variation``, ``l2_norm``, ``batch_norm`` and ``group``.

    Labels are known or inferred first. The attack compares batch norm statistics with the statistics of the batch if
    the threat model knows them, else with the running statistics of the model. In train mode the first batch norm
    removes the contrast of the records, so the gradient does not depend on the contrast, and only the statistics reveal
    it. In eval mode the statistics merely guide the search.

    Args:
        steps: Largest number of steps of Adam.
        restarts: Number of starts, which move at once.
        total_variation: Weight of the total variation; pass 0 for records that are not images.
        l2_norm: Weight of the squared distance from the middle of the data range.
        batch_norm: Weight of the mismatch of batch norm statistics.
        group: Weight of the distance of each restart from the mean of all restarts.
        learning_rate: Initial learning rate, in units of the data range.
        seconds: Time limit in seconds; None for no limit.
        patience: Steps without a gain of one part in a thousand after which the search stops; None for no such limit.

    Returns:
        The configured attack.

    Raises:
        InvalidInput: If a setting is out of its domain; when the attack is called, if the threat model or the release
            does not support it.

    Assumes: as :func:`inverting_gradients`, but the scale of the update is known.
    Notation: the paper weighs sums over pixels, channels and parameters by 1e-3 (gradient), 1e-4 (total variation),
    1e-6 (norm) and 0.1 (statistics) for ImageNet, at learning rate 0.1 for images of unit variance, 20,000 steps and
    noise on the pixels. Here every term is a mean, relative to the data range, to the variance of a channel or to the
    distance at the start. The weights are chosen anew, the rate is in units of the data range, and total variation
    falls to a hundredth. There is no noise, since each restart keeps its best point.
    Edge cases: without batch norm its term is zero. Agreement of restarts uses the pixel-wise mean, without
    registration. Restarts may order records of equal labels differently: pass ``group=0`` for such batches.
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
            TotalVariation(total_variation, final_share=0.01),  # smooth images first, then details
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
    """Configure Inverting Gradients: cosine distance of gradients, Adam on signs, total variation.

    Args:
        steps: Largest number of steps of Adam.
        restarts: Number of starts, which move at once.
        total_variation: Weight of the total variation relative to the distance at the start; it falls to a hundredth
            over the budget. Pass 0 for records that are not images.
        learning_rate: Initial learning rate, in units of the data range.
        seconds: Time limit in seconds; None for no limit.
        patience: Steps without a gain of one part in a thousand after which the search stops; None for no such limit.
        parametrization: Coordinates of the candidates, such as :func:`tabular`; None searches over the values
            themselves.

    Returns:
        The configured attack.

    Raises:
        InvalidInput: If a setting is out of its domain; when the attack is called, if the threat model or the release
            does not support it.

    Assumes: nothing about the network. The scale of the update may be unknown.
    Notation: the paper keeps a fixed weight, lowers the rate in three steps and takes 4800 to 24000 steps. The settings
    here reach a smaller error in 200 to 1000 steps.
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


_EXACT = 1e-12  # relative squared error at which the search stops: float32 gradients do not get closer


def dlg(
    *,
    steps: int = 300,
    restarts: int = 4,
    seconds: float | None = None,
    parametrization: Parametrization | None = None,
) -> GradientMatching:
    """Configure Deep Leakage from Gradients: squared error over records and soft labels, by L-BFGS from normal noise.

    Args:
        steps: Largest number of L-BFGS steps.
        restarts: Number of starts, which move at once.
        seconds: Time limit in seconds; None for no limit.
        parametrization: Coordinates of the candidates, such as :func:`tabular`; None searches over the values
            themselves.

    Returns:
        The configured attack.

    Raises:
        InvalidInput: If a setting is out of its domain; when the attack is called, if the threat model or the release
            does not support it.

    Assumes: a smooth network, and a loss that takes probabilities unless the labels are known.
    Notation: 300 steps as in the paper. The single start of the paper often fails, so this attack makes several starts
    at once.
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
        labels=SoftLabels(),
        restarts=restarts,
        seconds=seconds,
        patience=40,  # L-BFGS gains in almost every step until it is stuck
        tolerance=_EXACT,
    )


def idlg(
    *,
    steps: int = 300,
    restarts: int = 4,
    seconds: float | None = None,
    parametrization: Parametrization | None = None,
) -> GradientMatching:
    """Configure improved DLG: labels are inferred from the gradient first, then only the records are optimised.

    Args:
        steps: Largest number of L-BFGS steps.
        restarts: Number of starts, which move at once.
        seconds: Time limit in seconds; None for no limit.
        parametrization: Coordinates of the candidates, such as :func:`tabular`; None searches over the values
            themselves.

    Returns:
        The configured attack.

    Raises:
        InvalidInput: If a setting is out of its domain; when the attack is called, if the threat model or the release
            does not support it.

    Assumes: as :func:`dlg`; cross-entropy, for the labels.
    Reference: Algorithm 1, `Zhao et al. (2020) <https://arxiv.org/abs/2001.02610>`_.

    >>> idlg().labels
    FixedLabels()
    """
    return GradientMatching(
        name="idlg",
        distance=SquaredError(),
        update=LBFGS(),
        steps=steps,
        start=NormalStart(),
        parametrization=Values() if parametrization is None else parametrization,
        labels=FixedLabels(),
        restarts=restarts,
        seconds=seconds,
        patience=40,  # L-BFGS gains in almost every step until it is stuck
        tolerance=_EXACT,
    )

"""Deep Leakage from Gradients, and its form with inferred labels."""

from __future__ import annotations

from reconrisk.attacks.distances import SquaredError
from reconrisk.attacks.label_strategies import GivenLabels, VariedLabels
from reconrisk.attacks.matching import GradientMatching
from reconrisk.attacks.parametrizations import Parametrization, Values
from reconrisk.attacks.starts import NormalStart
from reconrisk.attacks.updates import LBFGS

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

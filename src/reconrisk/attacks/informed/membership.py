"""Membership inference from a reconstruction of the one unknown record."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from reconrisk.core.reconstruction import Reconstruction
from reconrisk.core.validation import check_real, invalid_input


@dataclass(frozen=True, eq=False)
class Membership:
    """Candidate nearest to a reconstruction, and the certainty of this answer.

    Attributes:
        index: Nearest candidate, None if none is within the error of the reconstruction.
        distances: Root mean square difference per feature to each candidate.
        certain: True if no other answer is possible as long as the error of the reconstruction is at most ``error``.
    """

    index: int | None
    distances: NDArray[np.float64]
    certain: bool


def informed_membership(
    reconstruction: Reconstruction | ArrayLike | Tensor, candidates: ArrayLike | Tensor, *, error: float | None = None
) -> Membership:
    r"""Decide which candidate a model was trained on by comparison with a reconstruction of the unknown record.

    .. math:: \hat b = \arg\min_b |\hat z - z_b|

    Here :math:`\hat z` is the reconstruction and :math:`z_b` is candidate b.

    Args:
        reconstruction: Reconstructed record, as a :class:`Reconstruction` or an array.
        candidates: Candidate records (candidates, ...).
        error: Root mean square error per feature that the reconstruction may have, such as ``error_range[1]`` of a
            :class:`reconrisk.attacks.informed.glm.attack.GlmReconstruction`. None if it is unknown.

    Returns:
        The nearest candidate, the distances to all, and the certainty of the answer.

    Raises:
        InvalidInput: If there is no candidate, the shapes disagree, ``error`` is negative, or a single candidate comes
            without ``error``.

    Assumes: one unknown record; it is one of ``candidates``, unless ``error`` is given.
    Guarantee: right whenever the reconstruction's error is below half the distance between the candidates; ``certain``
    only if ``error`` leaves no other candidate.
    Edge cases: a single candidate needs ``error``. A failed reconstruction decides nothing: the index is None.
    Reference: Section II-D, balle2022.

    >>> decided = informed_membership([0.1, 0.9], [[0.0, 0.0], [0.0, 1.0]], error=0.2)
    >>> decided.index, decided.certain
    (1, True)
    """
    rows = np.atleast_2d(_to_floats("candidates", candidates))
    rows = rows.reshape(len(rows), -1)
    if len(rows) == 0:
        raise invalid_input("len(candidates)", 0, ">= 1", "Pass at least one record.")
    failed = isinstance(reconstruction, Reconstruction) and reconstruction.status.is_failure
    estimate = reconstruction.estimates if isinstance(reconstruction, Reconstruction) else reconstruction
    record = _to_floats("reconstruction", estimate).reshape(-1)
    if rows.shape[1] != len(record):
        raise invalid_input(
            "candidates.shape",
            rows.shape,
            f"to be (candidates, {len(record)}), as many values as the reconstruction has",
        )
    if error is None and len(rows) == 1:
        raise invalid_input(
            "error",
            None,
            "to be given for one candidate",
            "Pass a second candidate, or the error that the reconstruction may have.",
        )
    reach = math.inf if error is None else check_real("error", error)
    if reach < 0:
        raise invalid_input("error", reach, ">= 0")
    distances = np.sqrt(np.square(rows - record).mean(axis=1))
    nearest = int(distances.argmin())
    if failed or not np.isfinite(distances[nearest]):
        return Membership(None, distances, False)
    if distances[nearest] > reach:
        return Membership(None, distances, True)
    return Membership(nearest, distances, error is not None and int((distances <= reach).sum()) == 1)


def _to_floats(name: str, values: ArrayLike | Tensor) -> NDArray[np.float64]:
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    try:
        return np.asarray(array, dtype=float)
    except (TypeError, ValueError) as problem:
        raise invalid_input(name, type(values).__name__, "to be an array of numbers") from problem

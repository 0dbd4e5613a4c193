"""Membership from reconstruction: who rebuilds the one unknown record knows which candidate it was."""

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
    """The candidate nearest to a reconstruction, and whether that settles the question.

    ``distances`` are root mean square differences per feature, one for each candidate. ``index`` is the nearest, or
    None if no candidate is within the error that the reconstruction may have. ``certain`` says that the reconstruction,
    if its error is at most what was stated, leaves one answer only.
    """

    index: int | None
    distances: NDArray[np.float64]
    certain: bool


def informed_membership(
    reconstruction: Reconstruction | ArrayLike | Tensor, candidates: ArrayLike | Tensor, *, error: float | None = None
) -> Membership:
    r"""Decide which candidate a model was trained on by comparing each with a reconstruction of the unknown record.

    .. math:: \hat b = \arg\min_b |\hat z - z_b|

    Assumes: one unknown record; it is one of ``candidates``, unless ``error`` is given.
    Notation: ``error`` is the root mean square error per feature that the reconstruction may have, such as
    ``error_range[1]`` of a :class:`reconrisk.attacks.informed.glm.attack.GlmReconstruction`.
    Guarantee: right whenever the reconstruction's error is below half the distance between the candidates; ``certain``
    only if ``error`` leaves no other candidate.
    Edge cases: a single candidate needs ``error``; a reconstruction that failed decides nothing: the index is None.
    Reference: Section II-D, balle2022.

    >>> decided = informed_membership([0.1, 0.9], [[0.0, 0.0], [0.0, 1.0]], error=0.2)
    >>> decided.index, decided.certain
    (1, True)
    """
    rows = np.atleast_2d(_numbers("candidates", candidates))
    rows = rows.reshape(len(rows), -1)
    if len(rows) == 0:
        raise invalid_input("candidates", "none", "to be at least one record")
    failed = isinstance(reconstruction, Reconstruction) and reconstruction.status.is_failure
    estimate = reconstruction.estimates if isinstance(reconstruction, Reconstruction) else reconstruction
    record = _numbers("reconstruction", estimate).reshape(-1)
    if rows.shape[1] != len(record):
        raise invalid_input("candidates.shape", rows.shape, f"to be (candidates, {len(record)}), as the reconstruction")
    if error is None and len(rows) == 1:
        raise invalid_input(
            "error", None, "to be given for one candidate", "Pass two candidates, or how near is near enough."
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


def _numbers(name: str, values: ArrayLike | Tensor) -> NDArray[np.float64]:
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    try:
        return np.asarray(array, dtype=float)
    except (TypeError, ValueError) as problem:
        raise invalid_input(name, type(values).__name__, "to be an array of numbers") from problem

"""Vectors and symmetric matrices as arguments: checked once, never repaired."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reconrisk.core.validation import check_not_empty, invalid_input

Floats = NDArray[np.float64]

_EPSILON = float(np.finfo(float).eps)


def finite_array(name: str, value: ArrayLike, *, dimensions: tuple[int, ...], remedy: str = "") -> Floats:
    """A finite array with one of the numbers of axes in ``dimensions``.

    >>> finite_array("low", [0.0, 1.0], dimensions=(1,)).tolist()
    [0.0, 1.0]
    """
    try:
        array = np.asarray(value, dtype=float)
    except (TypeError, ValueError) as error:
        raise invalid_input(name, value, "to be an array of numbers", remedy) from error
    if array.ndim not in dimensions:
        allowed = " or ".join(str(number) for number in dimensions)
        raise invalid_input(f"{name}.shape", array.shape, f"to have {allowed} axes", remedy)
    if array.ndim:
        check_not_empty(name, array.ravel().tolist()[:1], remedy)
    if not np.isfinite(array).all():
        bad = np.argwhere(~np.isfinite(array))[0]
        raise invalid_input(f"{name}[{', '.join(map(str, bad))}]", float(array[tuple(bad)]), "to be finite", remedy)
    return array


def nonnegative_array(name: str, value: ArrayLike, *, dimensions: tuple[int, ...], remedy: str = "") -> Floats:
    """A finite array without negative numbers."""
    array = finite_array(name, value, dimensions=dimensions, remedy=remedy)
    if (array < 0).any():
        bad = np.argwhere(array < 0)[0]
        raise invalid_input(f"{name}[{', '.join(map(str, bad))}]", float(array[tuple(bad)]), ">= 0", remedy)
    return array


def square_matrix(name: str, value: ArrayLike, *, remedy: str = "") -> Floats:
    """A symmetric matrix; a vector stands for the diagonal one.

    >>> square_matrix("information", [1.0, 2.0]).tolist()
    [[1.0, 0.0], [0.0, 2.0]]
    """
    array = finite_array(name, value, dimensions=(1, 2), remedy=remedy)
    matrix = np.diag(array) if array.ndim == 1 else array
    if matrix.shape[0] != matrix.shape[1]:
        raise invalid_input(f"{name}.shape", matrix.shape, "to be square", remedy)
    asymmetry = float(np.abs(matrix - matrix.T).max())
    if asymmetry > 1e-8 * float(np.abs(matrix).max()):
        raise invalid_input(name, f"asymmetric by {asymmetry:.3g}", "to be symmetric", remedy)
    return np.asarray((matrix + matrix.T) / 2)


def eigenvalue_error(eigenvalues: Floats) -> float:
    """How far computed eigenvalues may be from the true ones: the backward error of a symmetric solver."""
    return 4 * len(eigenvalues) * _EPSILON * float(np.abs(eigenvalues).max(initial=0.0))


def nonnegative_eigenvalues(name: str, matrix: Floats, *, remedy: str = "") -> tuple[Floats, Floats, float]:
    """Eigenvalues and eigenvectors of a symmetric matrix, and how far the eigenvalues may be off.

    What rounding put below zero counts as zero. A diagonal matrix has its diagonal, exactly.

    >>> nonnegative_eigenvalues("information", np.diag([2.0, 0.0]))[0::2]
    (array([2., 0.]), 0.0)
    """
    if np.count_nonzero(matrix - np.diag(np.diagonal(matrix))):
        values, vectors = np.linalg.eigh(matrix)
        error = eigenvalue_error(values)
    else:
        values, vectors, error = np.diagonal(matrix), np.eye(len(matrix)), 0.0
    if values.min() < -error:
        raise invalid_input(name, f"with eigenvalue {values.min():.6g}", "to be positive semidefinite", remedy)
    return np.maximum(values, 0.0), vectors, error

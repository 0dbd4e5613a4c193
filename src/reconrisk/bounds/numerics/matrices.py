"""Validation of vectors and symmetric matrices."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import check_not_empty, invalid_input

Floats = NDArray[np.float64]

_EPSILON = float(np.finfo(float).eps)


def finite_array(name: str, value: ArrayLike, *, dimensions: tuple[int, ...], remedy: str = "") -> Floats:
    """Return a finite array with an allowed number of axes.

    Args:
        name: Name of the argument, for the error message.
        value: Value to check.
        dimensions: Allowed numbers of axes.
        remedy: Advice at the end of the error message.

    Returns:
        The value as an array of floats.

    Raises:
        InvalidInput: If the value is no array of finite numbers, is empty, or has another number of axes.

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
    """Return a finite array without negative numbers.

    Args:
        name: Name of the argument, for the error message.
        value: Value to check.
        dimensions: Allowed numbers of axes.
        remedy: Advice at the end of the error message.

    Returns:
        The value as an array of floats.

    Raises:
        InvalidInput: As :func:`finite_array`, or if a number is negative.
    """
    array = finite_array(name, value, dimensions=dimensions, remedy=remedy)
    if (array < 0).any():
        bad = np.argwhere(array < 0)[0]
        raise invalid_input(f"{name}[{', '.join(map(str, bad))}]", float(array[tuple(bad)]), ">= 0", remedy)
    return array


def square_matrix(name: str, value: ArrayLike, *, remedy: str = "") -> Floats:
    """Return a symmetric matrix; a vector is read as a diagonal matrix.

    Args:
        name: Name of the argument, for the error message.
        value: Matrix or diagonal.
        remedy: Advice at the end of the error message.

    Returns:
        The symmetric part of the matrix.

    Raises:
        InvalidInput: If the matrix is not square, or not symmetric up to a relative 1e-8.

    >>> square_matrix("information", [1.0, 2.0]).tolist()
    [[1.0, 0.0], [0.0, 2.0]]
    """
    array = finite_array(name, value, dimensions=(1, 2), remedy=remedy)
    matrix = np.diag(array) if array.ndim == 1 else array
    if matrix.shape[0] != matrix.shape[1]:
        raise invalid_input(f"{name}.shape", matrix.shape, "to be square", remedy)
    asymmetry = float(np.abs(matrix - matrix.T).max())
    if asymmetry > 1e-8 * float(np.abs(matrix).max()):  # more than rounding of float64 sums, less than a mistake
        raise InvalidInput(f"Expected {name} to be symmetric, found an asymmetry of {asymmetry:.3g}. {remedy}".rstrip())
    return np.asarray((matrix + matrix.T) / 2)


def eigenvalue_error(eigenvalues: Floats) -> float:
    """Upper bound on the error of computed eigenvalues: the backward error of a symmetric solver.

    Args:
        eigenvalues: Computed eigenvalues of a symmetric matrix.

    Returns:
        The bound, the same for each eigenvalue.
    """
    return 4 * len(eigenvalues) * _EPSILON * float(np.abs(eigenvalues).max(initial=0.0))


def nonnegative_eigenvalues(name: str, matrix: Floats, *, remedy: str = "") -> tuple[Floats, Floats, float]:
    """Compute eigenvalues and eigenvectors of a positive semidefinite matrix, with an error bound.

    Eigenvalues that rounding made negative become zero. For a diagonal matrix the eigenvalues are exact.

    Args:
        name: Name of the argument, for the error message.
        matrix: Symmetric matrix.
        remedy: Advice at the end of the error message.

    Returns:
        Eigenvalues, eigenvectors as columns, and the largest possible error of an eigenvalue.

    Raises:
        InvalidInput: If an eigenvalue is negative beyond rounding.

    >>> nonnegative_eigenvalues("information", np.diag([2.0, 0.0]))[0::2]
    (array([2., 0.]), 0.0)
    """
    if np.count_nonzero(matrix - np.diag(np.diagonal(matrix))):
        values, vectors = np.linalg.eigh(matrix)
        error = eigenvalue_error(values)
    else:
        values, vectors, error = np.diagonal(matrix), np.eye(len(matrix)), 0.0  # no solver, no error
    if values.min() < -error:
        found = f"found the eigenvalue {values.min():.6g}"
        raise InvalidInput(f"Expected {name} to be positive semidefinite, {found}. {remedy}".rstrip())
    return np.maximum(values, 0.0), vectors, error

import math

import numpy as np
import pytest

from reconrisk.bounds.numerics.matrices import finite_array, nonnegative_array, nonnegative_eigenvalues, square_matrix
from reconrisk.core.errors import InvalidInput


def test_rounding_below_zero_counts_as_zero_but_no_more():
    vector = np.random.default_rng(0).standard_normal((6, 1))
    values, _, error = nonnegative_eigenvalues("information", vector @ vector.T)
    assert (values >= 0).all()
    assert (values[:-1] <= error).all()
    with pytest.raises(InvalidInput, match="information to be positive semidefinite, found the eigenvalue -1"):
        nonnegative_eigenvalues("information", np.array([[0.0, 1.0], [1.0, 0.0]]))
    with pytest.raises(InvalidInput, match="semidefinite"):
        nonnegative_eigenvalues("information", np.diag([1.0, -1e-30]))


def test_diagonals_are_exact():
    values, _, error = nonnegative_eigenvalues("information", np.diag([1.0, 1e-30]))
    assert values.tolist() == [1.0, 1e-30]
    assert error == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: finite_array("low", [[1.0]], dimensions=(0, 1)), r"low.shape=\(1, 1\) to have 0 or 1 axes"),
        (lambda: finite_array("low", [1.0, math.nan], dimensions=(1,)), r"low\[1\]=nan to be finite"),
        (lambda: finite_array("low", math.inf, dimensions=(0,)), "to be finite"),
        (lambda: finite_array("low", [], dimensions=(1,)), "empty"),
        (lambda: finite_array("low", "word", dimensions=(0,)), "array of numbers"),
        (lambda: nonnegative_array("low", [0.0, -1.0], dimensions=(1,)), r"low\[1\]=-1.0 >= 0"),
        (lambda: square_matrix("S", [[1.0, 2.0, 3.0]]), "to be square"),
        (lambda: square_matrix("S", [[1.0, 2.0], [3.0, 1.0]]), "to be symmetric"),
    ],
)
def test_bad_arrays_are_named(call, message):
    with pytest.raises(InvalidInput, match=message):
        call()

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from reconrisk.bounds.numerics.hits import Hits, log_average_upper_bound


def rising(scale):
    return lambda counts: -scale / (1.0 + np.asarray(counts, dtype=float))


@given(attempts=st.integers(1, 900), probability=st.floats(0.001, 0.999), scale=st.floats(0.1, 50))
def test_it_is_the_exact_mean_while_every_count_is_a_rung(attempts, probability, scale):
    counts = np.arange(attempts + 1)
    exact = math.log(np.sum(binom(attempts, probability).pmf(counts) * np.exp(rising(scale)(counts))))
    assert log_average_upper_bound(Hits(attempts, probability), rising(scale)) == pytest.approx(exact, abs=1e-9)


@given(attempts=st.integers(1001, 20_000), probability=st.floats(0.001, 0.5), scale=st.floats(0.1, 50))
def test_with_more_counts_it_lies_above_the_mean_by_little(attempts, probability, scale):
    counts = np.arange(attempts + 1)
    exact = math.log(np.sum(binom(attempts, probability).pmf(counts) * np.exp(rising(scale)(counts))))
    bound = log_average_upper_bound(Hits(attempts, probability), rising(scale))
    assert exact - 1e-9 <= bound <= exact + 2e-3 * (1 + abs(exact))


def test_nothing_possible_stays_impossible():
    assert log_average_upper_bound(Hits(5, 0.5), lambda counts: np.full(len(counts), -math.inf)) == -math.inf

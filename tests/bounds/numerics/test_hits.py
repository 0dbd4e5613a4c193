import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from reconrisk.bounds.numerics.hits import Hits, dominating_phase, one_phase, phases
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import Composed, Neighbouring, PureDP, dp_sgd


@given(attempts=st.integers(1, 500), probability=st.floats(0.001, 1.0))
@settings(max_examples=50, deadline=None)
def test_mass_function_sums_to_one_and_equals_scipy(attempts, probability):
    hits = Hits(attempts, probability)
    counts = np.arange(attempts + 1)
    mass = np.exp(hits.log_pmf(counts))
    assert mass.sum() == pytest.approx(1, abs=1e-10)
    np.testing.assert_allclose(mass, stats.binom.pmf(counts, attempts, probability), atol=1e-11)


@given(attempts=st.integers(1, 300), probability=st.floats(0.001, 0.999))
@example(attempts=197, probability=0.01)
@example(attempts=176, probability=0.005)
@settings(max_examples=50, deadline=None)
def test_tail_is_never_too_small(attempts, probability):
    hits = Hits(attempts, probability)
    counts = np.arange(attempts + 1)
    tails = np.logaddexp.accumulate(hits.log_pmf(counts)[::-1])[::-1]
    assert (hits.log_at_least(counts) >= tails - 1e-9 * (1 + np.abs(tails))).all()


def test_chernoff_takes_over_where_the_tail_underflows():
    hits = Hits(100_000, 0.001)
    assert -math.inf < float(hits.log_at_least(5000)) < -6000
    assert float(hits.log_at_least(5000)) >= float(hits.log_pmf(5000))


def test_phases_of_a_schedule():
    schedule = Composed((dp_sgd(noise_multiplier=2.0, steps=4), dp_sgd(noise_multiplier=1.0, sampling_probability=0.5)))
    assert phases(schedule) == ((2.0, Hits(4, 1.0)), (1.0, Hits(1, 0.5)))
    assert dominating_phase(schedule) == (1.0, Hits(5, 1.0))
    with pytest.raises(InvalidInput, match="to have one phase"):
        one_phase(schedule)


def test_full_batch_phases_add_their_information():
    noise, hits = dominating_phase(Composed((dp_sgd(noise_multiplier=2.0, steps=4), dp_sgd(noise_multiplier=1.0))))
    assert noise == pytest.approx(1 / math.sqrt(4 / 4 + 1))
    assert hits == Hits(1, 1.0)


def test_an_epsilon_alone_is_refused():
    with pytest.raises(InvalidInput, match=r"mechanism=PureDP.*Pass dp_sgd"):
        phases(PureDP(1.0, Neighbouring.REPLACE_ONE))

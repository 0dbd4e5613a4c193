import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconrisk.core.errors import InvalidInput
from reconrisk.core.guarantee import (
    EXACT_NOISE,
    IDEAL_NOISE,
    CoveredRelease,
    Estimate,
    Guarantee,
    Quantity,
    Scope,
)
from reconrisk.core.mechanism import Gaussian
from reconrisk.core.papers import PAPERS, Reference
from reconrisk.core.storage.serialization import from_plain, to_plain
from reconrisk.core.threat import HONEST_BUT_CURIOUS, STRONGEST


def bound(quantity, value, threat=STRONGEST):
    return Guarantee(
        quantity, value, Gaussian(1.0), Scope.ANY_ADVERSARY_WITH_PRIOR, threat, Reference("Theorem 1", "guo2022")
    )


probabilities = st.floats(min_value=0, max_value=1)


@given(probabilities, probabilities, probabilities)
def test_a_success_bound_is_contradicted_only_by_a_whole_interval_above_it(value, one, other):
    low, high = sorted((one, other))
    measured = Estimate(low, low, high, 0.95, 10, "Clopper-Pearson")
    assert bound(Quantity.SUCCESS_PROBABILITY, value).is_contradicted_by(measured) == (low > value)


@given(probabilities, probabilities, probabilities)
def test_an_error_bound_is_contradicted_only_by_a_whole_interval_below_it(value, one, other):
    low, high = sorted((one, other))
    measured = Estimate(high, low, high, 0.95, 10, "normal")
    assert bound(Quantity.MEAN_SQUARED_ERROR, value).is_contradicted_by(measured) == (high < value)


@given(probabilities)
def test_a_trivial_bound_is_never_contradicted(measured):
    estimate = Estimate(measured, measured, measured, 0.95, 10, "exact")
    for quantity, value in ((Quantity.SUCCESS_PROBABILITY, 1.0), (Quantity.MEAN_SQUARED_ERROR, 0.0)):
        assert bound(quantity, value).is_trivial
        assert not bound(quantity, value).is_contradicted_by(estimate)


def test_a_guarantee_covers_what_its_threat_covers():
    assert bound(Quantity.SUCCESS_PROBABILITY, 0.5).covers(HONEST_BUT_CURIOUS)
    assert not bound(Quantity.SUCCESS_PROBABILITY, 0.5, HONEST_BUT_CURIOUS).covers(STRONGEST)


def test_a_guarantee_for_one_release_covers_no_other():
    narrow = replace(bound(Quantity.SUCCESS_PROBABILITY, 0.5), release=CoveredRelease.LINEAR)
    assert not narrow.covers(HONEST_BUT_CURIOUS)
    assert narrow.covers(HONEST_BUT_CURIOUS, release=CoveredRelease.LINEAR)
    assert not narrow.covers(HONEST_BUT_CURIOUS, release=CoveredRelease.DIRECTION)
    assert bound(Quantity.SUCCESS_PROBABILITY, 0.5).covers(HONEST_BUT_CURIOUS, release=CoveredRelease.LINEAR)


def test_a_file_without_the_release_of_the_direction_covers_that_release_only():
    plain = to_plain(replace(bound(Quantity.SUCCESS_PROBABILITY, 0.5), scope=Scope.KNOWN_NORM_UNIFORM_DIRECTION))
    del plain["release"]
    assert from_plain(plain).release is CoveredRelease.DIRECTION


def test_exact_noise_has_other_assumptions_which_the_table_lists_below_its_fields():
    ideal = replace(bound(Quantity.SUCCESS_PROBABILITY, 0.5), assumptions=("one", IDEAL_NOISE))
    exact = ideal.with_exact_noise()
    assert exact.assumptions == ("one", *EXACT_NOISE)
    assert exact.with_exact_noise() == exact
    fields, *listed = ideal.table().split("Assumes:\n")
    assert "law of real numbers" not in fields
    assert listed == [f"  - one\n  - {IDEAL_NOISE}"]
    assert IDEAL_NOISE in ideal.sentence


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, math.inf])
def test_probabilities_outside_their_range_are_refused(value):
    with pytest.raises(InvalidInput, match="value"):
        bound(Quantity.SUCCESS_PROBABILITY, value)


@pytest.mark.parametrize("value", [-0.1, math.nan])
def test_errors_below_zero_are_refused(value):
    with pytest.raises(InvalidInput, match="value"):
        bound(Quantity.MEAN_SQUARED_ERROR, value)


@pytest.mark.parametrize("numbers", [(0.5, 0.6, 0.7), (0.5, 0.1, 0.4), (math.nan, 0.0, 1.0)])
def test_an_estimate_lies_in_its_interval(numbers):
    with pytest.raises(InvalidInput, match="value"):
        Estimate(*numbers, confidence=0.95, samples=3, method="test")


def test_sentences_name_side_scope_and_source():
    text = str(bound(Quantity.SUCCESS_PROBABILITY, 0.25))
    assert text == "success probability at most 0.25 (any adversary with this prior; Theorem 1, guo2022)"
    assert str(Estimate(0.5, 0.25, 0.75, 0.95, 8, "Clopper-Pearson")) == (
        "0.5 [0.25, 0.75] (95% Clopper-Pearson, 8 samples)"
    )


def test_every_paper_has_a_citation_with_an_address():
    assert {"riess2025", "guo2022", "balle2022", "meng2025", "chen2025", "hayes2023", "kaissis2023"} == set(PAPERS)
    assert all("https://arxiv.org/abs/" in citation for citation in PAPERS.values())

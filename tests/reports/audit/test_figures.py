"""Marks stand where their numbers say."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconrisk.core.guarantee import Estimate
from reconrisk.reports.audit.figures import NARROW, WIDE, axis_of, corridor_of_attacks, undominated, whisker
from reconrisk.reports.audit.words import format_bound, headline, interval
from reconrisk.reports.drawing import Axis, text
from tests.reports.audit.audit_example import GOALS, example_result, share

NUMBERS = st.floats(-1e6, 1e6)


@given(st.lists(st.one_of(NUMBERS, st.just(math.inf), st.just(-math.inf)), min_size=1), st.booleans())
def test_an_axis_keeps_order_and_all_values_inside(values: list[float], positive: bool):
    shown = [abs(value) for value in values] if positive else values
    axis = axis_of(shown, 10.0, 310.0)
    places = [axis.at(value) for value in sorted(shown)]
    assert places == sorted(places)
    assert all(10 <= place <= 310 for place in places)
    assert all(axis.low - 1e-9 <= tick <= axis.high * (1 + 1e-9) + 1e-9 for tick in axis.ticks())


@given(st.floats(1e-9, 1e9), st.floats(0.0, 1e3))
def test_ticks_are_few_and_even(width: float, low: float):
    ticks = Axis(low, low + width, 0.0, 100.0).ticks()
    assert len(ticks) <= 7


def test_a_whisker_spans_its_interval():
    marks = "".join(whisker(Axis(0.0, 1.0, 0.0, 100.0), share(0.5, 0.25, 0.75), 10.0, "attack"))
    assert 'x1="25" y1="10" x2="75" y2="10"' in marks
    assert 'cx="50" cy="10"' in marks
    assert whisker(Axis(0.0, 1.0, 0.0, 100.0), share(0.0, 0.0, 1.0, samples=0), 10.0, "attack") == []


def test_the_bound_is_drawn_where_it_is_and_only_where_there_is_one():
    figure = str(corridor_of_attacks(example_result(), GOALS[0]))
    drawn = [float(x) for x in re.findall(r'<line x1="([\d.]+)"[^>]*class="bound"', figure)]
    assert drawn == [pytest.approx(12 + 0.3 * (width - 24), abs=0.01) for width in (WIDE, NARROW)]
    assert figure.count('class="open"') == 2


def test_the_smallest_compared_bound_on_success_counts():
    line = example_result().lines[1]
    first, other = line.comparisons
    smaller = replace(first, guarantee=replace(first.guarantee, value=0.2, log_value=None))
    unrelated = replace(first, guarantee=replace(first.guarantee, value=0.1, log_value=None), is_compared=False)
    found = replace(line, comparisons=(first, smaller, unrelated, other)).bound
    assert found is not None
    assert found.value == 0.2
    assert replace(line, comparisons=(unrelated, other)).bound is None


def test_a_label_is_cut_and_keeps_its_whole_as_a_tooltip():
    assert "<title>" not in text(0, 0, "short", room=300)
    cut = text(0, 0, "long" * 40, room=100)
    assert f"<title>{'long' * 40}</title>" in cut
    assert "…" in cut


def test_only_what_nothing_beats_is_on_the_frontier():
    points = [
        (0.0, share(0.9, 0.8, 1)),
        (1.0, share(0.95, 0.8, 1)),
        (2.0, share(0.1, 0, 0.2)),
        (3.0, share(0.1, 0, 0.2)),
    ]
    assert undominated(points) == [(0.0, 0.9), (2.0, 0.1)]


@given(st.floats(0, 1), st.floats(0, 1))
def test_intervals_are_rounded_outwards(one: float, other: float):
    low, high = sorted((one, other))
    written = interval(Estimate(low, low, high, 0.95, 10, "x"))
    shown_low, shown_high = (float(each) for each in re.findall(r"([\d.e+-]+)%", written))
    assert shown_low <= 100 * low * (1 + 1e-11)
    assert shown_high >= min(100.0, 100 * high) * (1 - 1e-11)


def test_bounds_are_written_on_the_safe_side():
    guarantee = example_result().lines[1].comparisons[0].guarantee
    assert format_bound(replace(guarantee, value=0.123456, log_value=None)) == "≤ 12.35%"
    assert format_bound(replace(guarantee, value=1.2345e-9, log_value=None)) == "≤ 1.24e-09"


def test_the_headline_names_the_defenses_above_the_limit():
    assert headline(example_result()).text == "The risk is above the limit without a defense and under noise."

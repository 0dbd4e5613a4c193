"""What notebooks show of an audit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reconrisk.studies.audit.comparison import compare
from tests.reports.audit.audit_example import example_result
from tests.reports.audit.test_page import HOSTILE, Outline


def test_one_row_for_each_goal_and_defense_with_a_mark():
    result = example_result()
    page = Outline(result._repr_html_())
    assert page.open == []
    assert len(page.all("tr")) == 1 + len(result.lines)
    assert len(page.all("svg")) == len(result.lines)
    words = " ".join(page.words)
    for each in ("90% [75, 98]", "≤ 30%", "noise", "above the limit", "2 of 160 trials were not run"):
        assert each in words, each


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_becomes_no_markup(name: str):
    plain, hostile = (Outline(example_result(name=each)._repr_html_()) for each in ("x", name))
    assert hostile.skeleton == plain.skeleton


def compared(name: str = ""):
    """What changed where nothing is rebuilt any more, and the seed differs."""
    before = example_result(name=name)
    nothing = replace(before.lines[0].success, value=0.0, low=0.0, high=0.1)
    kept = (before.lines[0], *before.lines[2:])
    lines = tuple(replace(line, success=nothing) for line in kept)
    subject = replace(before.subject, model=f"Other{name}")
    return compare(before, replace(before, seed=8, lines=lines, subject=subject))


def test_two_rows_for_each_line_of_a_comparison_with_what_changed():
    comparison = compared()
    page = Outline(comparison._repr_html_())
    assert page.open == []
    assert len(page.all("tr")) == 1 + 2 * len(comparison.lines)
    assert len(page.all("svg")) == 2 * len(comparison.lines)
    words = " ".join(page.words)
    for each in ("90% [75, 98]", "0% [0, 10", "before", "after", "less is rebuilt (p = ", "seed: 7 -> 8", "≤ 30%"):
        assert each in words, each
    assert f"only before: {comparison.only_before[0]}" in words


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_in_a_comparison_becomes_no_markup(name: str):
    plain, hostile = (Outline(compared(each)._repr_html_()) for each in ("x", name))
    assert hostile.skeleton == plain.skeleton

"""What notebooks show of an audit."""

from __future__ import annotations

import pytest

from tests.reports.audit_example import example_result
from tests.reports.test_audit_report import HOSTILE, Outline


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

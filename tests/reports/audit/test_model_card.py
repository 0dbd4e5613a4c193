"""The snippet for a model card: all numbers, no record, and Markdown of nobody else."""

from __future__ import annotations

import re

import pytest
from markdown_it import MarkdownIt

from reconrisk.reports.audit.model_card import model_card
from tests.reports.audit.audit_example import example_result
from tests.reports.audit.test_page import HOSTILE, Outline

HOSTILE_MARKDOWN = (
    *HOSTILE,
    "`code` ``more`` `",
    "a | b | c",
    "](https://example.org) [x](y) ![z](w)",
    "\n\n# Heading\n\n| a |\n|---|\n",
    "**bold** _it_ ~~gone~~ $x$",
    "\\",
    " https://example.org www.example.org a@example.org",
)


def rendered(text: str) -> Outline:
    return Outline(MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(text))


def test_it_names_goals_defenses_numbers_and_threat_but_no_record():
    text = model_card(example_result())
    expected = ("`psnr>=20`", "`noise`", "90%", "75% to 98%", "≤ 30%", "above the limit", "how the update was defended",
                "seed 7", "158 of 160 trials", "reconrisk 0.1.0 on 2026-01-02")  # fmt: skip
    for each in expected:
        assert each in text, each
    assert "record 17" not in text
    assert text.count("\n| ") == 2 + len(example_result().lines)


@pytest.mark.parametrize("name", HOSTILE_MARKDOWN)
def test_a_hostile_name_renders_as_text(name: str):
    plain = rendered(model_card(example_result(name="x")))
    page = rendered(model_card(example_result(name=name)))
    assert page.skeleton == plain.skeleton


def test_no_address_stands_outside_of_code():
    text = model_card(example_result(name=" https://example.org www.example.org a@example.org"))
    outside = re.sub(r"`[^`]*`", "", text)
    assert "https://" not in outside
    assert "www." not in outside
    assert "a@" not in outside

"""Any result as JSON, CSV, Markdown and a page: complete, and nobody's markup."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from markdown_it import MarkdownIt

from reconrisk.core.errors import InvalidInput
from tests.reports.audit.test_page import HOSTILE, Outline
from tests.result_examples import result_examples


def named(name: str) -> object:
    return replace(result_examples()["leakage-report"], data=f"toy{name}", model=f"m{name}")


def test_csv_has_every_row_with_numbers_in_full(tmp_path: Path) -> None:
    result = result_examples()["tradeoff-result"]
    with result.save(tmp_path / "x.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(result.rows)
    for row, found in zip(result.rows, rows, strict=True):
        assert float(found["mse"]) == row.mse.value
        assert float(found["psnr"]) == row.psnr.value
        assert found["strength"] == ("" if row.strength is None else repr(row.strength))
    assert math.inf in [float(found["psnr"]) for found in rows]


def test_markdown_and_page_hold_sentence_and_table(tmp_path: Path) -> None:
    result = result_examples()["recommendation"]
    page = result.save(tmp_path / "x.html").read_text(encoding="utf-8")
    words = " ".join(Outline(page).words)
    assert result.sentence in words
    assert result.table() in words
    assert "<title>Recommendation</title>" in page
    tokens = MarkdownIt().parse(result.save(tmp_path / "x.md").read_text(encoding="utf-8"))
    assert [token.content for token in tokens if token.type == "fence"] == [result.table() + "\n"]
    (sentence,) = [token for token in tokens if token.type == "inline"]
    assert "".join(child.content for child in sentence.children) == result.sentence


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_becomes_no_markup(name: str, tmp_path: Path) -> None:
    pages = [
        Outline(named(each).save(tmp_path / "x.html").read_text(encoding="utf-8")).skeleton
        for each in ("x" * len(name), name)
    ]
    assert pages[0] == pages[1]
    cards = [
        [token.type for token in MarkdownIt().parse(named(each).save(tmp_path / "x.md").read_text(encoding="utf-8"))]
        for each in ("x", f"{name}```\n# head\n")
    ]
    assert cards[0] == cards[1]


def test_the_page_asks_for_nothing_from_elsewhere(tmp_path: Path) -> None:
    page = result_examples()["calibration"].save(tmp_path / "x.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    assert "http" not in page.replace('http-equiv="Content-Security-Policy"', "")


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("old")
    with pytest.raises(InvalidInput, match="Store arrays as safetensors"):
        replace(result_examples()["audit-result"], seed=np.zeros(3)).save(path)
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["x.json"]

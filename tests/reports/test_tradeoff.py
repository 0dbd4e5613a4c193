"""The picture of a frontier: every family, both attackers, whole or not at all, and no markup from names."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from matplotlib.container import ErrorbarContainer
from PIL import Image

from reconrisk.core.errors import InvalidInput
from reconrisk.reports.tradeoff import _figure
from reconrisk.studies.tradeoff.result import ATTACKERS, AttackScore, TradeoffCell, TradeoffResult, rows_from_cells

_STRANGE = r"_<script>alert(1)</script> & $\nothing"


def _cell(family: str, strength: float | None, seed: int, accuracy: float, mse: float) -> TradeoffCell:
    psnr = math.inf if mse == 0 else -10 * math.log10(mse)
    scores = tuple(AttackScore(attacker, "solve", False, mse, psnr) for attacker in ATTACKERS)
    numbers = (1 - accuracy, 1 - accuracy, accuracy, False, 1.0, -mse, math.inf if mse == 0 else 1 / mse, mse / 2)
    return TradeoffCell(family, strength, seed, *numbers, scores, 1.0)


def _result(seeds: int = 3, name: str = "optimal noise") -> TradeoffResult:
    cells = [
        cell
        for seed in range(seeds)
        for cell in (
            _cell("none", None, seed, 0.9 + seed / 100, 0.0),
            _cell(name, 0.1, seed, 0.9, 0.01 * (1 + seed / 10)),
            _cell(name, 1.0, seed, 0.8, 0.1),
            _cell("pruning", 0.5, seed, 0.7, 1e-13),
            _cell("pruning", 0.9, seed, 0.5, 0.05),
        )
    ]
    rows = rows_from_cells(cells, confidence=0.95)
    return TradeoffResult(rows, tuple(cells), "test_accuracy", "mse", 0.95, True, ("note",), "rr.tradeoff(...)")


def _points(result: TradeoffResult, panel: int) -> dict[str, list[tuple[float, float]]]:
    """What is drawn in a panel, by its label."""
    drawn = [each for each in _figure(result).axes[panel].containers if isinstance(each, ErrorbarContainer)]
    return {str(each.get_label()): [tuple(point) for point in each.lines[0].get_xydata()] for each in drawn}


def test_every_row_is_drawn_where_it_belongs() -> None:
    result = _result()
    for panel in (0, 1):
        points = _points(result, panel)
        assert set(points) == {"optimal noise", "pruning", "no defense"}
        assert points["optimal noise"] == [pytest.approx((0.9, 0.011)), pytest.approx((0.8, 0.1))]
    titles = [axis.get_title() for axis in _figure(result).axes]
    assert "does not know" in titles[0]
    assert "knows" in titles[1]


def test_exact_copies_stand_at_the_end_below_all_others() -> None:
    points = _points(_result(), 0)
    shown = [y for family in points.values() for _, y in family]
    floor = points["no defense"][0][1]
    assert floor == points["pruning"][0][1] == min(shown)
    assert 0 < floor < 0.011
    texts = [text.get_text() for text in _figure(_result()).axes[0].texts]
    assert "(0)" in texts
    assert "0.5 (1e-13)" in texts


def test_better_is_up_and_right() -> None:
    axis = _figure(_result().with_measures(utility="training_loss", leakage="psnr")).axes[0]
    assert axis.xaxis_inverted()
    assert axis.yaxis_inverted()
    axis = _figure(_result()).axes[0]
    assert not axis.xaxis_inverted()
    assert not axis.yaxis_inverted()


def test_the_front_is_ringed() -> None:
    result = _result()
    (rings,) = [line for line in _figure(result).axes[1].lines if line.get_label() == "Pareto front"]
    assert len(rings.get_xydata()) == len(result.pareto_rows("aware")) == 3


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf", "html"])
@pytest.mark.parametrize("seeds", [1, 3])
def test_files_are_written(tmp_path: Path, suffix: str, seeds: int) -> None:
    path = _result(seeds, _STRANGE).save(tmp_path / "new" / f"frontier.{suffix}")
    assert [each.name for each in path.parent.iterdir()] == [f"frontier.{suffix}"]
    if suffix == "png":
        with Image.open(path) as picture:
            assert min(picture.size) > 500
    if suffix == "html":
        page = path.read_text(encoding="utf-8")
        assert "<script" not in page
        assert "&lt;script&gt;" in page
        assert "is at least as good as" in page
        assert "http" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
            "http://creativecommons.org", ""
        ).replace("https://matplotlib.org", "")


@pytest.mark.parametrize("utility", ["test_accuracy", "training_loss", "test_loss", "utility_1", "utility_2"])
@pytest.mark.parametrize("leakage", ["mse", "psnr", "fisher_trace", "mse_bound"])
def test_every_pair_of_measures_can_be_drawn(utility: str, leakage: str) -> None:
    figure = _figure(_result(2).with_measures(utility=utility, leakage=leakage))
    for axis in figure.axes:
        assert all(math.isfinite(value) for line in axis.lines for value in line.get_xydata().ravel())


def test_other_formats_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"to end in one of .*\.png"):
        _result().save(tmp_path / "frontier.gif")
    assert not list(tmp_path.iterdir())

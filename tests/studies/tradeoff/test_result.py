"""The table of a frontier: its Pareto front against an oracle, dominance by hand, intervals, and the round trip."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconrisk.core.errors import InvalidInput
from reconrisk.core.storage.serialization import from_json, to_json
from reconrisk.studies.tradeoff.result import (
    ATTACKERS,
    AttackScore,
    TradeoffCell,
    TradeoffResult,
    pareto_front,
    rows_from_cells,
)

_GRID = st.integers(0, 4).map(float)


def _cell(
    family: str, strength: float | None, seed: int, accuracy: float, mse: float, **changed: object
) -> TradeoffCell:
    scores = tuple(
        AttackScore(attacker, attack, attack == "guess", error, -10 * math.log10(error) if error else math.inf)
        for attacker in ATTACKERS
        for attack, error in (("solve", mse), ("guess", 0.5))
    )
    stated: dict[str, object] = {
        "training_loss": 1 - accuracy,
        "test_loss": 1 - accuracy,
        "test_accuracy": accuracy,
        "diverged": False,
        "utility_1": 1.0,
        "utility_2": -mse,
        "fisher_trace": math.inf if mse == 0 else 1 / mse,
        "mse_bound": mse / 2,
        "seconds": 1.0,
    }
    return TradeoffCell(family, strength, seed, scores=scores, **{**stated, **changed})


def _result(cells: list[TradeoffCell], **changed: object) -> TradeoffResult:
    rows = rows_from_cells(cells, confidence=0.95)
    settings = {"utility": "test_accuracy", "leakage": "mse", "confidence": 0.95, "is_complete": True}
    return TradeoffResult(rows, tuple(cells), notes=(), signature="call", **{**settings, **changed})


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(_GRID, _GRID), max_size=8))
def test_the_front_is_what_no_point_beats(points: list[tuple[float, float]]) -> None:
    """Oracle: for every direction of preference with positive weights the best point is on the front, and the front
    is exactly what survives the comparison with each other point, coordinate by coordinate."""

    def beaten(point: tuple[float, float]) -> bool:
        for other in points:
            at_least, better = [a >= b for a, b in zip(other, point, strict=True)], other[0] + other[1] > sum(point)
            if all(at_least) and better:
                return True
        return False

    kept = pareto_front(points)
    assert kept == [not beaten(point) for point in points]
    if points:
        assert any(kept)
        best = max(range(len(points)), key=lambda place: 3 * points[place][0] + points[place][1])
        assert kept[best]


def test_the_front_of_each_attacker_by_hand() -> None:
    cells = [
        cell
        for seed in range(2)
        for cell in (
            _cell("none", None, seed, 0.9, 0.0),
            _cell("a", 1.0, seed, 0.9, 0.1),
            _cell("a", 2.0, seed, 0.7, 0.3),
            _cell("b", 1.0, seed, 0.8, 0.1),
        )
    ]
    result = _result(cells)
    assert [row.label for row in result.pareto_rows("aware")] == ["a 1", "a 2"]
    assert [row.label for row in result.with_measures(leakage="psnr").pareto_rows("unaware")] == ["a 1", "a 2"]
    by_loss = result.with_measures(utility="training_loss", leakage="fisher_trace")
    assert [row.label for row in by_loss.pareto_rows("aware")] == ["a 1", "a 2"]
    assert [row.label for row in result.with_measures(utility="utility_1").pareto_rows("aware")] == ["a 2"]


def test_the_attack_that_counts_is_the_worst_for_who_defends() -> None:
    (row, _) = rows_from_cells([_cell("a", 1.0, 0, 0.9, 0.7)], confidence=0.95)
    assert (row.attack, row.is_guess, row.mse.value) == ("guess", True, 0.5)
    (row, _) = rows_from_cells([_cell("a", 1.0, 0, 0.9, 0.2)], confidence=0.95)
    assert (row.attack, row.is_guess, row.mse.value) == ("solve", False, 0.2)


def test_a_bound_is_the_smallest_over_seeds() -> None:
    cells = [_cell("a", 1.0, seed, 0.9, 0.2, mse_bound=bound) for seed, bound in enumerate((0.3, 0.1, 0.2))]
    assert rows_from_cells(cells, confidence=0.95)[0].mse_bound == 0.1


def test_dominance_by_hand() -> None:
    """Accuracy differs by 0.05 in every seed, though it varies by 0.3 between seeds: paired differences are sure."""
    cells = []
    for seed, easy in enumerate((0.0, 0.15, 0.3)):
        cells += [
            _cell("none", None, seed, 0.6 + easy, 0.0),
            _cell("a", 1.0, seed, 0.6 + easy, 0.2),
            _cell("b", 1.0, seed, 0.55 + easy, 0.1),
            _cell("b", 2.0, seed, 0.55 + easy, 0.3),
            _cell("b", 3.0, seed, 0.6 + easy + (seed - 1) * 0.01, 0.2),
            _cell("b", 4.0, seed, 0.3, 0.9),
        ]
    found = _result(cells).dominates("a", "b", attacker="aware")
    assert (found.strengths, found.dominated, found.clearly, found.never) == (4, 2, 1, 2)
    assert found.guessed == 1
    assert found.share == 0.5
    assert "at 2 of its 4 strengths" in str(found)
    assert "confirm this at 1, exclude it at 2 and leave it open at 1. At 1 of them no attack beat a guess." in str(
        found
    )


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(_GRID, _GRID), min_size=1, max_size=4), st.lists(st.tuples(_GRID, _GRID), min_size=1, max_size=4)
)
def test_dominance_against_all_pairs(ours: list[tuple[float, float]], theirs: list[tuple[float, float]]) -> None:
    """With equal seeds there is no doubt, and the count is that over all pairs; nothing is both sure and ruled out."""
    cells = []
    for seed in range(2):
        for family, points in (("a", ours), ("b", theirs)):
            cells += [
                _cell(family, float(place), seed, point[0] / 4, 0.1 + point[1] / 20)
                for place, point in enumerate(points)
            ]
    found = _result(cells).dominates("a", "b", attacker="unaware")
    expected = sum(any(one[0] >= other[0] and one[1] >= other[1] for one in ours) for other in theirs)
    assert found.dominated == found.clearly == expected
    assert found.never == len(theirs) - expected


def test_a_family_dominates_itself() -> None:
    cells = [_cell("a", strength, seed, 0.5 + seed / 10, 0.1) for strength, seed in product((1.0, 2.0), range(3))]
    assert _result(cells).dominates("a", "a").clearly == 2


def test_one_seed_says_nothing_about_doubt() -> None:
    found = _result([_cell("a", 1.0, 0, 0.9, 0.2), _cell("b", 1.0, 0, 0.1, 0.1)]).dominates("a", "b")
    assert (found.dominated, found.clearly, found.never) == (1, 0, 0)


def test_results_survive_json_and_are_written() -> None:
    cells = [_cell("none", None, 0, 0.9, 0.0), _cell("a", 1.0, 0, 0.8, 0.1, diverged=True, test_accuracy=None)]
    result = _result(cells, utility="training_loss", is_complete=False)
    assert from_json(to_json(result)) == result
    text = result.table()
    assert "*" in text
    assert "(1 diverged)" in text
    assert "Not complete" in text
    assert "one seed, no intervals" in text
    assert str(result) == f"{text}\n\n{result.sentence}"
    assert "2 of 2 settings are on the Pareto front" in result.sentence
    assert "no defense, a 1. Not every setting was run." in result.sentence


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda result: result.with_measures(utility="accuracy"), "utility='accuracy' to be one of test_accuracy"),
        (lambda result: result.with_measures(leakage="ssim"), "leakage='ssim' to be one of mse"),
        (lambda result: result.pareto_rows("clever"), "attacker='clever' to be one of unaware, aware"),
        (lambda result: result.dominates("a", "c"), "family='c' to be one of none, a"),
        (lambda result: result.cells[0].score("aware", "dlg"), "attack='dlg' to be an attack that"),
    ],
)
def test_unknown_names_are_refused(call: object, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        call(_result([_cell("a", 1.0, 0, 0.9, 0.2)]))


def test_accuracy_that_is_not_there_is_not_compared() -> None:
    result = _result([_cell("a", 1.0, 0, 0.9, 0.2, test_accuracy=None)])
    with pytest.raises(InvalidInput, match="measure='test_accuracy'"):
        result.pareto_rows("aware")

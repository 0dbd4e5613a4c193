import ast
import importlib
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from benchmarks import attack_over_bound, frame
from reconrisk.bounds import success


def test_measuring_returns_positive_time():
    measured = frame.measure(lambda: lambda: sum(range(1000)))
    assert measured.seconds > 0
    assert measured.megabytes >= 0


@pytest.mark.parametrize("name", frame.names())
def test_every_benchmark_has_something_to_compare_with(name):
    module = importlib.import_module(f"benchmarks.{name}")
    assert module.__doc__
    assert len(module.CONTENDERS) >= 2
    assert all(callable(contender) and contender.__doc__ for contender in module.CONTENDERS.values())


def test_unknown_benchmarks_are_named(capsys):
    assert frame.main(["nonsense"]) == 2
    assert "nonsense" in capsys.readouterr().err


def test_the_table_holds_ratios_and_results_of_every_contender(monkeypatch):
    seconds = {"reconrisk": 0.5, "loop over targets": 2.0, "torch.cdist": 0.25}

    def run(command, **options):
        text = json.dumps({"seconds": seconds[command[-1]], "megabytes": 1.0, "result": 0.125})
        return subprocess.CompletedProcess(command, 0, stdout=text)

    monkeypatch.setattr(subprocess, "run", run)
    table = frame.compare("nearest_neighbours")
    ratios = list(table.columns[2].cells)
    assert ratios == ["1.00", "4.00", "0.50"]
    assert list(table.columns[4].cells) == ["0.125"] * 3


def test_the_median_of_repeats_is_measured(monkeypatch):
    clock = iter([0.0, 9.0, 10.0, 11.0, 20.0, 21.0, 30.0, 33.0, 40.0, 41.0, 50.0, 51.0])
    monkeypatch.setattr(frame.time, "perf_counter", lambda: next(clock))
    assert frame.measure(lambda: lambda: 4).seconds == 1.0


def test_contenders_of_the_nearest_neighbours_agree():
    contenders = importlib.import_module("benchmarks.nearest_neighbours").CONTENDERS
    results = [contenders[name]()() for name in ("reconrisk", "torch.cdist")]
    assert results[0] == pytest.approx(results[1], rel=1e-4)


def functions_that_return_a_guarantee():
    source = Path(success.__file__).parents[1]
    texts = (path.read_text(encoding="utf-8") for path in source.rglob("*.py"))
    return {
        node.name
        for text in texts
        if "-> Guarantee:" in text  # parsing all files would take seconds
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and isinstance(node.returns, ast.Name)
        and node.returns.id == "Guarantee"
    }


def test_the_table_of_attacks_has_a_row_for_every_guarantee():
    helpers = {"mse_guarantee"}  # builds the guarantees of the other functions
    assert functions_that_return_a_guarantee() - helpers == {row.function for row in attack_over_bound.ROWS}


@pytest.fixture(scope="module")
def simulated():
    return {row.instance: row.run(np.random.default_rng(1)) for row in attack_over_bound.ROWS}


def test_the_table_of_attacks_has_a_row_for_every_kind_of_mechanism(simulated):
    bounds = [simulated[row.instance][0] for row in attack_over_bound.ROWS if row.function == "success_upper_bound"]
    # PoissonSampled, Repeated and Composed are one rule, of which the subsampled row is an example.
    rules = {rule: kind for kind, rule in success._RULES.items()}
    assert {success._RULES[type(each.mechanism)] for each in bounds} == set(rules)


@pytest.mark.parametrize("row", attack_over_bound.ROWS, ids=lambda row: row.instance)
def test_no_attack_beats_its_bound_and_each_is_close_or_says_what_is_missing(row, simulated):
    guarantee, measured = simulated[row.instance]
    assert not guarantee.is_contradicted_by(measured)
    ratio = measured.value / guarantee.value
    assert abs(ratio - 1) <= attack_over_bound.CLOSE or row.missing


def test_the_page_of_attacks_is_that_of_the_rows():
    text = attack_over_bound.PAGE.read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ") and "`" in line]
    names = [cells[0].removeprefix("| ").replace("\\|", "|") for cells in rows]
    assert names == [row.instance for row in attack_over_bound.ROWS]
    assert [cells[1].strip("`") for cells in rows] == [row.function for row in attack_over_bound.ROWS]
    assert all(cells[-1].startswith(("within 10 %", "missing: ")) and "not known" not in cells[-1] for cells in rows)

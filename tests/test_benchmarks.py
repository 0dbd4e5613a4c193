import importlib
import json
import subprocess

import pytest

from benchmarks import frame


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

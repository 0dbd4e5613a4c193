import importlib

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

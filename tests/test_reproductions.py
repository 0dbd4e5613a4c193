import importlib
import pkgutil
import re

import pytest

import reproductions
from reconrisk.core.guarantee import Estimate
from reproductions.frame import Finding, need_data, reproduce

SCRIPTS = [
    info.name
    for info in pkgutil.walk_packages(reproductions.__path__, "reproductions.")
    if not info.ispkg and info.name != "reproductions.frame"
]


def half_a_pipe(scale):
    """Two findings."""
    return [
        Finding("first | of two", "0.5", Estimate(0.4, 0.3, 0.6, 0.95, 9, "test"), f"at scale {scale}"),
        Finding("second", "1", "2"),
    ]


half_a_pipe.__module__ = "reproductions.guo2022.figure2"


def test_findings_are_appended_row_by_row_beneath_one_header(tmp_path, capsys):
    results = tmp_path / "RESULTS.md"
    for scale in ("small", "paper"):
        assert reproduce(half_a_pipe, argv=["--scale", scale, "--results", str(results)]) == 0
    lines = results.read_text().splitlines()
    rows = [line for line in lines if line.startswith("| guo2022")]
    assert len(rows) == 4
    assert lines.count("|---|---|---|---|---|---|---|---|") == 1
    assert rows[0].startswith(r"| guo2022 | first \| of two (at scale small) | 0.5 | 0.4 [0.3, 0.6]")
    assert "`python -m reproductions.guo2022.figure2 --scale paper`" in rows[2]
    assert capsys.readouterr().out.splitlines() == rows
    assert re.search(r"\| ([0-9a-f]{7,}(\+changes)?|no repository) \|$", rows[0])


def test_missing_data_is_said_and_nothing_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("RECONRISK_DATA", raising=False)
    results = tmp_path / "RESULTS.md"
    assert reproduce(lambda scale: [need_data()], argv=["--results", str(results)]) == 2
    assert "RECONRISK_DATA" in capsys.readouterr().err
    assert not results.exists()


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_fits_the_frame(name):
    module = importlib.import_module(name)
    assert module.__doc__
    assert module.run.__doc__
    assert callable(module.run)

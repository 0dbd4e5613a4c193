"""The frame of scripts that reproduce tables and figures, and that every script fits it."""

import doctest
import importlib
import inspect
import pkgutil
import re

import pytest

import reproductions
from reconrisk.core.guarantee import Estimate
from reproductions.frame import Drawing, Finding, need_data, reproduce

LIBRARIES = (
    "reproductions.chen2025.settings",
    "reproductions.frame",
    "reproductions.gradient_inversion",
    "reproductions.meng2025.guidance_heuristics",
    "reproductions.meng2025.guided",
    "reproductions.meng2025.jensen_gap",
    "reproductions.meng2025.settings",
    "reproductions.meng2025.trajectory",
    "reproductions.meng2025.vulnerability_study",
    "reproductions.optimal_defenses",
    "reproductions.private_training",
    "reproductions.training_curves",
)
"""Modules that scripts import and nobody runs."""

SCRIPTS = [
    info.name
    for info in pkgutil.walk_packages(reproductions.__path__, "reproductions.")
    if not info.ispkg and info.name not in LIBRARIES
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


def with_a_drawing(scale):
    """One finding, one drawing."""
    return [Finding("first", "1", "2"), Drawing("figure.png", lambda path: path.write_text(scale))]


with_a_drawing.__module__ = "reproductions.guo2022.figure2"


def test_drawings_appear_only_in_the_folder_named(tmp_path):
    results, out = tmp_path / "RESULTS.md", tmp_path / "new" / "pictures"
    assert reproduce(with_a_drawing, argv=["--results", str(results)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["RESULTS.md"]
    assert reproduce(with_a_drawing, argv=["--results", str(results), "--out", str(out)]) == 0
    assert (out / "figure.png").read_text() == "small"
    assert results.read_text().count("| first |") == 2


def test_a_file_as_folder_for_drawings_is_refused_before_the_work(tmp_path):
    results = tmp_path / "RESULTS.md"
    results.write_text("kept")
    with pytest.raises(SystemExit):
        reproduce(with_a_drawing, argv=["--results", str(results), "--out", str(results)])
    assert results.read_text() == "kept"


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_fits_the_frame(name):
    module = importlib.import_module(name)
    assert module.__doc__
    assert module.run.__doc__
    assert callable(module.run)
    assert '__name__ == "__main__"' in inspect.getsource(module)


@pytest.mark.parametrize("name", LIBRARIES)
def test_libraries_are_no_scripts_and_their_examples_hold(name):
    module = importlib.import_module(name)
    assert '__name__ == "__main__"' not in inspect.getsource(module)
    assert doctest.testmod(module).failed == 0

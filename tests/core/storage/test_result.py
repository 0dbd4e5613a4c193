"""Every result speaks, is laid out, saved and read back in the same way."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import types
from pathlib import Path

import pytest

import reconrisk as rr
from reconrisk.core.errors import InvalidFile, InvalidInput, MissingExtra
from reconrisk.core.storage.links import add_table, list_keys, look_up
from reconrisk.core.storage.result import ReportedResult, Result
from reconrisk.reports.registry import RENDERERS
from tests.result_examples import result_examples

KINDS = sorted(RENDERERS)


def subclasses(cls: type) -> set[type]:
    return {cls, *(each for child in cls.__subclasses__() for each in subclasses(child))}


def test_there_is_an_example_and_a_renderer_of_every_result() -> None:
    examples = result_examples()
    assert sorted(examples) == KINDS
    concrete = {each for each in subclasses(Result) if each.__module__.startswith("reconrisk.") and not abstract(each)}
    assert concrete == {type(result) for result in examples.values()}


def abstract(cls: type) -> bool:
    return bool(getattr(cls, "__abstractmethods__", ()))


@pytest.mark.parametrize("kind", KINDS)
def test_every_result_has_a_sentence_a_table_and_rows(kind: str) -> None:
    result = result_examples()[kind]
    assert result.sentence.endswith(".")
    assert "\n" not in result.sentence
    assert result.table().strip()
    assert not result.table().endswith("\n")
    rows = result.to_rows()
    assert rows
    assert {tuple(row) for row in rows} == {tuple(rows[0])}
    values = [value for row in rows for value in row.values()]
    assert all(value is None or type(value) in (str, int, float, bool) for value in values)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"chi-square-law", "estimate", "guarantee", "run-law"}))
def test_printing_a_result_shows_the_table_and_then_the_sentence(kind: str) -> None:
    result = result_examples()[kind]
    assert str(result) == f"{result.table()}\n\n{result.sentence}"


@pytest.mark.parametrize("kind", ["chi-square-law", "estimate", "guarantee", "run-law"])
def test_values_that_stand_in_sentences_are_printed_in_one_line(kind: str) -> None:
    assert "\n" not in str(result_examples()[kind])


_VERSIONS = {"risk-corridor": 2}  # kinds whose fields changed


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_as_json_is_loaded(kind: str, tmp_path: Path) -> None:
    result = result_examples()[kind]
    loaded = rr.load(result.save(tmp_path / "new" / "result.json"))
    assert loaded == (result.to_report() if isinstance(result, ReportedResult) else result)
    assert json.loads(result.to_json())["version"] == _VERSIONS.get(kind, 1)


@pytest.mark.parametrize(("kind", "suffix"), [(kind, suffix) for kind in KINDS for suffix in RENDERERS[kind]])
def test_every_format_in_the_table_is_written(kind: str, suffix: str, tmp_path: Path) -> None:
    result = result_examples()[kind]
    path = result.save(str(tmp_path / f"result{suffix}"))
    assert [each.name for each in tmp_path.iterdir()] == [f"result{suffix}"]
    assert path.stat().st_size > 20
    is_secret = result.is_private and (kind, suffix) != ("audit-result", ".md")
    is_secret |= suffix in (".xml", ".safetensors")
    assert stat.S_IMODE(path.stat().st_mode) == (0o600 if is_secret else 0o644)


def test_a_suffix_may_be_written_in_capitals(tmp_path: Path) -> None:
    assert json.loads(result_examples()["calibration"].save(tmp_path / "X.JSON").read_text())["kind"] == "calibration"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["result.docx", "result"])
def test_another_suffix_is_refused_with_those_that_there_are(kind: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        result_examples()[kind].save(tmp_path / name)
    assert f"to end in one of {', '.join(RENDERERS[kind])}. Choose one of these formats of {kind}." in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_settings_of_a_format_reach_it_and_others_are_refused(tmp_path: Path) -> None:
    audit = result_examples()["audit-result"]
    assert "<img" in audit.save(tmp_path / "a.html", redact=False).read_text(encoding="utf-8")
    assert "<img" not in audit.save(tmp_path / "a.html", redact=True).read_text(encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"redacted=True to be left out for \.html of audit-result.*mean redact"):
        audit.save(tmp_path / "b.html", redacted=True)
    with pytest.raises(InvalidInput, match="It takes none"):
        audit.save(tmp_path / "b.json", redact=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]


def test_without_pandas_a_frame_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"A data frame needs pandas\. Install it with: pip install pandas$"):
        result_examples()["calibration"].to_frame()


def test_a_frame_is_made_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    made = types.SimpleNamespace(from_records=lambda rows: ("frame", rows))
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=made))
    result = result_examples()["risk-corridor"]
    assert result.to_frame() == ("frame", list(result.to_rows()))


@pytest.mark.parametrize("kind", KINDS)
def test_pandas_takes_the_rows(kind: str) -> None:
    pandas = pytest.importorskip("pandas")
    result = result_examples()[kind]
    frame = result.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == list(result.to_rows()[0])
    assert len(frame) == len(result.to_rows())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "Expected JSON"),
        (b"\xff\xfe", "byte 0: The file is not UTF-8 text"),
        (b'{"kind": "AuditResult"}', "The file is of an earlier version of reconrisk"),
        (b"5", "Expected a result, found int"),
        (b'{"kind": "gaussian", "noise_multiplier": 1.0}', "Expected a result, found Gaussian"),
        (b"[" * 100_000, "too many nested levels"),
        (b'{"kind": "calibration", "version": 9}', "calibration of version 1, the only one that this reconrisk reads"),
    ],
)
def test_files_that_hold_no_result_are_refused_by_name(text: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(text)
    with pytest.raises(InvalidFile, match=message) as caught:
        rr.load(path)
    assert str(caught.value).startswith(str(path))
    assert 'Pass a JSON file written by result.save("name.json")' in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="There is no such file"):
        rr.load(tmp_path / "result.json")


def test_saving_and_loading_a_calculation_loads_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys, reconrisk as rr\n"
        "found = rr.bounds.prior_success.uniform_ball(dimension=2, radius=1.0, mse=0.02)\n"
        "for suffix in ('csv', 'md', 'html'): found.save(f'prior.{suffix}')\n"
        "assert rr.load(found.save('prior.json')) == found\n"
        "sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=False).returncode == 0


def test_tables_of_others_are_asked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("somebody")
    module.HOMES = {"their-result": "somebody"}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "somebody", module)
    monkeypatch.setattr("reconrisk.core.storage.links._TABLES", {})
    assert look_up("kinds", "their-result") is None
    for _ in range(2):
        add_table("kinds", "somebody:HOMES")
    assert look_up("kinds", "their-result") == "somebody"
    assert list_keys("kinds") == ("their-result",)

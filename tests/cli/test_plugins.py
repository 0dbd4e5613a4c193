"""What other distributions offer is listed, and none of it imported."""

import json
import subprocess
import sys

from typer.testing import CliRunner

from reconrisk.cli.app import app
from reconrisk.core.registry import GROUPS
from tests.offered_plugins import offer_plugins

POINTS = {
    GROUPS["metric"]: {"blur": "stand_in_plugin:blur"},
    GROUPS["attack"]: {"stare": "stand_in_plugin:stare"},
    "reconrisk.other": {"ignored": "stand_in_plugin:ignored"},
}


def run(*words):
    result = CliRunner().invoke(app, ["plugins", *words])
    assert result.exit_code == 0, result.output
    return result.output


def test_plugins_are_listed_by_kind_and_not_imported(tmp_path, monkeypatch):
    offer_plugins(tmp_path, monkeypatch, POINTS, "raise RuntimeError('imported')")
    assert [line.split() for line in run().splitlines()] == [
        ["kind", "name", "distribution", "version", "object"],
        ["attack", "stare", "stand-in", "1.5", "stand_in_plugin:stare"],
        ["metric", "blur", "stand-in", "1.5", "stand_in_plugin:blur"],
    ]
    assert "stand_in_plugin" not in sys.modules


def test_names_that_are_taken_are_told(tmp_path, monkeypatch):
    points = {GROUPS["metric"]: {"mse": "stand_in_plugin:mse", "blur": "stand_in_plugin:blur"}}
    offer_plugins(tmp_path / "one", monkeypatch, points)
    points = {GROUPS["metric"]: {"blur": "second_plugin:blur"}, GROUPS["attack"]: {"dlg": "second_plugin:dlg"}}
    offer_plugins(tmp_path / "two", monkeypatch, points, distribution="second", module="second_plugin")
    assert run().splitlines()[-3:] == [
        "The attack dlg cannot be used: reconrisk has one of this name.",
        "The metric blur cannot be used: 2 distributions offer it. Uninstall all but one.",
        "The metric mse cannot be used: reconrisk has one of this name.",
    ]


def test_priors_that_are_taken_and_names_that_cannot_be_written_are_told(tmp_path, monkeypatch):
    points = {GROUPS["attack"]: {"my attack": "stand_in_plugin:x", "my-attack": "stand_in_plugin:x"}}
    offer_plugins(tmp_path, monkeypatch, points | {GROUPS["prior"]: {"gaussian": "stand_in_plugin:x"}})
    assert run().splitlines()[-2:] == [
        "The attack my attack cannot be written: names have letters, digits, points, hyphens and underscores.",
        "The prior gaussian cannot be used: reconrisk has one of this name.",
    ]


def test_listing_loads_no_torch():
    program = (
        "import sys, reconrisk.cli; sys.argv = ['reconrisk', 'plugins']\n"
        "import atexit; atexit.register(lambda: sys.stdout.write(str('torch' in sys.modules)))\n"
        "reconrisk.cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("False")


def test_json_has_the_same(tmp_path, monkeypatch):
    offer_plugins(tmp_path, monkeypatch, POINTS, "raise RuntimeError('imported')")
    first, second = json.loads(run("--json"))
    assert first == {
        "kind": "attack",
        "name": "stare",
        "where": "stand_in_plugin:stare",
        "distribution": "stand-in",
        "version": "1.5",
    }
    assert second["name"] == "blur"


def test_without_any_a_sentence_says_how_they_are_offered():
    text = run()
    assert text.startswith("No plugins are installed. ")
    assert all(group in text for group in GROUPS.values())
    assert json.loads(run("--json")) == []


def test_help_has_an_example():
    assert "reconrisk audit --model lenet" in run("--help")

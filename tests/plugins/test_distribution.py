"""A tiny distribution with a plugin of each kind, built, installed and used by name, from Python and from the shell.

Its code and the commands are those of docs/plugins.md. It is installed into a folder of its own: the environment of the
tests stays as it is, and nothing is downloaded.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
MARK = """
import os as _os
with open(_os.environ["TINY_PLUGINS_LOG"], "a") as _log:
    _log.write(__name__ + "\\n")
"""
ALL = ("attack", "defense", "metric", "prior")
PROGRAM = "import sys; from reconrisk.cli import main; sys.argv = ['reconrisk', *sys.argv[1:]]; main()"


def files_of_the_page():
    """Return the files that blocks begin with the path of, without what is for their tests."""
    found = {}
    for _, code in BLOCKS:
        path = re.match(r"# (\S+\.(?:py|toml))\n", code)
        if path is not None:
            found[path[1]] = code.split("# in its tests:")[0]
    return found


class Installed:
    """The folder with the installed distribution, and the log that its modules write when they are imported."""

    def __init__(self, site, log):
        self.site, self.log = site, log

    def run(self, *words, cwd):
        self.log.write_text("")
        before = os.environ.get("PYTHONPATH")
        path = os.pathsep.join([str(self.site), *([before] if before else [])])
        environment = {**os.environ, "PYTHONPATH": path, "TINY_PLUGINS_LOG": str(self.log)}
        done = subprocess.run(
            [sys.executable, *words], cwd=cwd, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def shell(self, command, cwd):
        program, *words = shlex.split(command)
        assert program == "reconrisk"
        return self.run("-c", PROGRAM, *words, cwd=cwd)

    @property
    def imported(self):
        return set(self.log.read_text().split())


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    project, site = tmp_path_factory.mktemp("tiny-plugins"), tmp_path_factory.mktemp("site")
    for path, code in files_of_the_page().items():
        file = project / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(code + (MARK if path.endswith(".py") else ""), encoding="utf-8")
    (project / "tiny_plugins" / "__init__.py").write_text(MARK)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    done = subprocess.run([*pip, "--target", site, project], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Installed(site, site / "imported.log")


def test_the_page_has_a_module_for_each_kind():
    assert set(files_of_the_page()) == {
        "pyproject.toml",
        *(f"tiny_plugins/{kind}.py" for kind in ALL),
    }


def test_plugins_lists_one_of_each_kind_and_imports_none(installed, tmp_path):
    listed = json.loads(installed.shell("reconrisk plugins --json", tmp_path))
    assert {(each["kind"], each["name"]) for each in listed if each["distribution"] == "tiny-plugins"} == {
        ("attack", "random_search"),
        ("defense", "round_to"),
        ("metric", "largest_error"),
        ("prior", "smooth_digits"),
    }
    assert installed.imported == set()


def test_the_commands_of_the_page_use_them_by_name(installed, tmp_path):
    commands = [line for language, code in BLOCKS if language == "sh" for line in code.splitlines() if line]
    assert [command.split()[1] for command in commands] == ["plugins", "audit", "rebuild"]
    table = installed.shell(commands[0], tmp_path)
    assert "random_search  tiny-plugins  0.1      tiny_plugins.attack:random_search" in table
    text = installed.shell(commands[1], tmp_path)
    for word in ("random_search", "round_to(step=0.001)", "largest_error<=0.9"):
        assert word in text
    assert installed.imported == {"tiny_plugins", *(f"tiny_plugins.{kind}" for kind in ("attack", "defense", "metric"))}
    text = installed.shell(commands[2], tmp_path)
    assert "smooth_digits (provided by a plugin as smooth_digits)" in text
    assert installed.imported == {"tiny_plugins", "tiny_plugins.prior"}


def test_the_python_of_the_page_uses_them_by_name(installed, tmp_path):
    (program,) = (code for language, code in BLOCKS if language == "py")
    text = installed.run("-c", program, cwd=tmp_path)
    assert "largest_error<=0.9" in text
    assert "prior=smooth_digits" in text
    assert installed.imported == {"tiny_plugins", *(f"tiny_plugins.{kind}" for kind in ALL)}


def test_only_what_is_named_is_imported(installed, tmp_path):
    program = (
        "from reconrisk.metrics.registry import metric_by_name\n"
        "from reconrisk.testing import check_metric\n"
        "check_metric(metric_by_name('largest_error', data_range=(0.0, 1.0)))\n"
    )
    installed.run("-c", program, cwd=tmp_path)
    assert installed.imported == {"tiny_plugins", "tiny_plugins.metric"}


def test_other_commands_and_functions_take_them_too(installed, tmp_path):
    text = installed.shell(
        "reconrisk tradeoff --model logistic --data digits --defense round_to:0.001,1 --attacks random_search "
        "--knows labels --steps 2 --repeat 1 --trials 1 --records 200 --out front",
        tmp_path,
    )
    assert re.search(r"round_to +0\.001 ", text)
    options = "--model logistic --data digits --labels known --setting tries=3 --prune 0.5 --out done"
    text = installed.shell(f"reconrisk rebuild random_search {options}", tmp_path)
    assert "random_search" in text


def test_a_family_of_a_plugin_is_searched(installed, tmp_path):
    program = (
        "from reconrisk.defenses.registry import family_by_name\n"
        "from reconrisk.defenses.families import Reference\n"
        "import torch\n"
        "reference = Reference(lambda: None, ({'w': torch.ones(4)},))\n"
        "family = family_by_name('round_to')\n"
        "print(family.name, family.defense(reference, family.start(reference))[1])\n"
    )
    assert installed.run("-c", program, cwd=tmp_path).split() == ["round_to", "round_to(0.34641)"]

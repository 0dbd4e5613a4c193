import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINTER = Path(sys.executable).with_name("lint-imports")


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("bundled", "__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint(folder):
    return subprocess.run(
        [LINTER, "--no-cache"],
        cwd=folder,
        env={"PYTHONPATH": str(folder / "src"), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_layers_hold(copy):
    done = lint(copy)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("core/threat.py", "import reconrisk.metrics.matching"),
        ("metrics/matching.py", "import reconrisk.models.linear"),
        ("reports/drawing.py", "import torch"),
        ("attacks/baselines.py", "import reconrisk.testing.contract"),
        ("testing/contract.py", "import reconrisk.studies.common.plan"),
        ("accounting/confidence.py", "import reconrisk.bounds"),
        ("bounds/__init__.py", "import dp_accounting"),
    ],
)
def test_an_import_against_the_layers_breaks_the_check(copy, file, line):
    path = copy / "src" / "reconrisk" / file
    path.write_text(path.read_text() + f"\n{line}\n")
    done = lint(copy)
    assert done.returncode == 1
    assert "BROKEN" in done.stdout

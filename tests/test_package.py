import ast
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

import reconrisk as rr

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]


def test_every_public_name_loads_and_is_documented():
    assert len(rr.__all__) >= 20
    for name in rr.__all__:
        assert getattr(rr, name).__doc__, name


def test_every_public_name_can_be_the_first_that_is_used():
    program = (
        "import sys, reconrisk\n"
        "for name in reconrisk.__all__:\n"
        "    for module in [item for item in sys.modules if item.startswith('reconrisk')]: del sys.modules[module]\n"
        "    import reconrisk\n"
        "    getattr(reconrisk, name)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_package_knows_its_version():
    assert rr.__version__ == importlib.metadata.version("reconrisk")


def test_calculations_load_no_torch():
    program = (
        "import sys, reconrisk as rr; rr.to_json(rr.mechanisms.dp_sgd(noise_multiplier=1.0)); "
        "sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        rr.nonsense  # noqa: B018


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_dependency_is_imported_somewhere_and_has_an_open_lower_bound():
    sources = [ast.parse(path.read_text()) for path in (ROOT / "src").rglob("*.py")]
    imported = {
        (alias.name if isinstance(node, ast.Import) else node.module or "").split(".")[0]
        for tree in sources
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    modules = {"pillow": "PIL", "scikit-learn": "sklearn", "dp-accounting": "dp_accounting"}
    for requirement in project()["project"]["dependencies"]:
        name, bound = requirement.split(">=")
        assert bound[0].isdigit()
        assert modules.get(name, name) in imported, f"{name} is not used"


def test_every_dependency_and_tool_is_pinned_for_make_and_ci():
    pinned = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    settings = project()
    wanted = [
        *settings["project"]["dependencies"],
        *settings["dependency-groups"]["dev"],
        *(item for extra in settings["project"]["optional-dependencies"].values() for item in extra),
    ]
    wanted.remove("torchvision>=0.19")  # there is no CPU build to pin beside torch 2.13.0
    names = {requirement.split(";")[0].split(">=")[0].replace("_", "-") for requirement in wanted}
    assert names <= pinned, sorted(names - pinned)


def test_every_test_that_the_errata_name_is_there():
    text = (ROOT / "docs" / "errata.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)
    assert len(named) >= 2
    for path, function in named:
        assert f"def {function}" in (ROOT / path).read_text(), (path, function)

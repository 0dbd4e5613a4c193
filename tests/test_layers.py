"""The import contracts of pyproject.toml hold, and a forbidden import breaks each of them."""

import copy
import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest
from importlinter import api
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.independence import IndependenceContract
from importlinter.contracts.layers import LayersContract
from importlinter.contracts.protected import ProtectedContract

ROOT = Path(__file__).parents[1]
LINTER = Path(sys.executable).with_name("lint-imports")
TYPES = {kind.type_name: kind for kind in (ForbiddenContract, IndependenceContract, LayersContract, ProtectedContract)}

LAYERS = "Imports point from commands to core"
STUDIES = "Studies share common and do not import each other"
FAMILIES = "Families of attacks build on each other in one direction"
WITH_PRIOR = "Attacks with a prior build on gauss_newton and matching only"
MALICIOUS_SERVER = "Attacks of a malicious server build on analytic only"
BY_NAME = "Public knowledge, studies, commands and the conformance kit look attacks up by name"
NO_TORCH = "Numbers about mechanisms and reports need no torch"
DP_ACCOUNTING = "One file knows dp_accounting"

# One import for each border of a contract: importer, imported.
FORBIDDEN = [
    (LAYERS, "studies.audit.run", "cli.audit"),
    (LAYERS, "integrations.training_loop", "studies.audit.run"),
    (LAYERS, "reports.drawing", "studies.audit.result"),
    (LAYERS, "attacks.best_candidate", "reports.drawing"),
    (LAYERS, "metrics.records", "models.linear"),
    (LAYERS, "accounting.renyi", "bounds.success"),
    (LAYERS, "core.threat", "metrics.records"),
    (STUDIES, "studies.recommend.recommend", "studies.audit.run"),
    (STUDIES, "studies.prior_value.over_prior", "studies.rebuild.updates"),
    (STUDIES, "studies.common.population", "studies.tradeoff.result"),
    (FAMILIES, "attacks.matching.loop", "attacks.with_prior.latents"),
    (FAMILIES, "attacks.gauss_newton.attack", "attacks.matching.loop"),
    (FAMILIES, "attacks.matching.span_inversion", "attacks.analytic.attack"),
    (FAMILIES, "attacks.analytic.attack", "attacks.malicious_server.imprint"),
    (FAMILIES, "attacks.informed.glm.attack", "attacks.matching.loop"),
    (FAMILIES, "attacks.labels.infer", "attacks.first_layer"),
    (WITH_PRIOR, "attacks.with_prior.gias", "attacks.analytic.attack"),
    (WITH_PRIOR, "attacks.with_prior.gias", "attacks.malicious_server.imprint"),
    (WITH_PRIOR, "attacks.with_prior.gias", "attacks.informed.glm.attack"),
    (MALICIOUS_SERVER, "attacks.malicious_server.imprint", "attacks.gauss_newton.attack"),
    (MALICIOUS_SERVER, "attacks.malicious_server.imprint", "attacks.matching.loop"),
    (MALICIOUS_SERVER, "attacks.malicious_server.imprint", "attacks.informed.glm.attack"),
    (BY_NAME, "attacks.matching.loop", "attacks.registry"),
    (BY_NAME, "integrations.training_loop", "attacks.registry"),
    (NO_TORCH, "reports.drawing", "torch"),
    (NO_TORCH, "bounds.success", "torchmetrics"),
    (DP_ACCOUNTING, "bounds.success", "dp_accounting"),
]


@pytest.fixture(scope="module")
def graph():
    options = {"include_external_packages": True, "exclude_type_checking_imports": True, "cache_dir": None}
    return grimp.build_graph("reconrisk", **options)


@pytest.fixture(scope="module")
def contracts():
    read = api.read_configuration(str(ROOT / "pyproject.toml"))
    return {
        each["name"]: TYPES[each["type"]](each["name"], read["session_options"], each)
        for each in read["contracts_options"]
    }


def test_there_is_a_forbidden_import_for_every_contract(contracts):
    assert {name for name, _, _ in FORBIDDEN} == set(contracts)


@pytest.mark.parametrize("name", dict.fromkeys(name for name, _, _ in FORBIDDEN))
def test_the_contract_holds(graph, contracts, name):
    assert contracts[name].check(copy.deepcopy(graph), verbose=False).kept


@pytest.mark.parametrize(("name", "importer", "imported"), FORBIDDEN)
def test_a_forbidden_import_breaks_the_contract(graph, contracts, name, importer, imported):
    changed = copy.deepcopy(graph)
    imported = imported if imported in changed.modules else f"reconrisk.{imported}"
    importer = f"reconrisk.{importer}"
    assert {importer, imported} <= changed.modules
    assert not changed.direct_import_exists(importer=importer, imported=imported)
    changed.add_import(importer=importer, imported=imported, line_number=1, line_contents="the forbidden import")
    assert not contracts[name].check(changed, verbose=False).kept


def test_an_import_for_type_checking_only_is_no_import(graph):
    """Reports name the types of results that they are handed, and import nothing of the studies."""
    assert "TYPE_CHECKING" in (ROOT / "src/reconrisk/reports/rebuild.py").read_text()
    assert not graph.direct_import_exists(importer="reconrisk.reports", imported="reconrisk.studies", as_packages=True)


@pytest.mark.parametrize(("line", "code"), [("", 0), ("import reconrisk.metrics.records", 1)])
def test_the_command_of_make_lint_fails_with_a_forbidden_import(tmp_path, line, code):
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("bundled", "__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    file = tmp_path / "src/reconrisk/core/threat.py"
    file.write_text(f"{file.read_text()}\n{line}\n")
    done = subprocess.run(
        [LINTER, "--no-cache"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "src"), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert ("BROKEN" in done.stdout) == bool(code)

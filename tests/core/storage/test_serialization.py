import ast
import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reconrisk.core.errors import InvalidInput
from reconrisk.core.guarantee import Estimate, Guarantee, Quantity, Scope
from reconrisk.core.mechanism import Gaussian, PoissonSampled, Repeated
from reconrisk.core.papers import Reference
from reconrisk.core.reconstruction import AttackReport, Cost, Ending, Reconstruction, Status
from reconrisk.core.storage import serialization
from reconrisk.core.storage.serialization import from_json, serializable, to_json, to_plain
from reconrisk.core.threat import STRONGEST, Controls, Knows, Sees, ThreatModel
from reconrisk.kinds import HOMES
from reconrisk.studies.audit.result import PriorUse

SOURCES = Path(__file__).parents[3] / "src" / "reconrisk"

positive = st.floats(min_value=1e-6, max_value=1e6)
gaussians = st.builds(Gaussian, noise_multiplier=positive, clip_norm=positive)
sampled = st.builds(PoissonSampled, mechanism=gaussians, sampling_probability=st.floats(min_value=1e-9, max_value=1))
mechanisms = st.one_of(
    gaussians,
    sampled,
    st.builds(Repeated, mechanism=st.one_of(gaussians, sampled), steps=st.integers(min_value=1, max_value=10**9)),
)
threats = st.builds(
    ThreatModel,
    sees=st.sampled_from(Sees),
    knows=st.frozensets(st.sampled_from(Knows)),
    controls=st.frozensets(st.sampled_from(Controls)),
)
references = st.builds(Reference, statement=st.text(), source=st.text())
success = st.builds(
    Guarantee,
    quantity=st.just(Quantity.SUCCESS_PROBABILITY),
    value=st.floats(min_value=0, max_value=1),
    mechanism=mechanisms,
    scope=st.sampled_from(Scope),
    threat=threats,
    reference=references,
    assumptions=st.lists(st.text(), max_size=3).map(tuple),
)
errors = st.builds(
    Guarantee,
    quantity=st.just(Quantity.MEAN_SQUARED_ERROR),
    value=st.one_of(st.floats(min_value=0, allow_nan=False), st.just(math.inf)),
    mechanism=mechanisms,
    scope=st.sampled_from(Scope),
    threat=threats,
    reference=references,
)
estimates = st.tuples(st.floats(allow_nan=False), st.floats(allow_nan=False), st.floats(allow_nan=False)).map(
    lambda three: Estimate(sorted(three)[1], min(three), max(three), 0.95, 10, "test")
)
accounts = st.builds(
    AttackReport,
    attack=st.text(),
    status=st.builds(Status, ending=st.sampled_from(Ending), cause=st.text(), remedy=st.text(min_size=1)),
    objective=st.lists(st.floats(allow_nan=False), max_size=4).map(tuple),
    cost=st.builds(Cost, seconds=st.floats(min_value=0, max_value=1e9), evaluations=st.integers(min_value=0)),
    labels=st.one_of(st.none(), st.lists(st.integers(), max_size=4).map(tuple)),
)


@given(st.one_of(mechanisms, threats, references, success, errors, estimates, accounts))
def test_everything_in_a_report_survives_the_round_trip(value):
    text = to_json(value)
    assert from_json(text) == value
    assert type(from_json(text)) is type(value)
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


@given(success)
def test_equal_values_give_equal_text(guarantee):
    assert to_json(guarantee) == to_json(from_json(to_json(guarantee)))


def test_reading_runs_the_checks_of_the_constructor():
    with pytest.raises(InvalidInput, match=r"noise_multiplier=-1\.0 > 0"):
        from_json('{"kind": "gaussian", "noise_multiplier": -1.0, "clip_norm": 1.0}')


def test_unknown_fields_and_kinds_name_the_nearest_known():
    with pytest.raises(InvalidInput, match="Did you mean clip_norm"):
        from_json('{"kind": "gaussian", "noise_multiplier": 1.0, "clipnorm": 1.0}')
    with pytest.raises(InvalidInput, match="Did you mean gaussian"):
        from_json('{"kind": "gausian", "noise_multiplier": 1.0}')
    with pytest.raises(InvalidInput, match="Did you mean audit-result"):
        from_json('{"kind": "audit-results"}')
    with pytest.raises(InvalidInput, match="later version of reconrisk or another program"):
        from_json('{"kind": "zzzz"}')
    with pytest.raises(InvalidInput, match="kind=None to be a tag"):
        from_json('{"noise_multiplier": 1.0}')
    with pytest.raises(InvalidInput, match=r"fields of gaussian \(noise_multiplier, clip_norm\)"):
        from_json('{"kind": "gaussian", "clip_norm": 1.0}')
    with pytest.raises(InvalidInput, match="fields of gaussian"):
        from_json('{"kind": "gaussian", "noise_multiplier": "abc"}')


def test_what_the_release_before_stable_tags_wrote_is_refused_as_such():
    with pytest.raises(InvalidInput, match=r"kind='AuditResult' .* The file is of an earlier version of reconrisk"):
        from_json('{"kind": "AuditResult", "run": "a"}')


@pytest.mark.parametrize(
    ("version", "remedy"),
    [
        (2, "Update reconrisk"),
        (0, "Create the file again"),
        ('"x"', "Create the file again"),
        ("true", "Create the file"),
    ],
)
def test_another_version_is_refused_with_the_one_that_is_read(version, remedy):
    with pytest.raises(InvalidInput, match=f"gaussian of version 1, the only one that this reconrisk reads.*{remedy}"):
        from_json(f'{{"kind": "gaussian", "version": {version}, "noise_multiplier": 1.0}}')


def test_the_outermost_values_state_their_version_and_nested_ones_theirs_if_it_is_not_the_first():
    plain = to_plain((Repeated(Gaussian(1.0), 2), Gaussian(1.0)))
    assert [each["version"] for each in plain] == [1, 1]
    assert "version" not in plain[0]["mechanism"]

    @serializable("test-part", version=2)
    @dataclass(frozen=True)
    class Part:
        value: float

    try:
        account = AttackReport("a", Part(1.0), (), Cost(0.0, 0))
        assert to_plain(account)["status"] == {"kind": "test-part", "version": 2, "value": 1.0}
        with pytest.raises(InvalidInput, match=r"test-part of version 2, the only one .* found version 1"):
            from_json('{"kind": "test-part", "value": 1.0}')
    finally:
        serialization._BY_TAG.pop(serialization._BY_CLASS.pop(Part).tag)


def test_a_tag_is_kebab_case_and_of_one_class():
    with pytest.raises(ValueError, match="kebab case"):
        serializable("AuditResult")
    with pytest.raises(ValueError, match="Gaussian has 'gaussian' already"):
        serializable("gaussian")(Repeated)


def test_pairs_keep_the_type_of_each_place():
    use = PriorUse("p", "s", "h", "b", "psnr", None, (("none", math.inf), ("7", 1.0)))
    assert from_json(to_json(use)) == use


@pytest.mark.parametrize("text", ["[", "", "{'a': 1}"])
def test_broken_text_is_refused_as_a_value_error(text):
    with pytest.raises(InvalidInput, match=r"Expected JSON: .*line 1"):
        from_json(text)


def test_arrays_and_foreign_types_stay_out_of_reports():
    @dataclass(frozen=True)
    class Foreign:
        value: int

    account = AttackReport("attack", Status(Ending.EXACT, "closed form"), (0.0,), Cost(0.0, 0))
    for value in (torch.zeros(2), Foreign(1), Reconstruction(torch.zeros(1, 2), account)):
        with pytest.raises(InvalidInput, match="safetensors"):
            to_json(value)


def test_infinite_errors_are_written_as_words_that_float_reads():
    guarantee = Guarantee(
        Quantity.MEAN_SQUARED_ERROR, math.inf, Gaussian(1.0), Scope.UNBIASED_ESTIMATORS, STRONGEST, Reference("T", "p")
    )
    assert '"inf"' in to_json(guarantee)
    assert from_json(to_json(guarantee)).value == math.inf


def registered():
    """Tag and class of every class that is marked as serializable in the sources."""
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            for mark in getattr(node, "decorator_list", []):
                if isinstance(mark, ast.Call) and getattr(mark.func, "id", "") == "serializable":
                    module = ".".join(path.relative_to(SOURCES.parent).with_suffix("").parts)
                    yield mark.args[0].value, f"{module}.{node.name}"


def test_every_kind_is_found_in_a_fresh_process_and_has_one_tag():
    program = (
        "import json, sys\n"
        "from reconrisk.core.storage.serialization import find_kind\n"
        "found = [find_kind(tag).cls for tag in sys.argv[1:]]\n"
        "print(json.dumps([f'{cls.__module__}.{cls.__qualname__}' for cls in found]))"
    )
    known = list(registered())
    tags = [tag for tag, _ in known]
    assert len(set(tags)) == len(tags) > 60
    done = subprocess.run([sys.executable, "-c", program, *tags], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [cls for _, cls in known]


@pytest.mark.parametrize("tag", ["audit-result", "leakage-report", "tradeoff-result", "risk-corridor", "gaussian"])
def test_reading_a_result_loads_no_torch(tag):
    program = (
        "import sys; from reconrisk.core.storage.serialization import find_kind; find_kind(sys.argv[1])\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program, tag], check=False).returncode == 0


def test_the_table_of_kinds_has_every_kind_above_core_and_no_other():
    upper = {tag: cls.rpartition(".")[0] for tag, cls in registered() if not cls.startswith("reconrisk.core.")}
    assert upper == HOMES

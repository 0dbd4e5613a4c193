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
from reconrisk.core.reconstruction import Account, Cost, Ending, Reconstruction, Status
from reconrisk.core.storage.serialization import from_json, to_json
from reconrisk.core.threat import STRONGEST, Controls, Knows, Sees, ThreatModel

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
    Account,
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
        from_json('{"kind": "Gaussian", "noise_multiplier": -1.0, "clip_norm": 1.0}')


def test_unknown_fields_and_kinds_name_the_nearest_known():
    with pytest.raises(InvalidInput, match="Did you mean clip_norm"):
        from_json('{"kind": "Gaussian", "noise_multiplier": 1.0, "clipnorm": 1.0}')
    with pytest.raises(InvalidInput, match="Did you mean Gaussian"):
        from_json('{"kind": "Gausian", "noise_multiplier": 1.0}')
    with pytest.raises(InvalidInput, match=r"fields of Gaussian \(noise_multiplier, clip_norm\)"):
        from_json('{"kind": "Gaussian", "clip_norm": 1.0}')
    with pytest.raises(InvalidInput, match="fields of Gaussian"):
        from_json('{"kind": "Gaussian", "noise_multiplier": "abc"}')


@pytest.mark.parametrize("text", ["[", "", "{'a': 1}"])
def test_broken_text_is_refused_as_a_value_error(text):
    with pytest.raises(InvalidInput, match=r"Expected JSON: .*line 1"):
        from_json(text)


def test_arrays_and_foreign_types_stay_out_of_reports():
    @dataclass(frozen=True)
    class Foreign:
        value: int

    account = Account("attack", Status(Ending.EXACT, "closed form"), (0.0,), Cost(0.0, 0))
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
    """Every class marked as serializable in the sources."""
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            marks = [mark.id for mark in getattr(node, "decorator_list", []) if isinstance(mark, ast.Name)]
            if isinstance(node, ast.ClassDef) and "serializable" in marks:
                yield node.name


def test_every_kind_is_found_in_a_fresh_process():
    program = (
        "import sys, reconrisk as rr\n"
        "from reconrisk.core.storage import serialization\n"
        'try: rr.from_json(\'{"kind": "nonsense"}\')\n'
        "except ValueError: pass\n"
        "print(*serialization._KINDS)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == set(registered())

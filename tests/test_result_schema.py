"""The published schema is that of the code, accepts every kind of result and refuses what is none."""

from __future__ import annotations

import copy
import json

import pytest

from reconrisk.core.storage.result import Result
from reconrisk.core.storage.serialization import list_kinds
from tests.result_examples import result_examples
from tools.make_result_schema import FILE, make_schema

jsonschema = pytest.importorskip("jsonschema")

KINDS = sorted(kind.tag for kind in list_kinds() if issubclass(kind.cls, Result))


@pytest.fixture(scope="module")
def validator():
    schema = json.loads(FILE.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_published_schema_is_that_of_the_code():
    assert json.loads(FILE.read_text(encoding="utf-8")) == make_schema()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_result_fits(kind, validator):
    validator.validate(json.loads(result_examples()[kind].to_json()))


@pytest.mark.parametrize("kind", ["rebuilt", "rebuilt-informed", "fisher-account"])
def test_results_with_arrays_are_written_as_their_reports(kind, validator):
    result = result_examples()[kind]
    plain = json.loads(result.to_json())
    validator.validate(plain)
    assert plain["kind"] == result.to_report().kind


@pytest.mark.parametrize("kind", KINDS)
def test_other_tags_versions_and_fields_do_not_fit(kind, validator):
    plain = json.loads(result_examples()[kind].to_json())
    some = next(name for name in plain if name not in ("kind", "version"))
    for changes in (
        {"kind": "nonsense"},
        {"version": plain["version"] + 1},
        {"unknown": 1},
        {some: {"kind": "nonsense"}},
    ):
        assert not validator.is_valid({**plain, **changes}), changes
    for name in ("kind", "version", some):
        without = copy.copy(plain)
        del without[name]
        assert not validator.is_valid(without), name

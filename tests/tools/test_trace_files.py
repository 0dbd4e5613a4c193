"""The tool that counts the files in which functions run, and its limits for audits."""

import sys

import pytest

from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows
from reconrisk.core.validation import check_whole
from tools.trace_files import ROOT, trace_audit, trace_files, trace_trial


def test_files_of_functions_that_run_are_found():
    found = trace_files(lambda: (check_whole("steps", 1), HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS)))
    assert found == {"core/validation.py", "core/threat.py"}


def test_nothing_is_found_where_no_function_runs():
    assert trace_files(lambda: sorted([2, 1])) == frozenset()


def test_the_body_of_a_module_and_its_classes_is_no_function():
    path = ROOT / "core" / "errors.py"
    body = compile(path.read_text("utf-8"), str(path), "exec")
    space = {"__name__": "a copy of the module"}
    assert "core/errors.py" not in trace_files(lambda: exec(body, space))  # noqa: S102 - the package's own source
    assert "core/errors.py" in trace_files(lambda: space["MissingExtra"]("a", "b", "c"))


def test_tracing_ends_with_an_error_too():
    before = sys.getprofile()
    with pytest.raises(ZeroDivisionError):
        trace_files(lambda: 1 / 0)
    assert sys.getprofile() is before


@pytest.mark.parametrize(("trace", "limit"), [(trace_trial, 28), (trace_audit, 45)])
def test_a_reader_of_an_audit_opens_few_files(trace, limit):
    files = trace()
    assert len(files) <= limit, "\n".join(sorted(files))

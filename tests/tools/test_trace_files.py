"""The tool that counts the files in which functions run, and its limits for audits.

Every test traces in a new process: in one that has run other tests, Python 3.11 can hang after ``sys.setprofile``.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, sys
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows
from reconrisk.core.validation import check_whole
from tools.trace_files import ROOT, trace_audit, trace_files, trace_trial
{setup}
print(json.dumps({expression}))
"""


def run(expression, setup=""):
    """Value of an expression about traces in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(setup=setup, expression=expression)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_files_of_functions_that_run_are_found():
    calls = 'lambda: (check_whole("steps", 1), HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS))'
    assert run(f"sorted(trace_files({calls}))") == ["core/threat.py", "core/validation.py"]


def test_nothing_is_found_where_no_function_runs():
    assert run("sorted(trace_files(lambda: sorted([2, 1])))") == []


def test_the_body_of_a_module_and_its_classes_is_no_function():
    setup = """
path = ROOT / "core" / "errors.py"
body = compile(path.read_text("utf-8"), str(path), "exec")
space = {"__name__": "a copy of the module"}
ran = trace_files(lambda: exec(body, space))
called = trace_files(lambda: space["MissingExtra"]("a", "b", "c"))
"""
    assert run('["core/errors.py" in ran, "core/errors.py" in called]', setup) == [False, True]


def test_tracing_ends_with_an_error_too():
    setup = """
before = sys.getprofile()
try:
    trace_files(lambda: 1 / 0)
except ZeroDivisionError:
    raised = True
"""
    assert run("[raised, sys.getprofile() is before]", setup) == [True, True]


# exact noise has a file in a trial, and the check of derivatives one in a trial and two in an audit
@pytest.mark.parametrize(("trace", "limit"), [("trace_trial", 30), ("trace_audit", 47)])
def test_a_reader_of_an_audit_opens_few_files(trace, limit):
    files = run(f"sorted({trace}())")
    assert len(files) <= limit, "\n".join(files)
    assert "studies/common/experiment.py" in files

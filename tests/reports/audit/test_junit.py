"""JUnit XML of an audit: a case for every bound and limit, and only what fails fails."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from reconrisk.reports.audit.junit import write_junit
from reconrisk.studies.audit.result import Standing, Verdict
from tests.reports.audit.audit_example import example_result, share
from tests.reports.audit.test_page import HOSTILE


def suite_of(path: Path) -> ET.Element:
    suite = ET.parse(path).getroot().find("testsuite")  # noqa: S314 - a file that this test wrote
    assert suite is not None
    return suite


def test_one_case_for_each_goal_and_defense_and_each_limit(tmp_path: Path):
    suite = suite_of(write_junit(example_result(), tmp_path / "audit.xml"))
    cases = [(case.get("classname"), case.get("name")) for case in suite.findall("testcase")]
    sound = "no attack beats a bound that covers it"
    assert cases == [
        ("psnr>=20 under no defense", sound),
        ("psnr>=20 under no defense", "limit psnr>=20: 5%"),
        ("psnr>=20 under noise", sound),
        ("psnr>=20 under noise", "limit psnr>=20: 5%"),
        ("mse<=0.05 under no defense", sound),
        ("mse<=0.05 under noise", sound),
    ]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("6", "2", "0")


@pytest.mark.parametrize("standing", list(Standing))
def test_only_a_risk_above_its_limit_fails(standing: Standing, tmp_path: Path):
    suite = suite_of(write_junit(example_result(standing=standing), tmp_path / "audit.xml"))
    kinds = {failure.get("type") for failure in suite.iter("failure")}
    assert kinds == ({"RiskAboveLimit"} if standing is Standing.ABOVE else set())


def test_a_contradicted_bound_fails_with_both_numbers(tmp_path: Path):
    suite = suite_of(write_junit(example_result(contradicted=True, standing=None), tmp_path / "audit.xml"))
    failures = list(suite.iter("failure"))
    assert {failure.get("type") for failure in failures} == {"ContradictedBound"}
    assert "0.6 [0.5, 0.7]" in failures[0].get("message", "")
    assert "at most 0.3" in failures[0].get("message", "")


@pytest.mark.parametrize(("standing", "failures"), [(Standing.NOT_SHOWN, 4), (Standing.PROVED, 0)])
def test_a_limit_that_nothing_was_run_for_fails_unless_it_is_proved(standing: Standing, failures: int, tmp_path: Path):
    result = example_result(standing=standing)
    none = share(0.0, 0.0, 1.0, samples=0)
    first = result.lines[0].limits
    lines = tuple(replace(each, verdict=Verdict.NOTHING_RUN, success=none, limits=first) for each in result.lines)
    suite = suite_of(write_junit(replace(result, lines=lines), tmp_path / "audit.xml"))
    assert (suite.get("skipped"), suite.get("failures")) == ("4", str(failures))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_stays_text(name: str, tmp_path: Path):
    plain = suite_of(write_junit(example_result(contradicted=True), tmp_path / "a.xml"))
    suite = suite_of(write_junit(example_result(name=name, contradicted=True), tmp_path / "b.xml"))
    assert [each.tag for each in suite.iter()] == [each.tag for each in plain.iter()]
    written = name.replace("\x00", "\ufffd").replace("\udcff", "\ufffd")
    assert suite.get("name") == f"reconrisk audit of LeNet{written} on digits{written}"

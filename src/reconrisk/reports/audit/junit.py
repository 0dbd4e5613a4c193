"""An audit as JUnit XML, so that a build server shows limits and bounds as tests."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING

from reconrisk.core.storage.files import write_whole
from reconrisk.reports.audit.words import bounded, defense_name, interval, measured

if TYPE_CHECKING:
    from reconrisk.studies.audit.result import AuditLine, AuditResult, LimitCheck

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_junit(result: AuditResult, path: str | Path, *, strict: bool = False) -> Path:
    """Write an audit as JUnit XML: for every goal and defense one case for its bounds, and one for each limit.

    Args:
        result: The audit.
        path: The file.
        strict: A limit that too few trials were run to show fails too.

    Returns:
        The path.

    Guarantee: a case fails if an attack beats a bound that covers it, if the measured risk is above a limit, or if no
    attack worked and no bound proves the limit; with ``strict`` also if too few trials were run to show that it is not
    above it. The file appears whole or not at all, for its owner alone; characters that XML has no place for become
    U+FFFD.
    Edge cases: the case of bounds is skipped where no attack was run.
    """
    suite = ET.Element("testsuite", name=_clean(f"reconrisk audit of {result.subject.model} on {result.subject.data}"))
    for line in result.lines:
        _bounds_case(suite, line)
        for check in line.limits:
            _limit_case(suite, line, check, strict=strict)
    for name, kind in (("failures", "failure"), ("skipped", "skipped")):
        suite.set(name, str(len(suite.findall(f"testcase/{kind}"))))
    cases = len(suite.findall("testcase"))
    timestamp = result.created[:19]
    for name, value in (("tests", str(cases)), ("errors", "0"), ("time", f"{result.seconds:.3f}")):
        suite.set(name, value)
    suite.set("timestamp", _clean(timestamp))
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    written: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"
    return write_whole(path, lambda temporary: temporary.write_bytes(written), secret=True)


def _bounds_case(suite: ET.Element, line: AuditLine) -> None:
    case = _case(suite, line, "no attack beats a bound that covers it")
    for each in line.comparisons:
        if each.is_contradicted:
            message = f"{each.highest_attack} reaches {line.goal} with probability {each.highest}, but {each.guarantee}"
            failure = ET.SubElement(case, "failure", message=_clean(message), type="ContradictedBound")
            failure.text = _clean(message + ". The mechanism does not do what it says, or the code is wrong.")
    if line.verdict.name == "NOTHING_RUN":
        ET.SubElement(case, "skipped", message=line.verdict.value)


def _limit_case(suite: ET.Element, line: AuditLine, check: LimitCheck, *, strict: bool) -> None:
    case = _case(suite, line, f"limit {check.limit}")
    if check in line.unmet(strict=strict):
        message = f"{check.standing.value} {check.limit}: {measured(line.success)} ({interval(line.success)})"
        failure = ET.SubElement(case, "failure", message=_clean(message), type="RiskAboveLimit")
        failure.text = _clean(f"{message}, by {line.best_attack}, under {defense_name(line.defense)}")
    else:
        proved = "; ".join(bounded(each.guarantee) for each in line.comparisons if each.is_compared)
        said = (
            f"{check.standing.value}: {measured(line.success)} ({interval(line.success)}), bounds: {proved or 'none'}"
        )
        ET.SubElement(case, "system-out").text = _clean(said)


def _case(suite: ET.Element, line: AuditLine, name: str) -> ET.Element:
    place = _clean(f"{line.goal} under {defense_name(line.defense)}")
    return ET.SubElement(suite, "testcase", classname=place, name=_clean(name), time="0")


def _clean(words: str) -> str:
    return _NOT_XML.sub("\ufffd", words)

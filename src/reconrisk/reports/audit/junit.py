"""An audit as JUnit XML: a build server shows limits and bounds as tests."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING

from reconrisk.core.storage.files import write_atomically
from reconrisk.reports.audit.words import defense_name, format_bound, format_estimate, interval

if TYPE_CHECKING:
    from reconrisk.studies.audit.result import AuditLine, AuditResult, IdentificationCheck, LimitCheck, NoiseScaleCheck

# characters that XML 1.0 does not allow
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_junit(result: AuditResult, path: str | Path, *, strict: bool = False) -> Path:
    """Write an audit as JUnit XML: a case for the bounds of every goal and defense, each limit and each check of noise.

    Args:
        result: The audit.
        path: The file.
        strict: True to let a case fail also if the trials are too few to show that its limit holds.

    Returns:
        The path.

    Guarantee: a case fails if an attack beats a bound that covers it, if a check contradicts the noise, if the measured
    risk is above a limit, or if no attack worked and no bound proves the limit. With ``strict`` it also fails if the
    trials are too few to show that the risk is not above the limit. The file is written completely or not at all, and
    only its owner can read it. Characters that XML does not allow become U+FFFD.
    Edge cases: the case of the bounds is skipped if no attack was run.
    """
    suite = ET.Element("testsuite", name=_clean(f"reconrisk audit of {result.subject.model} on {result.subject.data}"))
    for line in result.lines:
        _bounds_case(suite, line)
        for check in line.limits:
            _limit_case(suite, line, check, strict=strict)
    for each in result.noise_checks.every:
        _noise_case(suite, each)
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
    return write_atomically(path, lambda temporary: temporary.write_bytes(written), secret=True)


def _bounds_case(suite: ET.Element, line: AuditLine) -> None:
    case = _case(suite, line, "no attack beats a bound that covers it")
    for each in line.comparisons:
        if each.is_contradicted:
            message = f"{each.highest_attack} reaches {line.goal} with probability {each.highest}, but {each.guarantee}"
            failure = ET.SubElement(case, "failure", message=_clean(message), type="ContradictedBound")
            failure.text = _clean(message + ". The mechanism or its implementation is wrong.")
    if line.verdict.name == "NOTHING_RUN":
        ET.SubElement(case, "skipped", message=line.verdict.value)


def _noise_case(suite: ET.Element, check: IdentificationCheck | NoiseScaleCheck) -> None:
    name = f"noise under {defense_name(check.defense)}"
    case = ET.SubElement(suite, "testcase", classname=_clean(name), name=_clean(check.title), time="0")
    if check.is_contradicted:
        failure = ET.SubElement(case, "failure", message=_clean(str(check)), type="ContradictedBound")
        failure.text = _clean(check.contradiction)
    else:
        ET.SubElement(case, "system-out").text = _clean(str(check))


def _limit_case(suite: ET.Element, line: AuditLine, check: LimitCheck, *, strict: bool) -> None:
    case = _case(suite, line, f"limit {check.limit}")
    if check in line.unmet_limits(strict=strict):
        message = f"{check.standing.value} {check.limit}: {format_estimate(line.success)} ({interval(line.success)})"
        failure = ET.SubElement(case, "failure", message=_clean(message), type="RiskAboveLimit")
        failure.text = _clean(f"{message}, by {line.best_attack}, under {defense_name(line.defense)}")
    else:
        proved = "; ".join(format_bound(each.guarantee) for each in line.comparisons if each.is_compared)
        success = f"{format_estimate(line.success)} ({interval(line.success)})"
        summary = f"{check.standing.value}: {success}, bounds: {proved or 'none'}"
        ET.SubElement(case, "system-out").text = _clean(summary)


def _case(suite: ET.Element, line: AuditLine, name: str) -> ET.Element:
    place = _clean(f"{line.goal} under {defense_name(line.defense)}")
    return ET.SubElement(suite, "testcase", classname=place, name=_clean(name), time="0")


def _clean(words: str) -> str:
    return _NOT_XML.sub("\ufffd", words)

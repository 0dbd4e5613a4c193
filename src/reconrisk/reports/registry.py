"""Functions that write each kind of result, by JSON tag and file suffix.

``Result.save`` reads this table. A function is given as ``"module:function"`` and imported on first use. It takes the
result, the path, and settings as keywords.
"""

from __future__ import annotations

from collections.abc import Mapping

_ANY: Mapping[str, str] = {
    ".json": "reconrisk.reports.plain:write_json",
    ".csv": "reconrisk.reports.plain:write_csv",
    ".md": "reconrisk.reports.plain:write_markdown",
    ".html": "reconrisk.reports.plain:write_html",
}
"""Formats of every kind of result."""

_FIGURES = (".png", ".svg", ".pdf")

_OWN: Mapping[str, Mapping[str, str]] = {
    "audit-comparison": {},
    "audit-result": {
        ".html": "reconrisk.reports.audit.page:write_page",
        ".md": "reconrisk.reports.audit.model_card:write_model_card",
        ".xml": "reconrisk.reports.audit.junit:write_junit",
    },
    "calibration": {},
    "chi-square-law": {},
    "estimate": {},
    "fisher-account": {},
    "guarantee": {},
    "informed-report": {},
    "leakage-over-prior": {},
    "leakage-report": {},
    "leakage-summary": {},
    "mechanism-verdict": {},
    "prior-success": {},
    "rebuild-report": {},
    "rebuilt": {
        ".png": "reconrisk.reports.rebuild:write_pictures",
        ".safetensors": "reconrisk.reports.rebuild:write_estimates",
    },
    "rebuilt-informed": {
        ".png": "reconrisk.reports.informed:write_pictures",
        ".safetensors": "reconrisk.reports.informed:write_estimates",
    },
    "recommendation": {},
    "risk-corridor": dict.fromkeys(_FIGURES, "reconrisk.reports.corridor:write_corridor"),
    "run-law": {},
    "simple-guesses": {},
    "tradeoff-result": dict.fromkeys((*_FIGURES, ".html"), "reconrisk.reports.tradeoff:write_tradeoff"),
}

RENDERERS: Mapping[str, Mapping[str, str]] = {tag: {**_ANY, **own} for tag, own in _OWN.items()}
"""The function for each tag and suffix."""

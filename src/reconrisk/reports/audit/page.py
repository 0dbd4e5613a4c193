"""The report of an audit as one self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from reconrisk.core.storage.files import write_atomically
from reconrisk.reports.audit import figures as audit_figures
from reconrisk.reports.audit import words as audit_words
from reconrisk.reports.audit.figures import leakage_histogram, training_corridor
from reconrisk.reports.audit.model_card import model_card
from reconrisk.reports.drawing import to_image

if TYPE_CHECKING:
    from reconrisk.studies.audit.result import AuditResult

LARGEST_SIDE = 80
"""Largest side of a picture in pixels. 64 records with estimates stay below 5 MB, even if they are noise."""

_FILTERS = (
    "share",
    "interval",
    "format_estimate",
    "format_bound",
    "number",
    "duration",
    "describe_adversary",
    "defense_name",
    "metric_name",
    "released_thing",
)


def write_page(result: AuditResult, path: Path, *, redact: bool | None = None) -> Path:
    """Write an audit as one HTML file.

    Args:
        result: The audit.
        path: The file.
        redact: Leave out the pictures of records and estimates. The default redacts unless the records come with the
            package.

    Returns:
        The path.

    Guarantee: the page loads nothing and sends nothing. It is written completely or not at all. Only its owner can read
    it if the records are not public. With ``redact`` it contains no value of a record or an estimate. Names of models,
    data sets, defenses and attacks are escaped.
    Edge cases: records that are not images have no pictures.
    """
    private = result.is_private
    page = page_of(result, redact=private if redact is None else redact).encode("utf-8", "replace")
    return write_atomically(path, lambda temporary: temporary.write_bytes(page), secret=private)


def page_of(result: AuditResult, *, redact: bool) -> str:
    """Render the page.

    Args:
        result: The audit.
        redact: Leave out the pictures of records and estimates.

    Returns:
        The HTML text.
    """
    from jinja2 import Environment, StrictUndefined  # slow import, needed only to write a page

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update({name: getattr(audit_words, name) for name in _FILTERS})
    environment.filters["letter"] = audit_figures.letter
    style, script, training = _part("page.css"), _part("page.js"), result.training
    figures = {
        "corridor": audit_figures.corridor_of_attacks(result, result.goals[0]),
        "against": [(goal, audit_figures.attacks_against_bounds(result, goal)) for goal in result.goals],
        "scores": audit_figures.histogram_of_scores(result) if result.exposures else "",
        "frontier": audit_figures.frontier_of_defenses(result),
        "training": training_corridor(training.corridor) if training and training.corridor else "",
        "leakage": leakage_histogram(training.leakage) if training and training.leakage else "",
    }
    page: str = environment.from_string(_part("page.html.jinja")).render(
        result=result,
        headline=audit_words.headline(result),
        notice="" if result.subject.is_bundled else audit_words.PRIVATE,
        redact=redact,
        gallery={} if redact else _gallery(result),
        figures=figures,
        card=model_card(result),
        style=style,
        script=script,
        policy=_policy(style, script),
    )
    return page


def _gallery(result: AuditResult) -> dict[str, Sequence[dict[str, Any]]]:
    """Collect pictures of records and their estimates for each defense, most exposed first."""
    found: dict[str, list[dict[str, Any]]] = {}
    higher, span = result.goals[0].higher_is_better, result.subject.data_range
    for picture in sorted(result.pictures, key=lambda each: each.exposure.score, reverse=higher):
        pair = {"target": _data_uri(picture.target, span), "estimate": _data_uri(picture.estimate, span)}
        found.setdefault(picture.exposure.defense, []).append({"exposure": picture.exposure, **pair})
    return {each.label: found[each.label] for each in result.defenses if each.label in found}


def _data_uri(picture: Any, data_range: tuple[float, float]) -> str:
    low, high = data_range
    image = to_image(np.nan_to_num(np.asarray(picture, np.float32), nan=low, posinf=high, neginf=low), data_range)
    image.thumbnail((LARGEST_SIDE, LARGEST_SIDE), Image.Resampling.BOX)
    written = io.BytesIO()
    image.save(written, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(written.getvalue()).decode("ascii")


def _part(name: str) -> str:
    return files("reconrisk.reports.audit").joinpath(name).read_text("utf-8")


def _policy(style: str, script: str) -> str:
    """Return a Content-Security-Policy that allows only this style, this script (by hash) and inline pictures."""
    digests = (hashlib.sha256(part.encode()).digest() for part in (style, script))
    of_style, of_script = (base64.b64encode(digest).decode("ascii") for digest in digests)
    allowed = f"img-src data:; style-src 'sha256-{of_style}'; script-src 'sha256-{of_script}'"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"

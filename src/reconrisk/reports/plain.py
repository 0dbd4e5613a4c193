"""Writers for any kind of result: JSON, CSV, Markdown and a plain page, without pictures."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import escape

from reconrisk.core.storage.files import write_atomically

if TYPE_CHECKING:
    from reconrisk.core.storage.result import Result

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem }}
pre {{ overflow-x: auto; font-size: .8rem }}</style></head>
<body><h1>{title}</h1>
<p>{sentence}</p>
<pre>{table}</pre></body></html>
"""
_SPECIAL = re.compile(r"(?=[\\`*_{}\[\]<>&|~$#@])|(?<=:)(?=//)|(?<=www)(?=\.)")
"""Positions that need a backslash: before markup characters, and inside addresses that some viewers turn into links."""


def write_json(result: Result, path: Path) -> Path:
    """Write a result as JSON; ``rr.load`` reads it back.

    Args:
        result: The result.
        path: The file.

    Returns:
        The path.
    """
    return _write_text(result, path, result.to_json(indent=1) + "\n")


def write_csv(result: Result, path: Path) -> Path:
    """Write the rows of a result as comma-separated values in full precision.

    Args:
        result: The result.
        path: The file.

    Returns:
        The path.
    """
    rows, written = result.to_rows(), io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(rows[0] if rows else ())
    writer.writerows(row.values() for row in rows)
    return _write_text(result, path, written.getvalue())


def write_markdown(result: Result, path: Path) -> Path:
    """Write the sentence and the table of a result as Markdown.

    Args:
        result: The result.
        path: The file.

    Returns:
        The path.

    Guarantee: no name in the result becomes markup or a link.
    """
    table = result.table()
    fence = "`" * (1 + max(2, *(len(run) for run in re.findall("`+", table)), 0))
    return _write_text(result, path, f"{escape_markdown(result.sentence)}\n\n{fence}text\n{table}\n{fence}\n")


def write_html(result: Result, path: Path) -> Path:
    """Write the sentence and the table of a result as an HTML page that loads nothing.

    Args:
        result: The result.
        path: The file.

    Returns:
        The path.

    Guarantee: no name in the result becomes markup.
    """
    title = result.kind.replace("-", " ").capitalize()
    return _write_text(
        result, path, _PAGE.format(title=title, sentence=escape(result.sentence), table=escape(result.table()))
    )


def escape_markdown(words: str) -> str:
    r"""Escape text so that Markdown shows it unchanged, on one line.

    Args:
        words: The text.

    Returns:
        The escaped text.

    >>> print(escape_markdown("a_b <i>"))
    a\_b \<i\>
    """
    return _SPECIAL.sub(r"\\", " ".join(words.split()))


def _write_text(result: Result, path: Path, text: str) -> Path:
    data = text.encode("utf-8", "replace")
    return write_atomically(path, lambda temporary: temporary.write_bytes(data), secret=result.is_private)

"""How commands declare an option in one of the groups that their help shows."""

from __future__ import annotations

from typing import Any

import typer


def option(panel: str, words: str, *names: str) -> Any:
    """An option with its help, under the heading ``panel``."""
    return typer.Option(*names, help=words, rich_help_panel=panel)

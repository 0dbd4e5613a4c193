"""The command line: parse, one library call, print. One file per command."""

from __future__ import annotations

import sys

from reconrisk.core.errors import InvalidFile, InvalidInput, MissingExtra

USAGE_ERROR = 2


def main() -> None:
    """Run ``reconrisk``: wrong input ends with a sentence and exit code 2, Ctrl-C with 130, both without traceback."""
    from reconrisk.cli.app import app  # typer is not needed to import the package

    try:
        app()
    except (InvalidInput, InvalidFile, MissingExtra, OSError) as error:
        sys.stderr.write(f"reconrisk: {error}\n")
        sys.exit(USAGE_ERROR)

"""The command line. Each command parses its options, calls one function of the library, and prints the result.

Start with ``app.py`` (the list of commands) and a short command such as ``risk.py``. A command has the name of the
function that it calls. ``options.py`` and ``inputs.py`` hold the options and arguments that commands share,
``tables.py`` prints results, ``store.py`` has the four commands on stored runs. Nothing is computed here, so everything
that a command does can be done from Python.
"""

from __future__ import annotations

import sys
import traceback

from reconrisk.core.errors import InvalidFile, InvalidInput, MissingExtra

USAGE_ERROR = 2
UNEXPECTED_ERROR = 3


def main() -> None:
    """Run ``reconrisk`` and set the exit code.

    Invalid input ends with a sentence and code 2, Ctrl-C with 130, both without a traceback. An unexpected error ends
    with its traceback and code 3, so that a release gate cannot confuse it with code 1, a risk above its limit.
    """
    from reconrisk.cli.app import app  # imported late: typer is not needed to import the package

    try:
        app()
    except (InvalidInput, InvalidFile, MissingExtra, OSError) as error:
        sys.stderr.write(f"reconrisk: {error}\n")
        sys.exit(USAGE_ERROR)
    except Exception as error:  # last resort: keep code 1 for risks above a limit
        traceback.print_exc(file=sys.stderr)
        sys.stderr.write(f"reconrisk: unexpected {type(error).__name__}: {error}\n")
        sys.exit(UNEXPECTED_ERROR)

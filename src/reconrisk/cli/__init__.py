"""The command line: parse, one library call, print. One file per command.

Start with ``app.py`` (the list of commands) and a short command such as ``risk.py``. ``options.py`` and ``inputs.py``
hold the options and arguments that commands share, ``tables.py`` prints results, ``store.py`` has the four commands on
stored runs. Nothing is computed here, so everything a command does can be done from Python.
"""

from __future__ import annotations

import sys
import traceback

from reconrisk.core.errors import InvalidFile, InvalidInput, MissingExtra

USAGE_ERROR = 2
UNEXPECTED_ERROR = 3


def main() -> None:
    """Run ``reconrisk``: wrong input ends with a sentence and exit code 2, Ctrl-C with 130, both without traceback.

    Anything unexpected ends with its traceback and 3: a gate must not take it for a risk above its limit, which is 1.
    """
    from reconrisk.cli.app import app  # typer is not needed to import the package

    try:
        app()
    except (InvalidInput, InvalidFile, MissingExtra, OSError) as error:
        sys.stderr.write(f"reconrisk: {error}\n")
        sys.exit(USAGE_ERROR)
    except Exception as error:  # whatever nobody thought of
        traceback.print_exc(file=sys.stderr)
        sys.stderr.write(f"reconrisk: unexpected {type(error).__name__}: {error}\n")
        sys.exit(UNEXPECTED_ERROR)

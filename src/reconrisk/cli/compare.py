"""``reconrisk compare``: what changed between two audits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reconrisk.cli.training_options import AsJson
from reconrisk.core.errors import InvalidFile
from reconrisk.core.serialization import to_json
from reconrisk.core.validation import refuse

if TYPE_CHECKING:
    from reconrisk.audit.audit_result import AuditResult

_WAYS = "a JSON file of a result, STORE#RUN, a store (its newest run), or with --store the beginning of a run"


def compare(
    before: Annotated[str, typer.Argument(help=f"The earlier audit: {_WAYS}.", show_default=False)],
    after: Annotated[str, typer.Argument(help="The later audit, in the same way.", show_default=False)],
    store: Annotated[Path | None, typer.Option(help="The store that runs are in.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Say what changed between two audits: settings, success of attacks and whether it is chance, bounds, verdicts."""
    old, new = _result("before", before, store), _result("after", after, store)
    from reconrisk.audit.comparison import compare_results  # loads statistics, which takes a second

    found = compare_results(old, new)
    typer.echo(to_json(found, indent=2) if as_json else str(found))


def _result(name: str, text: str, store: Path | None) -> AuditResult:
    """The result that a word of the command stands for."""
    from reconrisk.audit.store import Store, result_from_json

    file, mark, run = text.rpartition("#")
    if Path(text).is_file():
        with Path(text).open("rb") as beginning:
            is_store = beginning.read(6) == b"SQLite"
        if not is_store:
            return result_from_json(_text(Path(text)), path=text, with_exposures=False)
        path, run = Path(text), ""
    elif mark and Path(file).is_file():
        path = Path(file)
    elif store is not None:
        path, run = store, text
    else:
        raise refuse(name, text, f"to be {_WAYS}", "There is no such file.")
    with Store.read(path) as opened:
        return opened.result(run or None, with_exposures=False)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidFile(path, f"byte {error.start}", "it is no text.", f"Pass {_WAYS}.") from error

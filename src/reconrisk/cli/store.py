"""Commands on stored runs: ``reconrisk runs``, ``show``, ``compare`` and ``export``.

They list the runs of a store, print one result, compare two audits, and write the trials of a run as a table.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reconrisk.cli.options import AsJson
from reconrisk.core.errors import InvalidFile
from reconrisk.core.storage.serialization import to_json
from reconrisk.core.storage.text_table import align_columns
from reconrisk.core.validation import invalid_input

if TYPE_CHECKING:
    from reconrisk.studies.audit.result import AuditResult

_WAYS = "a result file (JSON), STORE#RUN, a store (its newest run), or with --store the beginning of a run name"


def compare(
    before: Annotated[str, typer.Argument(help=f"The earlier audit: {_WAYS}.", show_default=False)],
    after: Annotated[str, typer.Argument(help="The later audit, in the same form.", show_default=False)],
    store: Annotated[Path | None, typer.Option(help="Store that holds the runs.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Compare two audits: settings, attack success with a test for chance, bounds and verdicts."""
    old, new = _result("before", before, store), _result("after", after, store)
    from reconrisk.studies.audit.comparison import compare  # loads statistics, which takes a second

    found = compare(old, new)
    typer.echo(found.to_json(indent=2) if as_json else str(found))


def _result(name: str, text: str, store: Path | None) -> AuditResult:
    """Load the audit result that an argument names."""
    from reconrisk.studies.audit.store import Store, result_from_json

    file, mark, run = text.rpartition("#")
    if Path(text).is_file():
        with Path(text).open("rb") as beginning:
            is_store = beginning.read(6) == b"SQLite"
        if not is_store:
            try:
                written = Path(text).read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                raise InvalidFile(
                    Path(text), f"byte {error.start}", "It is not a text file.", f"Pass {_WAYS}."
                ) from error
            return result_from_json(written, path=text, with_exposures=False)
        path, run = Path(text), ""
    elif mark and Path(file).is_file():
        path = Path(file)
    elif store is not None:
        path, run = store, text
    else:
        raise invalid_input(name, text, f"to be {_WAYS}, found no such file", "Check the path.")
    with Store.read(path) as opened:
        return opened.result(run or None, with_exposures=False)


StorePath = Annotated[Path, typer.Argument(help="Store of audits, a SQLite file.", show_default=False)]
RunName = Annotated[
    str | None, typer.Argument(help="Name of a run or its beginning. Default: the newest run.", show_default=False)
]


def runs(store: StorePath, as_json: AsJson = False) -> None:
    """List the runs of a store: model, data, progress and verdict."""
    from reconrisk.studies.audit.store import Store

    with Store.read(store) as opened:
        found = opened.runs()
    if as_json:
        typer.echo(to_json(found, indent=2))
        return
    if not found:
        typer.echo(f"There is no run in {store} yet.")
        return
    rows: list[tuple[str, ...]] = [("run", "created", "subject", "data", "trials", "seconds", "verdict")]
    for run in found:
        sentence = run.sentence if run.standing is None else f"{run.standing}: {run.sentence}"
        trials = str(run.trials) if run.planned in (None, run.trials) else f"{run.trials} of {run.planned}"
        verdict = sentence or "not finished; repeat the same audit command to resume"
        created = run.created.removesuffix("+00:00").replace("T", " ")
        rows.append((run.run, created, run.subject, run.data, trials, f"{run.seconds:.1f}", verdict))
    typer.echo("\n".join(align_columns(rows)))


def export(
    store: StorePath,
    run: RunName = None,
    form: Annotated[
        str | None,
        typer.Option("--format", help="csv, json or parquet. Default: the suffix of --out.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The file to write. Default: trials with the suffix of --format.")
    ] = None,
) -> None:
    """Write one row per record and trial: scores, status, cost and seed."""
    from reconrisk.studies.audit.store import Store, trial_columns, write_columns

    with Store.read(store) as opened:
        name = opened.name(run)
        columns = trial_columns(name, opened.trials(name))
    path = Path(f"trials.{form or 'csv'}") if out is None else out
    written = write_columns(path, columns, form=form)
    typer.echo(f"{len(columns['run'])} rows of run {name}: {written.resolve()}")


def show(store: StorePath, run: RunName = None, as_json: AsJson = False) -> None:
    """Print the result of a stored run: table, verdict, and the command that repeats it."""
    from reconrisk.studies.audit.store import Store

    with Store.read(store) as opened:
        result = opened.result(run, with_exposures=as_json)
    if as_json:
        typer.echo(result.to_json(indent=2))
        return
    typer.echo(f"{result}\n")
    for what, text in (("run", result.run), ("created", result.created), ("repeat", result.signature)):
        typer.echo(f"{what:<9} {text}")

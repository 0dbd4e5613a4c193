"""``reconrisk runs``: what is in a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reconrisk.cli.training_options import AsJson
from reconrisk.core.serialization import to_json

if TYPE_CHECKING:
    from reconrisk.audit.store import RunSummary

StorePath = Annotated[Path, typer.Argument(help="The store of an audit, a SQLite file.", show_default=False)]
RunName = Annotated[
    str | None, typer.Argument(help="A run, or the beginning of its name; the newest by default.", show_default=False)
]


def runs(store: StorePath, as_json: AsJson = False) -> None:
    """List the runs of a store: what was audited, how far it is, and what came out."""
    from reconrisk.audit.store import Store

    with Store.read(store) as opened:
        found = opened.runs()
    if as_json:
        typer.echo(to_json(found, indent=2))
        return
    typer.echo("\n".join(_table(found)) if found else f"There is no run in {store} yet.")


def _table(found: tuple[RunSummary, ...]) -> list[str]:
    rows = [("run", "created", "subject", "data", "trials", "seconds", "verdict"), *map(_row, found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _row(run: RunSummary) -> tuple[str, ...]:
    said = run.sentence if run.standing is None else f"{run.standing}: {run.sentence}"
    trials = str(run.trials) if run.planned in (None, run.trials) else f"{run.trials} of {run.planned}"
    verdict = said or "not finished; the same audit goes on with it"
    created = run.created.removesuffix("+00:00").replace("T", " ")
    return (run.run, created, run.subject, run.data, trials, f"{run.seconds:.1f}", verdict)

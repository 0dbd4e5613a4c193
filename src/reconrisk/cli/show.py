"""``reconrisk show``: the result of a run in a store."""

from __future__ import annotations

import typer

from reconrisk.cli.runs import RunName, StorePath
from reconrisk.cli.training_options import AsJson
from reconrisk.core.serialization import to_json


def show(store: StorePath, run: RunName = None, as_json: AsJson = False) -> None:
    """Print the result of a run: its table, its verdict in a sentence, and the line that repeats it."""
    from reconrisk.audit.store import Store

    with Store.read(store) as opened:
        result = opened.result(run, with_exposures=as_json)
    if as_json:
        typer.echo(to_json(result, indent=2))
        return
    typer.echo(f"{result}\n")
    for what, text in (("run", result.run), ("created", result.created), ("repeat", result.signature)):
        typer.echo(f"{what:<9} {text}")

"""``reconrisk export``: the trials of a run as a table for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reconrisk.cli.runs import RunName, StorePath


def export(
    store: StorePath,
    run: RunName = None,
    form: Annotated[
        str | None,
        typer.Option("--format", help="csv, json or parquet; by default as --out ends.", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("trials.csv"),
) -> None:
    """Write one row for each record of each trial: scores, how the attack ended, what it cost, its seed."""
    from reconrisk.audit.export import columns_of, write_columns
    from reconrisk.audit.store import Store

    with Store.read(store) as opened:
        name = opened.name(run)
        columns = columns_of(name, opened.trials(name))
    written = write_columns(out, columns, form=form)
    typer.echo(f"{len(columns['run'])} rows of run {name}: {written.resolve()}")

"""The list of commands."""

from __future__ import annotations

from typing import Annotated

import typer

from reconrisk.cli.audit import audit
from reconrisk.cli.calibrate import calibrate
from reconrisk.cli.demo import demo
from reconrisk.cli.doctor import doctor
from reconrisk.cli.leakage import leakage
from reconrisk.cli.plugins import plugins
from reconrisk.cli.rebuild import rebuild
from reconrisk.cli.rebuild_informed import rebuild_informed
from reconrisk.cli.recommend_defense import recommend_defense
from reconrisk.cli.risk import risk
from reconrisk.cli.store import compare, export, runs, show
from reconrisk.cli.tradeoff import tradeoff
from reconrisk.cli.train_prior import train_prior
from reconrisk.core import VERSION

app = typer.Typer(
    name="reconrisk",
    help="How much of a private training record can be rebuilt from what you release, at most and in practice.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"reconrisk {VERSION}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """How much of a private training record can be rebuilt from what you release, at most and in practice."""


_COMMANDS = (
    demo,
    audit,
    rebuild,
    rebuild_informed,
    recommend_defense,
    risk,
    calibrate,
    leakage,
    tradeoff,
    train_prior,
    runs,
    show,
    compare,
    export,
    plugins,
    doctor,
)

for command in _COMMANDS:
    app.command(command.__name__.replace("_", "-"))(command)

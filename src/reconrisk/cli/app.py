"""The commands in the order of ``reconrisk --help``, each with an example."""

from __future__ import annotations

import inspect
from collections.abc import Callable
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
from reconrisk.cli.verify_mechanism import verify_mechanism
from reconrisk.core import VERSION

app = typer.Typer(
    name="reconrisk",
    help="Measure and bound how much of a private training record can be reconstructed from a release.",
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
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Measure and bound how much of a private training record can be reconstructed from a release."""


EXAMPLES: dict[Callable[..., None], str] = {
    demo: "reconrisk demo --out demo-report",
    audit: "reconrisk audit --model lenet --data mnist --defense none --defense 'gaussian_noise(std=0.01)'",
    rebuild: "reconrisk rebuild inverting_gradients --model lenet --data mnist --records 0,1 --out folder",
    rebuild_informed: "reconrisk rebuild-informed --model ridge --data diabetes --target-index 17",
    recommend_defense: "reconrisk recommend-defense --model lenet --data digits --accept 'psnr>=20: 5%'",
    risk: "reconrisk risk --noise-multiplier 1 --steps 500 --dimension 3072 --norm 20 --psnr 20 --candidates 1000",
    calibrate: "reconrisk calibrate --steps 500 --candidates 1000 --identification 0.01",
    leakage: "reconrisk leakage --model lenet --weights w.safetensors --data mnist --noise-multiplier 1 --clip-norm 1",
    verify_mechanism: "reconrisk verify-mechanism --defense 'clip_and_noise(noise_multiplier=1, clip_norm=1)'",
    tradeoff: "reconrisk tradeoff --model lenet --data digits --defense 'gaussian_noise:0.01,0.1'",
    train_prior: "reconrisk train-prior --data mnist-full --split train --kind gan --out my-prior",
    runs: "reconrisk runs trials.db",
    show: "reconrisk show trials.db",
    compare: "reconrisk compare before/audit.json after/audit.json",
    export: "reconrisk export trials.db --out trials.csv",
    plugins: "reconrisk plugins",
    doctor: "reconrisk doctor",
}
"""All commands in the order of the help, each with the example that its help shows."""


def _join_lines(text: str) -> str:
    r"""Join the lines of each paragraph, which Typer would keep apart; keep lists, which begin with ``\b``."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(each if each.startswith("\b") else " ".join(each.split()) for each in paragraphs)


for command, example in EXAMPLES.items():
    name, words = command.__name__.replace("_", "-"), _join_lines(command.__doc__ or "")
    app.command(name, help=words, epilog=f"Example: {example}")(command)

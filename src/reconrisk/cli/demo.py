"""``reconrisk demo``: rebuild a bundled digit from its gradient."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture; nothing is written elsewhere.")] = Path(
        "demo-report"
    ),
    record: Annotated[int, typer.Option(help="Which bundled test digit to attack.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of training and attack.")] = 0,
) -> None:
    """Train a small network on bundled digits, release one gradient, rebuild the digit from it."""
    if out.exists() and not out.is_dir():
        raise typer.BadParameter(f"{out} is a file, a folder is needed.", param_hint="--out")
    with _own_caches():
        from reconrisk.audit.demo import check_demo, run_demo  # torch takes seconds to import
        from reconrisk.reports.picture import write_comparison

        check_demo(record=record, seed=seed)
        out.mkdir(parents=True, exist_ok=True)
        typer.echo("Training a small network on the bundled digits, then attacking the gradient of one test digit ...")
        result = run_demo(record=record, seed=seed)
    estimate = result.reconstruction
    path = write_comparison(
        out / "demo.png",
        [
            (f"target ({result.label})", result.target.numpy()),
            ("rebuilt from its gradient", estimate.estimates[0].numpy()),
        ],
        title=f"Attack on one gradient: {estimate.status.ending.value}",
        scores=result.scores,
        data_range=(0.0, 1.0),
    )
    typer.echo(f"network   {result.accuracy:.1%} accurate on unseen digits")
    typer.echo(f"attack    {estimate.account.attack} in {estimate.account.cost.seconds:.1f} s, {estimate.status}")
    typer.echo(f"label     {estimate.labels[0] if estimate.labels else '?'} inferred, {result.label} true")
    for name, value in result.scores.items():
        typer.echo(f"{name:<9} {value:.4g}")
    typer.echo(f"picture   {path.resolve()}")


@contextmanager
def _own_caches() -> Iterator[None]:
    """Let torch and matplotlib make the cache folders that they make on import where they vanish afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        for variable in ("TORCHINDUCTOR_CACHE_DIR", "MPLCONFIGDIR"):
            os.environ.setdefault(variable, folder)
        yield

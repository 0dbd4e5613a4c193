"""``reconrisk demo``: a complete small audit of bundled digits."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reconrisk.cli.inputs import INTERRUPTED, check_folder

if TYPE_CHECKING:
    from reconrisk.studies.audit.result import AuditResult


def demo(
    out: Annotated[Path, typer.Option(help="Output folder for report and picture.")] = Path("demo-report"),
    seed: Annotated[int, typer.Option(help="Seed of training, targets, noise and attacks.")] = 0,
    trials: Annotated[int, typer.Option(help="Number of digits to attack.")] = 4,
) -> None:
    """Train a small network on bundled digits and audit its gradients, in about a minute.

    The audit compares no defense, noise and pruning.
    """
    check_folder(out)
    with _own_caches():
        from reconrisk.studies.audit.demo import check_demo, run_demo  # torch takes seconds to import

        check_demo(seed=seed, trials=trials)
        typer.echo("Training a small network on bundled digits, then attacking gradients of test digits ...")
        done = run_demo(seed=seed, trials=trials, show_plan=typer.echo)
        result = done.audit
        written = {"report": result.save(out / "audit.html"), "json": result.save(out / "audit.json")}
        picture = _picture(out / "demo.png", result)
    typer.echo(f"\nnetwork   {done.accuracy:.1%} accurate on unseen digits\n")
    typer.echo(f"{result}\n")
    for what, path in {**written, **({} if picture is None else {"picture": picture})}.items():
        typer.echo(f"{what:<9} {path.resolve()}")
    if not result.done:
        raise typer.Exit(INTERRUPTED)


def _picture(path: Path, result: AuditResult) -> Path | None:
    """Draw the most exposed digit and its reconstruction under each defense."""
    from reconrisk.reports.drawing import write_comparison

    first = next(iter(result.pictures), None)
    if first is None:
        return None
    same = [each for each in result.pictures if each.exposure.record == first.exposure.record]
    panels = [(f"{each.exposure.defense.partition('(')[0]}", each.estimate) for each in same]
    return write_comparison(
        path,
        [("target", first.target), *panels],
        title="One digit, reconstructed from its gradient under each defense",
        scores={f"psnr, {name}": each.exposure.score for (name, _), each in zip(panels, same, strict=True)},
        data_range=result.subject.data_range,
    )


@contextmanager
def _own_caches() -> Iterator[None]:
    """Redirect the cache folders of torch and matplotlib to a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        for variable in ("TORCHINDUCTOR_CACHE_DIR", "MPLCONFIGDIR"):
            os.environ.setdefault(variable, folder)
        yield

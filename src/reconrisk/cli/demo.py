"""``reconrisk demo``: a full small audit of bundled digits."""

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
    out: Annotated[Path, typer.Option(help="Folder for report and picture; nothing is written elsewhere.")] = Path(
        "demo-report"
    ),
    seed: Annotated[int, typer.Option(help="Seed of training, targets, noise and search.")] = 0,
    trials: Annotated[int, typer.Option(help="Digits whose gradients are attacked.")] = 4,
) -> None:
    """Train a small network on bundled digits and audit its gradients: no defense, noise, pruning. About a minute."""
    check_folder(out)
    with _own_caches():
        from reconrisk.studies.audit.demo import check_demo, run_demo  # torch takes seconds to import

        check_demo(seed=seed, trials=trials)
        typer.echo("Training a small network on the bundled digits, then attacking the gradients of test digits ...")
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
    """The digit that is most exposed without a defense, and what came back of it under each."""
    from reconrisk.reports.drawing import write_comparison

    first = next(iter(result.pictures), None)
    if first is None:
        return None
    same = [each for each in result.pictures if each.exposure.record == first.exposure.record]
    panels = [(f"{each.exposure.defense.partition('(')[0]}", each.estimate) for each in same]
    return write_comparison(
        path,
        [("target", first.target), *panels],
        title="One digit, rebuilt from its gradient under each defense",
        scores={f"psnr, {name}": each.exposure.score for (name, _), each in zip(panels, same, strict=True)},
        data_range=result.subject.data_range,
    )


@contextmanager
def _own_caches() -> Iterator[None]:
    """Let torch and matplotlib make the cache folders that they make on import where they vanish afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        for variable in ("TORCHINDUCTOR_CACHE_DIR", "MPLCONFIGDIR"):
            os.environ.setdefault(variable, folder)
        yield

"""``reconrisk leakage``: how much each record leaks through one noisy step of training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reconrisk.cli.inputs import INTERRUPTED, check_folder, check_seed, network
from reconrisk.cli.options import ClipNorm, NoiseMultiplier, SamplingProbability

if TYPE_CHECKING:
    from reconrisk.data.dataset import Dataset
    from reconrisk.studies.leakage.report import LeakageReport


def leakage(
    model: Annotated[
        str, typer.Option(help="package.module:function that returns the network, or a name such as guo2022_mnist.")
    ],
    weights: Annotated[Path, typer.Option(help="Its weights, a safetensors file or a torch file of tensors by name.")],
    data: Annotated[
        str,
        typer.Option(
            help="A file or folder of records, or a name such as mnist; numbers of a csv are scaled to [0, 1]."
        ),
    ],
    noise_multiplier: NoiseMultiplier,
    clip_norm: ClipNorm,
    sampling_probability: SamplingProbability = 1.0,
    split: Annotated[str | None, typer.Option(help="train or test, where the data have both.")] = None,
    label: Annotated[str | None, typer.Option(help="Column of the label, for csv files.")] = None,
    records: Annotated[int | None, typer.Option(help="Draw so many records at random instead of taking all.")] = None,
    parameters: Annotated[
        list[str] | None, typer.Option(help="Only this parameter or layer is released; repeat for several.")
    ] = None,
    smooth_clipping: Annotated[bool, typer.Option(help="Clip smoothly, as guo2022 does.")] = False,
    relative_error: Annotated[float, typer.Option(help="Largest standard error of a record, relative.")] = 0.05,
    seed: Annotated[int, typer.Option(help="Seed of the records drawn and of the estimate.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the report; nothing is written elsewhere.")] = Path(
        "leakage-report"
    ),
    show_records: Annotated[
        bool | None,
        typer.Option(
            "--show-records/--redact", help="Draw the records at either end; by default only those of bundled data."
        ),
    ] = None,
) -> None:
    """Measure how much each record leaks through one noisy DP-SGD step: most and least exposed, and what it bounds."""
    check_folder(out)
    import torch  # takes seconds to import

    from reconrisk.data import load_dataset
    from reconrisk.data.bundled_sets import SHIPPED
    from reconrisk.models.weights import load_weights
    from reconrisk.studies.leakage.leakage import leakage as measure

    check_seed(seed)
    dataset = load_dataset(data, split=split, **({} if label is None else {"label": label}))
    trained = load_weights(network(model, shape=dataset.shape, classes=dataset.class_count), weights).eval()
    report = measure(
        trained,
        dataset,
        noise_multiplier=noise_multiplier,
        clip_norm=clip_norm,
        sampling_probability=sampling_probability,
        parameters=parameters or None,
        smooth_clipping=smooth_clipping,
        records=records,
        relative_error=relative_error,
        model_name=f"{model} with {weights}",
        rng=torch.Generator().manual_seed(seed),
    )
    written = _write(out, report, dataset, shown=data in SHIPPED if show_records is None else show_records)
    typer.echo(f"{report}\n")
    for line in written:
        typer.echo(line)
    if not report.is_complete:
        raise typer.Exit(INTERRUPTED)


def _write(out: Path, report: LeakageReport, dataset: Dataset, *, shown: bool) -> list[str]:
    """Write the report, and the records at either end where they may be shown; say where."""
    from reconrisk.reports.leakage import write_leakage

    path = report.save(out / "leakage.json")
    part = "" if report.is_complete else f", the {len(report.records)} records that are done"
    lines = [f"report    {path.resolve()}{part}"]
    if not shown:
        return [*lines, "picture   not drawn: it would show private records; --show-records draws it"]
    sides = (("most exposed", report.most_exposed()), ("least exposed", report.least_exposed()))
    rows = [
        (name, [(f"{row.label[:12]}\n{row.dfil:.3g}", dataset.inputs[row.record].numpy()) for row in found])
        for name, found in sides
    ]
    note = f"label and dFIL above each record. {report.notice}"
    picture = write_leakage(out / "leakage.png", rows, data_range=dataset.data_range, note=note)
    return [*lines, f"picture   {picture.resolve()}"]

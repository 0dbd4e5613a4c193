"""``reconrisk leakage``: Fisher information leakage of each record in one DP-SGD step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reconrisk.cli.inputs import INTERRUPTED, check_folder, check_seed, network
from reconrisk.cli.options import (
    DATA_HELP,
    LABEL_HELP,
    MODEL_HELP,
    SPLIT_HELP,
    ClipNorm,
    NoiseMultiplier,
    SamplingProbability,
    option,
)

if TYPE_CHECKING:
    from reconrisk.data.dataset import Dataset
    from reconrisk.studies.leakage.report import LeakageReport


def leakage(
    model: Annotated[
        str,
        typer.Option(help=MODEL_HELP),
    ],
    weights: Annotated[Path, typer.Option(help="Weights file (safetensors or torch).")],
    data: Annotated[str, typer.Option(help=f"{DATA_HELP} Numbers of a csv file are scaled to [0, 1].")],
    noise_multiplier: NoiseMultiplier,
    clip_norm: ClipNorm,
    sampling_probability: SamplingProbability = 1.0,
    split: Annotated[str | None, typer.Option(help=SPLIT_HELP)] = None,
    label: Annotated[str | None, typer.Option(help=LABEL_HELP)] = None,
    records: Annotated[int | None, typer.Option(help="Number of records drawn at random. Default: all.")] = None,
    parameters: Annotated[
        list[str] | None, typer.Option(help="Released parameter or layer. Repeat for several. Default: all.")
    ] = None,
    smooth_clipping: Annotated[
        bool, typer.Option("--smooth-clipping", help="Use the smooth clipping of guo2022.")
    ] = False,
    relative_error: Annotated[float, typer.Option(help="Target relative standard error per record.")] = 0.05,
    seed: Annotated[int, typer.Option(help="Seed of the drawn records and of the estimate.")] = 0,
    out: Annotated[Path, option("Output", "Output folder for the report.")] = Path("leakage-report"),
    show_records: Annotated[
        bool | None,
        option(
            "Output",
            "Draw the most and least exposed records. Default: only for bundled data.",
            "--show-records/--redact",
        ),
    ] = None,
) -> None:
    """Measure the leakage of each record in one noisy DP-SGD step, and the error bound that follows."""
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
    """Write the report, and a picture if records may be shown; return one line per file."""
    from reconrisk.reports.leakage import write_leakage

    path = report.save(out / "leakage.json")
    part = "" if report.is_complete else f", {len(report.records)} records so far"
    lines = [f"report    {path.resolve()}{part}"]
    if not shown:
        return [*lines, "picture   not drawn: it would show private records. Add --show-records to draw it."]
    sides = (("most exposed", report.most_exposed()), ("least exposed", report.least_exposed()))
    rows = [
        (name, [(f"{row.label[:12]}\n{row.dfil:.3g}", dataset.inputs[row.record].numpy()) for row in found])
        for name, found in sides
    ]
    note = f"label and dFIL above each record. {report.notice}"
    picture = write_leakage(out / "leakage.png", rows, data_range=dataset.data_range, note=note)
    return [*lines, f"picture   {picture.resolve()}"]

"""``reconrisk risk``: upper bounds on reconstruction from a DP-SGD run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reconrisk.cli.options import (
    AsJson,
    Candidates,
    ClipNorm,
    Delta,
    Dimension,
    Mse,
    NoiseMultiplier,
    Norm,
    PriorSuccess,
    Psnr,
    SamplingProbability,
    Steps,
)
from reconrisk.cli.options import RangeWidth as DataRange
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import dp_sgd


def risk(
    noise_multiplier: NoiseMultiplier,
    sampling_probability: SamplingProbability = 1.0,
    steps: Steps = 1,
    clip_norm: ClipNorm = 1.0,
    dimension: Dimension = None,
    norm: Norm = 1.0,
    data_range: DataRange = 1.0,
    psnr: Psnr = None,
    mse: Mse = None,
    prior_success: PriorSuccess = None,
    candidates: Candidates = None,
    delta: Delta = 1e-5,
    as_json: AsJson = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the corridor to this file (png, svg, pdf).")] = None,
) -> None:
    """Bound the success of any adversary against a DP-SGD run: the risk corridor."""
    from reconrisk.bounds.corridor import risk
    from reconrisk.cli.tables import print_corridor

    if dimension is None:
        raise InvalidInput("Expected --dimension, the number of values in a record: 3072 for a 32x32 colour picture.")
    mechanism = dp_sgd(
        noise_multiplier=noise_multiplier,
        clip_norm=clip_norm,
        sampling_probability=sampling_probability,
        steps=steps,
    )
    if (prior_success is None) == (candidates is None):
        raise InvalidInput(
            "Expected exactly one of --prior-success and --candidates. Add --candidates 1000, for instance."
        )
    if candidates is not None and candidates < 1:
        raise InvalidInput(f"Expected candidates={candidates} >= 1.")
    corridor = risk(
        mechanism,
        dimension=dimension,
        norm=norm,
        mse=mse,
        psnr=psnr,
        data_range=data_range,
        prior_success=1 / candidates if candidates is not None else float(prior_success or 0.0),
        delta=delta,
    )
    if plot is not None:
        from reconrisk.reports.corridor import write_corridor

        write_corridor(corridor, plot)
    if as_json:
        typer.echo(corridor.to_json(indent=2))
        return
    print_corridor(corridor)
    if plot is not None:
        typer.echo(f"figure: {plot.resolve()}")

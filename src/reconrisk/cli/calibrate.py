"""``reconrisk calibrate``: the noise that keeps every stated risk below its limit."""

from __future__ import annotations

import warnings
from typing import Annotated

import typer

from reconrisk.cli.options import (
    AsJson,
    Candidates,
    ClipNorm,
    Delta,
    Dimension,
    Mse,
    Norm,
    PriorSuccess,
    Psnr,
    SamplingProbability,
    Steps,
)
from reconrisk.cli.options import RangeWidth as DataRange
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import dp_sgd


def calibrate(
    sampling_probability: SamplingProbability = 1.0,
    steps: Steps = 1,
    clip_norm: ClipNorm = 1.0,
    noise_multiplier: Annotated[
        float, typer.Option(help="Fixed noise multiplier, if --adjust names another setting.")
    ] = 1.0,
    adjust: Annotated[
        str, typer.Option(help="Setting to solve for: noise_multiplier, steps or sampling_probability.")
    ] = "noise_multiplier",
    identification: Annotated[
        float | None,
        typer.Option(help="Accepted success of an adversary with this prior. Needs --candidates or --prior-success."),
    ] = None,
    prior_success: PriorSuccess = None,
    candidates: Candidates = None,
    from_scratch: Annotated[
        float | None,
        typer.Option(
            help="Accepted success of an adversary who knows only the norm, for the release x/|x| plus noise and no "
            "other. Needs --dimension."
        ),
    ] = None,
    known_norm: Annotated[
        float | None,
        typer.Option(help="Accepted success of an adversary who knows only the norm, any release. Needs --dimension."),
    ] = None,
    dimension: Dimension = None,
    norm: Norm = 1.0,
    data_range: DataRange = 1.0,
    psnr: Psnr = None,
    mse: Mse = None,
    unbiased_mse: Annotated[
        float | None,
        typer.Option(help="Required mean squared error of every unbiased estimate, records in [0, data-range]."),
    ] = None,
    delta: Delta = 1e-5,
    as_json: AsJson = False,
) -> None:
    """Find the smallest noise, most steps or largest sampling rate that keeps every stated risk."""
    from reconrisk.bounds import risks
    from reconrisk.bounds.calibration import calibrate as solve
    from reconrisk.cli.tables import print_calibration

    if identification is None and (candidates is not None or prior_success is not None):
        raise InvalidInput(
            "Expected --identification, the accepted success, with --candidates or --prior-success. "
            "Add --identification 0.01, for instance."
        )
    from_norm = {"from_scratch": from_scratch, "known_norm": known_norm}
    accepted = {name: limit for name, limit in from_norm.items() if limit is not None}
    if not accepted and (psnr is not None or mse is not None or dimension is not None):
        raise InvalidInput(
            "Expected --known-norm or --from-scratch, the accepted success, with --psnr, --mse or --dimension. "
            "Add --known-norm 0.01, for instance."
        )
    if accepted and dimension is None:
        raise InvalidInput("Expected --dimension, the number of values in a record, with --known-norm.")
    if identification is not None and candidates is None and prior_success is None:
        raise InvalidInput("Expected --candidates or --prior-success with --identification. Add --candidates 1000.")
    limits: list[risks.Risk] = []
    if identification is not None:
        limits.append(risks.identification(at_most=identification, candidates=candidates, prior_success=prior_success))
    for name, limit in accepted.items():
        record = {"dimension": dimension, "norm": norm, "mse": mse, "psnr": psnr, "data_range": data_range}
        limits.append(getattr(risks, name)(at_most=limit, **record))
    if unbiased_mse is not None:
        limits.append(risks.unbiased_mse(at_least=unbiased_mse, diameters=data_range))
    if not limits:
        raise InvalidInput(
            "Expected at least one of --identification, --known-norm, --from-scratch and --unbiased-mse."
        )
    training = dp_sgd(
        noise_multiplier=noise_multiplier,
        clip_norm=clip_norm,
        sampling_probability=sampling_probability,
        steps=steps,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answer = solve(training, risks=limits, adjust=adjust, delta=delta)
    typer.echo("".join(f"Warning: {each.message}\n" for each in caught), err=True, nl=False)
    if as_json:
        typer.echo(answer.to_json(indent=2))
    else:
        print_calibration(answer)

"""Options that several commands share: the training, and what counts as success."""

from __future__ import annotations

from typing import Annotated

import typer

NoiseMultiplier = Annotated[float, typer.Option(help="Noise standard deviation divided by the clip norm.")]
SamplingProbability = Annotated[float, typer.Option(help="Chance that a record enters a step (Poisson sampling).")]
Steps = Annotated[int, typer.Option(help="Number of steps.")]
ClipNorm = Annotated[float, typer.Option(help="Largest norm of a record's gradient.")]
Dimension = Annotated[int | None, typer.Option(help="Number of values in a record.")]
Norm = Annotated[float, typer.Option(help="Smallest norm of a record.")]
DataRange = Annotated[float, typer.Option(help="Largest minus smallest value a record may take.")]
Psnr = Annotated[float | None, typer.Option(help="Success is a PSNR of at least this many dB ...")]
Mse = Annotated[float | None, typer.Option(help="... or a mean squared error of at most this.")]
PriorSuccess = Annotated[float | None, typer.Option(help="Success of the best guess without any release.")]
Candidates = Annotated[int | None, typer.Option(help="The same, as a number of equally likely candidates.")]
Delta = Annotated[float, typer.Option(help="Delta at which epsilon is stated.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

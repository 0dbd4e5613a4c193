"""Options that several commands share, in the groups in which their help shows them.

:func:`option` declares one. Shared are the options of commands that attack updates of a model, of trainings with noise,
and of criteria of success.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer


def option(panel: str, words: str, *names: str) -> Any:
    """An option with its help, under the heading ``panel``."""
    return typer.Option(*names, help=words, rich_help_panel=panel)


NoiseMultiplier = Annotated[float, typer.Option(help="Noise standard deviation divided by the clip norm.")]
SamplingProbability = Annotated[float, typer.Option(help="Chance that a record enters a step (Poisson sampling).")]
Steps = Annotated[int, typer.Option(help="Number of steps.")]
ClipNorm = Annotated[float, typer.Option(help="Largest norm of a record's gradient.")]
Dimension = Annotated[int | None, typer.Option(help="Number of values in a record.")]
Norm = Annotated[float, typer.Option(help="Smallest norm of a record.")]
RangeWidth = Annotated[float, typer.Option(help="Largest minus smallest value a record may take.")]
Psnr = Annotated[float | None, typer.Option(help="Success is a PSNR of at least this many dB ...")]
Mse = Annotated[float | None, typer.Option(help="... or a mean squared error of at most this.")]
PriorSuccess = Annotated[float | None, typer.Option(help="Success of the best guess without any release.")]
Candidates = Annotated[int | None, typer.Option(help="The same, as a number of equally likely candidates.")]
Delta = Annotated[float, typer.Option(help="Delta at which epsilon is stated.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


WHAT = "Whose updates are attacked"
HOW = "How hard they are attacked"
ADVERSARY = "What the adversary has beside the model"

Model = Annotated[str | None, option(WHAT, "A name such as lenet, or package.module:function of yours.")]
Weights = Annotated[str | None, option(WHAT, "Its weights, safetensors or torch; else drawn from the seed.")]
Data = Annotated[str | None, option(WHAT, "A file or folder of records, or a name such as mnist.")]
Split = Annotated[str | None, option(WHAT, "train or test, where the data have both.")]
Label = Annotated[str | None, option(WHAT, "Column of the label, for csv files.")]
DataRange = Annotated[str | None, option(WHAT, "Smallest and largest value, where the file does not say.")]
BatchSize = Annotated[int | None, option(WHAT, "How many records share one update; else 1.")]
LocalSteps = Annotated[int | None, option(WHAT, "Steps of SGD whose change is sent; else a gradient is.")]
LocalLearningRate = Annotated[float | None, option(WHAT, "Learning rate of these steps.")]
TrainMode = Annotated[bool | None, option(WHAT, "Batch norm uses the statistics of the batch.", "--train-mode")]

Attacks = Annotated[
    list[str] | None,
    option(HOW, "quick, thorough, or an attack such as 'gauss_newton(restarts=2)'; repeat for several."),
]
Budget = Annotated[str | None, option(HOW, "Time for all of it, such as 90s, 20min, 1h, or none.")]
Seed = Annotated[int | None, option(HOW, "Seed of drawn weights, targets, noise and search.")]

Sees = Annotated[str | None, option(ADVERSARY, "one-update, every-update or final-model; else one-update.")]
Knows = Annotated[
    list[str] | None,
    option(ADVERSARY, "labels, prior, record-norm, batch-statistics, defense (the default); repeat for several."),
]
Controls = Annotated[list[str] | None, option(ADVERSARY, "model-parameters: a malicious server.")]

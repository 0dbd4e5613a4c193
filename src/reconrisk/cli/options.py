"""Options that several commands share, in the groups in which their help shows them.

:func:`option` declares one. Shared are the options of commands that attack updates of a model, of trainings with noise,
and of criteria of success.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer


def option(panel: str, words: str, *names: str) -> Any:
    """Declare an option of a command.

    Args:
        panel: Heading of the group that shows the option in ``--help``.
        words: Help text of the option.
        *names: Names on the command line; by default derived from the parameter.

    Returns:
        What Typer expects inside ``Annotated``.
    """
    return typer.Option(*names, help=words, rich_help_panel=panel)


NoiseMultiplier = Annotated[float, typer.Option(help="Noise standard deviation divided by the clip norm.")]
SamplingProbability = Annotated[float, typer.Option(help="Probability that a record is in a batch (Poisson sampling).")]
Steps = Annotated[int, typer.Option(help="Number of training steps.")]
ClipNorm = Annotated[float, typer.Option(help="Largest norm of a record's gradient.")]
Dimension = Annotated[int | None, typer.Option(help="Number of values in a record.")]
Norm = Annotated[float, typer.Option(help="Smallest Euclidean norm of a record.")]
RangeWidth = Annotated[float, typer.Option(help="Largest minus smallest possible value of a feature.")]
Psnr = Annotated[float | None, typer.Option(help="Success: PSNR of at least this many dB. Or use --mse.")]
Mse = Annotated[float | None, typer.Option(help="Success: mean squared error of at most this. Or use --psnr.")]
PriorSuccess = Annotated[
    float | None, typer.Option(help="Success probability of the best guess before any release. Or use --candidates.")
]
Candidates = Annotated[
    int | None, typer.Option(help="Number of equally likely candidates: the prior success is 1 / candidates.")
]
Delta = Annotated[float, typer.Option(help="Delta for which epsilon is reported.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


WHAT = "Model and data"
HOW = "Attacks"
ADVERSARY = "Adversary"

MODEL_HELP = "Model name such as lenet, or your own package.module:function (this imports and runs your code)."
WEIGHTS_HELP = "Weights file (safetensors or torch). Default: drawn from the seed."
DATA_HELP = "File or folder of records, or a data set name such as mnist."
SPLIT_HELP = "train or test, if the data set has both."
LABEL_HELP = "Label column of a csv file."
LOCAL_STEPS_HELP = "Local SGD steps; the client sends the weight change. Default: it sends one gradient."

Model = Annotated[str | None, option(WHAT, MODEL_HELP)]
Weights = Annotated[str | None, option(WHAT, WEIGHTS_HELP)]
Data = Annotated[str | None, option(WHAT, DATA_HELP)]
Split = Annotated[str | None, option(WHAT, SPLIT_HELP)]
Label = Annotated[str | None, option(WHAT, LABEL_HELP)]
DataRange = Annotated[str | None, option(WHAT, "Smallest and largest feature value, such as 0,1, if not in the file.")]
BatchSize = Annotated[int | None, option(WHAT, "Records per update. Default: 1.")]
LocalSteps = Annotated[int | None, option(WHAT, LOCAL_STEPS_HELP)]
LocalLearningRate = Annotated[float | None, option(WHAT, "Learning rate of the local steps.")]
TrainMode = Annotated[bool | None, option(WHAT, "Batch norm uses the statistics of the batch.", "--train-mode")]

Attacks = Annotated[
    list[str] | None,
    option(HOW, "quick, thorough, or an attack such as 'gauss_newton(restarts=2)'. Repeat for several."),
]
Budget = Annotated[str | None, option(HOW, "Total time limit, such as 90s, 20min, 1h, or none.")]
Seed = Annotated[int | None, option(HOW, "Seed of random weights, targets, noise and attacks.")]

Sees = Annotated[str | None, option(ADVERSARY, "one-update, the default and the only choice for updates of a network.")]
Knows = Annotated[
    list[str] | None,
    option(
        ADVERSARY,
        "labels, prior, record-norm, batch-statistics or defense; replaces the default, defense. Repeat for several.",
    ),
]
Controls = Annotated[list[str] | None, option(ADVERSARY, "model-parameters, for a malicious server.")]

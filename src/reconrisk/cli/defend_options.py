"""The options of ``reconrisk defend``, in the groups in which its help shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

_TARGET = "What is accepted"
_WHAT = "Whose updates are defended"
_HOW = "How defenses are chosen"
_ADVERSARY = "What the adversary has beside the model"
_COST = "What they cost"
_OUT = "What is written and printed"


def _option(panel: str, words: str, *names: str) -> Any:
    return typer.Option(*names, help=words, rich_help_panel=panel)


Accept = Annotated[
    list[str] | None, _option(_TARGET, "How often records may be rebuilt, such as 'psnr>=20: 5%'; repeat for several.")
]
MseBound = Annotated[
    float | None, _option(_TARGET, "Least mean squared error of every estimate, by an estimated bound.")
]
Evidence = Annotated[str, _option(_TARGET, "What shows that it is met: measured (by attacks) or proved.")]
Confidence = Annotated[float, _option(_TARGET, "Of the intervals, all families and limits together.")]

Model = Annotated[str | None, _option(_WHAT, "A name such as lenet, or package.module:function of yours.")]
Weights = Annotated[str | None, _option(_WHAT, "Its weights, safetensors or torch; else drawn from the seed.")]
Data = Annotated[str | None, _option(_WHAT, "A file or folder of records, or a name such as digits.")]
Split = Annotated[str | None, _option(_WHAT, "train or test, where the data have both.")]
Label = Annotated[str | None, _option(_WHAT, "Column of the label, for csv files.")]
DataRange = Annotated[str | None, _option(_WHAT, "Smallest and largest value, where the file does not say.")]
BatchSize = Annotated[int | None, _option(_WHAT, "How many records share one update; else 1.")]
LocalSteps = Annotated[int | None, _option(_WHAT, "Steps of SGD whose change is sent; else a gradient is.")]
LocalLearningRate = Annotated[float | None, _option(_WHAT, "Learning rate of these steps.")]
TrainMode = Annotated[bool | None, _option(_WHAT, "Batch norm uses the statistics of the batch.", "--train-mode")]

Families = Annotated[list[str] | None, _option(_HOW, "A family to choose from; repeat for several, else all.")]
Attacks = Annotated[
    list[str] | None,
    _option(_HOW, "quick, thorough, or an attack such as 'gauss_newton(restarts=2)'; repeat for several."),
]
SearchTrials = Annotated[int, _option(_HOW, "Updates that are attacked at each strength of the search.")]
ConfirmTrials = Annotated[int | None, _option(_HOW, "Fresh updates that confirm; else as many as are needed.")]
Finalists = Annotated[int, _option(_HOW, "Defenses that are confirmed and trained with.")]
Budget = Annotated[str | None, _option(_HOW, "Time for all of it, such as 90s, 20min, 1h, or none.")]
Seed = Annotated[int | None, _option(_HOW, "Seed of drawn weights, targets, noise and search.")]

Sees = Annotated[str | None, _option(_ADVERSARY, "one-update, every-update or final-model; else one-update.")]
Knows = Annotated[
    list[str] | None,
    _option(_ADVERSARY, "labels, prior, record-norm, batch-statistics, defense (the default); repeat for several."),
]
Controls = Annotated[list[str] | None, _option(_ADVERSARY, "model-parameters: a malicious server.")]

TrainingSteps = Annotated[int, _option(_COST, "Steps of training under each finalist; 0 for none.")]
LearningRate = Annotated[float, _option(_COST, "Learning rate of that training.")]
TrainingSeeds = Annotated[int, _option(_COST, "Runs of that training.")]

Out = Annotated[Path | None, _option(_OUT, "JSON file for the result.")]
AsJson = Annotated[bool, _option(_OUT, "Print the result as JSON instead of text.", "--json")]
ShowList = Annotated[bool, _option(_OUT, "List the families and stop.", "--list")]

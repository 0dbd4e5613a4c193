"""The options of ``reconrisk attack``, in the groups in which its help shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reconrisk.cli.panels import option

_WHAT = "What is attacked"
_CAPTURED = "Instead of records: a captured update (--data, if given, is what is public)"
_DEFENSE = "What the client does to its update"
_ADVERSARY = "What the adversary knows beside the update and the model"
_SEARCH = "How the attack searches"

Name = Annotated[str | None, typer.Argument(metavar="ATTACK", help="One of the attacks above.", show_default=False)]
Model = Annotated[str | None, option(_WHAT, "A name such as lenet, or package.module:function of yours.")]
Weights = Annotated[Path | None, option(_WHAT, "Its weights, safetensors or torch; else drawn from the seed.")]
Data = Annotated[str | None, option(_WHAT, "A file or folder of records, or a name such as mnist.")]
Split = Annotated[str | None, option(_WHAT, "train or test, where the data have both.")]
Label = Annotated[str | None, option(_WHAT, "Column of the label, for csv files.")]
Records = Annotated[str | None, option(_WHAT, "Which ones, such as 0,3,8-15; else the first.")]
BatchSize = Annotated[int, option(_WHAT, "How many records share one update.")]
LocalSteps = Annotated[int | None, option(_WHAT, "Steps of SGD whose change is sent; else a gradient is.")]
LocalLearningRate = Annotated[float | None, option(_WHAT, "Learning rate of these steps.")]
TrainMode = Annotated[bool, option(_WHAT, "Batch norm uses the statistics of the batch.", "--train-mode")]

Gradient = Annotated[Path | None, option(_CAPTURED, "Gradient by name of parameter, a safetensors file.")]
Before = Annotated[Path | None, option(_CAPTURED, "Or the weights before ...")]
After = Annotated[Path | None, option(_CAPTURED, "... and after --local-steps, one if not stated, ...")]
LearningRate = Annotated[float | None, option(_CAPTURED, "... of this learning rate.")]
InputShape = Annotated[str | None, option(_CAPTURED, "Shape of a record, such as 1,28,28.")]
Classes = Annotated[int | None, option(_CAPTURED, "Number of classes, for a model by name.")]
DataRange = Annotated[str | None, option(_CAPTURED, "Smallest and largest value, also of --data in floats; else 0,1.")]
NoiseStd = Annotated[float | None, option(_CAPTURED, "Standard deviation of its noise, if known.")]

NoiseMultiplier = Annotated[float | None, option(_DEFENSE, "Adds noise of so many clip norms.")]
ClipNorm = Annotated[float | None, option(_DEFENSE, "Scales the update down to this norm before.")]
Prune = Annotated[float | None, option(_DEFENSE, "Share of the smallest values that is not sent.")]

Labels = Annotated[str, option(_ADVERSARY, "known, inferred, or those of a captured update, such as 3,5.")]
KnowsDefense = Annotated[bool, option(_ADVERSARY, "Clipping, noise and pruning.", "--knows-defense")]
KnowsNorm = Annotated[bool, option(_ADVERSARY, "The norm of each record.", "--knows-norm")]
KnowsStatistics = Annotated[bool, option(_ADVERSARY, "What batch norm saw of the batch.", "--knows-statistics")]

Steps = Annotated[int | None, option(_SEARCH, "Steps of the search.")]
Restarts = Annotated[int | None, option(_SEARCH, "Starts that are searched from at once.")]
Seconds = Annotated[float | None, option(_SEARCH, "Budget for each update.")]
Setting = Annotated[
    list[str] | None, option(_SEARCH, "Any other as name=value, such as prior=mnist; --list has them. Repeat for more.")
]
Seed = Annotated[int, option(_SEARCH, "Seed of drawn weights, noise and search.")]

Out = Annotated[Path, typer.Option(help="Folder for report, estimates and picture; nothing is written elsewhere.")]
ShowList = Annotated[bool, typer.Option("--list", help="List the attacks with all their settings, and stop.")]

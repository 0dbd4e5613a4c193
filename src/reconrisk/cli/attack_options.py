"""The options of ``reconrisk attack``, in the groups in which its help shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

_WHAT = "What is attacked"
_CAPTURED = "Instead of records: a captured update (--data, if given, is what is public)"
_DEFENSE = "What the client does to its update"
_ADVERSARY = "What the adversary knows beside the update and the model"
_SEARCH = "How the attack searches"


def _option(panel: str, words: str, *names: str) -> Any:
    return typer.Option(*names, help=words, rich_help_panel=panel)


Name = Annotated[str | None, typer.Argument(metavar="ATTACK", help="One of the attacks above.", show_default=False)]
Model = Annotated[str | None, _option(_WHAT, "A name such as lenet, or package.module:function of yours.")]
Weights = Annotated[Path | None, _option(_WHAT, "Its weights, safetensors or torch; else drawn from the seed.")]
Data = Annotated[str | None, _option(_WHAT, "A file or folder of records, or a name such as mnist.")]
Split = Annotated[str | None, _option(_WHAT, "train or test, where the data have both.")]
Label = Annotated[str | None, _option(_WHAT, "Column of the label, for csv files.")]
Records = Annotated[str | None, _option(_WHAT, "Which ones, such as 0,3,8-15; else the first.")]
BatchSize = Annotated[int, _option(_WHAT, "How many records share one update.")]
LocalSteps = Annotated[int | None, _option(_WHAT, "Steps of SGD whose change is sent; else a gradient is.")]
LocalLearningRate = Annotated[float | None, _option(_WHAT, "Learning rate of these steps.")]
TrainMode = Annotated[bool, _option(_WHAT, "Batch norm uses the statistics of the batch.", "--train-mode")]

Gradient = Annotated[Path | None, _option(_CAPTURED, "Gradient by name of parameter, a safetensors file.")]
Before = Annotated[Path | None, _option(_CAPTURED, "Or the weights before ...")]
After = Annotated[Path | None, _option(_CAPTURED, "... and after --local-steps, one if not stated, ...")]
LearningRate = Annotated[float | None, _option(_CAPTURED, "... of this learning rate.")]
InputShape = Annotated[str | None, _option(_CAPTURED, "Shape of a record, such as 1,28,28.")]
Classes = Annotated[int | None, _option(_CAPTURED, "Number of classes, for a model by name.")]
DataRange = Annotated[str | None, _option(_CAPTURED, "Smallest and largest value, also of --data in floats; else 0,1.")]
NoiseStd = Annotated[float | None, _option(_CAPTURED, "Standard deviation of its noise, if known.")]

NoiseMultiplier = Annotated[float | None, _option(_DEFENSE, "Adds noise of so many clip norms.")]
ClipNorm = Annotated[float | None, _option(_DEFENSE, "Scales the update down to this norm before.")]
Prune = Annotated[float | None, _option(_DEFENSE, "Share of the smallest values that is not sent.")]

Labels = Annotated[str, _option(_ADVERSARY, "known, inferred, or those of a captured update, such as 3,5.")]
KnowsDefense = Annotated[bool, _option(_ADVERSARY, "Clipping, noise and pruning.", "--knows-defense")]
KnowsNorm = Annotated[bool, _option(_ADVERSARY, "The norm of each record.", "--knows-norm")]
KnowsStatistics = Annotated[bool, _option(_ADVERSARY, "What batch norm saw of the batch.", "--knows-statistics")]

Steps = Annotated[int | None, _option(_SEARCH, "Steps of the search.")]
Restarts = Annotated[int | None, _option(_SEARCH, "Starts that are searched from at once.")]
Seconds = Annotated[float | None, _option(_SEARCH, "Budget for each update.")]
Setting = Annotated[list[str] | None, _option(_SEARCH, "Any other as name=value; --list has them. Repeat for more.")]
Seed = Annotated[int, _option(_SEARCH, "Seed of drawn weights, noise and search.")]

Out = Annotated[Path, typer.Option(help="Folder for report, estimates and picture; nothing is written elsewhere.")]
ShowList = Annotated[bool, typer.Option("--list", help="List the attacks with all their settings, and stop.")]

"""The options of ``reconrisk informed``, in the groups in which its help shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

_WHAT = "What is attacked"
_NETWORK = "How a network was trained"
_LINEAR = "How a linear model was fitted"
_ADVERSARY = "What else the adversary knows, and is asked"
_SEARCH = "How the attack searches"


def _option(panel: str, words: str, *names: str) -> Any:
    return typer.Option(*names, help=words, rich_help_panel=panel)


Model = Annotated[
    str, _option(_WHAT, "logistic, ridge, linear, poisson; a network by name or package.module:function.")
]
Data = Annotated[str, _option(_WHAT, "A file or folder of records, or a name such as mnist.")]
TargetIndex = Annotated[str, _option(_WHAT, "The records that are rebuilt, such as 17 or 0,3,8-15.")]
Weights = Annotated[Path | None, _option(_WHAT, "The released weights; else models are trained here and attacked.")]
Fixed = Annotated[int | None, _option(_WHAT, "Only the first so many other records were trained on; else all.")]
Split = Annotated[str | None, _option(_WHAT, "train or test, where the data have both.")]
Label = Annotated[str | None, _option(_WHAT, "Column of the label, for csv files.")]
NoiseStd = Annotated[float | None, _option(_WHAT, "Noise on every released value, known to the adversary.")]

Start = Annotated[Path | None, _option(_NETWORK, "Weights before training; else those that the seed gives.")]
Steps = Annotated[int | None, _option(_NETWORK, "Steps, each on all records; 100 if not stated.")]
Optimizer = Annotated[str | None, _option(_NETWORK, "sgd or adam; sgd if not stated.")]
LearningRate = Annotated[float | None, _option(_NETWORK, "0.2 for sgd and 0.001 for adam if not stated.")]
Momentum = Annotated[float | None, _option(_NETWORK, "Of sgd; 0.9 if not stated.")]

Regularization = Annotated[
    float | None,
    _option(_LINEAR, "1 / C, alpha of ridge, or number of records times alpha of poisson; 1 if fitted here."),
]
KnownColumns = Annotated[str | None, _option(_LINEAR, "Columns of the target that are known, such as age,sex.")]

Labels = Annotated[str, _option(_ADVERSARY, "known or inferred.")]
Membership = Annotated[bool, _option(_ADVERSARY, "Ask whether each target was trained on.", "--membership")]

Attack = Annotated[str | None, _option(_SEARCH, "Of networks: invert_training (if not stated) or reconstructor.")]
Shadows = Annotated[int | None, _option(_SEARCH, "Shadow models of a reconstructor, by records left over; else all.")]
Store = Annotated[Path | None, _option(_SEARCH, "Folder that keeps shadow models; a run that was cut goes on there.")]
Seconds = Annotated[float | None, _option(_SEARCH, "Budget of invert_training for each model or batch of models.")]
Seed = Annotated[int | None, _option(_SEARCH, "Seed of drawn weights and noise; 0 if not stated.")]

Out = Annotated[Path, typer.Option(help="Folder for report, estimates and picture; nothing is written elsewhere.")]

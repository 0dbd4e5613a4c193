"""The options of ``reconrisk audit``, in the groups in which its help shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

_WHAT = "What is audited (each also a key of the spec, which it overrides)"
_HOW = "How hard it is attacked"
_ADVERSARY = "What the adversary has beside the model"
_TRAINING = "A finished DP-SGD run: its corridor, and by default the defense of one of its steps"
_GATE = "Limits"
_OUT = "What is written and printed"


def _option(panel: str, words: str, *names: str) -> Any:
    return typer.Option(*names, help=words, rich_help_panel=panel)


Spec = Annotated[
    str | None, typer.Argument(metavar="SPEC", help="A TOML or JSON file, or JSON itself.", show_default=False)
]
Model = Annotated[str | None, _option(_WHAT, "A name such as lenet, or package.module:function of yours.")]
Weights = Annotated[str | None, _option(_WHAT, "Its weights, safetensors or torch; else drawn from the seed.")]
Data = Annotated[str | None, _option(_WHAT, "A file or folder of records, or a name such as mnist.")]
Split = Annotated[str | None, _option(_WHAT, "train or test, where the data have both.")]
Label = Annotated[str | None, _option(_WHAT, "Column of the label, for csv files.")]
DataRange = Annotated[str | None, _option(_WHAT, "Smallest and largest value, where the file does not say.")]
Records = Annotated[str | None, _option(_WHAT, "Rows that targets are drawn from, such as 0,3,8-15; else all.")]
BatchSize = Annotated[int | None, _option(_WHAT, "How many records share one update; else 1.")]
LocalSteps = Annotated[int | None, _option(_WHAT, "Steps of SGD whose change is sent; else a gradient is.")]
LocalLearningRate = Annotated[float | None, _option(_WHAT, "Learning rate of these steps.")]
TrainMode = Annotated[bool | None, _option(_WHAT, "Batch norm uses the statistics of the batch.", "--train-mode")]
Defense = Annotated[
    list[str] | None,
    _option(_WHAT, "none, or such as 'clip_and_noise(noise_multiplier=1, clip_norm=1)'; repeat for several."),
]

Attacks = Annotated[
    list[str] | None,
    _option(_HOW, "quick, thorough, or an attack such as 'gauss_newton(restarts=2)'; repeat for several."),
]
Trials = Annotated[int | None, _option(_HOW, "Updates that each attack gets under each defense.")]
Budget = Annotated[str | None, _option(_HOW, "Time for all of it, such as 90s, 2min, 1h, or none.")]
Seed = Annotated[int | None, _option(_HOW, "Seed of drawn weights, targets, noise and search.")]

Sees = Annotated[str | None, _option(_ADVERSARY, "one-update, every-update or final-model; else one-update.")]
Knows = Annotated[
    list[str] | None,
    _option(_ADVERSARY, "labels, prior, record-norm, batch-statistics, defense (the default); repeat for several."),
]
Controls = Annotated[list[str] | None, _option(_ADVERSARY, "model-parameters: a malicious server.")]

NoiseMultiplier = Annotated[float | None, _option(_TRAINING, "Noise standard deviation divided by the clip norm.")]
ClipNorm = Annotated[float | None, _option(_TRAINING, "Largest norm of a record's gradient; else 1.")]
SamplingProbability = Annotated[float | None, _option(_TRAINING, "Chance that a record enters a step; else 1.")]
Steps = Annotated[int | None, _option(_TRAINING, "Number of steps; else 1.")]
Account = Annotated[str | None, _option(_TRAINING, "The file that its FisherAccountant saved.")]

Goal = Annotated[list[str] | None, _option(_GATE, "What counts as rebuilt, such as 'psnr>=20'; repeat for several.")]
MaxRisk = Annotated[
    list[str] | None, _option(_GATE, "How often that may be, such as 'psnr>=20: 1%'; repeat for several.")
]
Confidence = Annotated[float | None, _option(_GATE, "Of the intervals, all attacks together; else 0.95.")]
Strict = Annotated[bool, _option(_GATE, "A limit that the trials are too few to show fails too.", "--strict")]

Out = Annotated[Path | None, _option(_OUT, "Folder for the report; else audit-report.")]
Store = Annotated[Path | None, _option(_OUT, "File that keeps every trial: the same audit goes on from it.")]
Redact = Annotated[
    bool | None,
    _option(_OUT, "Leave records out of the report; the default but for bundled data.", "--redact/--no-redact"),
]
Junit = Annotated[Path | None, _option(_OUT, "Write limits and bounds as test cases for a build server.")]
AsJson = Annotated[bool, _option(_OUT, "Print the result as JSON instead of text.", "--json")]

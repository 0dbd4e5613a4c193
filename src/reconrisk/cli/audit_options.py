"""The options of ``reconrisk audit`` beside those of updates, in the groups in which its help shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reconrisk.cli.panels import option
from reconrisk.cli.update_options import HOW, WHAT

_TRAINING = "A finished DP-SGD run: its corridor, and by default the defense of one of its steps"
_GATE = "Limits"
_OUT = "What is written and printed"

Spec = Annotated[
    str | None,
    typer.Argument(
        metavar="SPEC", help="A TOML or JSON file, or JSON itself; options override its keys.", show_default=False
    ),
]
Records = Annotated[str | None, option(WHAT, "Rows that targets are drawn from, such as 0,3,8-15; else all.")]
Defense = Annotated[
    list[str] | None,
    option(WHAT, "none, or such as 'clip_and_noise(noise_multiplier=1, clip_norm=1)'; repeat for several."),
]

Trials = Annotated[int | None, option(HOW, "Updates that each attack gets under each defense.")]

NoiseMultiplier = Annotated[float | None, option(_TRAINING, "Noise standard deviation divided by the clip norm.")]
ClipNorm = Annotated[float | None, option(_TRAINING, "Largest norm of a record's gradient; else 1.")]
SamplingProbability = Annotated[float | None, option(_TRAINING, "Chance that a record enters a step; else 1.")]
Steps = Annotated[int | None, option(_TRAINING, "Number of steps; else 1.")]
Account = Annotated[str | None, option(_TRAINING, "The file that its FisherAccountant saved.")]

Goal = Annotated[list[str] | None, option(_GATE, "What counts as rebuilt, such as 'psnr>=20'; repeat for several.")]
MaxRisk = Annotated[
    list[str] | None, option(_GATE, "How often that may be, such as 'psnr>=20: 1%'; repeat for several.")
]
Confidence = Annotated[float | None, option(_GATE, "Of the intervals, all attacks together; else 0.95.")]
Strict = Annotated[bool, option(_GATE, "A limit that the trials are too few to show fails too.", "--strict")]

Out = Annotated[Path | None, option(_OUT, "Folder for the report; else audit-report.")]
Store = Annotated[Path | None, option(_OUT, "File that keeps every trial: the same audit goes on from it.")]
Redact = Annotated[
    bool | None,
    option(_OUT, "Leave records out of the report; the default but for bundled data.", "--redact/--no-redact"),
]
Junit = Annotated[Path | None, option(_OUT, "Write limits and bounds as test cases for a build server.")]
AsJson = Annotated[bool, option(_OUT, "Print the result as JSON instead of text.", "--json")]

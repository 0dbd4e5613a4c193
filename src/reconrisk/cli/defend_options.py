"""The options of ``reconrisk defend`` beside those of updates, in the groups in which its help shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from reconrisk.cli.panels import option

_TARGET = "What is accepted"
_HOW = "How defenses are chosen"
_COST = "What they cost"
_OUT = "What is written and printed"

Accept = Annotated[
    list[str] | None, option(_TARGET, "How often records may be rebuilt, such as 'psnr>=20: 5%'; repeat for several.")
]
MseBound = Annotated[
    float | None, option(_TARGET, "Least mean squared error of every estimate, by an estimated bound.")
]
Evidence = Annotated[str, option(_TARGET, "What shows that it is met: measured (by attacks) or proved.")]
Confidence = Annotated[float, option(_TARGET, "Of the intervals, all families and limits together.")]

Families = Annotated[list[str] | None, option(_HOW, "A family to choose from; repeat for several, else all.")]
SearchTrials = Annotated[int, option(_HOW, "Updates that are attacked at each strength of the search.")]
ConfirmTrials = Annotated[int | None, option(_HOW, "Fresh updates that confirm; else as many as are needed.")]
Finalists = Annotated[int, option(_HOW, "Defenses that are confirmed and trained with.")]

TrainingSteps = Annotated[int, option(_COST, "Steps of training under each finalist; 0 for none.")]
LearningRate = Annotated[float, option(_COST, "Learning rate of that training.")]
TrainingSeeds = Annotated[int, option(_COST, "Runs of that training.")]

Out = Annotated[Path | None, option(_OUT, "JSON file for the result.")]
AsJson = Annotated[bool, option(_OUT, "Print the result as JSON instead of text.", "--json")]
ShowList = Annotated[bool, option(_OUT, "List the families and stop.", "--list")]

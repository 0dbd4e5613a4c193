"""``reconrisk recommend-defense``: the cheapest defense that keeps the risk below the accepted one.

The options come first, in the groups in which the help shows them; those of updates are in ``options.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reconrisk.cli import options as updates
from reconrisk.cli.inputs import INTERRUPTED, stated_options
from reconrisk.cli.options import option
from reconrisk.core.errors import InvalidInput
from reconrisk.metrics.goals import limit_from_text

if TYPE_CHECKING:
    from reconrisk.studies.recommend.result import Recommendation

_TARGET = "What is accepted"
_HOW = "How defenses are chosen"
_COST = "What they cost"
_OUT = "What is written and printed"

AcceptOption = Annotated[
    list[str] | None, option(_TARGET, "How often records may be rebuilt, such as 'psnr>=20: 5%'; repeat for several.")
]
MseBoundOption = Annotated[
    float | None, option(_TARGET, "Least mean squared error of every estimate, by an estimated bound.")
]
EvidenceOption = Annotated[str, option(_TARGET, "What shows that it is met: measured (by attacks) or proved.")]
ConfidenceOption = Annotated[float, option(_TARGET, "Of the intervals, all families and limits together.")]

FamiliesOption = Annotated[list[str] | None, option(_HOW, "A family to choose from; repeat for several, else all.")]
SearchTrialsOption = Annotated[int, option(_HOW, "Updates that are attacked at each strength of the search.")]
ConfirmTrialsOption = Annotated[int | None, option(_HOW, "Fresh updates that confirm; else as many as are needed.")]
FinalistsOption = Annotated[int, option(_HOW, "Defenses that are confirmed and trained with.")]

TrainingStepsOption = Annotated[int, option(_COST, "Steps of training under each finalist; 0 for none.")]
LearningRateOption = Annotated[float, option(_COST, "Learning rate of that training.")]
TrainingSeedsOption = Annotated[int, option(_COST, "Runs of that training.")]

OutOption = Annotated[Path | None, option(_OUT, "JSON file for the result.")]
AsJsonOption = Annotated[bool, option(_OUT, "Print the result as JSON instead of text.", "--json")]
ShowListOption = Annotated[bool, option(_OUT, "List the families and stop.", "--list")]


FAILED = 1
"""The exit code where no defense was shown to meet the target."""

_BUDGET = "20min"


def recommend_defense(
    model: updates.Model = None,
    data: updates.Data = None,
    accept: AcceptOption = None,
    mse_bound: MseBoundOption = None,
    evidence: EvidenceOption = "measured",
    confidence: ConfidenceOption = 0.95,
    weights: updates.Weights = None,
    split: updates.Split = None,
    label: updates.Label = None,
    data_range: updates.DataRange = None,
    batch_size: updates.BatchSize = None,
    local_steps: updates.LocalSteps = None,
    local_learning_rate: updates.LocalLearningRate = None,
    train_mode: updates.TrainMode = None,
    family: FamiliesOption = None,
    attacks: updates.Attacks = None,
    search_trials: SearchTrialsOption = 8,
    confirm_trials: ConfirmTrialsOption = None,
    finalists: FinalistsOption = 3,
    budget: updates.Budget = None,
    seed: updates.Seed = None,
    sees: updates.Sees = None,
    knows: updates.Knows = None,
    controls: updates.Controls = None,
    training_steps: TrainingStepsOption = 100,
    learning_rate: LearningRateOption = 0.1,
    training_seeds: TrainingSeedsOption = 3,
    out: OutOption = None,
    as_json: AsJsonOption = False,
    show_list: ShowListOption = False,
) -> None:
    """Choose a defense for the updates of a model: the cheapest that meets a target, its cost, and the second best.

    Exit code 0: a defense was shown to meet the target. 1: none was. 2: usage. 3: an unexpected error.
    """
    if show_list:
        from reconrisk.defenses.registry import FAMILIES

        for name, info in FAMILIES.items():
            typer.echo(f"{name:<26} {info.summary}")
        return
    # before the work what would fail after it
    if out is not None and (out.is_dir() or (out.parent.exists() and not out.parent.is_dir())):
        raise typer.BadParameter(f"{out} cannot be written as a file.", param_hint="--out")
    _check_target(accept, mse_bound)
    threat = stated_options({"sees": sees, "knows": knows, "controls": controls})
    given: dict[str, Any] = {"model": model, "weights": weights, "data": data, "split": split, "label": label}
    given |= {"data_range": data_range, "batch_size": batch_size, "local_steps": local_steps}
    given |= {"local_learning_rate": local_learning_rate, "train_mode": train_mode, "attacks": attacks}
    given |= {"seed": seed, "threat": threat or None, "max_risk": accept, "confidence": confidence}
    asked: dict[str, Any] = {"mse_bound": mse_bound, "evidence": evidence, "families": family or None}
    options: dict[str, Any] = {"search_trials": search_trials, "confirm_trials": confirm_trials, "finalists": finalists}
    options |= {"training_steps": training_steps, "learning_rate": learning_rate, "training_seeds": training_seeds}
    found = _found(stated_options(given | {"budget": budget or _BUDGET}), asked, options)
    if out is not None:
        from reconrisk.reports.plain import write_json  # whatever the file is called

        write_json(found, out)
    typer.echo(found.to_json(indent=2) if as_json else f"{found}")
    if found.ended == "interrupted" or not found.meets:
        raise typer.Exit(INTERRUPTED if found.ended == "interrupted" else FAILED)


def _found(given: dict[str, Any], asked: dict[str, Any], options: dict[str, Any]) -> Recommendation:
    """The recommendation for what is named as an audit names it."""
    from reconrisk.studies.audit.spec import spec_from_mapping

    missing = [f"--{key}" for key in ("model", "data") if key not in given]
    if missing:
        raise InvalidInput(f"Expected {' and '.join(missing)}: whose updates are defended.")
    spec = spec_from_mapping(given)
    from reconrisk.studies.audit.job import job_from_spec  # loads torch, which takes seconds
    from reconrisk.studies.common.subjects.subject import DEFAULT_THREAT
    from reconrisk.studies.recommend.options import RecommendOptions
    from reconrisk.studies.recommend.recommend import recommend_defense

    job = job_from_spec(spec)
    return recommend_defense(
        job.model,
        job.dataset,
        accept=spec.max_risk,
        threat=spec.threat or DEFAULT_THREAT,
        attacks=job.attacks,
        budget=spec.budget,
        update=job.update,
        options=RecommendOptions(
            public=job.public, confidence=spec.confidence, seed=spec.seed, name=spec.model, **options
        ),
        **asked,
    )


def _check_target(accept: list[str] | None, mse_bound: float | None) -> None:
    """Refuse a target in the words of the options."""
    if not accept and mse_bound is None:
        raise InvalidInput("Expected a target. Pass --accept 'psnr>=20: 5%', or --mse-bound.")
    for text in accept or ():
        try:
            limit_from_text(text)
        except InvalidInput as error:
            raise InvalidInput(str(error).replace("max_risk=", "--accept ")) from error

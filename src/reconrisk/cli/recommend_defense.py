"""``reconrisk recommend-defense``: the cheapest defense that meets a risk target.

The options come first, in the order of ``--help``; those about updates are in ``options.py``.
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

_TARGET = "Target"
_HOW = "Search"
_COST = "Cost in training"
_OUT = "Output"

AcceptOption = Annotated[
    list[str] | None,
    option(_TARGET, "Accepted share of reconstructed records, such as 'psnr>=20: 5%'. Repeat for several."),
]
MseBoundOption = Annotated[
    float | None, option(_TARGET, "Required mean squared error of every estimate, by an estimated bound.")
]
EvidenceOption = Annotated[str, option(_TARGET, "Evidence that the target is met: measured (by attacks) or proved.")]
ConfidenceOption = Annotated[float, option(_TARGET, "Joint confidence of the intervals of all families and limits.")]

FamiliesOption = Annotated[
    list[str] | None, option(_HOW, "Family of defenses to search. Repeat for several. Default: all.")
]
SearchTrialsOption = Annotated[int, option(_HOW, "Attacked updates at each strength of the search.")]
ConfirmTrialsOption = Annotated[
    int | None, option(_HOW, "Attacked updates to confirm a finalist. Default: as many as needed.")
]
FinalistsOption = Annotated[int, option(_HOW, "Number of defenses to confirm and train with.")]

TrainingStepsOption = Annotated[int, option(_COST, "Training steps with each finalist; 0 for no training.")]
LearningRateOption = Annotated[float, option(_COST, "Learning rate of the training.")]
TrainingSeedsOption = Annotated[int, option(_COST, "Number of training runs per finalist.")]

OutOption = Annotated[Path | None, option(_OUT, "JSON file for the result.")]
AsJsonOption = Annotated[bool, option(_OUT, "Print the result as JSON instead of text.", "--json")]
ShowListOption = Annotated[bool, option(_OUT, "List the families of defenses, and exit.", "--list")]


FAILED = 1
"""Exit code if no defense was shown to meet the target."""

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
    """Find the cheapest defense of a model's updates that meets a risk target, and the runner-up.

    Exit codes: 0, a defense was shown to meet the target; 1, none was; 2, invalid input; 3, unexpected error.
    """
    if show_list:
        from reconrisk.defenses.registry import FAMILIES

        for name, info in FAMILIES.items():
            typer.echo(f"{name:<26} {info.summary}")
        return
    # fail before the search, not after it
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
    found = _recommend(stated_options(given | {"budget": budget or _BUDGET}), asked, options)
    if out is not None:
        from reconrisk.reports.plain import write_json  # JSON whatever the suffix

        write_json(found, out)
    typer.echo(found.to_json(indent=2) if as_json else f"{found}")
    if found.ended == "interrupted" or not found.meets:
        raise typer.Exit(INTERRUPTED if found.ended == "interrupted" else FAILED)


def _recommend(given: dict[str, Any], asked: dict[str, Any], options: dict[str, Any]) -> Recommendation:
    """Run the study: ``given`` are options that an audit has too, ``asked`` and ``options`` belong to this one."""
    from reconrisk.studies.audit.spec import spec_from_mapping

    missing = [f"--{key}" for key in ("model", "data") if key not in given]
    if missing:
        raise InvalidInput(f"Expected {' and '.join(missing)}: the model and the records whose updates are defended.")
    spec = spec_from_mapping(given)
    from reconrisk.studies.audit.job import job_from_spec  # loads torch, which takes seconds
    from reconrisk.studies.common.subjects.subject import DEFAULT_THREAT
    from reconrisk.studies.recommend.recommend import RecommendOptions, recommend_defense

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
    """Raise InvalidInput, in the words of the options, for a missing or malformed target."""
    if not accept and mse_bound is None:
        raise InvalidInput("Expected a target. Add --accept 'psnr>=20: 5%' or --mse-bound 0.01, for instance.")
    for text in accept or ():
        try:
            limit_from_text(text)
        except InvalidInput as error:
            raise InvalidInput(str(error).replace("max_risk=", "--accept ")) from error

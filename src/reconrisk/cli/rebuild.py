"""``reconrisk rebuild``: reconstruct records from their updates with one attack, and draw the result.

The options come first, in the order of ``--help``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from reconrisk.attacks.registry import ATTACKS, attack_settings, settings_from_text
from reconrisk.cli.inputs import INTERRUPTED, check_folder, check_seed, network, range_of, whole_numbers
from reconrisk.cli.options import (
    DATA_HELP,
    LABEL_HELP,
    LOCAL_STEPS_HELP,
    MODEL_HELP,
    SPLIT_HELP,
    WEIGHTS_HELP,
    option,
)
from reconrisk.core.errors import InvalidInput
from reconrisk.core.threat import Knows
from reconrisk.core.validation import invalid_input

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from reconrisk.core.defense import Defense
    from reconrisk.data.dataset import Dataset
    from reconrisk.studies.informed.result import RebuiltInformed
    from reconrisk.studies.rebuild.updates import Rebuilt

_WHAT = "Model and data"
_CAPTURED = "Captured update, instead of records (--data then holds public records)"
_DEFENSE = "Defense of the client"
_ADVERSARY = "Adversary"
_SEARCH = "Attack settings"

NameOption = Annotated[
    str | None, typer.Argument(metavar="ATTACK", help="Name of an attack from the list above.", show_default=False)
]
ModelOption = Annotated[str | None, option(_WHAT, MODEL_HELP)]
WeightsOption = Annotated[Path | None, option(_WHAT, WEIGHTS_HELP)]
DataOption = Annotated[str | None, option(_WHAT, DATA_HELP)]
SplitOption = Annotated[str | None, option(_WHAT, SPLIT_HELP)]
LabelOption = Annotated[str | None, option(_WHAT, LABEL_HELP)]
RecordsOption = Annotated[str | None, option(_WHAT, "Records to attack, such as 0,3,8-15. Default: the first.")]
BatchSizeOption = Annotated[int, option(_WHAT, "Records per update.")]
LocalStepsOption = Annotated[int | None, option(_WHAT, LOCAL_STEPS_HELP)]
LocalLearningRateOption = Annotated[float | None, option(_WHAT, "Learning rate of the local steps.")]
TrainModeOption = Annotated[bool, option(_WHAT, "Batch norm uses the statistics of the batch.", "--train-mode")]

GradientOption = Annotated[Path | None, option(_CAPTURED, "Gradient by parameter name, a safetensors file.")]
BeforeOption = Annotated[Path | None, option(_CAPTURED, "Weights before the local steps. Needs --after.")]
AfterOption = Annotated[Path | None, option(_CAPTURED, "Weights after --local-steps (default 1). Needs --before.")]
LearningRateOption = Annotated[float | None, option(_CAPTURED, "Learning rate of these local steps.")]
InputShapeOption = Annotated[str | None, option(_CAPTURED, "Shape of a record, such as 1,28,28.")]
ClassesOption = Annotated[int | None, option(_CAPTURED, "Number of classes, for a model given by name.")]
DataRangeOption = Annotated[
    str | None, option(_CAPTURED, "Smallest and largest feature value. Default: as in --data, else 0,1.")
]
NoiseStdOption = Annotated[float | None, option(_CAPTURED, "Standard deviation of the noise in the update, if known.")]

NoiseMultiplierOption = Annotated[float | None, option(_DEFENSE, "Noise standard deviation divided by --clip-norm.")]
ClipNormOption = Annotated[float | None, option(_DEFENSE, "The update is clipped to this norm before the noise.")]
PruneOption = Annotated[float | None, option(_DEFENSE, "Share of the smallest values that are set to zero.")]

LabelsOption = Annotated[str, option(_ADVERSARY, "known, inferred, or a list such as 3,5 for a captured update.")]
KnowsDefenseOption = Annotated[
    bool, option(_ADVERSARY, "The adversary knows clipping, noise and pruning.", "--knows-defense")
]
KnowsNormOption = Annotated[bool, option(_ADVERSARY, "The adversary knows the norm of each record.", "--knows-norm")]
KnowsStatisticsOption = Annotated[
    bool, option(_ADVERSARY, "The adversary knows the batch norm statistics.", "--knows-statistics")
]

StepsOption = Annotated[int | None, option(_SEARCH, "Optimisation steps.")]
RestartsOption = Annotated[int | None, option(_SEARCH, "Number of random starts.")]
SecondsOption = Annotated[float | None, option(_SEARCH, "Time limit per update, in seconds.")]
SettingOption = Annotated[
    list[str] | None, option(_SEARCH, "Other setting as name=value, such as prior=mnist; see --list. Repeatable.")
]
SeedOption = Annotated[int, option(_SEARCH, "Seed of random weights, noise and attack.")]

OutOption = Annotated[Path, typer.Option(help="Output folder for report, estimates and picture.")]
ShowListOption = Annotated[bool, typer.Option("--list", help="List all attacks with their settings, and exit.")]


FAILED = 1
"""Exit code if an attack diverged or does not apply: its estimates say nothing about the risk."""

_ERASE = "\r\x1b[K"  # return to the start of the line and clear it


def rebuild(
    name: NameOption = None,
    model: ModelOption = None,
    weights: WeightsOption = None,
    data: DataOption = None,
    split: SplitOption = None,
    label: LabelOption = None,
    records: RecordsOption = None,
    batch_size: BatchSizeOption = 1,
    local_steps: LocalStepsOption = None,
    local_learning_rate: LocalLearningRateOption = None,
    train_mode: TrainModeOption = False,
    gradient: GradientOption = None,
    before: BeforeOption = None,
    after: AfterOption = None,
    learning_rate: LearningRateOption = None,
    input_shape: InputShapeOption = None,
    classes: ClassesOption = None,
    data_range: DataRangeOption = None,
    noise_std: NoiseStdOption = None,
    noise_multiplier: NoiseMultiplierOption = None,
    clip_norm: ClipNormOption = None,
    prune: PruneOption = None,
    labels: LabelsOption = "inferred",
    knows_defense: KnowsDefenseOption = False,
    knows_norm: KnowsNormOption = False,
    knows_statistics: KnowsStatisticsOption = False,
    steps: StepsOption = None,
    restarts: RestartsOption = None,
    seconds: SecondsOption = None,
    setting: SettingOption = None,
    seed: SeedOption = 0,
    out: OutOption = Path("rebuild-report"),
    show_list: ShowListOption = False,
) -> None:
    """Reconstruct records from client updates with one attack: scores, estimates and a picture."""
    if show_list:
        _print_list()
        return
    check_folder(out)
    check_seed(seed)
    import torch  # takes seconds to import

    from reconrisk.studies.common.subjects.subject import UpdateRecipe
    from reconrisk.studies.rebuild.captured import rebuild_captured
    from reconrisk.studies.rebuild.updates import rebuild

    name, settings = _settings(name, setting, steps=steps, restarts=restarts, seconds=seconds)
    ends = range_of(data_range)
    dataset = _dataset(data, split, label, ends)
    layout = _layout(dataset, model, shape=input_shape, classes=classes, data_range=ends)
    client = _client(model, weights, layout, train_mode=train_mode, seed=seed)
    shared: dict[str, Any] = {
        "settings": settings,
        "model_name": "none" if model is None else f"{model} with {'random weights' if weights is None else weights}",
        "rng": torch.Generator().manual_seed(seed),
    }
    captured: dict[str, Any] = {"gradient": gradient, "before": before, "after": after}
    captured |= {"noise_std": noise_std}
    observed: dict[str, Any] = {"records": records}
    observed |= {"noise_multiplier": noise_multiplier, "clip_norm": clip_norm, "prune": prune}
    observed |= {"knows_defense": knows_defense, "knows_norm": knows_norm, "knows_statistics": knows_statistics}
    if gradient is before is after is None:
        _check_left_out("records", **captured, learning_rate=learning_rate)
        if dataset is None:
            raise InvalidInput(
                "Expected --data or a captured update. Add --data, the records whose updates are attacked."
            )
        public = _dataset(data, "train", label, ends) if split == "test" else None
        asked = _observation_arguments(labels, **observed)
        recipe = UpdateRecipe(batch_size, None, local_steps, local_learning_rate)
        rebuilt = rebuild(name, client, dataset, update=recipe, public=public, progress=_counter(), **asked, **shared)
    else:
        _check_left_out("a captured update", local_learning_rate=local_learning_rate, **observed)
        known = _parse_labels(labels)
        about: dict[str, Any] = {"input_shape": layout.shape, "data_range": layout.data_range, "labels": known}
        local_steps = 1 if local_steps is None and learning_rate is not None else local_steps
        recipe = UpdateRecipe(batch_size, None, local_steps, learning_rate)
        rebuilt = rebuild_captured(name, client, public=dataset, update=recipe, **about, **captured, **shared)
    if sys.stderr.isatty():
        sys.stderr.write(_ERASE)  # an interrupted run leaves its counter on the line
    finish(out, "rebuild", rebuilt)


_LINES = "\n".join(f"{info.name:<20} {info.summary}" for info in ATTACKS.values())
rebuild.__doc__ = f"{rebuild.__doc__}\n\n\b\n{_LINES}"  # without \b the lines would be joined to a paragraph


def _print_list() -> None:
    for name, info in ATTACKS.items():
        typer.echo(f"{name}\n    {info.summary}")
        written = (
            key if value.default is value.empty else f"{key}={value.default}"
            for key, value in attack_settings(name).items()
        )
        typer.echo(f"    {', '.join(written)}")


def _settings(name: str | None, texts: list[str] | None, **given: float | None) -> tuple[str, dict[str, object]]:
    """Return the checked name of the attack and all settings that the user set."""
    if name is None:
        raise InvalidInput(f"Expected the name of an attack, one of {', '.join(ATTACKS.names)}.")
    attack_settings(name)
    stated = {key: value for key, value in given.items() if value is not None}
    return name, {**stated, **settings_from_text(name, texts or [])}


class _Layout(NamedTuple):
    """Shape, classes and range of the records."""

    shape: tuple[int, ...]
    classes: int | None
    data_range: tuple[float, float]


def _layout(
    dataset: Dataset | None,
    model: str | None,
    *,
    shape: str | None,
    classes: int | None,
    data_range: tuple[float, float] | None,
) -> _Layout:
    """Return the layout of the data set, or the one given for a captured update."""
    if dataset is not None:
        _check_left_out("--data, which has it", input_shape=shape, classes=classes)
        return _Layout(dataset.shape, dataset.class_count, dataset.data_range)
    if shape is None:
        raise InvalidInput("Expected --data, or a captured update with --input-shape, such as 1,28,28.")
    if classes is None and model is not None and ":" not in model and model != "linear":
        raise InvalidInput(f"Expected --classes, the number of outputs of {model}. Add --classes 10, for instance.")
    return _Layout(tuple(whole_numbers("input_shape", shape)), classes, data_range or (0.0, 1.0))


def _dataset(
    data: str | None, split: str | None, label: str | None, data_range: tuple[float, float] | None
) -> Dataset | None:
    """Load the records, if any are given."""
    from reconrisk.data import load_dataset

    stated: dict[str, Any] = {"label": label, "data_range": data_range}
    given = {name: value for name, value in stated.items() if value is not None}
    return None if data is None else load_dataset(data, split=split, **given)


def _client(
    model: str | None, weights: Path | None, layout: _Layout, *, train_mode: bool, seed: int
) -> nn.Module | None:
    """Build the client's model with the given weights, or with random ones from the seed."""
    import torch

    from reconrisk.models.weights import load_weights

    if model is None:
        if weights is not None:
            raise InvalidInput("Expected --model with --weights. Add --model, the architecture of the weights.")
        return None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        built = network(model, shape=layout.shape, classes=layout.classes)
    if weights is not None:
        built = load_weights(built, weights)
    return built.train(train_mode)


def _defense(noise_multiplier: float | None, clip_norm: float | None, pruned: float | None) -> Defense | None:
    from reconrisk.defenses import clip_and_noise, prune

    if pruned is not None:
        if (noise_multiplier, clip_norm) != (None, None):
            raise InvalidInput("Expected --prune without --noise-multiplier and --clip-norm. Choose one defense.")
        return prune(pruned)
    if noise_multiplier is None and clip_norm is None:
        return None
    if noise_multiplier is None or clip_norm is None:
        raise InvalidInput("Expected --noise-multiplier and --clip-norm together: noise is in units of the clip norm.")
    return clip_and_noise(noise_multiplier=noise_multiplier, clip_norm=clip_norm)


def _observation_arguments(
    labels: str,
    *,
    records: str | None,
    noise_multiplier: float | None,
    clip_norm: float | None,
    prune: float | None,
    knows_defense: bool,
    knows_norm: bool,
    knows_statistics: bool,
) -> dict[str, Any]:
    """Convert the options about records, defense and adversary to arguments of ``rr.rebuild``."""
    if labels not in ("known", "inferred"):
        raise invalid_input("labels", labels, "to be known or inferred")
    knowledge = {
        Knows.LABELS: labels == "known",
        Knows.DEFENSE: knows_defense,
        Knows.RECORD_NORM: knows_norm,
        Knows.BATCH_STATISTICS: knows_statistics,
    }
    return {
        "records": whole_numbers("records", "0" if records is None else records),
        "defense": _defense(noise_multiplier, clip_norm, prune),
        "knows": [item for item, known in knowledge.items() if known],
    }


def _parse_labels(labels: str) -> list[int] | None:
    if labels == "known":
        raise invalid_input("labels", labels, "to be inferred or a list for a captured update", "Write --labels 3,5.")
    return None if labels == "inferred" else whole_numbers("labels", labels)


def _check_left_out(what: str, **given: object) -> None:
    """Raise InvalidInput for an option that has no meaning here, instead of ignoring it."""
    for name, value in given.items():
        if value not in (None, False):
            raise InvalidInput(f"Expected no --{name.replace('_', '-')} for {what}, got {value}. Remove the option.")


def _counter() -> Callable[[int, int], None] | None:
    """Return a function that counts updates at a terminal: the bar of an attack shows one update only."""
    if not sys.stderr.isatty():
        return None

    def count(done: int, total: int) -> None:
        text = f"{done} of {total} updates done" if 1 < total != done else ""
        sys.stderr.write(f"{_ERASE}{text}")
        sys.stderr.flush()

    return count


def finish(out: Path, name: str, rebuilt: Rebuilt | RebuiltInformed) -> None:
    """Write the files, print the report, and exit with the code that matches the outcome.

    Args:
        out: Folder to write to.
        name: File name without suffix.
        rebuilt: The result.
    """
    report = rebuilt.report
    written = {"report": rebuilt.save(out / f"{name}.json"), "estimates": rebuilt.save(out / f"{name}.safetensors")}
    if report.is_image:
        written["picture"] = rebuilt.save(out / f"{name}.png")
    typer.echo(f"{report}\n")
    for what, path in written.items():
        typer.echo(f"{what:<9} {path.resolve()}")
    if not report.is_image:
        typer.echo("picture   not drawn: the records are not images")
    if not report.is_complete:
        raise typer.Exit(INTERRUPTED)
    if report.failed_reports:
        raise typer.Exit(FAILED)

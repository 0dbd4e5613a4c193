"""``reconrisk rebuild``: rebuild records from their updates with any attack, and draw the result.

The options come first, in the groups in which the help shows them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from reconrisk.attacks.registry import ATTACKS, settings_from_text, settings_of
from reconrisk.cli.inputs import INTERRUPTED, check_folder, check_seed, network, range_of, whole_numbers
from reconrisk.cli.options import option
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

_WHAT = "What is attacked"
_CAPTURED = "Instead of records: a captured update (--data, if given, is what is public)"
_DEFENSE = "What the client does to its update"
_ADVERSARY = "What the adversary knows beside the update and the model"
_SEARCH = "How the attack searches"

NameOption = Annotated[
    str | None, typer.Argument(metavar="ATTACK", help="One of the attacks above.", show_default=False)
]
ModelOption = Annotated[str | None, option(_WHAT, "A name such as lenet, or package.module:function of yours.")]
WeightsOption = Annotated[Path | None, option(_WHAT, "Its weights, safetensors or torch; else drawn from the seed.")]
DataOption = Annotated[str | None, option(_WHAT, "A file or folder of records, or a name such as mnist.")]
SplitOption = Annotated[str | None, option(_WHAT, "train or test, where the data have both.")]
LabelOption = Annotated[str | None, option(_WHAT, "Column of the label, for csv files.")]
RecordsOption = Annotated[str | None, option(_WHAT, "Which ones, such as 0,3,8-15; else the first.")]
BatchSizeOption = Annotated[int, option(_WHAT, "How many records share one update.")]
LocalStepsOption = Annotated[int | None, option(_WHAT, "Steps of SGD whose change is sent; else a gradient is.")]
LocalLearningRateOption = Annotated[float | None, option(_WHAT, "Learning rate of these steps.")]
TrainModeOption = Annotated[bool, option(_WHAT, "Batch norm uses the statistics of the batch.", "--train-mode")]

GradientOption = Annotated[Path | None, option(_CAPTURED, "Gradient by name of parameter, a safetensors file.")]
BeforeOption = Annotated[Path | None, option(_CAPTURED, "Or the weights before ...")]
AfterOption = Annotated[Path | None, option(_CAPTURED, "... and after --local-steps, one if not stated, ...")]
LearningRateOption = Annotated[float | None, option(_CAPTURED, "... of this learning rate.")]
InputShapeOption = Annotated[str | None, option(_CAPTURED, "Shape of a record, such as 1,28,28.")]
ClassesOption = Annotated[int | None, option(_CAPTURED, "Number of classes, for a model by name.")]
DataRangeOption = Annotated[
    str | None, option(_CAPTURED, "Smallest and largest value, also of --data in floats; else 0,1.")
]
NoiseStdOption = Annotated[float | None, option(_CAPTURED, "Standard deviation of its noise, if known.")]

NoiseMultiplierOption = Annotated[float | None, option(_DEFENSE, "Adds noise of so many clip norms.")]
ClipNormOption = Annotated[float | None, option(_DEFENSE, "Scales the update down to this norm before.")]
PruneOption = Annotated[float | None, option(_DEFENSE, "Share of the smallest values that is not sent.")]

LabelsOption = Annotated[str, option(_ADVERSARY, "known, inferred, or those of a captured update, such as 3,5.")]
KnowsDefenseOption = Annotated[bool, option(_ADVERSARY, "Clipping, noise and pruning.", "--knows-defense")]
KnowsNormOption = Annotated[bool, option(_ADVERSARY, "The norm of each record.", "--knows-norm")]
KnowsStatisticsOption = Annotated[bool, option(_ADVERSARY, "What batch norm saw of the batch.", "--knows-statistics")]

StepsOption = Annotated[int | None, option(_SEARCH, "Steps of the search.")]
RestartsOption = Annotated[int | None, option(_SEARCH, "Starts that are searched from at once.")]
SecondsOption = Annotated[float | None, option(_SEARCH, "Budget for each update.")]
SettingOption = Annotated[
    list[str] | None, option(_SEARCH, "Any other as name=value, such as prior=mnist; --list has them. Repeat for more.")
]
SeedOption = Annotated[int, option(_SEARCH, "Seed of drawn weights, noise and search.")]

OutOption = Annotated[
    Path, typer.Option(help="Folder for report, estimates and picture; nothing is written elsewhere.")
]
ShowListOption = Annotated[bool, typer.Option("--list", help="List the attacks with all their settings, and stop.")]


FAILED = 1
"""The exit code where an attack diverged or does not apply: its estimates say nothing about its strength."""

_ERASE = "\r\x1b[K"  # what stands on the line of the cursor


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
    out: OutOption = Path("attack-report"),
    show_list: ShowListOption = False,
) -> None:
    """Rebuild records from the updates that a client makes of them: scores, estimates and a picture."""
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
            raise InvalidInput("Expected --data, the records whose updates are attacked, or a captured update.")
        public = _dataset(data, "train", label, ends) if split == "test" else None
        asked = _observed(labels, **observed)
        recipe = UpdateRecipe(batch_size, None, local_steps, local_learning_rate)
        rebuilt = rebuild(name, client, dataset, update=recipe, public=public, progress=_counter(), **asked, **shared)
    else:
        _check_left_out("a captured update", local_learning_rate=local_learning_rate, **observed)
        known = _stated_labels(labels)
        about: dict[str, Any] = {"input_shape": layout.shape, "data_range": layout.data_range, "labels": known}
        local_steps = 1 if local_steps is None and learning_rate is not None else local_steps
        recipe = UpdateRecipe(batch_size, None, local_steps, learning_rate)
        rebuilt = rebuild_captured(name, client, public=dataset, update=recipe, **about, **captured, **shared)
    if sys.stderr.isatty():
        sys.stderr.write(_ERASE)  # an interrupted run leaves the count of updates behind
    finish(out, "attack", rebuilt)


_LINES = "\n".join(f"{info.name:<20} {info.summary}" for info in ATTACKS.values())
attack.__doc__ = f"{attack.__doc__}\n\n\b\n{_LINES}"  # without \b the lines would be joined to a paragraph


def _print_list() -> None:
    for name, info in ATTACKS.items():
        typer.echo(f"{name}\n    {info.summary}")
        written = (
            key if value.default is value.empty else f"{key}={value.default}"
            for key, value in settings_of(name).items()
        )
        typer.echo(f"    {', '.join(written)}")


def _settings(name: str | None, texts: list[str] | None, **given: float | None) -> tuple[str, dict[str, object]]:
    """The name, if it is one, and all settings that were stated."""
    if name is None:
        raise InvalidInput(f"Expected the name of an attack, one of {', '.join(ATTACKS.names)}.")
    settings_of(name)
    stated = {key: value for key, value in given.items() if value is not None}
    return name, {**stated, **settings_from_text(name, texts or [])}


class _Layout(NamedTuple):
    """What is known of records before any is seen."""

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
    """The layout of the data, or the one stated for a captured update."""
    if dataset is not None:
        _check_left_out("data, which state it", input_shape=shape, classes=classes)
        return _Layout(dataset.shape, dataset.class_count, dataset.data_range)
    if shape is None:
        raise InvalidInput("Expected --data, or a captured update with --input-shape, such as 1,28,28.")
    if classes is None and model is not None and ":" not in model and model != "linear":
        raise InvalidInput(f"Expected --classes: how many outputs {model} has.")
    return _Layout(tuple(whole_numbers("input_shape", shape)), classes, data_range or (0.0, 1.0))


def _dataset(
    data: str | None, split: str | None, label: str | None, data_range: tuple[float, float] | None
) -> Dataset | None:
    """The records, with the ends of their scale where the file does not have them."""
    from reconrisk.data import load_dataset

    stated: dict[str, Any] = {"label": label, "data_range": data_range}
    given = {name: value for name, value in stated.items() if value is not None}
    return None if data is None else load_dataset(data, split=split, **given)


def _client(
    model: str | None, weights: Path | None, layout: _Layout, *, train_mode: bool, seed: int
) -> nn.Module | None:
    """The network in its mode, with stated weights or those that the seed gives."""
    import torch

    from reconrisk.models.weights import load_weights

    if model is None:
        if weights is not None:
            raise InvalidInput("Expected --model with --weights: whose they are.")
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
        raise InvalidInput("Expected --noise-multiplier and --clip-norm together: the noise is in units of the norm.")
    return clip_and_noise(noise_multiplier=noise_multiplier, clip_norm=clip_norm)


def _observed(
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
    """Which records, what their client does, and what the adversary knows, as the library is told."""
    if labels not in ("known", "inferred"):
        raise invalid_input("labels", labels, "to be known or inferred")
    told = {
        Knows.LABELS: labels == "known",
        Knows.DEFENSE: knows_defense,
        Knows.RECORD_NORM: knows_norm,
        Knows.BATCH_STATISTICS: knows_statistics,
    }
    return {
        "records": whole_numbers("records", "0" if records is None else records),
        "defense": _defense(noise_multiplier, clip_norm, prune),
        "knows": [item for item, known in told.items() if known],
    }


def _stated_labels(labels: str) -> list[int] | None:
    if labels == "known":
        raise invalid_input("labels", labels, "to be inferred, or listed for a captured update", "Write --labels 3,5.")
    return None if labels == "inferred" else whole_numbers("labels", labels)


def _check_left_out(what: str, **given: object) -> None:
    """Refuse options that mean nothing here instead of passing over them."""
    for name, value in given.items():
        if value not in (None, False):
            raise InvalidInput(f"Expected --{name.replace('_', '-')} to be left out for {what}, it is {value}.")


def _counter() -> Callable[[int, int], None] | None:
    """A line that counts updates, at a terminal: the bar of an attack shows one of them only."""
    if not sys.stderr.isatty():
        return None

    def count(done: int, total: int) -> None:
        text = f"{done} of {total} updates are done" if 1 < total != done else ""
        sys.stderr.write(f"{_ERASE}{text}")
        sys.stderr.flush()

    return count


def finish(out: Path, name: str, rebuilt: Rebuilt | RebuiltInformed) -> None:
    """Write the files of this name, print the report, and tell by the exit code how it ended."""
    report = rebuilt.report
    written = {"report": rebuilt.save(out / f"{name}.json"), "estimates": rebuilt.save(out / f"{name}.safetensors")}
    if report.is_image:
        written["picture"] = rebuilt.save(out / f"{name}.png")
    typer.echo(f"{report}\n")
    for what, path in written.items():
        typer.echo(f"{what:<9} {path.resolve()}")
    if not report.is_image:
        typer.echo("picture   not drawn: the records are no images")
    if not report.is_complete:
        raise typer.Exit(INTERRUPTED)
    if report.failed:
        raise typer.Exit(FAILED)

"""Measure leakage against utility: train a model under every defense and attack its updates."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from reconrisk.core.defense import Defense
from reconrisk.core.executor import IN_PROCESS, Executor, check_executor
from reconrisk.core.progress import CancelToken, ProgressBar
from reconrisk.core.threat import HONEST_BUT_CURIOUS, ThreatModel
from reconrisk.core.validation import check_finite, check_whole, invalid_input
from reconrisk.data.dataset import Dataset
from reconrisk.defenses.deferred import MomentsDefense
from reconrisk.releases.model_state import LossFunction
from reconrisk.releases.sensitivity.moments import reference_moments
from reconrisk.releases.updates.gradient import check_recipe
from reconrisk.studies.common.arguments import StudyOptions, check_options
from reconrisk.studies.common.defended_training import DEFAULT_TRAINING, TrainingRecipe
from reconrisk.studies.common.experiment import report_user_errors
from reconrisk.studies.common.plan import AttackChoice
from reconrisk.studies.common.subjects.model_updates import ModelUpdates, require_labels, training_loss
from reconrisk.studies.common.subjects.subject import ONE_GRADIENT, Records, UpdateRecipe, as_dataset
from reconrisk.studies.tradeoff.result import UNDEFENDED, TradeoffCell, TradeoffResult, rows_from_cells
from reconrisk.studies.tradeoff.store import CellStore
from reconrisk.studies.tradeoff.study import TradeoffStudy, Variant


@dataclass(frozen=True, kw_only=True)
class TradeoffOptions(StudyOptions):
    """Settings of a leakage-utility study that most calls leave at their defaults.

    Attributes:
        repeat: Number of seeds, counted from ``seed``. Each has its own split, training and attacks.
        attack_trained: True to attack gradients at the trained model, False at the initial one.
        seed: First seed.
        confidence: Confidence of each interval by itself, in (0, 1).
        public: Public records, none of them a target, for defenses that need moments of gradients.
        name: Name of the model in the signature; by default its class.
        show_plan: Function that receives the plan before the first run; by default no plan is shown.

    Raises:
        InvalidInput: If a value is out of range or of the wrong kind.

    >>> TradeoffOptions(repeat=5).attack_trained
    False
    """

    repeat: int = 3
    attack_trained: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "repeat", check_whole("repeat", self.repeat))
        if not isinstance(self.attack_trained, bool):
            raise invalid_input("attack_trained", self.attack_trained, "to be True or False")


DEFAULT_OPTIONS = TradeoffOptions()


Families = Mapping[str, Mapping[float, Defense]]
"""Defenses by family and strength."""

_TEST_SHARE = 0.2
_FAMILIES = "Pass {'noise': {0.1: rr.defenses.gaussian_noise(0.1)}}, for instance."


def tradeoff(
    model: nn.Module,
    data: Records,
    defenses: Families,
    attacks: str | Sequence[AttackChoice] = "quick",
    *,
    test: Records | float = _TEST_SHARE,
    threat: ThreatModel = HONEST_BUT_CURIOUS,
    training: TrainingRecipe = DEFAULT_TRAINING,
    update: UpdateRecipe = ONE_GRADIENT,
    trials: int = 4,
    utility: str | None = None,
    leakage: str = "mse",
    store: str | Path | None = None,
    executor: Executor = IN_PROCESS,
    options: TradeoffOptions = DEFAULT_OPTIONS,
) -> TradeoffResult:
    """Train a model under every defense and strength, attack its updates, and compare leakage with utility.

    For each seed, the records are split anew into attacked, test and training records. A copy of the model is trained
    under each defense by :func:`reconrisk.studies.common.defended_training.train_defended`. Gradients of the attacked
    records are defended and attacked by an adversary who does not know the defense and by one who does. The attack or
    guess with the smallest mean error counts. An adversary who knows the defense may ignore it.

    Args:
        model: Model at the start of training.
        data: Records with labels, to attack, to train on and to test on.
        defenses: Families by name, each a mapping from a strength to a configured defense. The undefended run is
            always included. Defenses by name (``defense_by_name`` in ``reconrisk.defenses.registry``) that need
            moments of gradients are configured with ``options.public`` records.
        attacks: A portfolio, ``"quick"`` or ``"thorough"``, or a list of attacks.
        test: Test records, or the share of ``data`` that is split off for testing.
        threat: Abilities of both adversaries, apart from knowledge of the defense.
        training: Recipe of the training runs.
        update: Batch size and loss of the attacked gradients; local steps are not supported.
        trials: Number of attacked gradients for each seed.
        utility: Measure of utility on the Pareto front: ``test_accuracy``, ``training_loss``, ``test_loss``,
            ``utility_1`` or ``utility_2``. By default the accuracy, or the test loss for real-valued labels.
        leakage: Measure of leakage on the Pareto front: ``mse``, ``psnr``, ``fisher_trace`` or ``mse_bound``. Both
            measures can be changed in the result.
        store: Folder that keeps each finished run. The same call computes only the missing ones.
        executor: Engine that runs the cells; by default this process.
        options: First seed, number of seeds, confidence, public records, and the model to attack.

    Returns:
        One row per defense, strength and attacker, with intervals over seeds.

    Raises:
        InvalidInput: If an argument is invalid, or there are too few records.

    Assumes: training records and attacked records come from the same distribution: baselines and priors use the former.
    Guarantee: the same result for the same seed and settings, in one call or resumed. Under one seed all defenses use
    the same split, batches and targets. Stored runs of other settings are never used.
    Edge cases: Ctrl-C returns the finished runs, if there are any. A failed attack counts as its adversary's best
    guess.
    Reference: Figures 2 and 5 to 10, chen2025, with attackers who know the defense added.

    >>> import torch
    >>> from reconrisk.data.dataset import Dataset
    >>> from reconrisk.defenses.noise import gaussian_noise
    >>> inputs = torch.rand(60, 4, generator=torch.Generator().manual_seed(0))
    >>> data = Dataset("toy", inputs, (inputs[:, 0] > inputs[:, 1]).long())
    >>> noise = {"noise": {0.1: gaussian_noise(0.1), 10.0: gaussian_noise(10.0)}}
    >>> few, twice = TrainingRecipe(steps=5), TradeoffOptions(repeat=2)
    >>> result = tradeoff(nn.Linear(4, 2), data, noise, ["analytic"], training=few, trials=2, options=twice)
    >>> [row.label for row in result.rows_for("aware")], result.rows_for("aware")[0].attack
    (['none', 'noise 0.1', 'noise 10'], 'analytic')
    """
    options, executor = check_options(options, TradeoffOptions), check_executor(executor)
    check_recipe(update)
    if not isinstance(training, TrainingRecipe):
        raise invalid_input("training", training, "to be a TrainingRecipe", "Pass rr.TrainingRecipe(steps=100).")
    if not isinstance(attacks, (str, Sequence)):
        raise invalid_input("attacks", attacks, "to be attacks", "Pass 'quick', 'thorough' or a list such as ['dlg'].")
    dataset = _read_labelled(model, data, "data")
    if isinstance(test, bool):
        raise invalid_input(
            "test", test, "to be test records, or the share of records to test on", "Pass 0.2, for instance."
        )
    share = float(test) if isinstance(test, (int, float)) else None
    if update.local_steps is not None:
        raise invalid_input(
            "update.local_steps",
            update.local_steps,
            "to be None",
            "Remove it: only gradients are attacked in this study.",
        )
    loss_fn = update.loss_fn or training_loss(copy.deepcopy(model).eval(), dataset)
    public = None if options.public is None else _read_labelled(model, options.public, "public")
    variants = _configure_from_moments(_read_variants(defenses), model, loss_fn, public)
    study = TradeoffStudy(
        model=model,
        dataset=dataset,
        test=_read_labelled(model, test, "test") if share is None else None,
        test_share=_TEST_SHARE if share is None else share,
        threat=ModelUpdates(model, dataset).threat(threat),
        attacks=attacks if isinstance(attacks, str) else tuple(attacks),
        training=training,
        loss_fn=loss_fn,
        trials=check_whole("trials", trials),
        attacked_batch_size=update.batch_size,
        attack_trained=options.attack_trained,
    )
    seeds = range(options.seed, options.seed + options.repeat)
    empty = TradeoffResult(
        rows=(),
        cells=(),
        utility=_choose_utility(utility, dataset),
        leakage=leakage,
        confidence=options.confidence,
        is_complete=False,
        notes=study.notes(),
        signature=study.signature(variants, seeds, name=options.name),
    )
    study.check(seeds[0])
    if options.show_plan is not None:
        options.show_plan(
            f"{len(seeds) * len(variants)} runs: {len(seeds)} seeds, {len(variants) - 1} defenses and no defense"
        )
    cells = _run(study, variants, seeds, CellStore(None if store is None else Path(store)), executor)
    order = {(variant.family, variant.strength): place for place, variant in enumerate(variants)}
    ordered = tuple(sorted(cells, key=lambda cell: (order[cell.family, cell.strength], cell.seed)))
    rows = rows_from_cells(ordered, confidence=options.confidence)
    return replace(empty, rows=rows, cells=ordered, is_complete=len(cells) == len(seeds) * len(variants))


def _run(
    study: TradeoffStudy, variants: Sequence[Variant], seeds: range, store: CellStore, executor: Executor
) -> tuple[TradeoffCell, ...]:
    """Run every cell that is not in the store, seed by seed, so that an interrupted run covers all defenses alike."""
    bar = ProgressBar("tradeoff", total=len(seeds) * len(variants), at_once=True)
    cells: list[TradeoffCell] = []

    def remaining() -> Iterator[tuple[str, Variant, int]]:
        for seed in seeds:
            for variant in variants:
                fingerprint = "" if store.folder is None else study.cell_digest(variant, seed)
                cell = store.find(fingerprint)
                if cell is None:
                    yield fingerprint, variant, seed
                else:
                    cells.append(cell)
                    bar.advance()

    try:
        for (fingerprint, _, _), cell in executor.run(partial(_run_cell, study), remaining(), token=CancelToken()):
            store.add(fingerprint, cell)
            cells.append(cell)
            bar.advance()
    except KeyboardInterrupt:  # finished cells are still returned
        if not cells:
            raise
    finally:
        bar.close()
    return tuple(cells)


def _run_cell(study: TradeoffStudy, task: tuple[str, Variant, int]) -> TradeoffCell:
    _, variant, seed = task
    with report_user_errors(f"a run under {variant.label}"):
        return study.cell(variant, seed)


def _read_variants(defenses: Any) -> tuple[Variant, ...]:
    """Check the families, and return the undefended variant followed by every strength of every family."""
    if not isinstance(defenses, Mapping) or not defenses:
        raise invalid_input("defenses", defenses, "to map at least one family name to strengths", _FAMILIES)
    found = [Variant(UNDEFENDED, None, None)]
    for family, strengths in defenses.items():
        if not isinstance(family, str) or family == UNDEFENDED or not family:
            raise invalid_input("family", family, f"to be a name other than {UNDEFENDED!r}, which means no defense")
        if not isinstance(strengths, Mapping) or not strengths:
            raise invalid_input(f"defenses[{family!r}]", strengths, "to have at least one strength", _FAMILIES)
        for strength, defense in strengths.items():
            number = check_finite(f"strength of {family}", strength)
            # defenses have replay, or for_release if the release configures them
            is_defense = hasattr(defense, "replay") or hasattr(defense, "for_release")
            if isinstance(defense, type) or inspect.isroutine(defense) or not is_defense:
                raise invalid_input(
                    f"defenses[{family!r}][{strength!r}]", defense, "to be a configured defense", _FAMILIES
                )
            found.append(Variant(family, number, defense))
    return tuple(found)


def _configure_from_moments(
    variants: tuple[Variant, ...], model: nn.Module, loss_fn: LossFunction, public: Dataset | None
) -> tuple[Variant, ...]:
    """Configure defenses that need moments of public gradients, at the initial model."""
    waiting = [variant.label for variant in variants if isinstance(variant.defense, MomentsDefense)]
    if not waiting:
        return variants
    if public is None or public.labels is None:
        raise invalid_input(
            "defenses", waiting[0], "to be used with public records, which configure it", "Pass public=."
        )
    quiet = copy.deepcopy(model).eval()  # layers that mix the records of a batch in training have no moments
    moments = reference_moments(quiet, loss_fn, public.inputs, public.labels)
    return tuple(
        replace(variant, defense=variant.defense.with_moments(moments))
        if isinstance(variant.defense, MomentsDefense)
        else variant
        for variant in variants
    )


def _choose_utility(stated: str | None, dataset: Dataset) -> str:
    """Return the measure of utility; real-valued labels have no accuracy."""
    is_real = require_labels(dataset).is_floating_point()
    if is_real and stated == "test_accuracy":
        raise invalid_input("utility", stated, "to be defined for real-valued labels", "Pass utility='test_loss'.")
    return stated or ("test_loss" if is_real else "test_accuracy")


def _read_labelled(model: nn.Module, data: Any, name: str) -> Dataset:
    """Read records and check that they have labels."""
    if not isinstance(model, nn.Module):
        raise invalid_input(
            "type(model)", type(model).__name__, "to be a torch model", "Pass the model itself, with its weights."
        )
    dataset = as_dataset(data, name=name)
    if dataset.labels is None:
        raise invalid_input(name, dataset.name, "to have labels", "Pass records with labels: training needs them.")
    return dataset

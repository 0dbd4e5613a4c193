"""The frontier between leakage and utility: trained for real and attacked under every defense."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from reconrisk.core.defense import Defense
from reconrisk.core.executor import IN_PROCESS, Executor, check_executor
from reconrisk.core.progress import CancelToken, ProgressBar
from reconrisk.core.threat import HONEST_BUT_CURIOUS, ThreatModel
from reconrisk.core.validation import check_finite, check_probability, check_whole, invalid_input
from reconrisk.data.dataset import Dataset
from reconrisk.defenses.deferred import FromMoments
from reconrisk.releases.model_state import LossFunction
from reconrisk.releases.sensitivity.moments import reference_moments
from reconrisk.studies.common.arguments import checked_seed
from reconrisk.studies.common.defended_training import DEFAULT_TRAINING, TrainingRecipe
from reconrisk.studies.common.experiment import refused_if_raised
from reconrisk.studies.common.plan import AttackChoice
from reconrisk.studies.common.subjects.model_updates import ModelUpdates, given_labels, training_loss
from reconrisk.studies.common.subjects.subject import ONE_GRADIENT, Records, UpdateRecipe, records_of
from reconrisk.studies.tradeoff.result import UNDEFENDED, TradeoffCell, TradeoffResult, rows_from_cells
from reconrisk.studies.tradeoff.store import CellStore
from reconrisk.studies.tradeoff.study import Study, Variant

Families = Mapping[str, Mapping[float, Defense]]
"""Defenses by family and strength."""

_FAMILIES = "Pass {'noise': {0.1: rr.defenses.gaussian_noise(0.1)}}, for instance."


def tradeoff(
    model: nn.Module,
    data: Records,
    defenses: Families,
    attacks: str | Sequence[AttackChoice] = "quick",
    *,
    test: Records | None = None,
    test_share: float = 0.2,
    public: Records | None = None,
    threat: ThreatModel = HONEST_BUT_CURIOUS,
    training: TrainingRecipe = DEFAULT_TRAINING,
    update: UpdateRecipe = ONE_GRADIENT,
    trials: int = 4,
    attack_trained: bool = False,
    repeat: int = 3,
    utility: str | None = None,
    leakage: str = "mse",
    confidence: float = 0.95,
    seed: int = 0,
    store: str | Path | None = None,
    executor: Executor = IN_PROCESS,
    show_plan: Callable[[str], None] | None = None,
) -> TradeoffResult:
    """Train under every defense and strength, attack what is sent, and put leakage beside utility.

    ``defenses`` are families by name, each a mapping from a strength to a configured defense; the undefended run is
    always there. Those that public records choose (``defense_by_name("optimal_noise", like=0.1)``) are settled by
    ``public`` ones, which are not among ``data``. For each of ``repeat`` seeds the records are split anew into
    attacked, test and training ones. A copy of ``model`` is trained by
    :func:`reconrisk.studies.common.defended_training.train_defended` as ``training`` says. ``trials`` gradients of
    attacked records, as many in each as the batch size of ``update``, at the model as it was passed or, with
    ``attack_trained``, as trained, are defended and attacked by whoever does not know the defense and by whoever does,
    ``threat`` apart. What counts for an attacker is the attack or guess with the smallest mean error; who knows the
    defense may ignore it. ``utility`` (``test_accuracy``, ``training_loss``, ``test_loss``, ``utility_1``,
    ``utility_2``; without one the accuracy, or the test loss for real labels) and ``leakage`` (``mse``, ``psnr``,
    ``fisher_trace``, ``mse_bound``) say what the Pareto front is of; both can be changed afterwards.

    With a ``store``, a folder, each finished run is kept: the same call computes what is missing.

    Assumes: training records beside the attacked ones are like them: guesses and priors use them.
    Guarantee: the same result for the same seed and settings, in one call or resumed; under one seed all defenses meet
    the same split, the same batches and the same targets. Nothing is taken from the store that other settings made.
    Edge cases: Ctrl-C returns what is done, if anything is. An attack that fails counts as its best guess.
    Reference: Figures 2 and 5 to 10, chen2025, with attackers who know the defense added.

    >>> import torch
    >>> from reconrisk.data.dataset import Dataset
    >>> from reconrisk.defenses.noise import gaussian_noise
    >>> inputs = torch.rand(60, 4, generator=torch.Generator().manual_seed(0))
    >>> data = Dataset("toy", inputs, (inputs[:, 0] > inputs[:, 1]).long())
    >>> noise = {"noise": {0.1: gaussian_noise(0.1), 10.0: gaussian_noise(10.0)}}
    >>> few = TrainingRecipe(steps=5)
    >>> result = tradeoff(nn.Linear(4, 2), data, noise, ["analytic"], training=few, repeat=2, trials=2)
    >>> [row.label for row in result.of("aware")], result.of("aware")[0].attack
    (['none', 'noise 0.1', 'noise 10'], 'analytic')
    """
    dataset, executor = _labelled(model, data, "data"), check_executor(executor)
    tested = None if test is None else _labelled(model, test, "test")
    if update.local_steps is not None:
        raise invalid_input("update.local_steps", update.local_steps, "to be None", "The frontier attacks gradients.")
    loss_fn = update.loss_fn or training_loss(copy.deepcopy(model).eval(), dataset)
    known = None if public is None else _labelled(model, public, "public")
    variants = _settled(_variants(defenses), model, loss_fn, known)
    if not 0 < check_probability("confidence", confidence) < 1:
        raise invalid_input("confidence", confidence, "in (0, 1)", "0.95 is usual.")
    study = Study(
        model=model,
        dataset=dataset,
        test=tested,
        test_share=test_share,
        threat=ModelUpdates(model, dataset).threat(threat),
        attacks=attacks if isinstance(attacks, str) else tuple(attacks),
        training=training,
        loss_fn=loss_fn,
        trials=check_whole("trials", trials),
        attacked_batch_size=update.batch_size,
        attack_trained=attack_trained,
    )
    seeds = range(checked_seed(seed), checked_seed(seed) + check_whole("repeat", repeat))
    empty = TradeoffResult(
        (), (), _utility(utility, dataset), leakage, confidence, False, study.notes(), study.signature(variants, seeds)
    )
    study.check(seeds[0])
    if show_plan is not None:
        show_plan(f"{len(seeds) * len(variants)} runs: {len(seeds)} seeds, {len(variants) - 1} defenses and none")
    cells = _run(study, variants, seeds, CellStore(None if store is None else Path(store)), executor)
    order = {(variant.family, variant.strength): place for place, variant in enumerate(variants)}
    ordered = tuple(sorted(cells, key=lambda cell: (order[cell.family, cell.strength], cell.seed)))
    rows = rows_from_cells(ordered, confidence=confidence)
    return replace(empty, rows=rows, cells=ordered, is_complete=len(cells) == len(seeds) * len(variants))


def _run(
    study: Study, variants: Sequence[Variant], seeds: range, store: CellStore, executor: Executor
) -> tuple[TradeoffCell, ...]:
    """Run every cell that is not in the store; seed by seed, so that any beginning is balanced."""
    bar = ProgressBar("frontier", total=len(seeds) * len(variants), at_once=True)
    cells: list[TradeoffCell] = []

    def remaining() -> Iterator[tuple[str, Variant, int]]:
        for seed in seeds:
            for variant in variants:
                fingerprint = "" if store.folder is None else study.fingerprint(variant, seed)
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
    except KeyboardInterrupt:  # what is done is returned
        if not cells:
            raise
    finally:
        bar.close()
    return tuple(cells)


def _run_cell(study: Study, task: tuple[str, Variant, int]) -> TradeoffCell:
    _, variant, seed = task
    with refused_if_raised(f"a run under {variant.label}"):
        return study.cell(variant, seed)


def _variants(defenses: Any) -> tuple[Variant, ...]:
    """The undefended run, and every strength of every family."""
    if not isinstance(defenses, Mapping) or not defenses:
        raise invalid_input("defenses", defenses, "to be at least one family by name", _FAMILIES)
    found = [Variant(UNDEFENDED, None, None)]
    for family, strengths in defenses.items():
        if not isinstance(family, str) or family == UNDEFENDED or not family:
            raise invalid_input(
                "family", family, f"to be a name other than {UNDEFENDED!r}, which stands for no defense"
            )
        if not isinstance(strengths, Mapping) or not strengths:
            raise invalid_input(f"defenses[{family!r}]", strengths, "to have at least one strength", _FAMILIES)
        for strength, defense in strengths.items():
            number = check_finite(f"strength of {family}", strength)
            is_defense = hasattr(defense, "replay") or hasattr(defense, "for_release")
            if isinstance(defense, type) or inspect.isroutine(defense) or not is_defense:
                raise invalid_input(
                    f"defenses[{family!r}][{strength!r}]", defense, "to be a configured defense", _FAMILIES
                )
            found.append(Variant(family, number, defense))
    return tuple(found)


def _settled(
    variants: tuple[Variant, ...], model: nn.Module, loss_fn: LossFunction, public: Dataset | None
) -> tuple[Variant, ...]:
    """Defenses that public records choose, chosen by them at the model as it is."""
    waiting = [variant.label for variant in variants if isinstance(variant.defense, FromMoments)]
    if not waiting:
        return variants
    if public is None or public.labels is None:
        raise invalid_input("defenses", waiting[0], "to have public records that choose it", "Pass public=.")
    quiet = copy.deepcopy(model).eval()  # layers that mix the records of a batch in training have no moments
    moments = reference_moments(quiet, loss_fn, public.inputs, public.labels)
    return tuple(
        replace(variant, defense=variant.defense.with_moments(moments))
        if isinstance(variant.defense, FromMoments)
        else variant
        for variant in variants
    )


def _utility(stated: str | None, dataset: Dataset) -> str:
    """What utility is judged by: real labels have no accuracy."""
    is_real = given_labels(dataset).is_floating_point()
    if is_real and stated == "test_accuracy":
        raise invalid_input("utility", stated, "to be one that real labels have", "Pass utility='test_loss'.")
    return stated or ("test_loss" if is_real else "test_accuracy")


def _labelled(model: nn.Module, data: Any, name: str) -> Dataset:
    """Records with labels."""
    if not isinstance(model, nn.Module):
        raise invalid_input(
            "model", type(model).__name__, "to be a torch model", "Pass the model itself, with its weights."
        )
    dataset = records_of(data)
    if dataset.labels is None:
        raise invalid_input(name, dataset.name, "to have labels", "Training needs them.")
    return dataset

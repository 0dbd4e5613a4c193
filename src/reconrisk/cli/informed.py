"""``reconrisk informed``: rebuild a training record from the trained model, knowing all other records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from reconrisk.cli import informed_options as options
from reconrisk.cli.attack import FAILED
from reconrisk.cli.inputs import INTERRUPTED, check_folder, check_seed, network, whole_numbers
from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.core.validation import did_you_mean, refuse

if TYPE_CHECKING:
    from torch import Tensor, nn

    from reconrisk.audit.informed_linear import Coefficients, Kind
    from reconrisk.audit.informed_result import RebuiltInformed
    from reconrisk.data.dataset import Dataset
    from reconrisk.releases.optimizers import UpdateRule

LINEAR: tuple[Kind, ...] = ("logistic", "ridge", "linear", "poisson")
"""Models that scikit-learn fits, known without loading it."""

_RATES = {"sgd": 0.2, "adam": 1e-3}
_MOMENTUM = 0.9
_STEPS = 100
_PICKLED = (".pkl", ".pickle", ".joblib", ".sav")


def informed(
    model: options.Model,
    data: options.Data,
    target_index: options.TargetIndex,
    weights: options.Weights = None,
    fixed: options.Fixed = None,
    split: options.Split = None,
    label: options.Label = None,
    noise_std: options.NoiseStd = None,
    start: options.Start = None,
    steps: options.Steps = None,
    optimizer: options.Optimizer = None,
    learning_rate: options.LearningRate = None,
    momentum: options.Momentum = None,
    regularization: options.Regularization = None,
    known_columns: options.KnownColumns = None,
    labels: options.Labels = "inferred",
    membership: options.Membership = False,
    attack: options.Attack = None,
    shadows: options.Shadows = None,
    store: options.Store = None,
    seconds: options.Seconds = None,
    seed: options.Seed = None,
    out: options.Out = Path("informed-report"),
) -> None:
    """Rebuild a training record from the trained model, for an adversary who knows every other record.

    Without --weights, a model is trained here for each target and attacked: the audit of one's own recipe.

    With them, the released model is attacked: it was trained on all of the data, or on --fixed records and the targets.
    """
    check_folder(out)
    drawn = check_seed(0 if seed is None else seed)
    if labels not in ("known", "inferred"):
        raise refuse("labels", labels, "to be known or inferred")
    for_network: dict[str, Any] = {"start": start, "steps": steps, "optimizer": optimizer, "momentum": momentum}
    for_network |= {"learning_rate": learning_rate, "attack": attack, "shadows": shadows, "store": store}
    for_network |= {"seconds": seconds}
    for_linear: dict[str, Any] = {"regularization": regularization, "known_columns": known_columns}
    _check_left_out(model, for_network if model in LINEAR else for_linear)
    from reconrisk.data import load_dataset  # loads torch, which takes seconds

    dataset = load_dataset(data, split=split, **({} if label is None else {"label": label}))
    shared: dict[str, Any] = {"fixed": fixed, "known_labels": labels == "known", "noise_std": noise_std}
    shared |= {"membership": membership, "model_name": model if weights is None else f"{model} with {weights}"}
    targets = whole_numbers("target_index", target_index)
    if model in LINEAR:
        rebuilt = _linear(model, dataset, targets, weights, seed=drawn, **for_linear, **shared)
    else:
        _check_name(model)
        if weights is not None and start is None and seed is None:
            raise InvalidInput("Expected --start or --seed with --weights: the weights before training must be known.")
        rebuilt = _network(model, dataset, targets, weights, seed=drawn, **for_network, **shared)
    _finish(out, rebuilt)


def _check_name(model: str) -> None:
    """Refuse a name that is none, with all that there are: linear models are no networks."""
    from reconrisk.models.by_name import NAMES

    if ":" not in model and model not in NAMES:
        known = (*LINEAR, *(name for name in NAMES if name not in LINEAR))
        remedy = f"Or write package.module:function.{did_you_mean(model, known)}"
        raise refuse("model", model, f"to be one of {', '.join(known)}", remedy)


def _linear(
    model: Any,
    dataset: Dataset,
    targets: list[int],
    weights: Path | None,
    *,
    seed: int,
    known_columns: str | None,
    **settings: Any,
) -> RebuiltInformed:
    import torch

    from reconrisk.audit.informed_linear import rebuild_informed_linear

    columns = [] if known_columns is None else [name.strip() for name in known_columns.split(",")]
    subject = model if weights is None else _coefficients(model, weights)
    settings |= {"known_columns": columns, "rng": torch.Generator().manual_seed(seed)}
    return rebuild_informed_linear(subject, dataset, targets, **settings)


def _network(
    model: str,
    dataset: Dataset,
    targets: list[int],
    weights: Path | None,
    *,
    seed: int,
    start: Path | None,
    steps: int | None,
    optimizer: str | None,
    learning_rate: float | None,
    momentum: float | None,
    attack: str | None,
    **settings: Any,
) -> RebuiltInformed:
    import torch

    from reconrisk.audit.informed import rebuild_informed
    from reconrisk.models.weights import load_weights

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        built = network(model, shape=dataset.shape, classes=dataset.class_count).eval()
    if start is not None:
        built = load_weights(built, start)
    settings |= {
        "optimizer": _optimizer(optimizer, learning_rate, momentum),
        "steps": _STEPS if steps is None else steps,
    }
    settings |= {"attack": attack or "invert_training", "rng": torch.Generator().manual_seed(seed)}
    settings["model_name"] += f", start {f'drawn from seed {seed}' if start is None else start}"
    released = None if weights is None else _released(built, weights)
    return rebuild_informed(built, dataset, targets, released=released, **settings)


def _optimizer(name: str | None, learning_rate: float | None, momentum: float | None) -> UpdateRule:
    from reconrisk.releases.optimizers import adam, sgd

    name = name or "sgd"
    if name not in _RATES:
        raise refuse("optimizer", name, f"to be one of {', '.join(_RATES)}")
    rate = _RATES[name] if learning_rate is None else learning_rate
    if name == "sgd":
        return sgd(rate, _MOMENTUM if momentum is None else momentum)
    if momentum is not None:
        raise refuse("momentum", momentum, "to be left out for adam")
    return adam(rate)


def _released(model: nn.Module, path: Path) -> dict[str, Tensor]:
    """The released weights in their own precision, after a check that they are those of the model."""
    import copy

    from reconrisk.models.weights import load_weights
    from reconrisk.releases.stored import read_tensors

    load_weights(copy.deepcopy(model), path)
    return dict(read_tensors(path, "Pass tensors saved by name."))


def _coefficients(kind: Kind, path: Path) -> Coefficients:
    """The coefficients in a file, under the names that scikit-learn gives them."""
    import numpy as np

    from reconrisk.audit.informed_linear import Coefficients
    from reconrisk.releases.stored import read_tensors

    remedy = "Save coef_ and intercept_ of the estimator: np.savez('model.npz', coef=..., intercept=...)."
    if path.suffix.lower() in _PICKLED:
        raise InvalidFile(path, "format", "It is a pickle, and reading one runs whatever code is in it.", remedy)
    if path.suffix.lower() == ".json":
        stored = _json(path, remedy)
    else:
        stored = {name: value.numpy() for name, value in read_tensors(path, remedy).items()}
    named = {name.removesuffix("_"): value for name, value in stored.items()}
    if "coef" not in named or set(named) - {"coef", "intercept"}:
        raise InvalidFile(path, f"keys {sorted(stored)}", "It must hold coef, and intercept if there is one.", remedy)
    for name, value in named.items():
        if value.dtype.kind != "f" or not np.isfinite(value).all():
            raise InvalidFile(path, f"key {name!r}", "Its values must be finite numbers with a point.", remedy)
    return Coefficients(kind, named["coef"], named.get("intercept"))


def _json(path: Path, remedy: str) -> dict[str, Any]:
    import numpy as np

    if not path.is_file():
        raise InvalidFile(path, "file", "There is no such file.", remedy)
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        return {name: np.asarray(value, dtype=float) for name, value in read.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidFile(path, "whole file", f"It does not map names to numbers ({error}).", remedy) from error


def _check_left_out(model: str, given: dict[str, Any]) -> None:
    """Refuse options that mean nothing here instead of passing over them."""
    for name, value in given.items():
        if value is not None:
            option, kind = name.replace("_", "-"), "a linear model" if model in LINEAR else "a network"
            raise InvalidInput(f"Expected --{option} to be left out for {model}, {kind}. It is {value}.")


def _finish(out: Path, rebuilt: RebuiltInformed) -> None:
    """Write the files, print the report, and tell by the exit code how it ended."""
    from reconrisk.reports.informed import write_informed

    written = write_informed(out, rebuilt)
    typer.echo(f"{rebuilt.report}\n")
    for what, path in zip(("report", "estimates", "picture"), written, strict=False):
        typer.echo(f"{what:<9} {path.resolve()}")
    if len(written) < len(("report", "estimates", "picture")):
        typer.echo("picture   not drawn: the records are no images")
    if not rebuilt.report.is_complete:
        raise typer.Exit(INTERRUPTED)
    if rebuilt.report.failed:
        raise typer.Exit(FAILED)

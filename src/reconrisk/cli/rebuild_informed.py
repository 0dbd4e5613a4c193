"""``reconrisk rebuild-informed``: rebuild a training record from the trained model, knowing all other records.

The options come first, in the groups in which the help shows them.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reconrisk.cli.inputs import check_folder, check_seed, network, whole_numbers
from reconrisk.cli.options import option
from reconrisk.cli.rebuild import finish
from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.core.validation import did_you_mean, invalid_input

if TYPE_CHECKING:
    from reconrisk.data.dataset import Dataset
    from reconrisk.releases.training.optimizers import UpdateRule
    from reconrisk.studies.informed.linear import Coefficients, Kind
    from reconrisk.studies.informed.result import RebuiltInformed

_WHAT = "What is attacked"
_NETWORK = "How a network was trained"
_LINEAR = "How a linear model was fitted"
_ADVERSARY = "What else the adversary knows, and is asked"
_SEARCH = "How the attack searches"


ModelOption = Annotated[
    str, option(_WHAT, "logistic, ridge, linear, poisson; a network by name or package.module:function.")
]
DataOption = Annotated[str, option(_WHAT, "A file or folder of records, or a name such as mnist.")]
TargetIndexOption = Annotated[str, option(_WHAT, "The records that are rebuilt, such as 17 or 0,3,8-15.")]
WeightsOption = Annotated[
    Path | None, option(_WHAT, "The released weights; else models are trained here and attacked.")
]
FixedOption = Annotated[int | None, option(_WHAT, "Only the first so many other records were trained on; else all.")]
SplitOption = Annotated[str | None, option(_WHAT, "train or test, where the data have both.")]
LabelOption = Annotated[str | None, option(_WHAT, "Column of the label, for csv files.")]
NoiseStdOption = Annotated[float | None, option(_WHAT, "Noise on every released value, known to the adversary.")]

StartOption = Annotated[Path | None, option(_NETWORK, "Weights before training; else those that the seed gives.")]
StepsOption = Annotated[int | None, option(_NETWORK, "Steps, each on all records; 100 if not stated.")]
OptimizerOption = Annotated[str | None, option(_NETWORK, "sgd or adam; sgd if not stated.")]
LearningRateOption = Annotated[float | None, option(_NETWORK, "0.2 for sgd and 0.001 for adam if not stated.")]
MomentumOption = Annotated[float | None, option(_NETWORK, "Of sgd; 0.9 if not stated.")]

RegularizationOption = Annotated[
    float | None,
    option(_LINEAR, "1 / C, alpha of ridge, or number of records times alpha of poisson; 1 if fitted here."),
]
KnownColumnsOption = Annotated[str | None, option(_LINEAR, "Columns of the target that are known, such as age,sex.")]

LabelsOption = Annotated[str, option(_ADVERSARY, "known or inferred.")]
MembershipOption = Annotated[bool, option(_ADVERSARY, "Ask whether each target was trained on.", "--membership")]

AttackOption = Annotated[str | None, option(_SEARCH, "Of networks: invert_training (if not stated) or reconstructor.")]
ShadowsOption = Annotated[
    int | None, option(_SEARCH, "Shadow models of a reconstructor, by records left over; else all.")
]
StoreOption = Annotated[
    Path | None, option(_SEARCH, "Folder that keeps shadow models; a run that was cut goes on there.")
]
SecondsOption = Annotated[float | None, option(_SEARCH, "Budget of invert_training for each model or batch of models.")]
SeedOption = Annotated[int | None, option(_SEARCH, "Seed of drawn weights and noise; 0 if not stated.")]

OutOption = Annotated[
    Path, typer.Option(help="Folder for report, estimates and picture; nothing is written elsewhere.")
]


LINEAR: tuple[Kind, ...] = ("logistic", "ridge", "linear", "poisson")
"""Models that scikit-learn fits, known without loading it."""

_RATES = {"sgd": 0.2, "adam": 1e-3}
_MOMENTUM = 0.9
_STEPS = 100
_PICKLED = (".pkl", ".pickle", ".joblib", ".sav")


def rebuild_informed(
    model: ModelOption,
    data: DataOption,
    target_index: TargetIndexOption,
    weights: WeightsOption = None,
    fixed: FixedOption = None,
    split: SplitOption = None,
    label: LabelOption = None,
    noise_std: NoiseStdOption = None,
    start: StartOption = None,
    steps: StepsOption = None,
    optimizer: OptimizerOption = None,
    learning_rate: LearningRateOption = None,
    momentum: MomentumOption = None,
    regularization: RegularizationOption = None,
    known_columns: KnownColumnsOption = None,
    labels: LabelsOption = "inferred",
    membership: MembershipOption = False,
    attack: AttackOption = None,
    shadows: ShadowsOption = None,
    store: StoreOption = None,
    seconds: SecondsOption = None,
    seed: SeedOption = None,
    out: OutOption = Path("informed-report"),
) -> None:
    """Rebuild a training record from the trained model, for an adversary who knows every other record.

    Without --weights, a model is trained here for each target and attacked: the audit of one's own recipe.

    With them, the released model is attacked: it was trained on all of the data, or on --fixed records and the targets.
    """
    check_folder(out)
    drawn = check_seed(0 if seed is None else seed)
    if labels not in ("known", "inferred"):
        raise invalid_input("labels", labels, "to be known or inferred")
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
    finish(out, "informed", rebuilt)


def _check_name(model: str) -> None:
    """Refuse a name that is none, with all that there are: linear models are no networks."""
    from reconrisk.models.registry import MODELS

    if ":" not in model and model not in MODELS:
        known = (*LINEAR, *(name for name in MODELS if name not in LINEAR))
        remedy = f"Or write package.module:function.{did_you_mean(model, known)}"
        raise invalid_input("model", model, f"to be one of {', '.join(known)}", remedy)


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

    from reconrisk.studies.informed.linear import rebuild_informed_linear

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

    from reconrisk.models.weights import load_weights
    from reconrisk.releases.tensor_files import read_tensors
    from reconrisk.studies.informed.network import rebuild_informed
    from reconrisk.studies.informed.options import InformedOptions

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
    name = settings.pop("model_name") + f", start {f'drawn from seed {seed}' if start is None else start}"
    options = InformedOptions(name=name, **{key: settings.pop(key) for key in ("seconds", "shadows", "store")})
    released = None
    if weights is not None:
        load_weights(copy.deepcopy(built), weights)  # a check that they are those of the model
        released = dict(read_tensors(weights, "Pass tensors saved by name."))  # in their own precision
    return rebuild_informed(built, dataset, targets, released=released, options=options, **settings)


def _optimizer(name: str | None, learning_rate: float | None, momentum: float | None) -> UpdateRule:
    from reconrisk.releases.training.optimizers import adam, sgd

    name = name or "sgd"
    if name not in _RATES:
        raise invalid_input("optimizer", name, f"to be one of {', '.join(_RATES)}")
    rate = _RATES[name] if learning_rate is None else learning_rate
    if name == "sgd":
        return sgd(rate, _MOMENTUM if momentum is None else momentum)
    if momentum is not None:
        raise invalid_input("momentum", momentum, "to be left out for adam")
    return adam(rate)


def _coefficients(kind: Kind, path: Path) -> Coefficients:
    """The coefficients in a file, under the names that scikit-learn gives them."""
    import numpy as np

    from reconrisk.releases.tensor_files import read_tensors
    from reconrisk.studies.informed.linear import Coefficients

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
            stated, kind = name.replace("_", "-"), "a linear model" if model in LINEAR else "a network"
            raise InvalidInput(f"Expected --{stated} to be left out for {model}, {kind}. It is {value}.")

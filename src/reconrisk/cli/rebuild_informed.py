"""``reconrisk rebuild-informed``: reconstruct a training record from the trained model and all other records.

The options come first, in the order of ``--help``.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reconrisk.cli.inputs import check_folder, check_seed, network, whole_numbers
from reconrisk.cli.options import DATA_HELP, LABEL_HELP, SPLIT_HELP, option
from reconrisk.cli.rebuild import finish
from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.core.validation import did_you_mean, invalid_input

if TYPE_CHECKING:
    from reconrisk.data.dataset import Dataset
    from reconrisk.releases.training.optimizers import UpdateRule
    from reconrisk.studies.informed.linear import Coefficients, Kind
    from reconrisk.studies.informed.result import RebuiltInformed

_WHAT = "Model and data"
_NETWORK = "Training of a network"
_LINEAR = "Fit of a linear model"
_ADVERSARY = "Adversary"
_SEARCH = "Attack settings"


ModelOption = Annotated[
    str, option(_WHAT, "logistic, ridge, linear, poisson, a network name such as lenet, or package.module:function.")
]
DataOption = Annotated[str, option(_WHAT, DATA_HELP)]
TargetIndexOption = Annotated[str, option(_WHAT, "Records to reconstruct, such as 17 or 0,3,8-15.")]
WeightsOption = Annotated[
    Path | None, option(_WHAT, "Released weights. Default: a model is trained here for each target.")
]
FixedOption = Annotated[
    int | None, option(_WHAT, "Number of other training records: the first ones. Default: all others.")
]
SplitOption = Annotated[str | None, option(_WHAT, SPLIT_HELP)]
LabelOption = Annotated[str | None, option(_WHAT, LABEL_HELP)]
NoiseStdOption = Annotated[
    float | None, option(_WHAT, "Standard deviation of the noise on released values; the adversary knows it.")
]

StartOption = Annotated[Path | None, option(_NETWORK, "Weights before training. Default: drawn from the seed.")]
StepsOption = Annotated[int | None, option(_NETWORK, "Full-batch training steps. Default: 100.")]
OptimizerOption = Annotated[str | None, option(_NETWORK, "sgd (default) or adam.")]
LearningRateOption = Annotated[float | None, option(_NETWORK, "Learning rate. Default: 0.2 for sgd, 0.001 for adam.")]
MomentumOption = Annotated[float | None, option(_NETWORK, "Momentum of sgd. Default: 0.9.")]

RegularizationOption = Annotated[
    float | None,
    option(_LINEAR, "1 / C (logistic), alpha (ridge), or number of records times alpha (poisson). Default: 1."),
]
KnownColumnsOption = Annotated[str | None, option(_LINEAR, "Columns of the target that are known, such as age,sex.")]

LabelsOption = Annotated[str, option(_ADVERSARY, "known or inferred.")]
MembershipOption = Annotated[
    bool, option(_ADVERSARY, "Also decide for each target if it was in the training set.", "--membership")
]

AttackOption = Annotated[str | None, option(_SEARCH, "Attack on networks: invert_training (default) or reconstructor.")]
ShadowsOption = Annotated[
    int | None, option(_SEARCH, "Number of shadow models of the reconstructor. Default: one per unused record.")
]
StoreOption = Annotated[
    Path | None, option(_SEARCH, "Folder that keeps shadow models; an interrupted run resumes from it.")
]
SecondsOption = Annotated[
    float | None, option(_SEARCH, "Time limit of invert_training per model or batch of models, in seconds.")
]
SeedOption = Annotated[int | None, option(_SEARCH, "Seed of random weights and noise. Default: 0.")]

OutOption = Annotated[Path, typer.Option(help="Output folder for report, estimates and picture.")]


LINEAR: tuple[Kind, ...] = ("logistic", "ridge", "linear", "poisson")
"""Linear models that scikit-learn fits, listed here so that the help need not load it."""

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
    out: OutOption = Path("rebuild-informed-report"),
) -> None:
    """Reconstruct a training record from the trained model; the adversary knows all other records.

    Without --weights, a model is trained for each target and attacked. Use this to audit a training recipe.

    With --weights, the released model is attacked. It was trained on all records, or on --fixed
    records and the targets.
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
            raise InvalidInput(
                "Expected --start or --seed with --weights. Add one: the attack needs the weights before training."
            )
        rebuilt = _network(model, dataset, targets, weights, seed=drawn, **for_network, **shared)
    finish(out, "rebuild-informed", rebuilt)


def _check_name(model: str) -> None:
    """Raise InvalidInput, with the list of linear models and networks, for an unknown name."""
    from reconrisk.models.registry import MODELS

    if ":" not in model and model not in MODELS:
        known = (*LINEAR, *(name for name in MODELS if name not in LINEAR))
        remedy = f"Write one of these, or package.module:function.{did_you_mean(model, known)}"
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
    from reconrisk.studies.informed.network import InformedOptions, rebuild_informed

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
        load_weights(copy.deepcopy(built), weights)  # checks that the weights fit the model
        released = dict(read_tensors(weights, "Pass tensors saved by name."))  # keeps the precision of the file
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
        raise invalid_input("momentum", momentum, "to be left out for adam", "Remove --momentum.")
    return adam(rate)


def _coefficients(kind: Kind, path: Path) -> Coefficients:
    """Read coefficients from a file with the names of scikit-learn, ``coef`` and ``intercept``."""
    import numpy as np

    from reconrisk.releases.tensor_files import read_tensors
    from reconrisk.studies.informed.linear import Coefficients

    remedy = "Save coef_ and intercept_ of the estimator: np.savez('model.npz', coef=..., intercept=...)."
    if path.suffix.lower() in _PICKLED:
        raise InvalidFile(path, "format", "It is a pickle. Reading a pickle can run any code.", remedy)
    if path.suffix.lower() == ".json":
        stored = _json(path, remedy)
    else:
        stored = {name: value.numpy() for name, value in read_tensors(path, remedy).items()}
    named = {name.removesuffix("_"): value for name, value in stored.items()}
    if "coef" not in named or set(named) - {"coef", "intercept"}:
        raise InvalidFile(path, f"keys {sorted(stored)}", "Expected coef and, if the model has one, intercept.", remedy)
    for name, value in named.items():
        if value.dtype.kind != "f" or not np.isfinite(value).all():
            raise InvalidFile(path, f"key {name!r}", "Expected finite floating point numbers.", remedy)
    return Coefficients(kind, named["coef"], named.get("intercept"))


def _json(path: Path, remedy: str) -> dict[str, Any]:
    import numpy as np

    if not path.is_file():
        raise InvalidFile(path, "file", "The file does not exist.", remedy)
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        return {name: np.asarray(value, dtype=float) for name, value in read.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidFile(path, "whole file", f"Expected a mapping from names to numbers ({error}).", remedy) from error


def _check_left_out(model: str, given: dict[str, Any]) -> None:
    """Raise InvalidInput for an option that has no meaning for this model, instead of ignoring it."""
    for name, value in given.items():
        if value is not None:
            stated, kind = name.replace("_", "-"), "a linear model" if model in LINEAR else "a network"
            raise InvalidInput(f"Expected no --{stated} for {model}, {kind}, got {value}. Remove the option.")

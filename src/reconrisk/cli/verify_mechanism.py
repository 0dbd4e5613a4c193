"""``reconrisk verify-mechanism``: does a defense, or a finished DP-SGD run, add the noise that it claims?

The options come first, in the order of ``--help``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reconrisk.cli import options as shared
from reconrisk.cli.inputs import INTERRUPTED, check_folder, check_seed, network
from reconrisk.cli.options import option
from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.core.registry import Choice
from reconrisk.core.validation import invalid_input

if TYPE_CHECKING:
    from torch import Tensor, nn

    from reconrisk.data.dataset import Dataset
    from reconrisk.studies.verify_mechanism.result import MechanismVerdict

_SUBJECT = "Mechanism under test"
_CLAIM = "Claim; a defense claims its own mechanism by default"
_TESTS = "Tests"
_OUT = "Output"

DefenseOption = Annotated[
    str | None, option(_SUBJECT, "Defense such as 'clip_and_noise(noise_multiplier=1, clip_norm=1)'.")
]
IteratesOption = Annotated[
    Path | None,
    option(_SUBJECT, "Folder with the weights before the first and after each step, one file each, in order of names."),
]
ModelOption = Annotated[str | None, option(_SUBJECT, shared.MODEL_HELP)]
WeightsOption = Annotated[Path | None, option(_SUBJECT, "Weights file for updates that a defense gets.")]
DataOption = Annotated[str | None, option(_SUBJECT, f"{shared.DATA_HELP} For --iterates: all records of the run.")]
SplitOption = Annotated[str | None, option(_SUBJECT, shared.SPLIT_HELP)]
LabelOption = Annotated[str | None, option(_SUBJECT, shared.LABEL_HELP)]

NoiseMultiplierOption = Annotated[float | None, option(_CLAIM, "Noise standard deviation divided by the clip norm.")]
ClipNormOption = Annotated[float | None, option(_CLAIM, "Largest norm of a record's gradient.")]
SamplingProbabilityOption = Annotated[
    float, option(_CLAIM, "Probability that a record is in a batch (Poisson sampling).")
]
StepsOption = Annotated[int, option(_CLAIM, "Number of training steps, for epsilon. A finished run has its own.")]
LearningRateOption = Annotated[float | None, option(_CLAIM, "Learning rate of a finished run.")]
BatchSizeOption = Annotated[
    float | None, option(_CLAIM, "Divisor of the sums of a finished run. Default: number of records.")
]
ParticipationOption = Annotated[
    Path | None, option(_CLAIM, "File with the tensor participation (steps x records), if records were sampled.")
]

ReleasesOption = Annotated[
    int | None, option(_TESTS, "Largest number of releases; the exact number with --fixed. Default: 2000.")
]
FixedOption = Annotated[bool, option(_TESTS, "The number of releases was fixed before the first one.", "--fixed")]
LevelOption = Annotated[float, option(_TESTS, "Largest probability of contradicting a true claim.")]
SmallestRatioOption = Annotated[
    float, option(_TESTS, "Share of the claimed noise that must be excluded before the claim counts as consistent.")
]
DeltaOption = Annotated[float, option(_TESTS, "Delta for which epsilon is reported.")]
SeedOption = Annotated[int, option(_TESTS, "Seed of the audit's coins and of a defense's noise.")]

OutOption = Annotated[Path | None, option(_OUT, "File for the result: .json, .csv, .md or .html.")]
AsJsonOption = Annotated[bool, option(_OUT, "Print the result as JSON instead of text.", "--json")]

_RUN = "Save the weights with torch.save(model.state_dict(), 'step-000.pt'), before the first and after each step."


def verify_mechanism(
    defense: DefenseOption = None,
    iterates: IteratesOption = None,
    model: ModelOption = None,
    weights: WeightsOption = None,
    data: DataOption = None,
    split: SplitOption = None,
    label: LabelOption = None,
    noise_multiplier: NoiseMultiplierOption = None,
    clip_norm: ClipNormOption = None,
    sampling_probability: SamplingProbabilityOption = 1.0,
    steps: StepsOption = 1,
    learning_rate: LearningRateOption = None,
    batch_size: BatchSizeOption = None,
    participation: ParticipationOption = None,
    releases: ReleasesOption = None,
    fixed: FixedOption = False,
    level: LevelOption = 0.001,
    smallest_ratio: SmallestRatioOption = 0.9,
    delta: DeltaOption = 1e-5,
    seed: SeedOption = 0,
    out: OutOption = None,
    as_json: AsJsonOption = False,
) -> None:
    """Verify that a defense, or a finished DP-SGD run, adds the noise that it claims.

    Exit codes: 0, consistent; 1, contradicted; 2, invalid input; 3, unexpected error; 4, not enough evidence; 130,
    interrupted. Opacus optimizers, step functions and trainings are verified from Python.
    """
    if (defense is None) == (iterates is None):
        raise InvalidInput("Expected --defense or --iterates. See reconrisk verify-mechanism --help.")
    if out is not None:
        check_folder(out.parent)
    check_seed(seed)
    claim: dict[str, Any] = {"noise_multiplier": noise_multiplier, "clip_norm": clip_norm}
    _check_claim(claim, is_required=iterates is not None)
    dataset, built = _read_model(model, weights, data, split, label)
    import torch  # takes seconds to import

    from reconrisk.studies.verify_mechanism.verify import verify_mechanism as verify

    tests: dict[str, Any] = {"releases": releases, "stopping": "fixed" if fixed else "anytime", "level": level}
    tests |= {"smallest_ratio": smallest_ratio, "delta": delta, "rng": torch.Generator().manual_seed(seed)}
    if iterates is not None:
        if dataset is None or built is None or learning_rate is None:
            raise InvalidInput("Expected --model, --data and --learning-rate of the run with --iterates.")
        from reconrisk.attacks.informed.match_candidates import DpSgdSettings

        settings = DpSgdSettings(
            learning_rate=learning_rate,
            batch_size=batch_size,
            sampling_probability=sampling_probability,
            participation=None if participation is None else _read_participation(participation),
            **claim,
        )
        result = verify(_read_iterates(iterates), dataset, claimed=settings, model=built, **tests)
    else:
        from reconrisk.core.mechanism import dp_sgd
        from reconrisk.studies.common.arguments import defense_from_choice

        claimed = None
        if noise_multiplier is not None:
            claimed = dp_sgd(**claim, sampling_probability=sampling_probability, steps=steps)
        choice = defense_from_choice(Choice.read("defense", defense))
        if choice is None:
            raise invalid_input("defense", defense, "to add noise", "Pass 'clip_and_noise(...)', for instance.")
        result = verify(choice, dataset, claimed=claimed, model=built, **tests)
    _finish(result, out, as_json=as_json)


def _check_claim(claim: dict[str, Any], *, is_required: bool) -> None:
    missing = [f"--{name.replace('_', '-')}" for name, value in claim.items() if value is None]
    if missing and (is_required or len(missing) == 1):
        raise InvalidInput(f"Expected {' and '.join(missing)}: the noise and the clip norm that are claimed.")


def _read_model(
    model: str | None, weights: Path | None, data: str | None, split: str | None, label: str | None
) -> tuple[Dataset | None, nn.Module | None]:
    """Read the data and build the model; both or neither."""
    if (model is None) != (data is None):
        raise InvalidInput("Expected --model and --data together, or neither.")
    if model is None or data is None:
        return None, None
    from reconrisk.data import load_dataset  # loads torch, which takes seconds
    from reconrisk.models.weights import load_weights

    dataset = load_dataset(data, split=split, **({} if label is None else {"label": label}))
    built = network(model, shape=dataset.shape, classes=dataset.class_count).eval()
    return dataset, built if weights is None else load_weights(built, weights)


def _read_iterates(folder: Path) -> list[dict[str, Tensor]]:
    """Read the weights of every file in a folder, in the order of the names."""
    from reconrisk.releases.tensor_files import read_tensors

    if not folder.is_dir():
        raise InvalidFile(folder, "folder", "There is no such folder.", _RUN)
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    return [dict(read_tensors(path, _RUN)) for path in files]


def _read_participation(path: Path) -> Tensor:
    from reconrisk.releases.tensor_files import read_tensors

    remedy = "Save it with np.savez('participation.npz', participation=...)."
    found = read_tensors(path, remedy)
    if "participation" not in found:
        raise InvalidFile(path, f"keys {sorted(found)}", "Expected the key participation.", remedy)
    return found["participation"]


def _finish(result: MechanismVerdict, out: Path | None, *, as_json: bool) -> None:
    written = None if out is None else result.save(out)
    typer.echo(result.to_json(indent=2) if as_json else f"{result}")
    if written is not None:
        typer.echo(f"report    {written.resolve()}", err=as_json)
    code = INTERRUPTED if result.was_interrupted else result.exit_code
    if code:
        raise typer.Exit(code)

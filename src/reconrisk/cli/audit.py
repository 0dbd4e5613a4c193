"""``reconrisk audit``: attacks and guarantees for a model's updates, as a report and as a release gate.

The options come first, in the order of ``--help``; those about updates are in ``options.py``.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reconrisk.cli import options as updates
from reconrisk.cli.inputs import INTERRUPTED, check_folder, stated_options
from reconrisk.cli.options import HOW, WHAT, option
from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.studies.audit.spec import AuditSpec, read_spec, spec_from_mapping, values_from_mapping

if TYPE_CHECKING:
    from reconrisk.studies.audit.job import Job
    from reconrisk.studies.audit.result import AuditResult

_TRAINING = "Finished DP-SGD run: adds its risk corridor to the report"
_GATE = "Goals and limits"
_OUT = "Output"

SpecOption = Annotated[
    str | None,
    typer.Argument(
        metavar="SPEC", help="TOML or JSON file, or JSON text. Options override its keys.", show_default=False
    ),
]
RecordsOption = Annotated[str | None, option(WHAT, "Records that may be targets, such as 0,3,8-15. Default: all.")]
DefenseOption = Annotated[
    list[str] | None,
    option(WHAT, "none, or 'clip_and_noise(noise_multiplier=1, clip_norm=1)', for instance. Repeat for several."),
]

TrialsOption = Annotated[int | None, option(HOW, "Attacked updates per attack and defense.")]

NoiseMultiplierOption = Annotated[float | None, option(_TRAINING, "Noise standard deviation divided by the clip norm.")]
ClipNormOption = Annotated[float | None, option(_TRAINING, "Largest norm of a record's gradient. Default: 1.")]
SamplingProbabilityOption = Annotated[
    float | None, option(_TRAINING, "Probability that a record is in a batch. Default: 1.")
]
StepsOption = Annotated[int | None, option(_TRAINING, "Number of training steps. Default: 1.")]
AccountOption = Annotated[str | None, option(_TRAINING, "File saved by a FisherAccountant.")]

GoalOption = Annotated[
    list[str] | None, option(_GATE, "Score that counts as reconstructed, such as 'psnr>=20'. Repeat for several.")
]
MaxRiskOption = Annotated[
    list[str] | None, option(_GATE, "Accepted share of reconstructed records, such as 'psnr>=20: 1%'. Repeatable.")
]
ConfidenceOption = Annotated[
    float | None, option(_GATE, "Joint confidence of the intervals of all attacks. Default: 0.95.")
]
StrictOption = Annotated[bool, option(_GATE, "Fail if the trials are too few to show that a limit holds.", "--strict")]

OutOption = Annotated[Path | None, option(_OUT, "Output folder for the report. Default: audit-report.")]
StoreOption = Annotated[Path | None, option(_OUT, "File that keeps every trial; the same command resumes from it.")]
RedactOption = Annotated[
    bool | None,
    option(
        _OUT, "Leave records out of the report. Default: redact unless the data are bundled.", "--redact/--no-redact"
    ),
]
JunitOption = Annotated[Path | None, option(_OUT, "JUnit file: limits and bounds as test cases for CI.")]
AsJsonOption = Annotated[bool, option(_OUT, "Print the result as JSON instead of text.", "--json")]


FAILED = 1
"""Exit code if a risk is above its limit, or an attack beats a bound that covers it."""


def audit(
    spec: SpecOption = None,
    model: updates.Model = None,
    weights: updates.Weights = None,
    data: updates.Data = None,
    split: updates.Split = None,
    label: updates.Label = None,
    data_range: updates.DataRange = None,
    records: RecordsOption = None,
    batch_size: updates.BatchSize = None,
    local_steps: updates.LocalSteps = None,
    local_learning_rate: updates.LocalLearningRate = None,
    train_mode: updates.TrainMode = None,
    defense: DefenseOption = None,
    attacks: updates.Attacks = None,
    trials: TrialsOption = None,
    budget: updates.Budget = None,
    seed: updates.Seed = None,
    sees: updates.Sees = None,
    knows: updates.Knows = None,
    controls: updates.Controls = None,
    noise_multiplier: NoiseMultiplierOption = None,
    clip_norm: ClipNormOption = None,
    sampling_probability: SamplingProbabilityOption = None,
    steps: StepsOption = None,
    account: AccountOption = None,
    goal: GoalOption = None,
    max_risk: MaxRiskOption = None,
    confidence: ConfidenceOption = None,
    strict: StrictOption = False,
    out: OutOption = None,
    store: StoreOption = None,
    redact: RedactOption = None,
    junit: JunitOption = None,
    as_json: AsJsonOption = False,
) -> None:
    """Attack a model's updates under every defense, compare with guarantees, and check limits.

    Exit codes: 0, every limit holds; 1, a risk is above its limit or an attack beats a bound; 2, invalid input;
    3, unexpected error; 130, interrupted.
    """
    given: dict[str, Any] = {"model": model, "weights": weights, "data": data, "split": split, "label": label}
    given |= {"data_range": data_range, "records": records, "batch_size": batch_size, "local_steps": local_steps}
    given |= {"local_learning_rate": local_learning_rate, "train_mode": train_mode, "defenses": defense}
    given |= {"attacks": attacks, "trials": trials, "budget": budget, "seed": seed, "goals": goal}
    given |= {"max_risk": max_risk, "confidence": confidence, "redact": redact, "account": account}
    training: dict[str, Any] = {"noise_multiplier": noise_multiplier, "clip_norm": clip_norm}
    training |= {"sampling_probability": sampling_probability, "steps": steps}
    threat = stated_options({"sees": sees, "knows": knows, "controls": controls})
    given |= {"training": stated_options(training) or None, "threat": threat or None}
    given |= {"out": None if out is None else str(out), "store": None if store is None else str(store)}
    complete = _spec(spec, stated_options(given))
    folder = complete.path(complete.out)
    check_folder(folder)
    if junit is not None:
        check_folder(junit.parent)
    result, was_interrupted = _run(complete, to_stderr=as_json)
    written = {"report": result.save(folder / "audit.html", redact=complete.redact)}
    written["json"] = result.save(folder / "audit.json")
    if junit is not None:
        from reconrisk.reports.audit.junit import write_junit  # JUnit whatever the suffix

        written["junit"] = write_junit(result, junit, strict=strict)
    _print(result, written, as_json=as_json)
    failed = result.failures(strict=strict)
    for sentence in failed:
        typer.echo(sentence, err=True)
    if was_interrupted or failed:
        raise typer.Exit(INTERRUPTED if was_interrupted else FAILED)


def _spec(source: str | None, given: dict[str, Any]) -> AuditSpec:
    """Return the spec from a file or text, with options overriding its keys, or from options alone."""
    if source is None:
        if not given:
            raise InvalidInput("Expected a spec file, or --model and --data. See reconrisk audit --help.")
        return spec_from_mapping(given)
    found = read_spec(source)
    for key in ("weights", "data", "account", "out", "store"):  # paths in options are relative to the current folder
        if key in given and Path(found.folder) != Path():
            here = Path(given[key]).expanduser()
            if not here.is_absolute() and (here.exists() or key in ("out", "store")):
                given[key] = _from_folder(here, found.folder)
    return dataclasses.replace(found, **values_from_mapping(given))


def _from_folder(path: Path, folder: str) -> str:
    """Return a path relative to the folder of the spec, so that the signature holds no absolute path."""
    try:
        return os.path.relpath(path, folder)
    except ValueError:  # different drives on Windows
        return str(path.absolute())


def _run(spec: AuditSpec, *, to_stderr: bool) -> tuple[AuditResult, bool]:
    """Run the audit; return its result and True if the user interrupted it."""
    from reconrisk.studies.audit.conclusion import ContradictedBound
    from reconrisk.studies.audit.job import job_from_spec

    job = job_from_spec(spec)
    account = _account(job)
    training = None if account is None else account.mechanism()
    with _count_interrupts() as interrupts:
        try:
            result = job.run(training=training, account=account, show_plan=lambda text: typer.echo(text, err=to_stderr))
        except ContradictedBound as error:
            result = error.result
    return result, bool(interrupts)


@contextmanager
def _count_interrupts() -> Iterator[list[int]]:
    """Collect every Ctrl-C without changing its effect; collect none in a thread or where SIGINT is ignored."""
    before, numbers = signal.getsignal(signal.SIGINT), list[int]()
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield numbers
        return

    def note(number: int, frame: Any) -> None:
        numbers.append(number)
        before(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield numbers
    finally:
        signal.signal(signal.SIGINT, before)


def _account(job: Job) -> Any:
    """Read the Fisher account of the training, if the spec names a file."""
    if job.spec.account is None:
        return None
    from reconrisk.integrations.fisher_accountant.state import read_account

    if job.dataset.labels is None:
        raise InvalidInput("account: Expected data with labels. Pass labelled data, or remove account.")
    try:
        return read_account(job.spec.path(job.spec.account), job.dataset.inputs, job.dataset.labels)
    except (InvalidInput, InvalidFile) as error:
        raise InvalidInput(f"account: {error}") from error


def _print(result: AuditResult, written: dict[str, Path], *, as_json: bool) -> None:
    if as_json:
        typer.echo(result.to_json())
        return
    typer.echo(f"\n{result}\n")
    if result.training is not None and result.training.corridor is not None:
        typer.echo(f"training  {result.training.corridor.sentence}")
    if result.training is not None and result.training.leakage is not None:
        leak = result.training.leakage
        typer.echo(f"account   {leak.records} records, leakage at most {leak.maximum:.3g}, median {leak.median:.3g}")
    for what, path in written.items():
        typer.echo(f"{what:<9} {path.resolve()}")
    typer.echo(f"repeat    {result.signature}")

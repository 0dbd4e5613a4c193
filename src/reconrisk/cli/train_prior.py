"""``reconrisk train-prior``: train a generative prior (diffusion or GAN) and write its card."""

from __future__ import annotations

import os
import shlex
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reconrisk.cli.inputs import INTERRUPTED, check_folder, check_seed, range_of
from reconrisk.cli.options import SPLIT_HELP
from reconrisk.core.validation import check_finite, check_whole, invalid_input

if TYPE_CHECKING:
    from reconrisk.data.dataset import Dataset
    from reconrisk.priors.train.card import Card, Origin

_SPLITS = ("train", "test")


class Kind(str, Enum):
    """Kind of generative prior."""

    diffusion = "diffusion"
    gan = "gan"


def train_prior(
    data: Annotated[
        str,
        typer.Option(help="File or folder of pictures, or a name such as mnist-full in the folders of RECONRISK_DATA."),
    ],
    kind: Annotated[Kind, typer.Option(help="diffusion (needs the extra of this name) or gan.")],
    out: Annotated[
        Path, typer.Option(help="New or empty folder for the prior, or the folder of the same interrupted training.")
    ],
    steps: Annotated[
        int | None,
        typer.Option(help="Training steps. Default: 6,000, about 40 minutes on one core for a diffusion of MNIST."),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Records per step. Default: 32.")] = None,
    channels: Annotated[
        str | None,
        typer.Option(help="Channels per resolution of a diffusion (default 16,32,64), or of a GAN (default 32)."),
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Initial learning rate. Default: 0.002 for a diffusion, 0.001 for a GAN.")
    ] = None,
    predicts: Annotated[
        str | None,
        typer.Option(help="Output of a diffusion: epsilon (default), or v_prediction for more realistic samples."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights, batches, noise, and of the held-out share.")] = 0,
    data_range: Annotated[
        str | None, typer.Option(help="Smallest and largest pixel value, such as 0,1, if not in the file.")
    ] = None,
    size: Annotated[
        int | None, typer.Option(help="Side length in pixels to which pictures of a folder are resized.")
    ] = None,
    split: Annotated[str | None, typer.Option(help=f"{SPLIT_HELP} Default: all records.")] = None,
    held_out: Annotated[
        str, typer.Option(help="Records for the measurements on the card: a split such as test, or a share.")
    ] = "0.1",
) -> None:
    """Train a generative prior for attacks (diffusion or GAN); write its card and samples.

    After Ctrl-C, the same command resumes. A prior memorises records: do not publish one that was trained on private
    records.
    """
    check_folder(out)
    check_seed(seed)
    stated: dict[str, Any] = {"data_range": range_of(data_range), "size": size}
    read = {name: value for name, value in stated.items() if value is not None}
    training, rest = _parts(data, split, held_out, seed, **read)
    given: dict[str, Any] = {"steps": steps, "batch_size": batch_size, "channels": _channels(channels, kind)}
    if predicts is not None and kind is Kind.gan:
        raise invalid_input(
            "predicts", predicts, "to be used with a diffusion only", "Remove --predicts: a GAN has no such setting."
        )
    given |= {"learning_rate": learning_rate, "predicts": predicts, "seed": seed}
    settings = {name: value for name, value in given.items() if value is not None}
    words = {"data_range": data_range, "size": size, "split": split, "held_out": held_out}
    command = _command(_public_name(data), kind, _public_name(out), words | settings)
    try:
        from reconrisk.priors import DiffusionTraining, GanTraining
        from reconrisk.priors.train.card import train_prior

        card = train_prior(
            training.inputs,
            rest.inputs,
            out,
            GanTraining(**settings) if kind is Kind.gan else DiffusionTraining(**settings),
            origin=_origin(data, training, command, held_out, len(rest)),
            data_range=training.data_range,
        )
    except KeyboardInterrupt:
        typer.echo(f"stopped   {_describe_state(out)}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    for line in _lines(out.resolve(), kind, card):
        typer.echo(line)


def _describe_state(out: Path) -> str:
    """Describe the files that a stopped training has written."""
    from reconrisk.priors.train.training_state import is_unfinished, read_training_record

    if is_unfinished(out):
        return f"the state is in {out.resolve()}; the same command resumes from it"
    if read_training_record(out) is not None:
        return f"the prior is in {out.resolve()}, without a card; the same command writes it"
    return "nothing was written"


def _parts(data: str, split: str | None, held_out: str, seed: int, **read: Any) -> tuple[Dataset, Dataset]:
    """Load the records to train on and the held-out records."""
    import torch  # takes seconds to import

    from reconrisk.data import load_dataset

    if held_out in _SPLITS:
        if split is None or split == held_out:
            remedy = f"Pass --split {_SPLITS[held_out == 'train']}, or a share such as 0.1."
            raise invalid_input("held_out", held_out, "to differ from the training split", remedy)
        parts = load_dataset(data, split=split, **read), load_dataset(data, split=held_out, **read)
        _check_counts(held_out, *map(len, parts))
        return parts
    try:
        share = check_finite("held_out", float(held_out))
    except ValueError as error:
        raise invalid_input("held_out", held_out, "to be train, test or a share such as 0.1") from error
    if not 0 < share < 1:
        raise invalid_input("held_out", share, "in (0, 1)", "Pass --held-out 0.1, for example.")
    dataset = load_dataset(data, split=split, **read)
    count = round(share * len(dataset))
    _check_counts(held_out, len(dataset) - count, count)
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed))
    return dataset.subset(order[count:].sort().values), dataset.subset(order[:count].sort().values)


def _check_counts(held_out: str, training: int, rest: int) -> None:
    """Raise InvalidInput before training if either part is too small to measure the card on."""
    from reconrisk.priors.quality import FEWEST

    if min(training, rest) < FEWEST:
        condition = (
            f"to leave at least {FEWEST} records in both parts, found {training} to train on and {rest} held out"
        )
        raise invalid_input("held_out", held_out, condition, "Pass another share, or more records.")


def _channels(text: str | None, kind: Kind) -> tuple[int, ...] | int | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise invalid_input("channels", text, "to be whole numbers such as 16,32,64")
    numbers = tuple(check_whole("channels", int(part)) for part in parts)
    if kind is Kind.diffusion:
        return numbers
    if len(numbers) > 1:
        raise invalid_input("channels", text, "to be one number for a GAN")
    return numbers[0]


def _public_name(path_or_name: str | Path) -> str:
    """Return the last part of a path, so that the card does not reveal folders of this machine."""
    return Path(os.path.abspath(Path(path_or_name).expanduser())).name  # noqa: PTH100 - resolve() would follow a link


def _command(data: str, kind: Kind, out: str, options: dict[str, Any]) -> str:
    """Return the shell command that trains the same prior."""
    words = ["reconrisk", "train-prior", "--data", data, "--kind", kind.value]
    for name, value in options.items():
        if value is None:
            continue
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        words += [f"--{name.replace('_', '-')}", text]
    return shlex.join([*words, "--out", out])


def _origin(data: str, training: Dataset, command: str, held_out: str, count: int) -> Origin:
    from reconrisk.data.data_folders import FULL_SETS
    from reconrisk.priors.train.card import Origin

    source = FULL_SETS[data].source if data in FULL_SETS else training.source
    path = str(Path(data).expanduser())
    if source.startswith(path):  # the source of a file is its path
        source = _public_name(data) + source.removeprefix(path)
    words = f"{count:,} records, " + (f"split {held_out}" if held_out in _SPLITS else f"a share of {held_out}")
    return Origin(training.name, source, training.licence, command, words)


def _lines(out: Path, kind: Kind, card: Card) -> list[str]:
    number = f"{card.held_out:.5f} +- {card.standard_error:.5f}"
    other = "" if card.gaussian is None else f"a Gaussian of the same records {card.gaussian:.5f}"
    if kind is Kind.diffusion:
        held_out = "; ".join([f"loss {number}", ", ".join(filter(None, [other, "finding no noise 1"]))])
    else:
        held_out = "; ".join(filter(None, [f"distance {number} to the nearest draw", other and f"of {other}"]))
    attack = "ggss_r" if kind is Kind.diffusion else "gias"
    return [
        f"prior     {out}",
        f"held-out  {held_out}",
        f"card      {card.path.resolve()}, with samples.png next to it",
        f"use       rr.attacks.{attack}(rr.priors.{kind.value}({str(out)!r}))",
        "keep      a prior memorises training records: audit other records, and publish it only if they are public",
    ]

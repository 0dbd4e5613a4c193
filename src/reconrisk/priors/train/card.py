"""Cards of trained priors: data and licence, training settings, quality on held-out records, and samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from reconrisk.core.errors import InvalidFile
from reconrisk.core.storage.files import write_atomically
from reconrisk.core.validation import check_not_empty, invalid_input
from reconrisk.priors.diffusion import DiffusionPrior
from reconrisk.priors.gaussian import LARGEST_COVARIANCE, GaussianPrior, fit_gaussian
from reconrisk.priors.generator import GeneratorPrior
from reconrisk.priors.load.diffusers import diffusion
from reconrisk.priors.load.gan import gan
from reconrisk.priors.quality import LOSS_TIMES, check_several, denoising_loss, frechet_distance, nearest_distance
from reconrisk.priors.train.diffusion import DiffusionTraining, train_diffusion
from reconrisk.priors.train.gan import GanTraining, train_gan
from reconrisk.priors.train.training_state import TrainingRecord, read_training_record

HELD_OUT, DRAWS = 500, 2000  # largest numbers of records and of draws that a card is measured on
_SIDE, _GAP, _SCALE = 8, 1, 2  # grid of samples: pictures per side, pixels between them, enlargement
_COMPONENTS = 64  # principal directions of the Frechet distance
_GREY, _COLOURS = 1, 3  # numbers of channels that a picture can show

_USE = """\
Use it to audit your own releases. It models an adversary who knows this kind of pictures, in
{attacks}. A prior remembers training records: **audited records must not be
among them**, or the audit reports as leaked what the prior already contains. It is too small for other uses: its
pictures are neither good enough nor meant to pass as real ones, and its draws say nothing about any person."""
_ATTACKS = {
    "diffusion": "`rr.attacks.ggss_r`, `plug_and_play` and `finetuned_diffusion`",
    "gan": "`rr.attacks.gias`, `ggl` and `gifd`",
}

_LICENCE = """\
The weights may remember records: the licence of the data applies to sharing them, as far as it covers them."""

_LEFT_OUT = f"""\
It is
not compared with a Gaussian: records have more than {LARGEST_COVARIANCE:,} values, too many for a covariance."""


@dataclass(frozen=True)
class Origin:
    """Origin of the training records of a prior.

    Attributes:
        data: Name of the data.
        source: Author or location of the data.
        licence: Licence of the data.
        command: Command that trained the prior.
        held_out: Description of the held-out records.
    """

    data: str
    source: str
    licence: str
    command: str
    held_out: str = "records that were not trained on"


@dataclass(frozen=True)
class Card:
    """Written card and its main number.

    The number is the mean squared error of the predicted noise for a diffusion prior, and the mean squared difference
    of a record and the nearest draw for a GAN.

    Attributes:
        path: Path of the card.
        held_out: The number on held-out records; smaller is better.
        standard_error: Standard error of ``held_out``, in the same unit.
        gaussian: The number of a normal distribution fitted to the same training records, None if they are too large.
    """

    path: Path
    held_out: float
    standard_error: float
    gaussian: float | None


def train_prior(
    records: Tensor,
    held_out: Tensor,
    folder: str | Path,
    settings: DiffusionTraining | GanTraining,
    *,
    origin: Origin,
    data_range: tuple[float, float] = (0.0, 1.0),
) -> Card:
    """Train a generative prior, measure it on held-out records, and write its card and samples.

    Args:
        records: Pictures (n, channels, height, width) to train on.
        held_out: Pictures that are not trained on, at least two, for the measurements on the card.
        folder: New or empty folder for the prior, or the folder of the same interrupted training.
        settings: ``DiffusionTraining`` trains a diffusion, ``GanTraining`` a GAN.
        origin: Origin of the records, for the card.
        data_range: Range of the values of records.

    Returns:
        The card.

    Raises:
        InvalidInput: If the records are not pictures in ``data_range``, or the settings are of another kind.
        InvalidFile: If the folder holds another training, prior or other files.
        MissingExtra: If a diffusion is trained and diffusers is not installed.

    Assumes: the records are public or meant to be released, since a prior remembers them.
    Edge cases: Ctrl-C saves the state; the same call resumes.

    >>> train_prior(torch.rand(4, 1, 8, 8), torch.rand(2, 1, 8, 8), "prior", 500, origin=Origin("toy", "", "", ""))
    Traceback (most recent call last):
    ...
    reconrisk.core.errors.InvalidInput: Expected settings='int' to be DiffusionTraining or GanTraining.
    """
    if isinstance(settings, GanTraining):
        train_gan(records, folder, settings, data_range=data_range)
    elif isinstance(settings, DiffusionTraining):
        train_diffusion(records, folder, settings, data_range=data_range)
    else:
        raise invalid_input("settings", type(settings).__name__, "to be DiffusionTraining or GanTraining")
    return write_card(folder, records, held_out, origin, data_range=data_range)


def write_card(
    folder: str | Path,
    training: Tensor,
    held_out: Tensor,
    origin: Origin,
    *,
    data_range: tuple[float, float] | None = None,
    trained: TrainingRecord | None = None,
) -> Card:
    """Measure a trained prior on held-out records and write ``card.md`` and ``samples.png`` to its folder.

    Args:
        folder: Folder of the trained prior.
        training: Records that it was trained on, for the comparison with a normal distribution of their mean and
            covariance.
        held_out: Records that it was not trained on, at least two.
        origin: Origin of the records.
        data_range: Range of the values of records, by default the range in the training.
        trained: Description of the training, by default the description in the folder.

    Returns:
        The card.

    Raises:
        InvalidInput: If there are fewer than two records.
        InvalidFile: If the folder does not describe a finished training and ``trained`` is None.

    Assumes: ``held_out`` are not among ``training``.
    Guarantee: the same numbers for the same prior and records; at most 500 held-out records are used, evenly spaced.
    Edge cases: a folder without a finished training is refused, and so is a single record. Records of more than 4,096
    values are not compared with a normal distribution, since their covariance would be too large.
    """
    for name, some in (("held_out", held_out), ("training", training)):
        check_not_empty(name, some)
        check_several(name, some)
    path, facts = Path(folder), trained or read_training_record(folder)
    if facts is None:
        raise InvalidFile(
            path,
            "trained.json",
            "The folder does not describe a training.",
            "Train the prior with reconrisk train-prior.",
        )
    rows = torch.linspace(0, len(held_out) - 1, min(HELD_OUT, len(held_out))).long()
    ends = facts.data_range if data_range is None else data_range
    small = math.prod(training.shape[1:]) <= LARGEST_COVARIANCE
    gaussian = fit_gaussian(training, data_range=ends) if small else None
    prior: DiffusionPrior | GeneratorPrior
    if facts.kind == "diffusion":
        prior = diffusion(path.resolve(), data_range=ends)
        table, losses, others = _diffusion_table(prior, gaussian, held_out[rows])
    else:
        prior = gan(path.resolve(), data_range=ends)
        table, losses, others = _gan_table(prior, gaussian, training, held_out[rows])
    write_samples(prior, path / "samples.png")
    error = float(losses.std() / len(losses) ** 0.5)  # standard error of the mean over records
    card = Card(path / "card.md", float(losses.mean()), error, None if others is None else float(others.mean()))
    text = _render_card(
        prior.name, prior.shape, facts, origin, _describe_held_out(card, len(losses), facts.kind), table
    )
    write_atomically(card.path, lambda place: place.write_text(text, encoding="utf-8"))
    return card


def write_samples(prior: DiffusionPrior | GeneratorPrior, path: Path, *, seed: int = 0) -> Path:
    """Write a picture with a grid of 8 x 8 draws, of 50 steps each for a diffusion prior.

    Args:
        prior: Prior of pictures.
        path: File to write.
        seed: Seed of the draws.

    Returns:
        The path.

    Raises:
        InvalidInput: If records of the prior are not pictures.
    """
    if len(prior.shape) != 3:
        raise invalid_input("prior.shape", prior.shape, "to be (channels, height, width)", "Pass a prior of pictures.")
    low, high = prior.data_range
    drawn = prior.draw(_SIDE**2, torch.Generator().manual_seed(seed))
    bytes_ = ((drawn - low) / (high - low)).clamp(0, 1).mul(255).round().byte()
    if prior.shape[0] not in (_GREY, _COLOURS):  # other numbers of channels are shown side by side in grey
        bytes_ = bytes_.permute(0, 2, 1, 3).flatten(2)[:, None]
    framed = torch.nn.functional.pad(bytes_, (0, _GAP, 0, _GAP), value=255)
    rows = framed.unflatten(0, (_SIDE, _SIDE)).permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)
    pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]] = rows[:-_GAP, :-_GAP].contiguous().cpu().numpy()
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == _GREY else pixels)
    larger = picture.resize((_SCALE * picture.width, _SCALE * picture.height), Image.Resampling.NEAREST)
    return write_atomically(path, lambda place: larger.save(place, format="PNG", optimize=True))


def _diffusion_table(
    prior: DiffusionPrior, gaussian: GaussianPrior | None, held_out: Tensor
) -> tuple[list[str], Tensor, Tensor | None]:
    """Table of the loss at each time, and the mean loss of each record, for the prior and for the Gaussian."""
    times = tuple(time for time in LOSS_TIMES if time < len(prior.schedule))
    priors = {"this prior": prior} | ({} if gaussian is None else {"Gaussian": gaussian.diffusion})
    found = [
        denoising_loss(each, held_out, rng=torch.Generator().manual_seed(0), times=times) for each in priors.values()
    ]
    lines = _table_head("time", "noise in units of the signal", *priors, "predicting none")
    for place, time in enumerate(times):
        losses = (f"{float(each[:, place].mean()):.5f}" for each in found)
        lines.append(_table_row(time, f"{prior.schedule.noise_level(time):.3g}", *losses, 1))
    return lines, found[0].mean(1), None if gaussian is None else found[1].mean(1)


def _gan_table(
    prior: GeneratorPrior, gaussian: GaussianPrior | None, training: Tensor, held_out: Tensor
) -> tuple[list[str], Tensor, Tensor | None]:
    """Table of distances between held-out records, draws and training records, and those of each held-out record."""
    rows = torch.linspace(0, len(training) - 1, min(DRAWS, len(training))).long()
    priors = {"this prior": prior} | ({} if gaussian is None else {"a Gaussian": gaussian})
    draws = {name: each.draw(DRAWS, torch.Generator().manual_seed(0)).float() for name, each in priors.items()}
    reached = {name: nearest_distance(held_out, some) for name, some in draws.items()}
    known = nearest_distance(held_out, training[rows])

    def frechet_cells(
        some: Tensor,
    ) -> list[str]:  # along the principal directions of the training records, if these are known
        along = None if gaussian is None else gaussian.directions[:, -_COMPONENTS:]  # eigh sorts ascending
        return [] if along is None else [f"{frechet_distance(some, held_out, along):.2f}"]

    columns = ("", "held-out record to the nearest of these", "one of these to the nearest training record")
    lines = _table_head(*columns, *(() if gaussian is None else ("Frechet distance",)))
    for name, some in draws.items():
        distances = f"{float(reached[name].mean()):.5f}", f"{_distance_to_training(some, training):.5f}"
        lines.append(_table_row(f"{DRAWS:,} draws of {name}", *distances, *frechet_cells(some)))
    lines.append(
        _table_row(f"{len(rows):,} training records", f"{float(known.mean()):.5f}", 0, *frechet_cells(training[rows]))
    )
    none = () if gaussian is None else (0,)
    lines.append(
        _table_row(f"{len(held_out):,} held-out records", 0, f"{_distance_to_training(held_out, training):.5f}", *none)
    )
    return lines, reached["this prior"], reached.get("a Gaussian")


def _table_head(*columns: str) -> list[str]:
    return [_table_row(*columns).replace("|  |", "| |", 1), "|" + "---|" * len(columns)]


def _table_row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _distance_to_training(some: Tensor, training: Tensor) -> float:
    """Mean distance of records to the nearest training record."""
    return float(nearest_distance(some[:HELD_OUT], training).mean())


def _describe_held_out(card: Card, count: int, kind: str) -> str:
    number = f"{card.held_out:.5f} +- {card.standard_error:.5f} (standard error, {count:,} records)"
    if kind == "diffusion":
        words = (
            f"Held-out loss: {number},\n"
            "the mean squared error of the predicted noise, mean over the times below. Predicting none has 1. "
        )
        if card.gaussian is None:
            return words + _LEFT_OUT
        return words + (
            "A Gaussian\n"
            f"of the training records' mean and covariance, whose denoiser is linear, has {card.gaussian:.5f}."
        )
    words = (
        f"Held-out distance: {number},\nthe mean squared difference of a record and the nearest of {DRAWS:,} draws. "
    )
    if card.gaussian is None:
        return words + _LEFT_OUT
    return words + (
        "Draws of a Gaussian of the\n"
        f"training records' mean and covariance reach {card.gaussian:.5f}. The Frechet distance is that of mean and\n"
        f"covariance along {_COMPONENTS} principal directions of the training records, which a Gaussian matches by\n"
        "construction."
    )


def _render_card(
    name: str, shape: tuple[int, ...], trained: TrainingRecord, origin: Origin, held_out: str, table: list[str]
) -> str:
    what = {"diffusion": "diffusion prior", "gan": "generator"}[trained.kind]
    sizes = " x ".join(map(str, shape))
    settings = ", ".join(
        f"{key} {'-'.join(map(str, value)) if isinstance(value, (list, tuple)) else value}"
        for key, value in trained.settings.items()
    )
    facts = [
        ("data", origin.data),
        ("source", origin.source),
        ("licence of the data", origin.licence),
        ("records", f"{trained.count:,}"),
        ("held out", origin.held_out),
        ("settings", settings),
        ("processor time", f"{trained.seconds / 60:.0f} minutes" if trained.seconds >= 60 else "under a minute"),
    ]
    lines = [f"# {name}: a {what} of pictures {sizes}", "", "![64 draws](samples.png)", "", "| | |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in facts]
    lines += [
        "",
        "## Held-out records",
        "",
        held_out,
        "",
        *table,
        "",
        "## Use",
        "",
        _USE.format(attacks=_ATTACKS[trained.kind]),
        "",
        _LICENCE,
    ]
    lines += ["", "## Training", "", "```", origin.command, "```", ""]
    return "\n".join(lines)

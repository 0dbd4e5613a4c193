"""Folders of priors: those of the user, and those that are shipped."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

from reconrisk.core.errors import InvalidFile
from reconrisk.core.registry import Info
from reconrisk.core.validation import did_you_mean, invalid_input
from reconrisk.priors.registry import PRIORS
from reconrisk.priors.train.training_state import is_unfinished, read_training_record

BUNDLED = Path(str(resources.files("reconrisk.priors"))) / "bundled"
"""Folder of the shipped priors, with a subfolder for each kind."""


def shipped_names(kind: str) -> tuple[str, ...]:
    """List the names of the shipped priors of a kind.

    Args:
        kind: ``"diffusion"`` or ``"gan"``.

    Returns:
        The names, sorted.
    """
    folder = BUNDLED / kind
    return tuple(sorted(each.name for each in folder.iterdir() if each.is_dir())) if folder.is_dir() else ()


def shipped_shape(kind: str, name: str) -> tuple[int, ...]:
    """Return the shape of the records of a shipped prior, from its settings alone.

    Args:
        kind: ``"diffusion"`` or ``"gan"``.
        name: Name of the prior.

    Returns:
        The shape.
    """
    shape: tuple[int, ...] = Info(kind, PRIORS[kind].stored_shape, "").load()(BUNDLED / kind / name)
    return shape


def shape_of_diffusion(folder: Path) -> tuple[int, ...]:
    """Return the shape of the records of a diffusion prior in a folder.

    Args:
        folder: Folder of the prior.

    Returns:
        The shape (channels, height, width).
    """
    stated = json.loads((folder / "unet" / "config.json").read_text(encoding="utf-8"))
    size = stated["sample_size"]
    return (stated["in_channels"], *((size, size) if isinstance(size, int) else size))


def shape_of_gan(folder: Path) -> tuple[int, ...]:
    """Return the shape of the records of a generator in a folder.

    Args:
        folder: Folder of the prior.

    Returns:
        The shape (channels, height, width).
    """
    return tuple(json.loads((folder / "config.json").read_text(encoding="utf-8"))["shape"])


def check_is_shipped(kind: str) -> None:
    """Refuse a kind of prior of which none is shipped.

    Args:
        kind: Kind of prior.

    Raises:
        InvalidInput: If none is shipped.
    """
    kinds = [row.name for row in PRIORS.values() if row.misfit]
    if kind not in kinds:
        raise invalid_input("kind", kind, f"to be {' or '.join(kinds)}")


def find_prior_folder(path_or_name: str | Path, kind: str) -> Path:
    """Find the folder of a prior by the name of a shipped one or by its path.

    A name has precedence over a folder of that name: pass a ``Path``, or ``./mnist``, for the folder.

    Args:
        path_or_name: Path, or name of a shipped prior.
        kind: ``"diffusion"`` or ``"gan"``.

    Returns:
        The folder.

    Raises:
        InvalidInput: If the argument is neither a path nor a name of a shipped prior.
        InvalidFile: If the folder does not exist, its training is not finished, or it holds a prior of another kind.
    """
    given: object = path_or_name
    if not isinstance(given, (str, Path)):
        wrap = (
            f"Pass a function or network to rr.priors.{PRIORS[kind].wrapper}."
            if callable(given)
            else "Pass str or pathlib.Path."
        )
        raise invalid_input("path_or_name", type(given).__name__, "to be a name or a path", wrap)
    names = shipped_names(kind)
    if isinstance(path_or_name, str) and path_or_name in names:
        return BUNDLED / kind / path_or_name
    path = Path(path_or_name).expanduser()
    if path.is_dir() and path_or_name != "":
        if is_unfinished(path):
            remedy = "Run the command that trains it again: it resumes where it was stopped."
            raise InvalidFile(path, "prior", "Its training is not finished.", remedy)
        trained = read_training_record(path)
        if trained is not None and trained.kind != kind:
            raise InvalidFile(path, "kind", f"It is a {trained.kind} prior.", f"Pass it to rr.priors.{trained.kind}.")
        return path
    if isinstance(path_or_name, Path) or path.name != path_or_name:
        raise InvalidFile(
            path_or_name, "folder", "There is no such folder.", "Nothing is downloaded: pass a local folder."
        )
    known = f"a local folder or one of {', '.join(names)}" if names else "a local folder"
    remedy = f"Nothing is downloaded.{did_you_mean(path_or_name, names)}"
    raise invalid_input("path_or_name", path_or_name, f"to be {known}", remedy)


def trained_data_range(folder: Path) -> tuple[float, float]:
    """Return the range of the records that the prior in a folder was trained on.

    Args:
        folder: Folder of the prior.

    Returns:
        The range, (0, 1) if the folder does not state it.
    """
    trained = read_training_record(folder)
    return (0.0, 1.0) if trained is None else trained.data_range


def read_card(path_or_name: str | Path, kind: str = "diffusion") -> str:
    """Read the card of a prior: its data, licence, training and quality.

    Args:
        path_or_name: Folder, or name of a shipped prior.
        kind: ``"diffusion"`` or ``"gan"``.

    Returns:
        The card in Markdown.

    Raises:
        InvalidInput: If the kind or the name is unknown.
        InvalidFile: If the folder does not exist or has no card.

    >>> read_card("mnist", "gan").splitlines()[0]
    '# mnist: a generator of pictures 1 x 28 x 28'
    """
    check_is_shipped(kind)
    path = find_prior_folder(path_or_name, kind) / "card.md"
    if not path.is_file():
        raise InvalidFile(path, "file", "There is no such file.", "Priors that train-prior wrote have a card.")
    return path.read_text(encoding="utf-8")

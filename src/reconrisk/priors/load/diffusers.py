"""Diffusion priors from local folders of diffusers, and those in the package.

This is the only file that imports diffusers.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from reconrisk.core.errors import InvalidFile, InvalidInput, MissingExtra
from reconrisk.core.validation import invalid_input
from reconrisk.priors.diffusion import DiffusionPrior, NoiseSchedule
from reconrisk.priors.load.folders import find_prior_folder, trained_data_range
from reconrisk.priors.network import move_to_device

_CONFIG, _SCHEDULER = "config.json", "scheduler_config.json"
_SAVE = "Save network and settings together with save_pretrained, as safetensors."
_MISFITS = {
    "missing_keys": "They lack",
    "unexpected_keys": "The network has no",
    "mismatched_keys": "They have another shape for",
}
_NEEDED = ("num_train_timesteps", "beta_start", "beta_end", "beta_schedule")
_CONDITIONS = ("num_class_embeds", "class_embed_type")
_PREDICTIONS = ("epsilon", "v_prediction", "sample")
_LEARNED = ("learned", "learned_range")


def import_diffusers(purpose: str) -> Any:
    """Import the parts of diffusers that are used.

    Args:
        purpose: Purpose in the error message, such as "Reading a folder".

    Returns:
        A namespace with ``UNet2DModel``, ``DDPMScheduler`` and ``logging``.

    Raises:
        MissingExtra: If diffusers is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # models that need CUDA warn at import that there is none
            from diffusers.models.unets.unet_2d import UNet2DModel
            from diffusers.schedulers.scheduling_ddpm import DDPMScheduler
            from diffusers.utils import logging
    except ImportError as error:
        raise MissingExtra("diffusers", "diffusion", purpose) from error
    return SimpleNamespace(UNet2DModel=UNet2DModel, DDPMScheduler=DDPMScheduler, logging=logging)


def _read_network(folder: Path) -> nn.Module:
    """Read the ``UNet2DModel`` of a folder, or of its subfolder ``unet``, in single precision and evaluation mode.

    Guarantee: nothing is downloaded. Other networks, and weights that do not fit the network, are refused.
    """
    place = folder / "unet" if (folder / "unet" / _CONFIG).is_file() else folder
    stated = _json(place / _CONFIG, "Pass the folder that save_pretrained wrote.")
    if stated.get("_class_name") != "UNet2DModel":
        problem = f"It is a {stated.get('_class_name', 'network of unknown class')}, not a UNet2DModel."
        raise InvalidFile(place / _CONFIG, "_class_name", problem, "Wrap other networks with rr.priors.denoiser.")
    for name in _CONDITIONS:
        if stated.get(name) is not None:
            remedy = "Wrap it with rr.priors.denoiser and a function that passes the class."
            raise InvalidFile(place / _CONFIG, name, "The network needs the class of a record.", remedy)
    kinds = import_diffusers(f"Reading {folder}")
    verbosity = kinds.logging.get_verbosity()
    kinds.logging.set_verbosity(kinds.logging.CRITICAL)  # silences its reports of misfits, which are refused below
    try:
        found: nn.Module
        found, loaded = kinds.UNet2DModel.from_pretrained(
            place,
            local_files_only=True,
            use_safetensors=True,
            torch_dtype=torch.float32,
            low_cpu_mem_usage=False,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError) as error:
        last = (str(error).strip().splitlines() or [type(error).__name__])[-1].strip().rstrip(".")
        raise InvalidFile(place, "weights", f"{last}.", _SAVE) from error
    finally:
        kinds.logging.set_verbosity(verbosity)
    for fault, words in _MISFITS.items():
        if loaded[fault]:
            named = sorted(each if isinstance(each, str) else each[0] for each in loaded[fault])
            more = f" and {len(named) - 1} more" if len(named) > 1 else ""
            raise InvalidFile(place, "weights", f"{words} {named[0]}{more}.", _SAVE)
    return found.requires_grad_(False).eval()


def _read_schedule(folder: Path) -> tuple[NoiseSchedule, str]:
    """Read the noise schedule of a folder, or of its subfolder ``scheduler``, and the quantity its network predicts."""
    path, stated = _scheduler(folder)
    missing = [name for name in _NEEDED if stated.get(name) is None]
    if missing and stated.get("trained_betas") is None:
        problem = f"It lacks {', '.join(missing)} and is not a scheduler with betas."
        raise InvalidFile(path, missing[0], problem, "Pass a scheduler of a discrete diffusion, such as DDPMScheduler.")
    kinds = import_diffusers(f"Reading {folder}")
    try:
        shares: Tensor = kinds.DDPMScheduler.from_config(stated).alphas_cumprod
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        problem = f"It has no cumulative products of alphas: {error}."
        raise InvalidFile(path, "beta_schedule", problem, "Pass a scheduler of a discrete diffusion.") from error
    predicts = str(stated.get("prediction_type", "epsilon"))
    if predicts not in _PREDICTIONS:
        raise InvalidFile(path, "prediction_type", f"It is {predicts}.", f"Supported are {', '.join(_PREDICTIONS)}.")
    try:
        return NoiseSchedule(shares.double()), predicts
    except InvalidInput as error:
        problem = "Its signal does not fall strictly between 1 and 0"
        problem += (
            ": rescale_betas_zero_snr leaves no signal at the last time."
            if stated.get("rescale_betas_zero_snr")
            else "."
        )
        raise InvalidFile(path, "beta_schedule", problem, "Pass a scheduler that keeps some signal.") from error


def _check_channels(folder: Path, settings: Mapping[str, Any]) -> None:
    """Refuse a network whose output channels differ from its input channels, except for learned variances.

    Learned variances are the second half of the output channels, if the settings of the scheduler state that the
    network learned them.
    """
    taken, made = settings.get("in_channels"), settings.get("out_channels")
    if made == taken:
        return
    path, stated = _scheduler(folder)
    if made != 2 * (taken or 0):
        problem = (
            f"The network has {taken} input and {made} output channels, so its output is not the noise of a record."
        )
        raise InvalidFile(folder, "out_channels", problem, "Wrap it with rr.priors.denoiser.")
    if stated.get("variance_type") not in _LEARNED:
        problem = f"It is {stated.get('variance_type')}, but the network has {taken} input and {made} output channels."
        raise InvalidFile(path, "variance_type", problem, f"Expected {' or '.join(_LEARNED)} for learned variances.")


def noise_from_prediction(predicted: Tensor, noisy: Tensor, share: Tensor, predicts: str) -> Tensor:
    r"""Convert the prediction of a network to noise: it predicts the noise, the clean record, or v.

    .. math:: \epsilon = (x_t - \sqrt{\bar\alpha} x_0) / \sqrt{1 - \bar\alpha}, \qquad
        v = \sqrt{\bar\alpha} \epsilon - \sqrt{1 - \bar\alpha} x_0

    Args:
        predicted: Output of the network.
        noisy: Noisy records.
        share: Share of the signal :math:`\bar\alpha`, shaped for multiplication with ``noisy``.
        predicts: ``"epsilon"``, ``"sample"`` or ``"v_prediction"``.

    Returns:
        The noise.

    Reference: appendix D, `Salimans and Ho (2022) <https://arxiv.org/abs/2202.00512>`_.
    """
    if predicts == "epsilon":
        return predicted
    if predicts == "sample":
        return (noisy - share.sqrt() * predicted) / (1 - share).sqrt()
    found: Tensor = share.sqrt() * predicted + (1 - share).sqrt() * noisy
    return found


def _scheduler(folder: Path) -> tuple[Path, Mapping[str, Any]]:
    choices = [folder / "scheduler" / _SCHEDULER, folder / _SCHEDULER]
    path = next((each for each in choices if each.is_file()), choices[0])
    return path, _json(path, "Save the scheduler of training next to the network.")


def _json(path: Path, remedy: str) -> Mapping[str, Any]:
    if not path.is_file():
        raise InvalidFile(path, "file", "There is no such file.", remedy)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, ValueError) as error:
        raise InvalidFile(path, "syntax", f"It cannot be read: {error}.", remedy) from error
    if not isinstance(found, dict):
        raise InvalidFile(path, "whole", "It is not a table of settings.", remedy)
    return found


def diffusion(
    path_or_name: str | Path,
    *,
    data_range: tuple[float, float] | None = None,
    units: tuple[float, float] = (-1.0, 1.0),
    device: str | torch.device | None = None,
) -> DiffusionPrior:
    r"""Load a shipped diffusion prior by name, or one from a folder of diffusers.

    .. math:: \epsilon(x_t, t), \quad x_0, \quad \text{or} \quad
        v = \sqrt{\bar\alpha_t}\, \epsilon - \sqrt{1 - \bar\alpha_t}\, x_0

    The network predicts the noise :math:`\epsilon`, the clean record :math:`x_0`, or their combination v, where
    :math:`\bar\alpha_t` is the share of the signal at time t.

    Args:
        path_or_name: Folder with a ``UNet2DModel`` and its scheduler, or one of ``rr.priors.SHIPPED_DIFFUSION``.
        data_range: Range of the values of records, by default the one that the folder was trained on, else (0, 1).
        units: Values in the units of the network that correspond to the two ends of ``data_range``.
        device: Device of the network, by default the CPU.

    Returns:
        The prior.

    Raises:
        InvalidFile: If the folder does not exist, or its network or scheduler cannot be used.
        MissingExtra: If diffusers is not installed.

    Assumes: a folder has the layout of ``save_pretrained`` of a pipeline (``unet`` and ``scheduler``), or both in one.
    The cards of shipped priors describe their training data.
    Guarantee: nothing is downloaded. Networks that predict the noise, the clean record or v are understood; predicted
    variances are ignored.
    Edge cases: a name has precedence over a folder of that name; pass a ``Path``, or ``./mnist``, for the folder. Needs
    the extra ``diffusion``.
    Reference: `von Platen et al. (2022) <https://github.com/huggingface/diffusers>`_.

    >>> diffusion("./x")
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidFile: ./x, folder: There is no such folder. Nothing is downloaded: pass a local folder.
    """
    folder = find_prior_folder(path_or_name, "diffusion")
    schedule, predicts = _read_schedule(folder)
    network = _read_network(folder)
    settings: Any = network.config  # a mapping; the type stubs of torch expect a tensor or a module
    _check_channels(folder, settings)
    noise = move_to_device(NoiseNetwork(network, schedule, predicts), device)
    ends = trained_data_range(folder) if data_range is None else data_range
    return DiffusionPrior(folder.name or str(folder), _sides(settings), noise, schedule, ends, units)


class NoiseNetwork(nn.Module):
    """Network of diffusers as a function from noisy records and times to noise, for any prediction type."""

    def __init__(self, network: nn.Module, schedule: NoiseSchedule, predicts: str) -> None:
        super().__init__()
        self.network, self._schedule, self._predicts = network, schedule, predicts

    def extra_repr(self) -> str:
        """Return the prediction type, which is part of the prior's identity."""
        return f"predicts={self._predicts}"

    def forward(self, noisy: Tensor, times: Tensor) -> Tensor:
        """Return the noise, in the network's units."""
        precision = next(self.network.parameters()).dtype  # of its weights; records may have another
        made: Tensor = self.network(noisy.to(precision), times).sample.to(noisy.dtype)
        predicted = made[:, : noisy.shape[1]]  # learned variances are in the other channels
        return noise_from_prediction(predicted, noisy, self._schedule.shares(times, noisy), self._predicts)


def _sides(settings: Mapping[str, Any]) -> tuple[int, int, int]:
    """Shape of a record, from the settings of the network."""
    size = settings["sample_size"]
    if size is None:
        raise invalid_input(
            "sample_size", None, "to be set in the network's config", "Save the network with its sample_size."
        )
    sides = (size, size) if isinstance(size, int) else size
    if not isinstance(sides, (list, tuple)) or len(sides) != 2 or not all(isinstance(side, int) for side in sides):
        raise invalid_input(
            "sample_size",
            size,
            "to be a whole number, or height and width",
            "Set sample_size in the config of the network.",
        )
    return int(settings["in_channels"]), *sides

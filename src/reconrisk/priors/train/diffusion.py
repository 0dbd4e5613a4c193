"""Training of small diffusion priors, which can be stopped and resumed."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reconrisk.core.validation import check_positive, check_probability, check_whole, invalid_input
from reconrisk.priors.diffusion import linear_schedule
from reconrisk.priors.load.diffusers import import_diffusers
from reconrisk.priors.train.training_state import Training, check_sides

_GROUPS = 8  # groups of channels that are normalised together
_PREDICTED = ("epsilon", "v_prediction")
_WARM_UP = 0.02  # share of the steps during which the learning rate rises


@dataclass(frozen=True)
class DiffusionTraining:
    """Settings of the training of a small diffusion prior.

    A network that predicts the noise (epsilon) is most accurate where there is little noise, which serves attacks.
    Where nearly everything is noise, its small error is a large error of the record; predicting v, the combination of
    noise and record in :func:`train_diffusion`, avoids that, and draws look more like records. The default steps and
    batch size are the settings of the shipped prior of MNIST, which took 40 minutes of a processor.

    Attributes:
        channels: Channels of each resolution, multiples of 8; the coarsest has attention.
        steps: Training steps.
        batch_size: Records per step.
        learning_rate: Largest learning rate; it rises at first and then falls to zero along a cosine.
        average: Decay of the averaged weights: the average extends over about ``1 / (1 - average)`` steps.
        seed: Seed of the initialisation and of all draws.
        predicts: ``"epsilon"`` or ``"v_prediction"``.

    >>> DiffusionTraining(steps=100).rate(99) < 1e-5
    True
    """

    channels: tuple[int, ...] = (16, 32, 64)
    steps: int = 6_000
    batch_size: int = 32
    learning_rate: float = 2e-3
    average: float = 0.999
    seed: int = 0
    predicts: str = "epsilon"

    def __post_init__(self) -> None:
        if self.predicts not in _PREDICTED:
            raise invalid_input("predicts", self.predicts, f"to be {' or '.join(_PREDICTED)}")
        for width in self.channels:
            if check_whole("channels", width) % _GROUPS:
                raise invalid_input("channels", self.channels, f"to be multiples of {_GROUPS}")
        check_whole("steps", self.steps)
        check_whole("batch_size", self.batch_size)
        check_positive("learning_rate", self.learning_rate)
        check_probability("average", self.average)
        check_whole("seed", self.seed, minimum=0)

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        warm_up = min(1.0, (step + 1) / max(1.0, _WARM_UP * self.steps))
        return self.learning_rate * warm_up * (1 + math.cos(math.pi * step / self.steps)) / 2


def new_network(shape: tuple[int, ...], channels: tuple[int, ...]) -> Any:
    """Build an untrained ``UNet2DModel`` for pictures, with one layer at each resolution.

    Args:
        shape: Shape (channels, height, width) of a picture.
        channels: Channels of each resolution.

    Returns:
        The network.

    Raises:
        InvalidInput: If the sides cannot be halved once for each resolution but one.
        MissingExtra: If diffusers is not installed.
    """
    halvings = len(channels) - 1
    check_sides(shape, halvings, f"Pass fewer channels than {len(channels)}, or pad the pictures.")
    return import_diffusers("Training a diffusion prior").UNet2DModel(
        sample_size=shape[1] if shape[1] == shape[2] else tuple(shape[1:]),
        in_channels=shape[0],
        out_channels=shape[0],
        block_out_channels=channels,
        layers_per_block=1,
        down_block_types=(*["DownBlock2D"] * halvings, "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", *["UpBlock2D"] * halvings),
        norm_num_groups=_GROUPS,
    )


def train_diffusion(
    records: Tensor,
    folder: str | Path,
    settings: DiffusionTraining | None = None,
    *,
    data_range: tuple[float, float] = (0.0, 1.0),
    checkpoint_every: int = 200,
) -> Path:
    r"""Train a network to separate noise and record, and save it in the format of diffusers.

    .. math:: \min_f E\, |f(\sqrt{\bar\alpha_t} x_0 + \sqrt{1 - \bar\alpha_t}\, n, t) - n|^2

    Here f is the network, :math:`x_0` a record, n standard normal noise, and :math:`\bar\alpha_t` the share of the
    signal at time t.

    With ``predicts="v_prediction"`` the network learns :math:`v = \sqrt{\bar\alpha_t}\, n - \sqrt{1 - \bar\alpha_t}\,
    x_0` instead of the noise n.

    Args:
        records: Pictures (n, channels, height, width) in ``data_range``; the training runs on their device.
        folder: Folder for the prior and the state of its training.
        settings: Settings of the training.
        data_range: Range of the values of records.
        checkpoint_every: Steps between two checkpoints.

    Returns:
        The folder.

    Raises:
        InvalidInput: If the records are not pictures in ``data_range``, or the training diverges.
        InvalidFile: If the folder holds another training, prior or other files.
        MissingExtra: If diffusers is not installed.

    Assumes: the records are public or meant to be released, since a prior remembers them.
    Guarantee: the same weights for the same settings, however often training was stopped: the draws of a step depend on
    its number alone. A folder of other settings, records or files is refused. It holds no prior before training is
    finished.
    Edge cases: Ctrl-C saves the state. A folder in which the same training is finished is left unchanged. Needs the
    extra ``diffusion``.
    Reference: Algorithm 1, `Ho et al. (2020) <https://arxiv.org/abs/2006.11239>`_; appendix D, `Salimans and Ho (2022)
    <https://arxiv.org/abs/2202.00512>`_.

    >>> train_diffusion(torch.rand(4, 2), "prior")
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidInput: Expected records.shape=(4, 2) to be (n, channels, height, width). Pass pictures.
    """
    return _Run(settings or DiffusionTraining(), records, data_range, Path(folder)).run(checkpoint_every)


class _Run(Training):
    """Training of a denoiser and of its average."""

    kind = "diffusion"
    saved = "unet"

    def __init__(
        self, settings: DiffusionTraining, records: Tensor, data_range: tuple[float, float], folder: Path
    ) -> None:
        super().__init__(settings, records, data_range, folder)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            self._network = new_network(tuple(records.shape[1:]), settings.channels).to(records.device)
        self._average = copy.deepcopy(self._network).requires_grad_(False).eval()
        self._optimizer = torch.optim.AdamW(self._network.parameters(), settings.learning_rate, weight_decay=0.0)
        self._schedule = linear_schedule()
        self.networks = {"network": self._network, "average": self._average}
        self.optimizers = {"optimizer": self._optimizer}

    def advance(self, rng: torch.Generator) -> None:
        """Predict the noise in a batch of records, and take a step on the error."""
        values = self.values[torch.randint(len(self.values), (self.settings.batch_size,), generator=rng)]
        times = torch.randint(len(self._schedule), (len(values),), generator=rng)
        noise = torch.randn(values.shape, generator=rng).to(values.device)
        times = times.to(values.device)
        share = self._schedule.shares(times, values)
        noisy = share.sqrt() * values + (1 - share).sqrt() * noise
        wanted = noise if self.settings.predicts == "epsilon" else share.sqrt() * noise - (1 - share).sqrt() * values
        self._optimizer.param_groups[0]["lr"] = self.settings.rate(self.step)
        self._optimizer.zero_grad()
        (self._network(noisy, times).sample - wanted).square().mean().backward()
        # a usual safeguard of diffusion training against rare large gradients
        torch.nn.utils.clip_grad_norm_(self._network.parameters(), 1.0)
        self._optimizer.step()

    def save(self) -> None:
        """Save the averaged network in half precision, with its scheduler."""
        kinds = import_diffusers("Training a diffusion prior")
        self._average.half().save_pretrained(self.folder / "unet")
        settings = self.folder / "unet" / "config.json"
        for path in settings.parent.glob("*.safetensors"):
            path.chmod(settings.stat().st_mode)  # safetensors writes them readable by the owner only
        scheduler = kinds.DDPMScheduler(len(self._schedule), prediction_type=self.settings.predicts)
        scheduler.save_pretrained(self.folder / "scheduler")

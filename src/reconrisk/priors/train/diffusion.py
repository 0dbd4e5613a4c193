"""Small diffusion priors trained on records at hand, to be resumed wherever training was stopped."""

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
from reconrisk.priors.load.diffusers import library
from reconrisk.priors.train.training_state import Training, check_sides

_GROUPS = 8  # of channels that are normalised together
_PREDICTED = ("epsilon", "v_prediction")
_WARM_UP = 0.02  # of the steps, over which the learning rate rises


@dataclass(frozen=True)
class DiffusionTraining:
    """How a small diffusion prior is trained.

    ``channels`` are those of each resolution, of which the coarsest has attention. Weights are averaged over about
    ``1 / (1 - average)`` steps. The learning rate rises at first and then falls to zero along a cosine. A network
    that ``predicts`` the noise (epsilon) learns most where there is little of it, which serves attacks; where noise is
    nearly all there is, its small error is a large one of the record, and of v it is not: draws look more like records.
    The steps and batches are those of the shipped prior of MNIST, which took 40 minutes of a processor.
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
        """The learning rate of a step."""
        risen = min(1.0, (step + 1) / max(1.0, _WARM_UP * self.steps))
        return self.learning_rate * risen * (1 + math.cos(math.pi * step / self.steps)) / 2


def new_network(shape: tuple[int, ...], channels: tuple[int, ...]) -> Any:
    """A ``UNet2DModel`` for pictures of ``shape``, one layer at each resolution."""
    halvings = len(channels) - 1
    check_sides(shape, halvings, f"Pass fewer channels than {len(channels)}, or pad the pictures.")
    return library("Training a diffusion prior").UNet2DModel(
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
    r"""Train a network to tell noise and record apart, and save it as diffusers does.

    .. math:: \min_f E\, |f(\sqrt{\bar\alpha_t} x_0 + \sqrt{1 - \bar\alpha_t}\, n, t) - n|^2

    With ``predicts="v_prediction"``, :math:`v = \sqrt{\bar\alpha_t}\, n - \sqrt{1 - \bar\alpha_t}\, x_0` stands for
    the noise n.

    Assumes: pictures (n, channels, height, width) in ``data_range``, public or meant to be released: a prior remembers.
    Guarantee: the same weights for the same settings, however often training was stopped: what a step draws depends on
    its number alone. A folder of other settings, records or files is refused. It holds no prior before that is whole.
    Edge cases: Ctrl-C saves the state, which is otherwise saved every ``checkpoint_every`` steps. A folder in which the
    same training is finished is left as it is. It is trained on the device of the records. Needs the extra
    ``diffusion``.
    Reference: Algorithm 1, `Ho et al. (2020) <https://arxiv.org/abs/2006.11239>`_; appendix D, `Salimans and Ho (2022)
    <https://arxiv.org/abs/2202.00512>`_.
    """
    return _Run(settings or DiffusionTraining(), records, data_range, Path(folder)).run(checkpoint_every)


class _Run(Training):
    """A network that finds noise, and its average."""

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
        """Find the noise in some records, and learn from the error."""
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
        torch.nn.utils.clip_grad_norm_(self._network.parameters(), 1.0)
        self._optimizer.step()

    def save(self) -> None:
        """Save the averaged network in half precision with its scheduler."""
        kinds = library("Training a diffusion prior")
        self._average.half().save_pretrained(self.folder / "unet")
        settings = self.folder / "unet" / "config.json"
        for path in settings.parent.glob("*.safetensors"):
            path.chmod(settings.stat().st_mode)  # safetensors lets nobody but the owner read them
        scheduler = kinds.DDPMScheduler(len(self._schedule), prediction_type=self.settings.predicts)
        scheduler.save_pretrained(self.folder / "scheduler")

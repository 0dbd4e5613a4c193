"""Small GANs trained on records at hand, to be resumed wherever training was stopped."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from reconrisk.core.validation import check_positive, check_probability, check_whole
from reconrisk.priors.load.gan import new_generator, save_generator
from reconrisk.priors.train.training_state import Training

_MOMENTS = (0.5, 0.99)  # of Adam: gradients of the last few steps, since the opponent changes


@dataclass(frozen=True)
class GanTraining:
    """How a small GAN is trained.

    ``channels`` are those at half the resolution of a picture, in the generator as in its critic. The weights of the
    generator are averaged over about ``1 / (1 - average)`` steps. The learning rate falls to zero along a cosine.
    """

    channels: int = 32
    latent_size: int = 64
    steps: int = 6_000
    batch_size: int = 32
    learning_rate: float = 1e-3
    average: float = 0.995
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("channels", "latent_size", "steps", "batch_size"):
            check_whole(name, getattr(self, name))
        check_positive("learning_rate", self.learning_rate)
        check_probability("average", self.average)
        check_whole("seed", self.seed, minimum=0)

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        return self.learning_rate * (1 + math.cos(math.pi * step / self.steps)) / 2


def train_gan(
    records: Tensor,
    folder: str | Path,
    settings: GanTraining | None = None,
    *,
    data_range: tuple[float, float] = (0.0, 1.0),
    checkpoint_every: int = 200,
) -> Path:
    r"""Train a generator against a critic that tells its records from real ones, and save it for :func:`gan`.

    .. math:: \min_c E\, (1 - c(x))_+ + E\, (1 + c(g(z)))_+, \qquad \min_g -E\, c(g(z))

    Assumes: pictures (n, channels, height, width) in ``data_range`` whose sides are divisible by 4, public or meant to
    be released: a prior remembers.
    Guarantee: the same weights for the same settings, however often training was stopped: what a step draws depends on
    its number alone. A folder of other settings, records or files is refused. It holds no prior before that is whole.
    Edge cases: Ctrl-C saves the state, which is otherwise saved every ``checkpoint_every`` steps. A folder in which the
    same training is finished is left as it is. It is trained on the device of the records.
    Reference: `Goodfellow et al. (2014) <https://arxiv.org/abs/1406.2661>`_; the critic of `Miyato et al. (2018)
    <https://arxiv.org/abs/1802.05957>`_, whose layers have spectral norm one.
    """
    return _Run(settings or GanTraining(), records, data_range, Path(folder)).run(checkpoint_every)


def _new_critic(shape: tuple[int, ...], channels: int) -> nn.Sequential:
    """A number for each picture, the larger the more real, from three convolutions that halve the sides."""
    colours, *sides = shape
    left = math.prod((side // 4 + 1) // 2 for side in sides)
    return nn.Sequential(
        spectral_norm(nn.Conv2d(colours, channels, 4, 2, 1)),
        nn.LeakyReLU(0.1),
        spectral_norm(nn.Conv2d(channels, 2 * channels, 4, 2, 1)),
        nn.LeakyReLU(0.1),
        spectral_norm(nn.Conv2d(2 * channels, 4 * channels, 3, 2, 1)),
        nn.LeakyReLU(0.1),
        nn.Flatten(),
        spectral_norm(nn.Linear(4 * channels * left, 1)),
    )


class _Run(Training):
    """A generator, its average and its critic."""

    kind = "gan"
    saved = "generator.safetensors"

    def __init__(self, settings: GanTraining, records: Tensor, data_range: tuple[float, float], folder: Path) -> None:
        super().__init__(settings, records, data_range, folder)
        self._shape = tuple(records.shape[1:])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            network = new_generator(self._shape, settings.latent_size, settings.channels)
            critic = _new_critic(self._shape, settings.channels)
        self._network, self._critic = network.to(records.device), critic.to(records.device)
        self._average = copy.deepcopy(self._network).requires_grad_(False).eval()
        self.networks = {"network": self._network, "average": self._average, "critic": self._critic}
        self.optimizers = {
            f"{name}_optimizer": torch.optim.Adam(self.networks[name].parameters(), settings.learning_rate, _MOMENTS)
            for name in ("network", "critic")
        }

    def advance(self, rng: torch.Generator) -> None:
        """Let the critic learn from real and made records, then the generator from the critic."""
        count = self.settings.batch_size
        real = self.values[torch.randint(len(self.values), (count,), generator=rng)]
        made = self._network(torch.randn(count, self.settings.latent_size, generator=rng).to(real.device))
        judged = self._critic(torch.cat([real, made.detach()])).split(count)
        self._learn("critic", torch.relu(1 - judged[0]).mean() + torch.relu(1 + judged[1]).mean())
        self._critic.requires_grad_(False)
        self._learn("network", -self._critic(made).mean())
        self._critic.requires_grad_(True)

    def _learn(self, part: str, loss: Tensor) -> None:
        optimizer = self.optimizers[f"{part}_optimizer"]
        optimizer.param_groups[0]["lr"] = self.settings.rate(self.step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def save(self) -> None:
        """Save the averaged generator in half precision."""
        settings = self.settings
        save_generator(
            self._average, self.folder, shape=self._shape, latent=settings.latent_size, channels=settings.channels
        )

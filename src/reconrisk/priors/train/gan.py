"""Training of small GANs, which can be stopped and resumed."""

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

_MOMENTS = (0.5, 0.99)  # betas of Adam: a short memory, since the opponent changes


@dataclass(frozen=True)
class GanTraining:
    """Settings of the training of a small GAN.

    Attributes:
        channels: Channels at half the resolution of a picture, in the generator and in its critic.
        latent_size: Number of latent values.
        steps: Training steps.
        batch_size: Records per step.
        learning_rate: First learning rate; it falls to zero along a cosine.
        average: Decay of the generator's averaged weights: the average extends over about ``1 / (1 - average)`` steps.
        seed: Seed of the initialisation and of all draws.

    >>> GanTraining(steps=100).rate(0)
    0.001
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
        """Return the learning rate of a step."""
        return self.learning_rate * (1 + math.cos(math.pi * step / self.steps)) / 2


def train_gan(
    records: Tensor,
    folder: str | Path,
    settings: GanTraining | None = None,
    *,
    data_range: tuple[float, float] = (0.0, 1.0),
    checkpoint_every: int = 200,
) -> Path:
    r"""Train a generator against a critic, and save it for :func:`gan`.

    .. math:: \min_c E\, (1 - c(x))_+ + E\, (1 + c(g(z)))_+, \qquad \min_g -E\, c(g(z))

    Here c is the critic, g the generator, x a record, z are latent values, and :math:`(a)_+` is the larger of a and 0.

    Args:
        records: Pictures (n, channels, height, width) in ``data_range``, with sides divisible by 4; the training runs
            on their device.
        folder: Folder for the prior and the state of its training.
        settings: Settings of the training.
        data_range: Range of the values of records.
        checkpoint_every: Steps between two checkpoints.

    Returns:
        The folder.

    Raises:
        InvalidInput: If the records are not such pictures in ``data_range``, or the training diverges.
        InvalidFile: If the folder holds another training, prior or other files.

    Assumes: the records are public or meant to be released, since a prior remembers them.
    Guarantee: the same weights for the same settings, however often training was stopped: the draws of a step depend on
    its number alone. A folder of other settings, records or files is refused. It holds no prior before training is
    finished.
    Edge cases: Ctrl-C saves the state. A folder in which the same training is finished is left unchanged.
    Reference: `Goodfellow et al. (2014) <https://arxiv.org/abs/1406.2661>`_; the critic of `Miyato et al. (2018)
    <https://arxiv.org/abs/1802.05957>`_, whose layers have spectral norm one.

    >>> import tempfile
    >>> settings = GanTraining(channels=2, latent_size=2, steps=1, batch_size=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sorted(path.name for path in train_gan(torch.rand(4, 1, 8, 8), folder, settings).iterdir())
    ['config.json', 'generator.safetensors', 'trained.json']
    """
    return _Run(settings or GanTraining(), records, data_range, Path(folder)).run(checkpoint_every)


def _new_critic(shape: tuple[int, ...], channels: int) -> nn.Sequential:
    """Build a critic: a number for each picture, larger for real ones, from three convolutions that halve the sides."""
    colours, *sides = shape
    left = math.prod((side // 4 + 1) // 2 for side in sides)  # pixels after three convolutions of stride 2
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
    """Training of a generator, its average and its critic."""

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
        """Take a step of the critic on real and generated records, then a step of the generator."""
        count = self.settings.batch_size
        real = self.values[torch.randint(len(self.values), (count,), generator=rng)]
        made = self._network(torch.randn(count, self.settings.latent_size, generator=rng).to(real.device))
        # hinge loss of the critic on one batch of real and generated records
        judged = self._critic(torch.cat([real, made.detach()])).split(count)
        self._learn("critic", torch.relu(1 - judged[0]).mean() + torch.relu(1 + judged[1]).mean())
        self._critic.requires_grad_(False)  # saves the gradients of its weights in the generator's step
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

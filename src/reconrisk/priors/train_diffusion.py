"""Small diffusion priors trained on records at hand, to be resumed wherever training was stopped."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from reconrisk.core.errors import InvalidFile
from reconrisk.core.progress import ProgressBar
from reconrisk.core.validation import check_all_within, check_positive, check_probability, check_whole, refuse
from reconrisk.priors.diffusers_models import library
from reconrisk.priors.schedule import NoiseSchedule, linear_schedule

_CHECKPOINT, _STATE = "training.safetensors", "training.json"
_GROUPS = 8  # of channels that are normalised together
_WARM_UP = 0.02  # of the steps, over which the learning rate rises


@dataclass(frozen=True)
class DiffusionTraining:
    """How a small diffusion prior is trained.

    ``channels`` are those of each resolution, of which the coarsest has attention. Weights are averaged over about
    ``1 / (1 - average)`` steps. The learning rate rises at first and then falls to zero along a cosine.
    """

    channels: tuple[int, ...] = (16, 32, 64)
    steps: int = 20_000
    batch_size: int = 64
    learning_rate: float = 2e-3
    average: float = 0.999
    seed: int = 0

    def __post_init__(self) -> None:
        for width in self.channels:
            if check_whole("channels", width) % _GROUPS:
                raise refuse("channels", self.channels, f"to be multiples of {_GROUPS}")
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
    if len(shape) != 3:
        raise refuse("records.shape", shape, "to be pictures: channels, height, width")
    halvings = len(channels) - 1
    if any(side % 2**halvings for side in shape[1:]):
        remedy = f"Pass fewer channels than {len(channels)}, or pad the pictures."
        raise refuse("records.shape", shape, f"to have sides divisible by {2**halvings}", remedy)
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
    r"""Train a network to find the noise in noisy records, and save it as diffusers does.

    .. math:: \min_\epsilon E\, |\epsilon(\sqrt{\bar\alpha_t} x_0 + \sqrt{1 - \bar\alpha_t}\, n, t) - n|^2

    Assumes: pictures (n, channels, height, width) in ``data_range``, public or meant to be released: a prior remembers.
    Guarantee: the same weights for the same settings, however often training was stopped: what a step draws depends on
    its number alone. A folder of other settings or records is refused. The folder holds no prior before it is whole.
    Edge cases: Ctrl-C saves the state, which is otherwise saved every ``checkpoint_every`` steps. Needs the extra
    ``diffusion``.
    Reference: Algorithm 1, `Ho et al. (2020) <https://arxiv.org/abs/2006.11239>`_.
    """
    settings = settings or DiffusionTraining()
    check_all_within("records", records, data_range, "State the public range of the values.")
    check_whole("checkpoint_every", checkpoint_every)
    path = Path(folder)
    run = _Run(settings, _values(records, data_range), path)
    run.resume()
    bar = ProgressBar("training a prior", total=settings.steps)
    try:
        for _ in range(run.step):
            bar.advance()
        for _ in run.remaining():
            bar.advance()
            if run.step % checkpoint_every == 0:
                run.keep()
    except KeyboardInterrupt:
        run.keep()
        raise
    finally:
        bar.close()
    return run.finish()


class _Run:
    """Network, average and optimizer at a step."""

    def __init__(self, settings: DiffusionTraining, values: Tensor, folder: Path) -> None:
        self._settings, self._values, self._folder = settings, values, folder
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            self._network = new_network(tuple(values.shape[1:]), settings.channels)
        self._average = copy.deepcopy(self._network).requires_grad_(False).eval()
        self._optimizer = torch.optim.AdamW(self._network.parameters(), settings.learning_rate, weight_decay=0.0)
        self._schedule = linear_schedule()
        self.step = 0

    @property
    def _identity(self) -> dict[str, Any]:
        digest = hashlib.sha256(self._values.numpy().tobytes()).hexdigest()[:16]
        return {"settings": json.loads(json.dumps(dataclasses.asdict(self._settings))), "records": digest}

    def remaining(self) -> Iterator[int]:
        """Steps until the last, each taken before it is yielded."""
        settings = self._settings
        while self.step < settings.steps:
            rng = torch.Generator().manual_seed(settings.seed * 1_000_003 + self.step)
            rows = torch.randint(len(self._values), (settings.batch_size,), generator=rng)
            noisy, noise, times = _noised(self._values[rows], self._schedule, rng)
            self._optimizer.param_groups[0]["lr"] = settings.rate(self.step)
            self._optimizer.zero_grad()
            (self._network(noisy, times).sample - noise).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(self._network.parameters(), 1.0)
            self._optimizer.step()
            self.step += 1
            kept = min(settings.average, self.step / (self.step + 10))
            with torch.no_grad():
                for mean, value in zip(self._average.parameters(), self._network.parameters(), strict=True):
                    mean.lerp_(value, 1 - kept)
            yield self.step

    def keep(self) -> None:
        """Write the state beside where the prior will be."""
        self._folder.mkdir(parents=True, exist_ok=True)
        tensors = {f"network.{name}": value for name, value in self._network.state_dict().items()}
        tensors |= {f"average.{name}": value for name, value in self._average.state_dict().items()}
        for place, memory in self._optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{place}.{name}": torch.as_tensor(value) for name, value in memory.items()}
        partial = self._folder / f"{_CHECKPOINT}.part"
        save_file({name: value.contiguous() for name, value in tensors.items()}, partial, {"step": str(self.step)})
        partial.replace(self._folder / _CHECKPOINT)
        (self._folder / _STATE).write_text(json.dumps(self._identity), encoding="utf-8")

    def resume(self) -> None:
        """Take up the state in the folder, if there is one of the same training."""
        stated, path = self._folder / _STATE, self._folder / _CHECKPOINT
        if not path.is_file():
            return
        if not stated.is_file() or json.loads(stated.read_text(encoding="utf-8")) != self._identity:
            raise InvalidFile(path, "settings", "It is of another training.", "Pass another folder, or remove it.")
        from safetensors import safe_open

        with safe_open(path, framework="pt") as opened:
            self.step = int((opened.metadata() or {})["step"])
        tensors = load_file(path)
        for part, network in (("network.", self._network), ("average.", self._average)):
            network.load_state_dict(
                {name.removeprefix(part): value for name, value in tensors.items() if name.startswith(part)}
            )
        memory: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith("optimizer."):
                _, place, key = name.split(".", 2)
                memory.setdefault(int(place), {})[key] = value
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": memory, "param_groups": groups})

    def finish(self) -> Path:
        """Save the averaged network in half precision with its scheduler, and remove the state."""
        kinds = library("Training a diffusion prior")
        self._average.half().save_pretrained(self._folder / "unet")
        kinds.DDPMScheduler(num_train_timesteps=len(self._schedule)).save_pretrained(self._folder / "scheduler")
        for name in (_CHECKPOINT, _STATE):
            (self._folder / name).unlink(missing_ok=True)
        return self._folder


def _values(records: Tensor, data_range: tuple[float, float]) -> Tensor:
    low, high = data_range
    return (2 * (records - low) / (high - low) - 1).float().contiguous()


def _noised(values: Tensor, schedule: NoiseSchedule, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    times = torch.randint(len(schedule), (len(values),), generator=rng)
    noise = torch.randn(values.shape, generator=rng)
    share = schedule.signal[times].float()[:, None, None, None]
    return share.sqrt() * values + (1 - share).sqrt() * noise, noise, times

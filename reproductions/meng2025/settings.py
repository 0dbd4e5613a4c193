"""What the reproductions of meng2025's attacks share: private records, priors, attacked networks, and the rivals.

The paper's records are faces, rooms and objects of 256 x 256 pixels, its prior is a diffusion of other faces. Here a
prior that is shipped, or one from a folder of diffusers, says what is attacked: digits of 28 x 28 by ``mnist``, by
``fashion_mnist`` (a prior of something else, as the paper's) and by ``gaussian``, which is fitted to public digits;
CIFAR-10 by ``cifar10``; faces of 64 x 64 by ``faces``, a normal law of other people's faces; natural images at the size
of a folder's network, 256 for one as the paper's. Networks are not trained, as in Table 1. ``RECONRISK_DEVICE=cuda`` in
the environment puts records, priors and networks on that device: for 256 pixels a graphics card is needed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

import reconrisk as rr
from reconrisk.attacks.with_prior.latents import NEEDS
from reconrisk.core.defense import Defense
from reconrisk.core.observation import Attack, Observation
from reconrisk.core.threat import Knows
from reconrisk.core.validation import invalid_input
from reconrisk.data import load_dataset
from reconrisk.models import meng2025_cnn, meng2025_mlp, resnet18, vgg16
from reconrisk.priors import DiffusionPrior, GaussianPrior, GeneratorPrior
from reconrisk.priors.load.bundled import SHIPPED_GAN
from reconrisk.releases.observe import observe
from reconrisk.releases.updates.gradient import GradientRelease
from reproductions.frame import Drawing, Finding, Scale, reproduce
from reproductions.gradient_inversion import generator
from reproductions.meng2025.baselines import PEOPLE, faces
from reproductions.meng2025.vulnerability import reset

DEFAULT = "mnist"
SHIPPED = ("mnist", "fashion_mnist", "cifar10")
CLASSES = 10
TARGETS = 40
LATENT = 64
"""Directions in which the linear generator of the Gaussian prior varies."""

FACE_SIDE, ATTACKED_PEOPLE = 64, 4
NEW_FACES = 0.045
"""What principal directions of some faces leave of other people's, a root mean square of the range."""

TUNED = "FinetunedDiff"

Run = Callable[[Scale, str, Sequence[str]], Sequence[Finding | Drawing]]
Key = TypeVar("Key", str, float, int)


@dataclass(frozen=True, eq=False)
class Study:
    """Private records, one of each class in turn, and what the adversary believes of them."""

    said: str
    prior: DiffusionPrior
    generator: GeneratorPrior | None
    inputs: Tensor
    labels: Tensor
    fitted: GaussianPrior | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        channels, height, width = self.inputs.shape[1:]
        return channels, height, width


@dataclass(frozen=True)
class Effort:
    """How long the rivals search: steps on pixels, on latent values, of what is tuned, and what evolves.

    ``restarts`` are those on pixels, ``draws`` those of latent values.
    """

    pixels: int
    latents: int
    tuned: int
    generations: int
    population: int
    restarts: int
    draws: int


EFFORT = {"small": Effort(200, 96, 150, 40, 16, 1, 4), "paper": Effort(1000, 500, 200, 200, 50, 4, 4)}


def study(prior: str) -> Study:
    """The records that a prior is tried on, on the device of the environment, the CPU without a word."""
    device = torch.device(os.environ.get("RECONRISK_DEVICE", "cpu"))
    found = _study(prior, device)
    return replace(found, inputs=found.inputs.to(device), labels=found.labels.to(device))


def _study(prior: str, device: torch.device) -> Study:
    """A folder's records are natural images unless it has the shape of another's."""
    if prior == "gaussian":
        believed = _fitted()
        return Study("digits, Gaussian prior", believed.diffusion, _linear(believed), *_digits(), believed)
    if prior == "faces":
        believed, inputs, labels = _faces()
        return Study("faces, Gaussian prior", believed.diffusion, None, inputs, labels, believed)
    if prior in SHIPPED:
        diffusion = rr.priors.diffusion(prior, device=device)
        gan = rr.priors.gan(prior, device=device) if prior in SHIPPED_GAN else None
        if prior == "cifar10":
            return Study(f"CIFAR-10, prior {prior}", diffusion, gan, *_colours())
        return Study(f"digits, prior {prior}", diffusion, gan, *_digits(), _fitted())
    found = rr.priors.diffusion(prior, device=device)
    return Study(f"pictures, prior {Path(prior).name}", found, None, *_pictures(found.shape))


def network(name: str, shape: tuple[int, int, int], seed: int = 0) -> nn.Module:
    """One of the paper's six, not trained; VGG sees digits with a border, since it halves its input five times."""
    rng = torch.Generator().manual_seed(seed)
    channels, side = shape[0], shape[1]
    if name == "ResNet18":
        model: nn.Module = resnet18(shape, CLASSES, rng=rng)
        reset(model, rng)
    elif name == "VGGNet16":
        border = max(0, 32 - side) // 2
        padded = (channels, side + 2 * border, side + 2 * border)
        inner = vgg16(padded, CLASSES, pooled_side=max(1, side // 32), rng=rng)
        model = nn.Sequential(nn.ZeroPad2d(border), inner)
    elif name == "CNN":
        model = meng2025_cnn(shape, CLASSES, rng=rng)
    else:
        model = meng2025_mlp(shape, CLASSES, layers=int(name[-1]), rng=rng)
    return model.eval()


def observations(
    model: nn.Module, inputs: Tensor, labels: Tensor, *, batch: int = 1, defense: Defense | None = None
) -> list[Observation]:
    """The gradient of every ``batch`` records as an adversary sees it who knows prior, labels and defense.

    What a defense draws depends on the place of the batch alone: any two attacks meet the same gradients.
    """
    threat = NEEDS.with_knowledge(Knows.LABELS, Knows.DEFENSE)
    model = model.to(inputs.device)
    seen = []
    for first in range(0, len(inputs) - batch + 1, batch):
        rows = slice(first, first + batch)
        release = GradientRelease(model, nn.functional.cross_entropy, inputs[rows], labels[rows])
        seen.append(observe(release, defense=defense, threat=threat, rng=generator("draws", first)))
    return seen


def rivals(believed: Study, scale: Scale) -> dict[str, Attack]:
    """The paper's baselines by its names, Gauss-Newton and ours; those that have no fitting prior are left out."""
    effort = EFFORT[scale]
    first = rr.attacks.inverting_gradients(steps=effort.pixels)
    newton = {"iterations": effort.latents // 8, "inner_iterations": 20, "warm_start": first}
    found: dict[str, Attack] = {
        "DLG": rr.attacks.dlg(steps=effort.pixels, restarts=effort.restarts),
        "IG": first,
        "GI": rr.attacks.grad_inversion(steps=effort.pixels, restarts=effort.restarts),
        "Gauss-Newton": rr.attacks.gauss_newton(restarts=1, **newton),
    }
    if believed.generator is not None:
        steps = {"steps": effort.latents, "restarts": effort.draws}
        found |= {
            "GIAS": rr.attacks.gias(believed.generator, weight_steps=effort.latents, **steps),
            "GGL": rr.attacks.ggl(believed.generator, steps=effort.generations, population=effort.population),
            "GIFD": rr.attacks.gifd(believed.generator, layer_steps=effort.latents // 4, **steps),
        }
    if isinstance(believed.prior.predict_noise, nn.Module):
        found[TUNED] = rr.attacks.finetuned_diffusion(believed.prior, steps=effort.tuned)
    if believed.fitted is not None:
        newton["warm_start"] = rr.attacks.ggss_r(believed.fitted)
        found["Gaussian posterior"] = rr.attacks.gaussian_posterior(believed.fitted, **newton)
    found["plug-and-play"] = rr.attacks.plug_and_play(believed.prior)
    return found


def reproduce_with_prior(run: Run, *, argv: Sequence[str] | None = None) -> int:
    """As :func:`~reproductions.frame.reproduce`, with ``--prior NAME|gaussian|faces|FOLDER`` and ``--only PART ...``.

    Parts are the rows of a table: networks, variances, batch sizes or guidance rates. Both stand in what is recorded.
    """
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--prior", default=DEFAULT)
    parser.add_argument("--only", nargs="+", default=[])
    options, others = parser.parse_known_args(argv)
    module = run.__module__ if run.__module__ != "__main__" else sys.modules["__main__"].__spec__.name

    def chosen(scale: Scale) -> Sequence[Finding | Drawing]:
        return run(scale, options.prior, options.only)

    known = f"{', '.join(SHIPPED)}, gaussian, faces or a folder of diffusers"
    chosen.__doc__ = f"{run.__doc__} --prior is {known}; {DEFAULT} without it."
    parts = f" --only {' '.join(options.only)}" if options.only else ""
    chosen.__module__ = f"{module} --prior {options.prior}{parts}"
    return reproduce(chosen, argv=others)


def parts_of(keys: Iterable[Key], only: Sequence[str]) -> list[Key]:
    """Those of a table's parts that are asked for, all without a word."""
    named = {f"{key:g}" if isinstance(key, float) else str(key): key for key in keys}
    for word in only:
        if word not in named:
            raise invalid_input("only", word, f"to be among {', '.join(named)}")
    return [key for name, key in named.items() if not only or name in only]


def tell(findings: Sequence[Finding]) -> None:
    """Say what is known so far."""
    print("\n".join(f"{each.what}: {each.ours}" for each in findings), file=sys.stderr, flush=True)


def _digits() -> tuple[Tensor, Tensor]:
    digits = load_dataset("mnist", split="test")
    return _in_turn(digits.inputs, digits.class_labels)


def _colours() -> tuple[Tensor, Tensor]:
    images = load_dataset("cifar-10", split="test")
    return _in_turn(images.inputs, images.class_labels)


def _pictures(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    if shape == (1, 28, 28):
        return _digits()
    crops = load_dataset("crops").inputs
    crops = crops.mean(1, keepdim=True) if shape[0] == 1 else crops
    sized = nn.functional.interpolate(crops, size=shape[1:], mode="bilinear", antialias=True).clamp(0, 1)
    return sized, torch.arange(len(sized)) % CLASSES


def _faces() -> tuple[GaussianPrior, Tensor, Tensor]:
    """A normal law of some people's faces, and the faces of others, one of each person after the other."""
    pictures = faces(FACE_SIDE).unflatten(0, (-1, PEOPLE))
    public, private = pictures[:, :-ATTACKED_PEOPLE], pictures[:, -ATTACKED_PEOPLE:]
    believed = rr.priors.fit_gaussian(public.flatten(0, 1), floor=NEW_FACES, name="faces")
    inputs = private.flatten(0, 1)
    return believed, inputs, torch.arange(len(inputs)) % CLASSES


def _in_turn(inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The first records, one of each class after the other."""
    each = TARGETS // CLASSES
    rows = torch.stack([(labels == label).nonzero()[:each, 0] for label in range(CLASSES)], dim=1).flatten()
    return inputs[rows], labels[rows]


def _fitted() -> GaussianPrior:
    return rr.priors.fit_gaussian(load_dataset("mnist", split="train").inputs)


def _linear(believed: GaussianPrior) -> GeneratorPrior:
    """The Gaussian prior's largest directions as a generator of two layers."""
    columns = believed.variances.argsort(descending=True)[:LATENT]
    layer = nn.Linear(LATENT, believed.mean.numel())
    with torch.no_grad():
        layer.weight.copy_(believed.root[:, columns])
        layer.bias.copy_(believed.mean.flatten())
    made = nn.Sequential(layer, nn.Unflatten(1, believed.shape)).requires_grad_(False)
    return rr.priors.generator(made, believed.shape, LATENT, units=(0.0, 1.0), name="linear")

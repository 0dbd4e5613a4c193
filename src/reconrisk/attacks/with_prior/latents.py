"""Records as what a generator makes: coordinates are its latent values, or its weights."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from reconrisk.core.observation import Observation
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows
from reconrisk.core.validation import invalid_input
from reconrisk.priors.generator import GeneratorPrior
from reconrisk.priors.network import precision_of

NEEDS = HONEST_BUT_CURIOUS.knowing(Knows.PRIOR)
"""Whoever reads one update and knows what records look like."""


def check_generator(prior: object) -> None:
    """Refuse what makes no records."""
    if not isinstance(prior, GeneratorPrior):
        remedy = "Pass rr.priors.generator(...)."
        raise invalid_input("prior", type(prior).__name__, "to be one that makes records", remedy)


class _Made:
    """Coordinates that nothing limits, of records that are clipped to the data range."""

    def project(self, coordinates: Tensor, observation: Observation) -> Tensor:
        """All values are allowed."""
        del observation
        return coordinates

    def improbability(self, coordinates: Tensor) -> Tensor | float:
        """Nothing is believed of them."""
        del coordinates
        return 0.0

    def finish(self, inputs: Tensor, observation: Observation) -> Tensor:
        """Clipped to the data range."""
        return inputs.clamp(*observation.data_range)


@dataclass(frozen=True, eq=False)
class Latents(_Made):
    """Latent values of a generator, drawn as it expects them; candidates' starts are not used."""

    prior: GeneratorPrior

    def begin(self, observation: Observation, inputs: Tensor, rng: torch.Generator) -> Tensor:
        """Draws for every restart and record."""
        self.prior.check_fits(observation.input_shape, observation.data_range)
        shape = (*inputs.shape[:2], self.prior.latent_size)
        drawn = torch.randn(shape, generator=rng, device=rng.device)
        # the precision of the layers, which read what is made of them where an attack enters between two
        return drawn.to(inputs.device, precision_of(self.prior.generate, drawn.dtype))

    def decode(self, coordinates: Tensor, observation: Observation) -> Tensor:
        """What the generator makes of them."""
        del observation
        made = self.prior.decode(coordinates.flatten(0, 1))
        found: Tensor = made.unflatten(0, coordinates.shape[:2])
        return found

    def improbability(self, coordinates: Tensor) -> Tensor:
        """Of standard normal values, as a generator reads them."""
        return coordinates.square().flatten(1).sum(1) / 2


@dataclass(frozen=True, eq=False)
class GeneratorWeights(_Made):
    """The weights of a generator for ``latents`` (records, latent size) that stay as they are, a copy for each record.

    Reference: the second stage of `Jeon et al. (2021) <https://arxiv.org/abs/2110.14962>`_.
    """

    prior: GeneratorPrior
    latents: Tensor = field(repr=False)

    def begin(self, observation: Observation, inputs: Tensor, rng: torch.Generator) -> Tensor:
        """The weights as they are, for every restart and record."""
        del observation, rng
        flat = torch.cat([value.detach().flatten() for value in module_of(self.prior).parameters()])
        return flat.expand(*inputs.shape[:2], -1).clone()

    def decode(self, coordinates: Tensor, observation: Observation) -> Tensor:
        """What the generator makes of the latent values with these weights."""
        del observation
        module = module_of(self.prior)
        sizes = [value.numel() for value in module.parameters()]
        shapes = {name: value.shape for name, value in module.named_parameters()}

        def made(flat: Tensor, latent: Tensor) -> Tensor:
            parts = zip(shapes.items(), flat.split(sizes), strict=True)
            named = {name: part.view(shape) for (name, shape), part in parts}
            found: Tensor = torch.func.functional_call(module, named, (latent[None],))[0]
            return found

        latents = self.latents.to(coordinates.dtype)
        # networks with weights of their own each: vectorising them saves nothing and fails for some layers
        each = [torch.stack([made(*pair) for pair in zip(one, latents, strict=True)]) for one in coordinates]
        values = torch.stack(each)
        records = self.prior.checked(values.flatten(0, 1), coordinates.shape[0] * coordinates.shape[1])
        found: Tensor = records.unflatten(0, coordinates.shape[:2])
        return found


@dataclass(frozen=True, eq=False)
class Features(_Made):
    r"""Values between two layers of a generator, within an l1 ball around ``centre`` (records, \*shape).

    ``entered`` is the layer that reads them; ``radius`` is the largest mean absolute change, of all values of a record.
    """

    prior: GeneratorPrior
    entered: int
    centre: Tensor = field(repr=False)
    radius: float

    def begin(self, observation: Observation, inputs: Tensor, rng: torch.Generator) -> Tensor:
        """The centre, for every restart."""
        del observation, rng
        return self.centre.expand(len(inputs), *self.centre.shape).clone()

    def decode(self, coordinates: Tensor, observation: Observation) -> Tensor:
        """What the layers from there on make of them."""
        del observation
        values = coordinates.flatten(0, 1)
        for layer in layers_of(self.prior)[self.entered :]:
            values = layer(values)
        found: Tensor = self.prior.checked(values, len(values)).unflatten(0, coordinates.shape[:2])
        return found

    def project(self, coordinates: Tensor, observation: Observation) -> Tensor:
        """The nearest values in the ball."""
        del observation
        change = (coordinates - self.centre).flatten(2)
        nearest = _in_ball(change, self.radius * change.shape[2])
        found: Tensor = self.centre + nearest.view_as(coordinates)
        return found


def module_of(prior: GeneratorPrior) -> nn.Module:
    """The network whose weights can be varied."""
    if not isinstance(prior.generate, nn.Module):
        remedy = "Pass a prior whose generate is an nn.Module, or weight_steps=0."
        raise invalid_input("prior", prior.name, "to have weights", remedy)
    return prior.generate


def layers_of(prior: GeneratorPrior) -> list[nn.Module]:
    """The layers of a generator that can be entered between two of them."""
    if not isinstance(prior.generate, nn.Sequential) or len(prior.generate) < 2:
        remedy = "Pass a prior whose generate is an nn.Sequential of two layers or more."
        raise invalid_input("prior", prior.name, "to be a sequence of layers", remedy)
    return list(prior.generate)


def _in_ball(vectors: Tensor, radius: float) -> Tensor:
    """The nearest vectors, along the last axis, whose absolute values sum to at most ``radius``.

    Reference: Figure 1, `Duchi et al. (2008) <https://doi.org/10.1145/1390156.1390191>`_.
    """
    sizes = vectors.abs()
    falling = sizes.sort(dim=-1, descending=True).values
    excess = falling.cumsum(-1) - radius
    counts = torch.arange(1, vectors.shape[-1] + 1, dtype=vectors.dtype, device=vectors.device)
    used = (falling * counts > excess).sum(-1, keepdim=True).clamp_min(1)
    threshold = (excess.gather(-1, used - 1) / used).clamp_min(0)
    found: Tensor = vectors.sign() * (sizes - threshold).clamp_min(0)
    return found

"""Parametrizations of records by a generator: coordinates are its latent values, weights or features."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from reconrisk.core.observation import Observation
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows
from reconrisk.core.validation import invalid_input
from reconrisk.priors.generator import GeneratorPrior
from reconrisk.priors.network import precision_of

NEEDS = HONEST_BUT_CURIOUS.with_knowledge(Knows.PRIOR)
"""Weakest threat model of these attacks: one update, and a prior over records."""


def check_generator(prior: object) -> None:
    """Check that a prior is a generator.

    Args:
        prior: The prior to check.

    Raises:
        InvalidInput: If it is not a GeneratorPrior.
    """
    if not isinstance(prior, GeneratorPrior):
        remedy = "Pass rr.priors.generator(...)."
        raise invalid_input("prior", type(prior).__name__, "to be a generator prior", remedy)


class _Unconstrained:
    """Coordinates without constraints or prior, for records that are clipped to the data range."""

    def project(self, coordinates: Tensor, observation: Observation) -> Tensor:
        """Return the coordinates unchanged."""
        del observation
        return coordinates

    def negative_log_density(self, coordinates: Tensor) -> Tensor | float:
        """Return 0: there is no prior on the coordinates."""
        del coordinates
        return 0.0

    def finish(self, inputs: Tensor, observation: Observation) -> Tensor:
        """Clip to the data range."""
        return inputs.clamp(*observation.data_range)


@dataclass(frozen=True, eq=False)
class Latents(_Unconstrained):
    """Latent values of a generator, drawn from its law; the starts of the candidates are not used.

    Attributes:
        prior: The generator.
    """

    prior: GeneratorPrior

    def begin(self, observation: Observation, inputs: Tensor, rng: torch.Generator) -> Tensor:
        """Return random draws for every restart and record."""
        self.prior.check_fits(observation.input_shape, observation.data_range)
        shape = (*inputs.shape[:2], self.prior.latent_size)
        drawn = torch.randn(shape, generator=rng, device=rng.device)
        # In the precision of the layers: an attack may feed values between two layers directly.
        return drawn.to(inputs.device, precision_of(self.prior.generate, drawn.dtype))

    def decode(self, coordinates: Tensor, observation: Observation) -> Tensor:
        """Return the output of the generator."""
        del observation
        made = self.prior.decode(coordinates.flatten(0, 1))
        found: Tensor = made.unflatten(0, coordinates.shape[:2])
        return found

    def negative_log_density(self, coordinates: Tensor) -> Tensor:
        """Return the negative log-density of standard normal latent values."""
        return coordinates.square().flatten(1).sum(1) / 2


@dataclass(frozen=True, eq=False)
class GeneratorWeights(_Unconstrained):
    """Weights of a generator at fixed latent values, one copy for each record.

    Attributes:
        prior: The generator.
        latents: Fixed latent values, of shape (records, latent size).

    Reference: the second stage of `Jeon et al. (2021) <https://arxiv.org/abs/2110.14962>`_.
    """

    prior: GeneratorPrior
    latents: Tensor = field(repr=False)

    def begin(self, observation: Observation, inputs: Tensor, rng: torch.Generator) -> Tensor:
        """Return the current weights for every restart and record."""
        del observation, rng
        flat = torch.cat([value.detach().flatten() for value in module_of(self.prior).parameters()])
        return flat.expand(*inputs.shape[:2], -1).clone()

    def decode(self, coordinates: Tensor, observation: Observation) -> Tensor:
        """Return the output of the generator at the fixed latent values with these weights."""
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
        # Each record has its own weights: vectorising saves nothing and fails for some layers.
        each = [torch.stack([made(*pair) for pair in zip(one, latents, strict=True)]) for one in coordinates]
        values = torch.stack(each)
        records = self.prior.to_records(values.flatten(0, 1), coordinates.shape[0] * coordinates.shape[1])
        found: Tensor = records.unflatten(0, coordinates.shape[:2])
        return found


@dataclass(frozen=True, eq=False)
class Features(_Unconstrained):
    r"""Values between two layers of a generator, within an l1 ball around a centre.

    Attributes:
        prior: The generator.
        entered: Index of the layer that reads the values.
        centre: Centre of the ball, of shape (records, \*shape).
        radius: Largest mean absolute change over all values of a record.
    """

    prior: GeneratorPrior
    entered: int
    centre: Tensor = field(repr=False)
    radius: float

    def begin(self, observation: Observation, inputs: Tensor, rng: torch.Generator) -> Tensor:
        """Return the centre for every restart."""
        del observation, rng
        return self.centre.expand(len(inputs), *self.centre.shape).clone()

    def decode(self, coordinates: Tensor, observation: Observation) -> Tensor:
        """Return the output of the remaining layers."""
        del observation
        values = coordinates.flatten(0, 1)
        for layer in layers_of(self.prior)[self.entered :]:
            values = layer(values)
        found: Tensor = self.prior.to_records(values, len(values)).unflatten(0, coordinates.shape[:2])
        return found

    def project(self, coordinates: Tensor, observation: Observation) -> Tensor:
        """Return the nearest values in the ball."""
        del observation
        change = (coordinates - self.centre).flatten(2)
        nearest = _project_to_ball(change, self.radius * change.shape[2])
        found: Tensor = self.centre + nearest.view_as(coordinates)
        return found


def module_of(prior: GeneratorPrior) -> nn.Module:
    """Return the network of a generator, whose weights can be tuned.

    Args:
        prior: The generator.

    Returns:
        The network.

    Raises:
        InvalidInput: If the generator is a plain function.
    """
    if not isinstance(prior.generate, nn.Module):
        remedy = "Pass a prior whose generate is an nn.Module, or weight_steps=0."
        raise invalid_input("prior", prior.name, "to have trainable weights", remedy)
    return prior.generate


def layers_of(prior: GeneratorPrior) -> list[nn.Module]:
    """Return the layers of a generator.

    Args:
        prior: The generator.

    Returns:
        The layers in order.

    Raises:
        InvalidInput: If the generator is not an ``nn.Sequential`` of at least two layers.
    """
    if not isinstance(prior.generate, nn.Sequential) or len(prior.generate) < 2:
        remedy = "Pass a prior whose generate is an nn.Sequential of two layers or more."
        raise invalid_input("prior", prior.name, "to be a sequence of layers", remedy)
    return list(prior.generate)


def _project_to_ball(vectors: Tensor, radius: float) -> Tensor:
    """Project vectors along the last axis onto the l1 ball of a radius.

    Reference: Figure 1, `Duchi et al. (2008) <https://doi.org/10.1145/1390156.1390191>`_.
    """
    sizes = vectors.abs()
    falling = sizes.sort(dim=-1, descending=True).values
    excess = falling.cumsum(-1) - radius
    counts = torch.arange(1, vectors.shape[-1] + 1, dtype=vectors.dtype, device=vectors.device)
    # Number of coordinates that stay nonzero after soft thresholding.
    used = (falling * counts > excess).sum(-1, keepdim=True).clamp_min(1)
    threshold = (excess.gather(-1, used - 1) / used).clamp_min(0)
    found: Tensor = vectors.sign() * (sizes - threshold).clamp_min(0)
    return found

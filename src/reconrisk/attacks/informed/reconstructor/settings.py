"""Settings of a reconstructor: the settings of balle2022, and others that need fewer shadow models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from reconrisk.core.validation import check_nonnegative, check_positive, check_whole, invalid_input

Perceptual = Callable[[Tensor, Tensor], Tensor]
_CHOICES = {"start": ("linear", "none"), "network": ("none", "dense", "transposed"), "optimizer": ("rmsprop", "adam")}


@dataclass(frozen=True)
class ReconstructorSettings:
    r"""Parts of a reconstructor: a closed form to start from, a network, and its training loss.

    .. math:: a\,|\hat x - x|_1 / d + b\,|\hat x - x|_2^2 / d + c\,\mathrm{LPIPS}(\hat x, x) + e\,(D(\hat x) - 1)^2

    Here :math:`\hat x` is the estimate of the record x, d its number of values, and D a patch discriminator, which is
    trained in parallel. With ``start="linear"`` the network learns the error that the closed form leaves.

    Attributes:
        start: ``"linear"`` for a closed form per class, ``"none"`` for a network alone.
        network: ``"none"``, ``"dense"`` or ``"transposed"``.
        hidden: Widths of the hidden layers of a dense network.
        optimizer: ``"rmsprop"`` or ``"adam"``.
        learning_rate: Learning rate of the network.
        discriminator_rate: Learning rate of the discriminator.
        batch_size: Number of shadow targets per step.
        epochs: Largest number of epochs.
        patience: Epochs without improvement after which training ends, None to never end early.
        absolute: Weight a of the absolute error.
        squared: Weight b of the squared error.
        perceptual: Weight c of the perceptual distance.
        adversarial: Weight e of the discriminator.
        held_out: Share of shadow targets that are held out to choose the epoch.

    >>> ReconstructorSettings(network="dense", epochs=5).start
    'linear'
    """

    start: Literal["linear", "none"] = "linear"
    network: Literal["none", "dense", "transposed"] = "none"
    hidden: tuple[int, ...] = (1000, 1000)
    optimizer: Literal["rmsprop", "adam"] = "rmsprop"
    learning_rate: float = 1e-3
    discriminator_rate: float = 1e-5
    batch_size: int = 128
    epochs: int = 100
    patience: int | None = None
    absolute: float = 1.0
    squared: float = 1.0
    perceptual: float = 0.0
    adversarial: float = 0.0
    held_out: float = 0.1

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise invalid_input(name, getattr(self, name), f"to be one of {', '.join(known)}")
        object.__setattr__(self, "hidden", tuple(check_whole("hidden", width) for width in self.hidden))
        for name in ("learning_rate", "discriminator_rate"):
            check_positive(name, getattr(self, name))
        for name in ("absolute", "squared", "perceptual", "adversarial"):
            check_nonnegative(name, getattr(self, name))
        check_whole("batch_size", self.batch_size)
        check_whole("epochs", self.epochs)
        if self.patience is not None:
            check_whole("patience", self.patience)
        if self.start == "none" and self.network == "none":
            raise invalid_input("network", self.network, 'not to be "none" with start="none"', 'Use network="dense".')
        if self.start == "linear" and self.network == "transposed":
            raise invalid_input(
                "network", self.network, 'to be "dense" or "none" with start="linear"', 'Set start="none".'
            )
        if not self.absolute and not self.squared:
            raise invalid_input("squared", self.squared, "> 0 if absolute is 0")
        if not 0 < self.held_out < 1:
            raise invalid_input("held_out", self.held_out, "in (0, 1)")


def linear_reconstructor() -> ReconstructorSettings:
    """Return the settings of the closed form alone, the default: seconds for thousands of shadow models.

    Returns:
        The settings.

    >>> linear_reconstructor().network
    'none'
    """
    return ReconstructorSettings()


def residual_reconstructor(epochs: int = 20) -> ReconstructorSettings:
    """Return the settings of the closed form with a network that learns its remaining error.

    Args:
        epochs: Largest number of epochs of the network.

    Returns:
        The settings.

    Guarantee: on held-out targets never worse than the closed form.

    >>> residual_reconstructor().start
    'linear'
    """
    return ReconstructorSettings(
        network="dense", optimizer="adam", learning_rate=3e-4, epochs=epochs, patience=5, absolute=0.0
    )


def balle2022_reconstructor(*, colour: bool = False) -> ReconstructorSettings:
    """Return the settings of the reconstructor network of balle2022.

    The paper states neither the weights of the four terms of the training loss nor a choice of epoch. Here the weights
    are 1, and held-out shadow targets choose the epoch.

    Args:
        colour: True for the network for CIFAR-10, False for the network for MNIST.

    Returns:
        The settings.

    Reference: Table V, balle2022.

    >>> balle2022_reconstructor().epochs
    100
    """
    if colour:
        return ReconstructorSettings(start="none", network="transposed", perceptual=1.0, adversarial=1.0)
    return ReconstructorSettings(start="none", network="dense")

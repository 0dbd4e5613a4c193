"""Linear models, and fully connected networks of any widths."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import nn

from reconrisk.core.validation import check_not_empty, check_whole
from reconrisk.models.building import Activation, build_with_rng, check_classes, dense


def linear(features: int, outputs: int = 1, *, bias: bool = True, rng: torch.Generator | None = None) -> nn.Sequential:
    """Build a linear map of the flattened record, for regression or as the logit of logistic regression.

    .. math:: f(x) = W x + b

    Here W are the weights and b is the bias.

    Args:
        features: Number of values in a record.
        outputs: Number of outputs.
        bias: False to leave out b.
        rng: Generator that determines the initial weights; by default the global generator.

    Returns:
        The model, from a batch of records to outputs.

    Raises:
        InvalidInput: If ``features`` or ``outputs`` is not a positive whole number.

    Size: ``features * outputs`` parameters, and ``outputs`` more with ``bias``.
    Initialisation: as ``nn.Linear``; the solution of a convex problem does not depend on the initial weights.
    Reference: section III-B, balle2022; section 7.1, guo2022 (one logit).

    >>> linear(784, bias=False)(torch.zeros(5, 1, 28, 28)).shape
    torch.Size([5, 1])
    """
    features, outputs = check_whole("features", features), check_whole("outputs", outputs)
    # Layer names appear in the keys of state dicts and weight files, so they must stay.
    return build_with_rng(
        lambda: nn.Sequential(
            OrderedDict(flatten=nn.Flatten(), linear=nn.Linear(features, outputs, bias=bias)),
        ),
        rng,
    )


def logistic(features: int, classes: int, *, bias: bool = True, rng: torch.Generator | None = None) -> nn.Sequential:
    r"""Build multinomial logistic regression: one logit per class of a flattened record.

    .. math:: P(y = k \mid x) \propto \exp(w_k^T x + b_k)

    Args:
        features: Number of values in a record.
        classes: Number of classes, at least 2.
        bias: False to leave out the b_k.
        rng: Generator that determines the initial weights; by default the global generator.

    Returns:
        The model, from a batch of records to logits.

    Raises:
        InvalidInput: If ``features`` or ``classes`` is out of range.

    Size: ``(features + 1) * classes`` parameters, or ``features * classes`` without ``bias``.
    Edge cases: two classes have two logits; the form with a single logit is :func:`linear`.
    Reference: section III-B, balle2022.

    >>> logistic(30, 2)(torch.zeros(5, 30)).shape
    torch.Size([5, 2])
    """
    return linear(features, check_classes(classes), bias=bias, rng=rng)


def mlp(
    features: int,
    hidden: Sequence[int],
    classes: int,
    *,
    activation: Activation = nn.ReLU,
    rng: torch.Generator | None = None,
) -> nn.Sequential:
    """Build a fully connected network on flattened records, with an activation after every layer but the last.

    Args:
        features: Number of values in a record.
        hidden: Number of units of each hidden layer; at least one layer.
        classes: Number of classes, at least 2.
        activation: Constructor of the activation, such as ``nn.ReLU``; it must not work in place.
        rng: Generator that determines the initial weights; by default the global generator.

    Returns:
        The model, from a batch of records to logits.

    Raises:
        InvalidInput: If ``hidden`` is empty, or if a number is out of range.

    Size: the sum of ``(fan_in + 1) * fan_out`` over neighbours in ``(features, *hidden, classes)``.
    Initialisation: as ``nn.Linear``.

    >>> mlp(14, (32, 16), 2)(torch.zeros(5, 14)).shape
    torch.Size([5, 2])
    """
    check_not_empty("hidden", hidden, "For no hidden layer use logistic(features, classes).")
    widths = [check_whole("features", features)]
    widths += [check_whole(f"hidden[{place}]", width) for place, width in enumerate(hidden)]
    widths += [check_classes(classes)]
    return build_with_rng(
        lambda: nn.Sequential(OrderedDict(flatten=nn.Flatten(), layers=dense(widths, activation))),
        rng,
    )

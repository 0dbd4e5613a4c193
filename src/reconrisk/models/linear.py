"""Linear models and fully connected networks of any widths."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import nn

from reconrisk.core.validation import check_not_empty, check_whole
from reconrisk.models.building import Activation, check_classes, dense, initialised


def linear(features: int, outputs: int = 1, *, bias: bool = True, rng: torch.Generator | None = None) -> nn.Sequential:
    r"""The linear map of a flattened record, for regression or as one logit of binary logistic regression.

    .. math:: f(x) = W x + b

    Parameters: ``features * outputs``, and ``outputs`` more with ``bias``.
    Initialisation: that of ``nn.Linear``; a convex problem forgets it.
    Reference: section III-B, balle2022; section 7.1, guo2022 (one logit).

    >>> linear(784, bias=False)(torch.zeros(5, 1, 28, 28)).shape
    torch.Size([5, 1])
    """
    features, outputs = check_whole("features", features), check_whole("outputs", outputs)
    return initialised(
        lambda: nn.Sequential(
            OrderedDict(flatten=nn.Flatten(), linear=nn.Linear(features, outputs, bias=bias)),
        ),
        rng,
    )


def logistic(features: int, classes: int, *, bias: bool = True, rng: torch.Generator | None = None) -> nn.Sequential:
    r"""Multinomial logistic regression: one logit per class of a flattened record.

    .. math:: P(y = k \mid x) \propto \exp(w_k^T x + b_k)

    Parameters: ``(features + 1) * classes``, or ``features * classes`` without ``bias``.
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
    """A fully connected network on flattened records, with an activation after every layer but the last.

    Parameters: the sum of ``(fan_in + 1) * fan_out`` over neighbours in ``(features, *hidden, classes)``.
    Initialisation: that of ``nn.Linear``.

    >>> mlp(14, (32, 16), 2)(torch.zeros(5, 14)).shape
    torch.Size([5, 2])
    """
    check_not_empty("hidden", hidden, "Without hidden layers it is logistic(features, classes).")
    widths = [check_whole("features", features)]
    widths += [check_whole(f"hidden[{place}]", width) for place, width in enumerate(hidden)]
    widths += [check_classes(classes)]
    return initialised(
        lambda: nn.Sequential(OrderedDict(flatten=nn.Flatten(), layers=dense(widths, activation))),
        rng,
    )

"""Networks of users as priors: the mode they are in."""

from __future__ import annotations

from torch import nn

from reconrisk.core.validation import refuse

_BY_MODE = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)


def check_mode(name: str, function: object) -> None:
    """Refuse a network whose answers would depend on other records or on chance, and whose statistics would change."""
    layers = function.modules() if isinstance(function, nn.Module) else ()
    if any(layer.training and isinstance(layer, _BY_MODE) for layer in layers):
        remedy = "Call .eval() on it: batch norm and dropout are still in the mode of training."
        raise refuse(name, type(function).__name__, "to be ready for use", remedy)

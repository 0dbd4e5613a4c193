"""Every kind of prior in one row: the function that makes one, and what it is made from.

:data:`PRIORS` is the only table of kinds. Nothing is imported before a prior is made. Other distributions add theirs
through the entry point group ``reconrisk.priors``: a kind, by a :class:`PriorInfo` or a function that takes records or
a folder, or a single prior, by a function without required arguments.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Literal

from reconrisk.core.registry import Info, Plugin, Registry

DIFFUSION, GAUSSIAN, GAN = "diffusion", "gaussian", "gan"
SHIPPED = "shipped"
"""The word for the prior of the package that explains public records best."""

Source = Literal["folder", "records", "nothing"]


@dataclass(frozen=True)
class PriorInfo(Info):
    """A row of :data:`PRIORS`; :attr:`where` is the function that makes a prior.

    Args:
        source: What a prior of this kind is made from. ``"folder"``: ``where(path_or_name, data_range=...)`` reads it
            from a folder, or by the name of a shipped one. ``"records"``: ``where(records, data_range=...)`` fits it to
            public records. ``"nothing"``: ``where()`` returns it; the row is of one prior, whatever its kind.
        wrapper: The function of ``rr.priors`` that makes a prior of this kind of a function or network.
        stored_shape: ``"module:function"`` that reads the shape of records from a folder, before weights are loaded.
        misfit: ``"module:function"`` of a prior and records, smaller for a prior that explains the records better. The
            shipped prior of least misfit is chosen.
    """

    source: Source = "folder"
    wrapper: str = ""
    stored_shape: str = ""
    misfit: str = ""


def _row_from_plugin(plugin: Plugin, found: Any) -> PriorInfo:
    """Make a row of a function: its required arguments tell what it makes a prior from."""
    parameters = inspect.signature(found).parameters.values()
    required = [each.name for each in parameters if each.default is each.empty and each.kind not in _VARIADIC]
    source: Source = "nothing" if not required else "records" if required[0] == "records" else "folder"
    summary = (inspect.getdoc(found) or "").split("\n\n")[0].replace("\n", " ")
    return PriorInfo(plugin.name, plugin.where, summary, source)


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

PRIORS: Registry[PriorInfo] = Registry(
    "prior",
    (
        PriorInfo(
            DIFFUSION,
            "reconrisk.priors.load.diffusers:diffusion",
            "A diffusion network of diffusers, from a folder or shipped.",
            wrapper="denoiser",
            stored_shape="reconrisk.priors.load.folders:shape_of_diffusion",
            misfit="reconrisk.priors.quality:misfit_of_diffusion",
        ),
        PriorInfo(
            GAUSSIAN, "reconrisk.priors.gaussian:fit_gaussian", "A normal law, fitted to public records.", "records"
        ),
        PriorInfo(
            GAN,
            "reconrisk.priors.load.gan:gan",
            "The generator of a GAN, from a folder or shipped.",
            wrapper="generator",
            stored_shape="reconrisk.priors.load.folders:shape_of_gan",
            misfit="reconrisk.priors.quality:misfit_of_draws",
        ),
    ),
    _row_from_plugin,
)
"""Kinds of priors by name, in the order in which a bare name is looked for."""

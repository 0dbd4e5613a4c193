"""Registry of the kinds of priors, with the function that builds each.

:data:`PRIORS` is the only table of kinds. Nothing is imported before a prior is built. Other distributions add theirs
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
"""Name that stands for the shipped prior that fits public records best."""

Source = Literal["folder", "records", "nothing"]


@dataclass(frozen=True)
class PriorInfo(Info):
    """Row of :data:`PRIORS`; :attr:`where` is the function that builds a prior.

    Attributes:
        source: Source that a prior of this kind is built from. ``"folder"``: ``where(path_or_name, data_range=...)``
            reads it from a folder, or by the name of a shipped one. ``"records"``: ``where(records, data_range=...)``
            fits it to public records. ``"nothing"``: ``where()`` returns it; the row is of one prior, of any kind.
        wrapper: Function of ``rr.priors`` that turns a function or network into a prior of this kind.
        stored_shape: ``"module:function"`` that reads the shape of records from a folder, without loading weights.
        misfit: ``"module:function"`` of a prior and records, smaller for a prior that fits the records better. The
            shipped prior of least misfit is chosen.
    """

    source: Source = "folder"
    wrapper: str = ""
    stored_shape: str = ""
    misfit: str = ""


def _row_from_plugin(plugin: Plugin, found: Any) -> PriorInfo:
    """Build a row for a plugin's function; its required arguments determine the source."""
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
            GAUSSIAN,
            "reconrisk.priors.gaussian:fit_gaussian",
            "A normal distribution, fitted to public records.",
            "records",
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
"""Kinds of priors by name, in the order in which a name without its kind is looked up."""

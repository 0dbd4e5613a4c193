"""``reconrisk plugins``: attacks, defenses, priors and metrics of other installed packages."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import typer

from reconrisk.cli.options import AsJson
from reconrisk.core.registry import GROUPS, WRITABLE, Info, Plugin, installed_plugins
from reconrisk.core.storage.text_table import align_columns

_REGISTRIES = {
    "attack": "reconrisk.attacks.registry:ATTACKS",
    "defense": "reconrisk.defenses.registry:DEFENSES",
    "prior": "reconrisk.priors.registry:PRIORS",
    "metric": "reconrisk.metrics.registry:METRICS",
}
"""Registries of this package by kind. Reading them imports none of the registered objects."""

_HEADINGS = ("kind", "name", "distribution", "version", "object")
_NONE = "No plugins are installed. A distribution offers one by an entry point in one of the groups {groups}."


def plugins(as_json: AsJson = False) -> None:
    """List the plugins of other installed packages, without importing them.

    Other commands accept the listed names. With a package that offers the metric blur, for example, write
    reconrisk audit --model lenet --data mnist --goal 'blur<=0.1'.
    """
    found = installed_plugins()
    if as_json:
        typer.echo(json.dumps([asdict(plugin) for plugin in found], indent=2))
    elif not found:
        typer.echo(_NONE.format(groups=", ".join(GROUPS.values())))
    else:
        rows = [_HEADINGS, *((each.kind, each.name, each.distribution, each.version, each.where) for each in found)]
        typer.echo("\n".join((*align_columns(rows), *_notes(found))))


def _notes(found: Sequence[Plugin]) -> Iterator[str]:
    """Yield a sentence for each plugin that cannot be used because of its name."""
    offered = Counter((each.kind, each.name) for each in found)
    for (kind, name), count in offered.items():
        where = _REGISTRIES.get(kind)
        if where is not None and name in set(Info(kind, where, "").load()):
            yield f"The {kind} {name} cannot be used: reconrisk has one of this name."
        elif count > 1:
            yield f"The {kind} {name} cannot be used: {count} distributions offer it. Uninstall all but one."
        elif WRITABLE.fullmatch(name) is None:
            yield f"The {kind} {name} cannot be written: names have letters, digits, points, hyphens and underscores."

"""Attacks, defenses, priors, metrics and models by name: one row each, and plugins of other distributions.

A row (:class:`Info`) states everything that is known about an entry before its code is imported. A :class:`Registry`
finds a row by name, first among the package's own rows, then among the entry points of installed distributions. A
plugin is imported only when somebody asks for it by name; listing names imports nothing.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import metadata
from typing import Any, Generic, TypeVar

from reconrisk.core.errors import InvalidFile, InvalidInput, MissingExtra
from reconrisk.core.storage.serialization import serializable
from reconrisk.core.validation import did_you_mean, invalid_input

GROUPS: Mapping[str, str] = {
    "attack": "reconrisk.attacks",
    "defense": "reconrisk.defenses",
    "prior": "reconrisk.priors",
    "metric": "reconrisk.metrics",
}
"""Entry point groups in which other distributions offer plugins, by kind."""


@dataclass(frozen=True)
class Info:
    """A row of a registry.

    Args:
        name: The name that people write.
        where: The function that configures the entry, ``"package.module:function"``. It is imported when it is used.
        summary: One sentence in plain English, shown in lists and help texts.
    """

    name: str
    where: str
    summary: str

    def load(self) -> Any:
        """Import the function that :attr:`where` names.

        >>> Info("sqrt", "math:sqrt", "Square root.").load()(4)
        2.0
        """
        module, _, path = self.where.partition(":")
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
        return found


@dataclass(frozen=True)
class Plugin:
    """An entry that another installed distribution offers.

    Args:
        kind: ``"attack"``, ``"defense"``, ``"prior"`` or ``"metric"``.
        name: The name that people write.
        where: The object that the entry point names.
        distribution: The distribution that offers it.
        version: The version of that distribution.
    """

    kind: str
    name: str
    where: str
    distribution: str
    version: str

    def __str__(self) -> str:
        """Kind, name and origin, as error messages show them."""
        return f"the {self.kind} {self.name!r} of {self.distribution} {self.version}".rstrip()


def installed_plugins(kind: str | None = None) -> tuple[Plugin, ...]:
    """List the plugins of installed distributions without importing any of them.

    Args:
        kind: ``"attack"``, ``"defense"``, ``"prior"`` or ``"metric"``; all kinds if None.

    Returns:
        The plugins, sorted by kind and name.
    """
    kinds = tuple(GROUPS) if kind is None else (kind,)
    found = []
    for each in kinds:
        for point in metadata.entry_points(group=GROUPS[each]):
            offered = point.dist
            name, version = ("unknown", "") if offered is None else (offered.name, offered.version)
            found.append(Plugin(each, point.name, point.value, name, version))
    return tuple(sorted(found, key=lambda plugin: (plugin.kind, plugin.name, plugin.distribution)))


def summary_of(offered: object) -> str:
    """Return the first sentence of an object's docstring, for a row that is made of a plugin.

    >>> summary_of(summary_of)
    "Return the first sentence of an object's docstring, for a row that is made of a plugin."
    """
    return (inspect.getdoc(offered) or "").split("\n\n")[0].replace("\n", " ")


Row = TypeVar("Row", bound=Info)
Default = TypeVar("Default")


class Registry(Mapping[str, Row], Generic[Row]):
    """Rows by name: the package's own, and plugins, which are imported when they are asked for.

    Args:
        kind: Noun for one entry, used in error messages. A key of :data:`GROUPS` if plugins are allowed.
        rows: The package's own rows.
        row_from_plugin: Makes a row of the object that an entry point names. The object may also be a row itself.

    Guarantee: iterating and ``len`` cover the package's own rows only, so that nothing depends on what else is
    installed; ``registry[name]`` finds plugins too. An own row wins over a plugin of the same name.
    """

    def __init__(
        self, kind: str, rows: Iterable[Row], row_from_plugin: Callable[[Plugin, Any], Row] | None = None
    ) -> None:
        self._kind, self._rows, self._row_from_plugin = kind, {row.name: row for row in rows}, row_from_plugin

    def __getitem__(self, name: str) -> Row:
        """Return the row of this name, or refuse the name with those that exist."""
        if name in self._rows:
            return self._rows[name]
        if name in self._plugins:
            return self._plugins[name]
        offered = [plugin for plugin in self.plugins if plugin.name == name]
        if not offered:
            known = self.names
            raise invalid_input(self._kind, name, f"to be one of {', '.join(known)}", did_you_mean(name, known).strip())
        self._plugins[name] = self._read(offered)
        return self._plugins[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the package's own rows."""
        return iter(self._rows)

    def __len__(self) -> int:
        """Return the number of the package's own rows."""
        return len(self._rows)

    def __contains__(self, name: object) -> bool:
        """Return True if the name is an own row or a plugin, without importing the plugin."""
        return name in self._rows or any(plugin.name == name for plugin in self.plugins)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of own rows and of plugins."""
        return (*self._rows, *dict.fromkeys(plugin.name for plugin in self.plugins if plugin.name not in self._rows))

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        """Plugins of this kind that are installed."""
        return installed_plugins(self._kind) if self._row_from_plugin is not None else ()

    def get(self, name: str, default: Default = None) -> Row | Default:  # type: ignore[assignment]
        """Return the row of this name, or the default if neither the package nor a plugin has it."""
        if name not in self:
            return default
        return self[name]

    def configure(self, name: str, *arguments: Any, **settings: Any) -> Any:
        """Call the function of a row.

        Args:
            name: The name of the row.
            *arguments: Its arguments.
            **settings: Its settings.

        Raises:
            InvalidInput: If the function refuses them, or if that of a plugin raises anything; the plugin is named.
        """
        build = self[name].load()
        if name in self._rows:
            return build(*arguments, **settings)
        plugin = next(plugin for plugin in self.plugins if plugin.name == name)
        with _naming(plugin, "to be configured"):
            return build(*arguments, **settings)

    @cached_property
    def _plugins(self) -> dict[str, Row]:
        return {}

    def _read(self, offered: list[Plugin]) -> Row:
        plugin = offered[0]
        if len(offered) > 1 or self._row_from_plugin is None:
            several = " and ".join(each.distribution for each in offered)
            raise invalid_input(
                self._kind, plugin.name, f"to be offered once, {several} offer it", "Uninstall one of them."
            )
        found = _load_plugin(plugin, plugin.where)
        if not isinstance(found, Info):
            if not callable(found):
                raise _refuse_plugin(plugin, f"to be a function, {plugin.where} is a {type(found).__name__}")
            with _naming(plugin, "to be configured"):
                return self._row_from_plugin(plugin, found)
        kinds = {type(row) for row in self._rows.values()}
        if not isinstance(found, tuple(kinds)):
            wanted = " or ".join(sorted(kind.__name__ for kind in kinds))
            raise _refuse_plugin(plugin, f"to be {wanted} or a function, {plugin.where} is {type(found).__name__}")
        _load_plugin(plugin, found.where)  # asked for by name, so it is needed now
        return replace(found, name=plugin.name)  # type: ignore[return-value]  # the kinds of row were compared


def _load_plugin(plugin: Plugin, where: str) -> Any:
    with _naming(plugin, f"to be importable from {where}", passes=()):
        return Info(plugin.name, where, "").load()


@contextmanager
def _naming(
    plugin: Plugin, condition: str, *, passes: tuple[type[Exception], ...] = (InvalidInput, InvalidFile, MissingExtra)
) -> Iterator[None]:
    """Refuse a plugin whose code raises; errors of the classes in ``passes`` say enough themselves."""
    try:
        yield
    except passes:
        raise
    except (Exception, SystemExit) as error:  # code of another distribution may raise anything
        cause = f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}"
        raise _refuse_plugin(plugin, f"{condition}, it raised {cause}") from error


def _refuse_plugin(plugin: Plugin, condition: str) -> InvalidInput:
    return InvalidInput(f"Expected {plugin} {condition.rstrip('.')}. Reinstall, repair or remove that distribution.")


_FORM = "to be a name, or a name with settings such as clip_and_noise(noise_multiplier=1, clip_norm=1)"
WRITABLE = re.compile(r"\w[\w.-]*")
"""Names that a text with settings can state."""

_WORDS: Mapping[str, object] = {"true": True, "false": False, "none": None}


@serializable("named-choice")
@dataclass(frozen=True)
class Choice:
    """A name and the settings stated for it, in their order.

    >>> Choice.read("defenses", "prune(share=0.9)").plain()
    {'name': 'prune', 'share': 0.9}
    """

    name: str
    settings: tuple[tuple[str, Any], ...] = ()

    @staticmethod
    def read(key: str, value: Any) -> Choice:
        """The choice that a text or a table states, for the argument ``key``."""
        if isinstance(value, str):
            return _from_text(key, value)
        if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
            raise invalid_input(key, value, _FORM, "A table needs the key name.")
        settings = {name: setting for name, setting in value.items() if name != "name"}
        for name, setting in settings.items():
            if setting is not None and not isinstance(setting, (bool, int, float, str)):
                raise invalid_input(f"{key}.{name}", setting, "to be a number, a word, true or false")
        return Choice(value["name"], tuple(settings.items()))

    def plain(self) -> Any:
        """The text or table that :meth:`read` reads."""
        return {"name": self.name, **dict(self.settings)} if self.settings else self.name


def _from_text(key: str, text: str) -> Choice:
    found = re.fullmatch(rf"\s*({WRITABLE.pattern})\s*(?:\((.*)\))?\s*", text)
    if found is None:
        raise invalid_input(key, text, _FORM)
    settings: dict[str, Any] = {}
    for part in (found[2] or "").split(","):
        name, equals, word = (each.strip() for each in part.partition("="))
        if not part.strip():
            continue
        if not equals or not name.isidentifier() or not word:
            raise invalid_input(key, text, _FORM, f"{part.strip()!r} is no setting by name.")
        settings[name] = _value(word)
    return Choice(found[1], tuple(settings.items()))


def _value(word: str) -> Any:
    for read in (int, float, lambda each: _WORDS[each.lower()]):
        try:
            return read(word)
        except (KeyError, ValueError):
            continue
    return word.strip("'\"")

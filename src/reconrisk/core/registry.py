"""Registries of attacks, defenses, priors, metrics and models by name, including plugins of other distributions.

A row (:class:`Info`) holds the metadata of an entry, so that listing entries needs no import of their code. A
:class:`Registry` finds a row by name, first among the rows of this package, then among the entry points of installed
distributions. A plugin is imported only when it is requested by name.
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
"""Entry point group of each kind, in which other distributions offer plugins."""


@dataclass(frozen=True)
class Info:
    """A row of a registry.

    Attributes:
        name: Name of the entry, as users write it.
        where: Function that configures the entry, as ``"package.module:function"``. It is imported on use.
        summary: One sentence for lists and help texts.
    """

    name: str
    where: str
    summary: str

    def load(self) -> Any:
        """Import and return the function at :attr:`where`.

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

    Attributes:
        kind: ``"attack"``, ``"defense"``, ``"prior"`` or ``"metric"``.
        name: Name of the entry, as users write it.
        where: Object of the entry point, as ``"package.module:object"``.
        distribution: Name of the distribution.
        version: Version of the distribution.
    """

    kind: str
    name: str
    where: str
    distribution: str
    version: str

    def __str__(self) -> str:
        """Return kind, name and distribution, for error messages."""
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


def summary_from_docstring(offered: object) -> str:
    """Return the first paragraph of a docstring as one line, for the row of a plugin.

    Args:
        offered: The object that an entry point of a plugin names: a function, class or configured object.

    Returns:
        The line; empty without a docstring.

    >>> summary_from_docstring(summary_from_docstring)
    'Return the first paragraph of a docstring as one line, for the row of a plugin.'
    """
    return (inspect.getdoc(offered) or "").split("\n\n")[0].replace("\n", " ")


Row = TypeVar("Row", bound=Info)
Default = TypeVar("Default")


class Registry(Mapping[str, Row], Generic[Row]):
    """Rows by name: rows of this package, and rows of plugins, which are imported on request.

    Args:
        kind: Noun for one entry, for error messages. It is a key of :data:`GROUPS` if plugins are allowed.
        rows: Rows of this package.
        row_from_plugin: Builds a row from the object of an entry point. None if there are no plugins of this kind.

    Guarantee: iteration and ``len`` cover the rows of this package only, so that results do not depend on other
    installed distributions; ``registry[name]`` finds plugins as well. A row of this package takes precedence over a
    plugin of the same name.
    """

    def __init__(
        self, kind: str, rows: Iterable[Row], row_from_plugin: Callable[[Plugin, Any], Row] | None = None
    ) -> None:
        self._kind, self._rows, self._row_from_plugin = kind, {row.name: row for row in rows}, row_from_plugin

    def __getitem__(self, name: str) -> Row:
        """Return the row of a name.

        Args:
            name: Name of the row.

        Returns:
            The row. The row of a plugin is loaded at its first use.

        Raises:
            InvalidInput: If there is no such row, or its plugin cannot be loaded.
        """
        if name in self._rows:
            return self._rows[name]
        if name in self._plugins:
            return self._plugins[name]
        offered = [plugin for plugin in self.plugins if plugin.name == name]
        if not offered:
            known = self.names
            raise invalid_input(self._kind, name, f"to be one of {', '.join(known)}", did_you_mean(name, known).strip())
        self._plugins[name] = self._load_row(offered)
        return self._plugins[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the rows of this package."""
        return iter(self._rows)

    def __len__(self) -> int:
        """Return the number of rows of this package."""
        return len(self._rows)

    def __contains__(self, name: object) -> bool:
        """Return True if a row of this package or a plugin has the name; nothing is imported."""
        return name in self._rows or any(plugin.name == name for plugin in self.plugins)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all rows, the rows of this package first."""
        return (*self._rows, *dict.fromkeys(plugin.name for plugin in self.plugins if plugin.name not in self._rows))

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        """Installed plugins of this kind."""
        return installed_plugins(self._kind) if self._row_from_plugin is not None else ()

    def get(self, name: str, default: Default = None) -> Row | Default:  # type: ignore[assignment]
        """Return the row of a name, or ``default`` if neither this package nor a plugin has it."""
        if name not in self:
            return default
        return self[name]

    def configure(self, name: str, *arguments: Any, **settings: Any) -> Any:
        """Call the function of a row.

        Args:
            name: Name of the row.
            *arguments: Positional arguments of the function.
            **settings: Keyword arguments of the function.

        Returns:
            The object that the function returns, such as an attack or a defense.

        Raises:
            InvalidInput: If the function rejects the arguments, or if the function of a plugin raises any other error.
        """
        build = self[name].load()
        if name in self._rows:
            return build(*arguments, **settings)
        plugin = next(plugin for plugin in self.plugins if plugin.name == name)
        with _report_errors_of(plugin, "to be configured"):
            return build(*arguments, **settings)

    @cached_property  # rows of the plugins that were loaded, by name
    def _plugins(self) -> dict[str, Row]:
        return {}

    def _load_row(self, offered: list[Plugin]) -> Row:
        """Import a plugin and return its row; ``offered`` are all plugins of one name."""
        plugin = offered[0]
        if len(offered) > 1 or self._row_from_plugin is None:
            several = " and ".join(each.distribution for each in offered)
            raise invalid_input(
                self._kind,
                plugin.name,
                f"to be offered by one distribution, found it in {several}",
                "Uninstall one of them.",
            )
        found = _load_plugin(plugin, plugin.where)
        if not isinstance(found, Info):
            if not callable(found):
                raise _plugin_error(plugin, f"to be a function, {plugin.where} is a {type(found).__name__}")
            with _report_errors_of(plugin, "to be configured"):
                return self._row_from_plugin(plugin, found)
        kinds = {type(row) for row in self._rows.values()}
        if not isinstance(found, tuple(kinds)):
            wanted = " or ".join(sorted(kind.__name__ for kind in kinds))
            raise _plugin_error(plugin, f"to be {wanted} or a function, {plugin.where} is {type(found).__name__}")
        _load_plugin(plugin, found.where)  # import now, so that a missing function is reported with the plugin's name
        return replace(found, name=plugin.name)  # type: ignore[return-value]  # isinstance was checked above


def _load_plugin(plugin: Plugin, where: str) -> Any:
    with _report_errors_of(plugin, f"to be importable from {where}", passes=()):
        return Info(plugin.name, where, "").load()


@contextmanager
def _report_errors_of(
    plugin: Plugin, condition: str, *, passes: tuple[type[Exception], ...] = (InvalidInput, InvalidFile, MissingExtra)
) -> Iterator[None]:
    """Convert errors of plugin code to InvalidInput with the name of the plugin; ``passes`` are left as they are."""
    try:
        yield
    except passes:
        raise
    except (Exception, SystemExit) as error:  # third-party code may raise anything, or call sys.exit()
        cause = f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}"
        raise _plugin_error(plugin, f"{condition}, it raised {cause}") from error


def _plugin_error(plugin: Plugin, condition: str) -> InvalidInput:
    return InvalidInput(f"Expected {plugin} {condition.rstrip('.')}. Reinstall, repair or remove that distribution.")


_FORM = "to be a name, or a name with settings such as clip_and_noise(noise_multiplier=1, clip_norm=1)"
WRITABLE = re.compile(r"\w[\w.-]*")
"""Pattern of the names that can be written in a text with settings."""

_WORDS: Mapping[str, object] = {"true": True, "false": False, "none": None}


@serializable("named-choice")
@dataclass(frozen=True)
class Choice:
    """A name with its settings, as written on the command line or in a configuration file.

    Attributes:
        name: Name of an entry of a registry.
        settings: Names and values of the settings, in the order in which they were written.

    >>> Choice.read("defenses", "prune(share=0.9)").to_plain()
    {'name': 'prune', 'share': 0.9}
    """

    name: str
    settings: tuple[tuple[str, Any], ...] = ()

    @staticmethod
    def read(key: str, value: Any) -> Choice:
        """Parse a text such as ``prune(share=0.9)``, or a table with the key ``name``.

        Args:
            key: Name of the argument, for error messages.
            value: The text or table.

        Returns:
            The name with its settings, in the order of the text or table.

        Raises:
            InvalidInput: If the value is neither, or a setting is not a number, a word, true or false.
        """
        if isinstance(value, str):
            return _parse_choice(key, value)
        if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
            raise invalid_input(key, value, _FORM, "Add the key 'name' to a table.")
        settings = {name: setting for name, setting in value.items() if name != "name"}
        for name, setting in settings.items():
            if setting is not None and not isinstance(setting, (bool, int, float, str)):
                raise invalid_input(f"{key}.{name}", setting, "to be a number, a word, true or false")
        return Choice(value["name"], tuple(settings.items()))

    def to_plain(self) -> Any:
        """Return the text or table that :meth:`read` parses."""
        return {"name": self.name, **dict(self.settings)} if self.settings else self.name


def _parse_choice(key: str, text: str) -> Choice:
    found = re.fullmatch(rf"\s*({WRITABLE.pattern})\s*(?:\((.*)\))?\s*", text)
    if found is None:
        raise invalid_input(key, text, _FORM)
    settings: dict[str, Any] = {}
    for part in (found[2] or "").split(","):  # values cannot contain commas; a table has no such limit
        name, equals, word = (each.strip() for each in part.partition("="))
        if not part.strip():
            continue
        if not equals or not name.isidentifier() or not word:
            raise invalid_input(key, text, _FORM, f"Write {part.strip()!r} as setting=value.")
        settings[name] = _parse_value(word)
    return Choice(found[1], tuple(settings.items()))


def _parse_value(word: str) -> Any:
    """Return a word as int, float, bool or None if it can be read as one, else as a string without quotes."""
    for read in (int, float, lambda each: _WORDS[each.lower()]):
        try:
            return read(word)
        except (KeyError, ValueError):
            continue
    return word.strip("'\"")

"""Something that is configured by name: an attack, a defense, or a portfolio, with its settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reconrisk.core.storage.serialization import serializable
from reconrisk.core.validation import refuse

_FORM = "to be a name, or a name with settings such as clip_and_noise(noise_multiplier=1, clip_norm=1)"
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
            raise refuse(key, value, _FORM, "A table needs the key name.")
        settings = {name: setting for name, setting in value.items() if name != "name"}
        for name, setting in settings.items():
            if setting is not None and not isinstance(setting, (bool, int, float, str)):
                raise refuse(f"{key}.{name}", setting, "to be a number, a word, true or false")
        return Choice(value["name"], tuple(settings.items()))

    def plain(self) -> Any:
        """The text or table that :meth:`read` reads."""
        return {"name": self.name, **dict(self.settings)} if self.settings else self.name


def _from_text(key: str, text: str) -> Choice:
    found = re.fullmatch(r"\s*(\w+)\s*(?:\((.*)\))?\s*", text)
    if found is None:
        raise refuse(key, text, _FORM)
    settings: dict[str, Any] = {}
    for part in (found[2] or "").split(","):
        name, equals, word = (each.strip() for each in part.partition("="))
        if not part.strip():
            continue
        if not equals or not name.isidentifier() or not word:
            raise refuse(key, text, _FORM, f"{part.strip()!r} is no setting by name.")
        settings[name] = _value(word)
    return Choice(found[1], tuple(settings.items()))


def _value(word: str) -> Any:
    for read in (int, float, lambda each: _WORDS[each.lower()]):
        try:
            return read(word)
        except (KeyError, ValueError):
            continue
    return word.strip("'\"")

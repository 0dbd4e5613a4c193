"""Digests of settings and contents: the same in every process, another for other content. The only ones in the package.

Stores find results again by these digests, and reports name models, data and priors by them. Tensors are recognised
only if torch was imported by somebody else, so that this file needs no torch.
"""

from __future__ import annotations

import dis
import hashlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, partial
from pathlib import Path, PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import invalid_input

if TYPE_CHECKING:
    from torch import nn

_DIGITS = 12  # enough for the runs of one store; short enough for a table
_DEEPEST = 40
_KNOWN_BY_NAME = {"torch", "numpy", "scipy", "sklearn", "torchvision", "reconrisk"} | set(sys.stdlib_module_names)
_INSTALLED = {"site-packages", "dist-packages"}
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,}")
_TENSOR = re.compile(r"\b(tensor|array)\(")
_SPECIAL = {"__init__", "__post_init__", "__call__"}
_PLAIN = (bool, int, float, complex, str, bytes, PurePath, type(None), type(Ellipsis))
_FOLLOWED = (*_PLAIN, np.ndarray, FunctionType, type, tuple, list, dict, frozenset, partial)


def content_digest(value: Any) -> str:
    """Return the SHA-256 of a value: numbers and tensors by value, functions by their code and all that it works with.

    That is constants, defaults, what a function closes over, and functions, classes and plain values that it names.

    Args:
        value: Settings, tensors, functions, objects, or any nesting of them.

    Returns:
        64 hexadecimal digits.

    Raises:
        InvalidInput: If nothing but an address tells a part of it from others, or if it is nested too deeply.

    Assumes: what comes with Python and with installed distributions is known by its name.
    Guarantee: never an address, nor the name of a module that depends on how it is run.
    Edge cases: code is that of the interpreter, so another version of Python may give another digest.

    >>> def scale(factor): return lambda values: factor * values
    >>> content_digest(scale(1.0)) == content_digest(scale(1.0)), content_digest(scale(1.0)) == content_digest(scale(2))
    (True, False)
    """
    return _hash(_Walk().words(value, ()))


def short_digest(value: Any) -> str:
    """Return the first twelve digits of :func:`content_digest`, by which people tell runs, models and data apart."""
    return content_digest(value)[:_DIGITS]


def network_digest(network: nn.Module) -> str:
    """Return a short digest of a network by its layers, mode, weights and buffers; its code does not count.

    Args:
        network: Any module of torch; what its classes compute is not looked at, so none is refused.

    >>> import torch
    >>> layer = torch.nn.Linear(1, 1)
    >>> network_digest(layer) == network_digest(layer.eval())
    False
    """
    return short_digest((repr(network), network.training, dict(network.state_dict())))


def describe_settings(configured: object, *, text: str | None = None) -> str:
    """Return the settings of an attack or a defense as it writes them, without values of tensors or addresses.

    Args:
        configured: An attack, a defense, or any other setting.
        text: How it writes itself; its ``repr`` if None.

    Guarantee: no value of a tensor, which may be a record; tensors are told apart by a digest.

    >>> import torch
    >>> describe_settings([torch.ones(1)]).split()[0]
    'list'
    """
    written = repr(configured) if text is None else text
    if _TENSOR.search(written) is not None:
        return f"{type(configured).__name__} {_digest_or(configured, written)}"
    return re.sub(rf" at {_ADDRESS.pattern}", "", written)


def identify_settings(configured: object) -> str:
    """Return the settings of an attack or a defense in words, with a digest of what the words do not show.

    Those are tensors, functions, networks, priors, and objects that write nothing but their address. Everything else
    is told apart by the words alone, so that an attack may count its calls.

    Args:
        configured: An attack or a defense.

    Edge cases: what :func:`content_digest` refuses is told apart by its address.

    >>> identify_settings(partial(max, 1)) == identify_settings(partial(max, 2))
    False
    """
    words, hidden = describe_settings(configured), list(_hidden_settings(configured))
    return f"{words} {_digest_or(hidden, repr(configured))}" if hidden else words


def _hidden_settings(value: Any) -> Iterator[object]:
    if isinstance(value, _PLAIN):
        return
    if isinstance(getattr(value, "fingerprint", None), str):
        yield value.fingerprint
    elif isinstance(value, (FunctionType, MethodType, partial, np.ndarray)) or _is_tensor(value) or _is_network(value):
        yield value
    elif is_dataclass(value) or isinstance(value, (Mapping, list, tuple)):
        yield from (part for each in _parts_of(value) for part in _hidden_settings(each))
    elif _ADDRESS.search(repr(value)):
        yield value


def _parts_of(value: Any) -> Iterable[object]:
    if is_dataclass(value):
        return (getattr(value, each.name) for each in fields(value))
    return value.values() if isinstance(value, Mapping) else value


def _digest_or(value: object, words: str) -> str:
    try:
        return short_digest(value)
    except InvalidInput:
        return short_digest(words)


def _hash(words: Iterable[str | bytes]) -> str:
    digest = hashlib.sha256()
    for word in words:
        digest.update(word.encode() if isinstance(word, str) else word)
        digest.update(b"\0")
    return digest.hexdigest()


class _Walk:
    """A walk through a value in which each function, class and network is read once, however often it is named."""

    def __init__(self) -> None:
        self._read: dict[int, tuple[object, str]] = {}  # with the object, which keeps its id from being used again

    def words(self, value: Any, above: tuple[int, ...]) -> Iterator[str | bytes]:
        """Yield what a value consists of; ``above`` are the values that hold it."""
        if isinstance(value, _PLAIN):
            yield f"{type(value).__name__} {value!r}"
        elif id(value) in above:
            yield f"again {above.index(id(value))}"  # a function that calls itself
        elif len(above) > _DEEPEST:
            raise invalid_input("settings", type(value).__name__, f"to be nested at most {_DEEPEST} deep")
        elif _is_tensor(value) or isinstance(value, np.ndarray):
            yield from _words_of_array(value)
        elif isinstance(value, Enum):
            yield f"{type(value).__qualname__} {value.name}"
        elif isinstance(value, ModuleType):
            yield f"module {value.__name__.rpartition('.')[2]}"
        elif isinstance(value, BuiltinFunctionType) and isinstance(value.__self__, (ModuleType, type, type(None))):
            yield f"builtin {value.__qualname__}"
        elif isinstance(value, (FunctionType, type)) or _is_network(value):
            if id(value) not in self._read:
                self._read[id(value)] = value, _hash(self._parts(value, above))
            yield self._read[id(value)][1]
        else:
            yield from self._parts(value, above)

    def _parts(self, value: Any, above: tuple[int, ...]) -> Iterator[str | bytes]:
        yield f"{type(value).__qualname__}("
        for name, part in _content(value):
            yield name
            yield from self.words(part, (*above, id(value)))
        yield ")"


def _is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_network(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _words_of_array(array: Any) -> Iterator[str | bytes]:
    yield f"{str(array.dtype).removeprefix('torch.')} {tuple(array.shape)}"
    if _is_tensor(array):  # as bytes, since NumPy does not know every type of torch
        yield array.detach().cpu().contiguous().flatten().view(sys.modules["torch"].uint8).numpy().tobytes()
    elif array.dtype.hasobject:
        yield content_digest(array.tolist())
    else:
        yield array.tobytes()


def _content(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts that make a value what it is, by name."""
    if isinstance(value, CodeType):
        yield from (("code", value.co_code), ("names", value.co_names), ("constants", value.co_consts))
    elif isinstance(value, FunctionType):
        yield from _content_of_function(value)
    elif isinstance(value, type):
        yield from _content_of_class(value)
    elif isinstance(value, partial):
        yield from (("function", value.func), ("positional", value.args), ("named", value.keywords))
    elif isinstance(value, (MethodType, BuiltinFunctionType)):
        yield from (("method", value.__name__), ("of", value.__self__))
        yield "function", getattr(value, "__func__", None)
    elif isinstance(value, Mapping):
        yield from ((content_digest(key), part) for key, part in value.items())
    elif isinstance(value, Set):
        yield from (("", text) for text in sorted(content_digest(part) for part in value))  # their order is none
    elif isinstance(value, (list, tuple)):
        yield from (("", part) for part in value)
    else:
        yield from _content_of_object(value)


def _content_of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    yield "name", function.__qualname__
    yield "defaults", (function.__defaults__, function.__kwdefaults__)
    cells = function.__closure__ or ()
    yield from zip(function.__code__.co_freevars, (_content_of_cell(cell) for cell in cells), strict=True)
    origin = _origin(function)
    if origin is not None:
        yield "from", origin
        return
    yield "code", function.__code__
    for name in sorted(set(_globals_named(function.__code__))):
        found = function.__globals__.get(name)
        if isinstance(found, _FOLLOWED) or _is_tensor(found) or _is_network(found):
            yield f"global {name}", found


def _content_of_cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is bound later
        return None


def _globals_named(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_named(constant)


def _content_of_class(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the name of a class and, unless it is installed, its methods and plain values, and those it inherits."""
    yield "name", kind.__qualname__
    origin = _origin(kind)
    if origin is not None:
        yield "from", origin
        return
    for name, part in sorted(vars(kind).items()):
        plain = getattr(part, "fget", None) or getattr(part, "__func__", part)  # of a property, of a static method
        is_content = isinstance(plain, (FunctionType, *_PLAIN)) or _is_tensor(plain)
        if is_content and (name in _SPECIAL or not name.startswith("__")):
            yield name, plain
    yield from (("base", base) for base in kind.__bases__)


def _content_of_object(value: Any) -> Iterator[tuple[str, Any]]:
    yield "class", type(value)
    if _is_network(value):
        yield "text", repr(value)
        yield from (
            *value.named_parameters(recurse=False),
            *value.named_buffers(recurse=False),
            *value.named_children(),
        )
        yield from ((name, part) for name, part in sorted(vars(value).items()) if not name.startswith("_"))
    elif isinstance(value, np.random.Generator):
        yield "state", value.bit_generator.state
    elif type(value).__name__ == "Generator" and hasattr(value, "get_state"):  # of torch
        yield "state", value.get_state()
    elif is_dataclass(value):
        yield from ((each.name, getattr(value, each.name)) for each in fields(value))
    elif hasattr(value, "__dict__"):
        yield from sorted(vars(value).items())
    elif _ADDRESS.search(repr(value)):
        remedy = "Pass a function or a dataclass whose content says what it does."
        raise invalid_input("settings", type(value).__name__, "to be told from others of its kind", remedy)
    else:
        yield "text", repr(value)


def _origin(part: Any) -> str | None:
    """Return the package whose name is enough to know a function or class; None for code of somebody's own."""
    root = str(part.__module__).partition(".")[0]
    return "" if root in _KNOWN_BY_NAME else _installed_version(root)


@cache
def _installed_version(root: str) -> str | None:
    """Return name and version of a package that is installed, None for one that is a folder of somebody's own."""
    module = sys.modules.get(root)
    places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
    if not any(_INSTALLED & set(Path(place).parts) for place in places):
        return None
    return f"{root} {getattr(module, '__version__', '')}".strip()

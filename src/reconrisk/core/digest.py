"""Digests of settings and contents, reproducible across processes. All digests of the package are computed here.

Stores look up results by these digests, and reports identify models, data and priors by them. Tensors are recognised
only if torch has been imported elsewhere, so this file needs no torch.
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

_DIGITS = 12  # 48 bits: no collision among the runs of one store, and short enough for a table
_DEEPEST = 40  # far deeper than real settings; stops endless chains of new objects
# Code of these packages is identified by its qualified name alone, also across their versions.
_KNOWN_BY_NAME = {"torch", "numpy", "scipy", "sklearn", "torchvision", "reconrisk"} | set(sys.stdlib_module_names)
_INSTALLED = {"site-packages", "dist-packages"}
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,}")
_TENSOR = re.compile(r"\b(tensor|array)\(")
_SPECIAL = {"__init__", "__post_init__", "__call__"}
_PLAIN = (bool, int, float, complex, str, bytes, PurePath, type(None), type(Ellipsis))
_FOLLOWED = (*_PLAIN, np.ndarray, FunctionType, type, tuple, list, dict, frozenset, partial)


def content_digest(value: Any) -> str:
    """Return the SHA-256 digest of a value.

    Numbers and tensors enter by value. Functions enter by their code, constants, defaults and closures, and by the
    functions, classes and plain values that the code refers to.

    Args:
        value: Settings, tensors, functions, objects, or any nesting of them.

    Returns:
        64 hexadecimal digits.

    Raises:
        InvalidInput: If only its memory address identifies a part of the value, or if it is nested too deeply.

    Assumes: code of Python and of installed distributions is identified by its name.
    Guarantee: no memory address enters, nor a module name that depends on how the program is started.
    Edge cases: code enters as bytecode, so another version of Python may give another digest.

    >>> def scale(factor): return lambda values: factor * values
    >>> content_digest(scale(1.0)) == content_digest(scale(1.0)), content_digest(scale(1.0)) == content_digest(scale(2))
    (True, False)
    """
    return _hash(_Walk().tokens(value, ()))


def short_digest(value: Any) -> str:
    """Return the first twelve digits of :func:`content_digest`, which identify runs, models and data in reports.

    Args:
        value: Settings, tensors, functions, objects, or any nesting of them.

    Returns:
        12 hexadecimal digits.

    Raises:
        InvalidInput: As :func:`content_digest`.

    >>> short_digest({"steps": 10}) == short_digest({"steps": 10}), len(short_digest(1.0))
    (True, 12)
    """
    return content_digest(value)[:_DIGITS]


def network_digest(network: nn.Module) -> str:
    """Return a short digest of a network: of its layers, mode, weights and buffers, but not of its code.

    Args:
        network: Any torch module. None is rejected, because the code of its classes is not read.

    Returns:
        12 hexadecimal digits.

    >>> import torch
    >>> layer = torch.nn.Linear(1, 1)
    >>> network_digest(layer) == network_digest(layer.eval())
    False
    """
    # The mode counts, because batch norm and dropout compute something else in training.
    return short_digest((repr(network), network.training, dict(network.state_dict())))


def describe_settings(configured: object, *, text: str | None = None) -> str:
    """Return the ``repr`` of an attack or a defense, without tensor values and memory addresses.

    Args:
        configured: An attack, a defense, or any other setting.
        text: Text to clean instead of the ``repr``; None for the ``repr``.

    Returns:
        The text. If it contains a tensor, the name of the class and a digest instead.

    Guarantee: the text contains no tensor value, because tensors may hold private records.

    >>> import torch
    >>> describe_settings([torch.ones(1)]).split()[0]
    'list'
    """
    written = repr(configured) if text is None else text
    if _TENSOR.search(written) is not None:  # a repr such as tensor([0.1, ...]) would print values of records
        return f"{type(configured).__name__} {_digest_with_fallback(configured, written)}"
    return re.sub(rf" at {_ADDRESS.pattern}", "", written)


def identify_settings(configured: object) -> str:
    """Return the description of an attack or a defense, with a digest of the settings that it does not show.

    These are tensors, functions, networks, priors, and objects whose ``repr`` is only an address. Other state does not
    enter, so an attack may for example count its calls.

    Args:
        configured: An attack or a defense.

    Returns:
        :func:`describe_settings`, followed by a short digest if there are hidden settings.

    Edge cases: settings that :func:`content_digest` rejects are identified by their address.

    >>> identify_settings(partial(max, 1)) == identify_settings(partial(max, 2))
    False
    """
    words, hidden = describe_settings(configured), list(_hidden_settings(configured))
    return f"{words} {_digest_with_fallback(hidden, repr(configured))}" if hidden else words


def _hidden_settings(value: Any) -> Iterator[object]:
    """Yield the parts of a setting that its ``repr`` does not show."""
    if isinstance(value, _PLAIN):
        return
    if isinstance(getattr(value, "fingerprint", None), str):
        yield value.fingerprint
    elif isinstance(value, (FunctionType, MethodType, partial, np.ndarray)) or _is_tensor(value) or _is_network(value):
        yield value
    elif is_dataclass(value) or isinstance(value, (Mapping, list, tuple)):
        yield from (part for each in _child_values(value) for part in _hidden_settings(each))
    elif _ADDRESS.search(repr(value)):
        yield value


def _child_values(value: Any) -> Iterable[object]:
    if is_dataclass(value):
        return (getattr(value, each.name) for each in fields(value))
    return value.values() if isinstance(value, Mapping) else value


def _digest_with_fallback(value: object, text: str) -> str:
    """Return the digest of a value, or of a text if the value has none."""
    try:
        return short_digest(value)
    except InvalidInput:
        return short_digest(text)


def _hash(tokens: Iterable[str | bytes]) -> str:
    digest = hashlib.sha256()
    for token in tokens:
        digest.update(token.encode() if isinstance(token, str) else token)
        digest.update(b"\0")  # separator, so that ("ab", "c") and ("a", "bc") differ
    return digest.hexdigest()


class _Walk:
    """Traversal of a value that reads each function, class and network once, even if it occurs several times."""

    def __init__(self) -> None:
        # Digests by id. The object is kept next to its digest, so that its id is not reused while the walk lasts.
        self._read: dict[int, tuple[object, str]] = {}

    def tokens(self, value: Any, above: tuple[int, ...]) -> Iterator[str | bytes]:
        """Yield the content of a value; ``above`` holds the ids of the values that contain it."""
        if isinstance(value, _PLAIN):
            yield f"{type(value).__name__} {value!r}"
        elif id(value) in above:
            yield f"again {above.index(id(value))}"  # a cycle, such as a recursive function
        elif len(above) > _DEEPEST:
            raise invalid_input("settings", type(value).__name__, f"to be nested at most {_DEEPEST} levels deep")
        elif _is_tensor(value) or isinstance(value, np.ndarray):
            yield from _array_tokens(value)
        elif isinstance(value, Enum):
            yield f"{type(value).__qualname__} {value.name}"
        elif isinstance(value, ModuleType):
            yield f"module {value.__name__.rpartition('.')[2]}"
        elif isinstance(value, BuiltinFunctionType) and isinstance(value.__self__, (ModuleType, type, type(None))):
            yield f"builtin {value.__qualname__}"
        elif isinstance(value, (FunctionType, type)) or _is_network(value):
            # Digest once and reuse it: shared helpers and large networks occur many times.
            if id(value) not in self._read:
                self._read[id(value)] = value, _hash(self._parts(value, above))
            yield self._read[id(value)][1]
        else:
            yield from self._parts(value, above)

    def _parts(self, value: Any, above: tuple[int, ...]) -> Iterator[str | bytes]:
        yield f"{type(value).__qualname__}("
        for name, part in _iterate_content(value):
            yield name
            yield from self.tokens(part, (*above, id(value)))
        yield ")"


def _is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_network(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _array_tokens(array: Any) -> Iterator[str | bytes]:
    yield f"{str(array.dtype).removeprefix('torch.')} {tuple(array.shape)}"
    if _is_tensor(array):  # reinterpreted as bytes, because NumPy lacks some types of torch, such as bfloat16
        yield array.detach().cpu().contiguous().flatten().view(sys.modules["torch"].uint8).numpy().tobytes()
    elif array.dtype.hasobject:
        yield content_digest(array.tolist())
    else:
        yield array.tobytes()


def _iterate_content(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the named parts of a value that determine its digest."""
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
        yield from (("", text) for text in sorted(content_digest(part) for part in value))  # sets have no order
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
    # Globals that the code reads. Modules and other objects are left out: their state is not part of a setting.
    for name in sorted(set(_globals_named(function.__code__))):
        found = function.__globals__.get(name)
        if isinstance(found, _FOLLOWED) or _is_tensor(found) or _is_network(found):
            yield f"global {name}", found


def _content_of_cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell: its name is bound later
        return None


def _globals_named(code: CodeType) -> Iterator[str]:
    """Yield the global names that a code object and its nested code objects load."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_named(constant)


def _content_of_class(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the name of a class and, unless it is installed, its methods, plain values and base classes."""
    yield "name", kind.__qualname__
    origin = _origin(kind)
    if origin is not None:
        yield "from", origin
        return
    for name, part in sorted(vars(kind).items()):
        plain = getattr(part, "fget", None) or getattr(part, "__func__", part)  # unwrap properties, static methods
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
        remedy = "Pass a function or a dataclass, which are compared by their content."
        raise invalid_input("settings", type(value).__name__, "to be comparable by content, not by address", remedy)
    else:
        yield "text", repr(value)


def _origin(part: Any) -> str | None:
    """Return the installed package that a function or class belongs to; None for code that must be read."""
    root = str(part.__module__).partition(".")[0]
    return "" if root in _KNOWN_BY_NAME else _installed_version(root)


@cache
def _installed_version(root: str) -> str | None:
    """Return name and version of an installed package; None for a package in a local folder."""
    module = sys.modules.get(root)
    places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
    if not any(_INSTALLED & set(Path(place).parts) for place in places):
        return None
    return f"{root} {getattr(module, '__version__', '')}".strip()

"""Everything that users can import is documented: parameters, results and an example that runs."""

import importlib
import inspect
import re
import types

import pytest

import reconrisk as rr

NAMESPACES = tuple(name for name in rr.__all__ if isinstance(getattr(rr, name), types.ModuleType))
MOST_NAMES = 60
MOST_PARAMETERS = 14
QUESTION_WORDS = re.compile(r"(what|who|whom|whose|how|whether|which|where|those|all that)\b", re.IGNORECASE)


def exported():
    """Every public object once, by the name that users write."""
    found = {}
    for name in rr.__all__:
        value = getattr(rr, name)
        if isinstance(value, types.ModuleType):
            for inner in value.__all__:
                found.setdefault(id(getattr(value, inner)), (f"rr.{name}.{inner}", getattr(value, inner)))
                if isinstance(getattr(value, inner), types.ModuleType):
                    found |= functions_of(f"rr.{name}.{inner}", getattr(value, inner))
        else:
            found[id(value)] = (f"rr.{name}", value)
    return dict(found.values())


def functions_of(prefix, module):
    """Public functions that a module of a namespace defines."""
    own = {name: value for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
    return {
        id(value): (f"{prefix}.{name}", value)
        for name, value in own.items()
        if inspect.isfunction(value) and not name.startswith("_")
    }


EXPORTED = exported()
FUNCTIONS = {name: value for name, value in EXPORTED.items() if inspect.isfunction(value)}
CLASSES = {name: value for name, value in EXPORTED.items() if inspect.isclass(value)}


def documented_parameters(text):
    """Names in the section ``Args:`` of a docstring."""
    section = re.search(r"^Args:\n((?:    .*\n|\n)*)", text + "\n", re.MULTILINE)
    return [] if section is None else re.findall(r"^    \*{0,2}(\w+):", section[1], re.MULTILINE)


def test_the_walk_finds_the_whole_api():
    assert {"rr.audit", "rr.bounds.fit_glm", "rr.bounds.risks.identification"} <= set(FUNCTIONS)
    assert len(FUNCTIONS) > 150
    assert len(CLASSES) > 50


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_functions_document_parameters_results_and_an_example(name):
    function = FUNCTIONS[name]
    text, signature = inspect.getdoc(function) or "", inspect.signature(function)
    parameters = [each for each in signature.parameters if not each.startswith("_")]
    assert documented_parameters(text) == parameters
    if signature.return_annotation not in (None, "None"):
        assert re.search(r"^(Returns|Yields):\n    \S", text, re.MULTILINE)
    assert ">>> " in text
    assert len(parameters) <= MOST_PARAMETERS


@pytest.mark.parametrize("name", sorted(EXPORTED))
def test_first_lines_are_statements(name):
    value = EXPORTED[name]
    if isinstance(value, (types.ModuleType, types.FunctionType, type)):
        first = (inspect.getdoc(value) or "").partition("\n")[0]
        assert first.endswith(".")
        assert QUESTION_WORDS.match(first) is None


def test_there_are_few_names():
    assert len(rr.__all__) <= MOST_NAMES


@pytest.mark.parametrize("name", NAMESPACES)
def test_namespaces_list_what_they_hold(name):
    module = importlib.import_module(f"reconrisk.{name}")
    assert module is getattr(rr, name)
    assert all(hasattr(module, each) for each in module.__all__)

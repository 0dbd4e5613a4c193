"""Figures of how the source reads, so that it stays readable: CONTRIBUTING.md has the rules."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TREES = {path: ast.parse(path.read_text()) for path in sorted((ROOT / "src").rglob("*.py"))}
QUESTION_WORDS = re.compile(r"(what|who|whom|whose|how|whether|which|where|those|all that)\b", re.IGNORECASE)
PARTICIPLE = re.compile(r"[a-z]+(ed|en|wn|id|ld|ft|nt)")
NOT_PARTICIPLES = re.compile(
    "build|rebuild|gradient|len|seed|embed|speed|feed|need|fold|hold|field|yield|find|valid|hidden|token|open|golden|"
    "even|print|paint|count|point|present|sent|mint|height"
)


def functions():
    """Every function with its file."""
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield path, node


def parameters(node):
    given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    return [each for each in given if each.arg not in ("self", "cls")]


def public_functions():
    """Functions of modules without underscore that have two parameters or more."""
    return [
        node
        for tree in TREES.values()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and len(parameters(node)) >= 2
    ]


def test_docstrings_begin_with_a_statement():
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
    texts = [ast.get_docstring(node) for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, kinds)]
    written = [text for text in texts if text]
    assert [text.partition("\n")[0] for text in written if QUESTION_WORDS.match(text)] == []


def test_few_functions_are_named_by_a_participle():
    names = [node.name.strip("_") for _, node in functions()]
    assert len([name for name in names if PARTICIPLE.fullmatch(name) and not NOT_PARTICIPLES.fullmatch(name)]) < 60


def test_public_functions_document_their_parameters():
    found = public_functions()
    documented = [node for node in found if "Args:" in (ast.get_docstring(node) or "")]
    assert len(documented) >= 0.9 * len(found), sorted(
        {node.name for node in found} - {node.name for node in documented}
    )


def test_no_function_has_more_than_14_parameters():
    """Commands have one parameter for each option."""
    wide = [(path, node.name) for path, node in functions() if len(parameters(node)) > 14]
    assert [(path.name, name) for path, name in wide if "cli" not in path.parts] == []


def test_the_front_page_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120

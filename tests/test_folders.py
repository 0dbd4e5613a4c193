"""Every folder of the package says in its docstring what it contains, and names only what exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "reconrisk"
FOLDERS = sorted(path.parent for path in PACKAGE.rglob("__init__.py"))
NAMES = [str(folder.relative_to(PACKAGE)) for folder in FOLDERS]


def docstring(file):
    return ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""


def named_paths(text):
    """Files and folders in double backticks, such as ``loop.py`` and ``matching/``."""
    return re.findall(r"``([\w./]*(?:\.(?:py|css|js|jinja)|/))``", text)


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_a_folder_says_what_it_contains(folder):
    text = docstring(folder / "__init__.py")
    assert len(text.splitlines()) >= 3, "a sentence about the folder, then the files in the order to read them"
    named = set(named_paths(text))
    inner = {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")}
    assert inner <= named, f"sub-folders that the docstring of {folder} does not name"


def test_files_that_module_docstrings_name_exist():
    missing = [
        (str(file.relative_to(PACKAGE)), name)
        for file in PACKAGE.rglob("*.py")
        for name in named_paths(docstring(file))
        if not any((base / name).exists() for base in (file.parent, PACKAGE, ROOT))
    ]
    assert missing == []

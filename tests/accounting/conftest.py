import importlib.util
from pathlib import Path

import pytest

_ORACLE = Path(__file__).parents[1] / "reference" / "characteristic_function.py"


@pytest.fixture(scope="session")
def true_success():
    """The oracle; loaded by path, because the folder of references is no package."""
    spec = importlib.util.spec_from_file_location("characteristic_function", _ORACLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.true_success

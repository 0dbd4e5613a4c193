"""Settings for every test: documents are executed, randomness is fixed, timings decide nothing."""

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two test workers share two cores
os.environ.setdefault("MPLBACKEND", "agg")

import hypothesis
import pytest
import torch
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

hypothesis.settings.register_profile("reconrisk", deadline=None, derandomize=True, max_examples=50, print_blob=True)
hypothesis.settings.load_profile("reconrisk")

# what is started in the background of a shell ignores Ctrl-C, which some tests send
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_collect_file = Sybil(parsers=[PythonCodeBlockParser()], patterns=["*.md"]).pytest()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Layers draw their first weights from torch's global state: the same ones in every order of the tests."""
    del item
    torch.manual_seed(int(os.environ.get("RECONRISK_TEST_SEED", "0")))

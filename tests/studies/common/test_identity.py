import torch

from reconrisk.core import VERSION
from reconrisk.studies.common.runs import current_environment


def test_the_environment_names_what_computes():
    versions = dict(current_environment().versions)
    assert versions["reconrisk"] == VERSION
    assert versions["torch"].startswith(torch.__version__.split("+")[0])
    assert current_environment().threads == torch.get_num_threads()

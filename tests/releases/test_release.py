"""Releases: records that occur twice."""

import torch

from reconrisk.releases.release import rows_among


def test_rows_are_found_by_content_in_any_shape_and_precision():
    records = torch.rand(6, 2, 3, generator=torch.Generator().manual_seed(0))
    known = records[[4, 1]].double()
    assert rows_among(records, known) == (1, 4)
    assert rows_among(records, records[:0]) == ()
    nearly = known + 1e-3
    assert rows_among(records, nearly) == ()


def test_minus_zero_is_zero():
    assert rows_among(torch.tensor([[0.0], [1.0]]), torch.tensor([[-0.0]])) == (0,)

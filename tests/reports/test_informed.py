import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file

import reconrisk.reports.informed as informed_report
from reconrisk.core.errors import InvalidInput
from reconrisk.core.storage.serialization import from_json
from reconrisk.data.dataset import Dataset
from reconrisk.studies.informed.linear import rebuild_informed_linear


def rebuilt(shape):
    rng = torch.Generator().manual_seed(0)
    data = Dataset("toy", torch.rand(20, *shape, generator=rng), torch.arange(20) % 2)
    return rebuild_informed_linear("logistic", data, [4, 5], rng=rng)


def test_images_have_target_estimate_and_neighbour_beside_each_other(tmp_path):
    found = rebuilt((1, 2, 2))
    written = [found.save(tmp_path / "new" / f"informed.{suffix}") for suffix in ("json", "safetensors", "png")]
    assert sorted((tmp_path / "new").iterdir()) == sorted(written)
    assert all(path.stat().st_mode & 0o077 == 0 for path in written)
    assert from_json(written[0].read_text()) == found.report
    stored = load_file(written[1])
    np.testing.assert_array_equal(stored["estimates"], found.estimates.numpy())
    assert stored["records"].tolist() == [4, 5]
    with Image.open(written[2]) as picture:
        pixels = np.asarray(picture.convert("L"))
    step = 128 + 8  # a picture is 64 times its 2 pixels wide, and a gap follows
    for place, panel in enumerate((found.targets, found.estimates, found.neighbours)):
        corner = float(panel[0, 0, 0, 0])
        assert pixels[2 * 18 + 18 + 5, 8 + place * step + 5] == pytest.approx(255 * corner, abs=1.5)


def test_tables_have_no_picture(tmp_path):
    with pytest.raises(InvalidInput, match=r"not images\. Save \.safetensors instead"):
        rebuilt((3,)).save(tmp_path / "informed.png")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_leaves_nothing_half_done(tmp_path, monkeypatch):
    def broken(arrays, path):
        path.write_bytes(b"half")
        raise OSError("disk is full")

    monkeypatch.setattr(informed_report, "save_file", broken)
    with pytest.raises(OSError, match="disk is full"):
        rebuilt((3,)).save(tmp_path / "informed.safetensors")
    assert list(tmp_path.iterdir()) == []

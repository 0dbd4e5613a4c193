import numpy as np
import pytest
from PIL import Image

from reconrisk.core.errors import InvalidInput
from reconrisk.reports.drawing import save_figure, write_comparison


def grey(path):
    with Image.open(path) as picture:
        return np.asarray(picture.convert("L")).astype(int)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_picture_with_both_panels_is_written(tmp_path, channels):
    dark, bright = np.zeros((channels, 8, 8), np.float32), np.ones((channels, 8, 8), np.float32)
    path = write_comparison(
        tmp_path / "new" / "x.png",
        [("target", dark), ("estimate", bright)],
        title="title",
        scores={"mse": 1.0},
        data_range=(0.0, 1.0),
    )
    pixels = grey(path)
    left, right = pixels[:, : pixels.shape[1] // 2], pixels[:, pixels.shape[1] // 2 :]
    assert (left == 0).mean() > 0.3 > (right == 0).mean()
    beneath = pixels[-30:]
    assert (beneath < 128).any()  # the scores
    assert list((tmp_path / "new").iterdir()) == [path]


def test_the_data_range_is_mapped_to_black_and_white(tmp_path):
    middle = np.zeros((1, 8, 8), np.float32)  # the middle of [-1, 1]
    path = write_comparison(tmp_path / "x.png", [("t", middle)], title="", scores={}, data_range=(-1.0, 1.0))
    pixels = grey(path)
    assert ((pixels > 120) & (pixels < 135)).mean() > 0.3


def test_what_is_no_picture_is_refused_and_nothing_written(tmp_path):
    with pytest.raises(InvalidInput, match="1 or 3 channels"):
        write_comparison(
            tmp_path / "out" / "x.png", [("t", np.zeros((8, 8)))], title="", scores={}, data_range=(0.0, 1.0)
        )
    assert list(tmp_path.iterdir()) == []


def test_a_failure_while_drawing_keeps_the_old_file_and_leaves_no_other(tmp_path):
    class Broken:
        def savefig(self, path, dpi):
            path.write_bytes(b"half")
            raise OSError("disk full")

    target = tmp_path / "x.png"
    target.write_text("old")
    with pytest.raises(OSError, match="disk full"):
        save_figure(Broken(), target)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file

from reconrisk.core.errors import InvalidInput
from reconrisk.core.reconstruction import AttackReport, Cost, Ending, Status
from reconrisk.core.storage.serialization import from_json
from reconrisk.core.threat import HONEST_BUT_CURIOUS
from reconrisk.reports.rebuild import write_grid
from reconrisk.studies.rebuild.report import MetricScores, RebuildReport
from reconrisk.studies.rebuild.updates import Rebuilt

RANGE = (0.0, 1.0)


def report(count, shape, data_range=RANGE, scored=True):
    numbers = tuple(float(number) for number in range(count))
    status = Status(Ending.CONVERGED, "done")
    return RebuildReport(
        attack="dlg",
        settings="dlg()",
        model="m",
        data="toy",
        release="gradient",
        defense="none",
        threat=HONEST_BUT_CURIOUS,
        shape=shape,
        data_range=data_range,
        batch_size=count,
        requested=count,
        records=tuple(range(10, 10 + count)),
        updates=(0,) * count,
        labels=("cat",) * count,
        inferred=(),
        objective=numbers,
        scores=(MetricScores("psnr()", "psnr", True, numbers, numbers),) if scored else (),
        accounts=(AttackReport("dlg()", status, numbers, Cost(1.0, 1)),),
        seed=0,
    )


def pixels(path):
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB")).astype(int)


def test_three_files_that_hold_report_estimates_and_picture(tmp_path):
    targets, estimates = torch.zeros(2, 1, 8, 8), torch.full((2, 1, 8, 8), 0.25)
    result = Rebuilt(report(2, (1, 8, 8)), estimates, targets)
    suffixes = ("json", "safetensors", "png")
    written = [result.save(tmp_path / "new" / "out" / f"attack.{suffix}") for suffix in suffixes]
    assert sorted((tmp_path / "new" / "out").iterdir()) == sorted(written)
    assert {path.stat().st_mode & 0o777 for path in written} == {0o600}
    assert from_json(written[0].read_text()) == result.report
    stored = load_file(written[1])
    assert np.array_equal(stored["estimates"], estimates.numpy())
    assert stored["records"].tolist() == [10, 11]
    drawn = pixels(written[2])
    # 8 pixels are enlarged 16 times; beside the three panels 8 pixels each, and never narrower than 480
    assert drawn.shape == (2 * 18 + 2 * (128 + 18 + 8), 480, 3)
    panels = [drawn[54 : 54 + 128, left : left + 128] for left in (8, 144, 280)]
    for panel, value in zip(panels, (0, 64, 64), strict=True):  # original, rebuilt, difference; 0.25 * 255 is 64
        assert (panel == value).all()


def test_differences_are_black_where_there_are_none_in_any_range(tmp_path):
    same = torch.full((1, 3, 8, 8), 0.5)
    drawn = pixels(Rebuilt(report(1, (3, 8, 8), (-1.0, 1.0)), same, same).save(tmp_path / "x.png"))
    assert (drawn[54:182, 8:136] == 191).all()  # (0.5 + 1) / 2
    assert (drawn[54:182, 280:408] == 0).all()


def test_a_captured_update_shows_what_was_rebuilt(tmp_path):
    result = Rebuilt(report(1, (1, 8, 8), scored=False), torch.ones(1, 1, 8, 8), None)
    drawn = pixels(result.save(tmp_path / "x.png"))
    assert drawn.shape == (2 * 18 + 128 + 18 + 8, 480, 3)


def test_beside_what_was_rebuilt_of_a_captured_update_is_what_was_guessed_without_it(tmp_path):
    shown = torch.ones(1, 1, 8, 8)
    alone, beside = (
        pixels(Rebuilt(report(1, (1, 8, 8), scored=False), shown, None, guesses).save(tmp_path / f"{name}.png"))
        for name, guesses in (("alone", None), ("beside", torch.zeros(1, 1, 8, 8)))
    )
    assert (alone == 0).all(2).sum() + 128**2 <= (beside == 0).all(2).sum()  # the guess is black


def test_tables_have_no_picture(tmp_path):
    result = Rebuilt(report(1, (4,)), torch.ones(1, 4), torch.zeros(1, 4))
    with pytest.raises(InvalidInput, match=r"not images\. Save \.safetensors instead"):
        result.save(tmp_path / "attack.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("channels", "tiles", "across", "below"), [(1, 1, 1, 1), (2, 2, 2, 1), (3, 1, 1, 1), (5, 5, 3, 2)]
)
def test_any_number_of_channels_is_drawn(tmp_path, channels, tiles, across, below):
    picture = np.zeros((channels, 64, 64), np.float32)
    path = write_grid(tmp_path / "x.png", ["rebuilt"], [("a", [picture])], title="t", data_range=RANGE)
    factor = max(1, 128 // (64 * across))
    assert pixels(path).shape[0] == 2 * 18 + 64 * below * factor + 18 + 8
    black = (pixels(path)[54:-8].sum(2) == 0).sum()
    assert black == tiles * 64 * 64 * factor**2


def test_pictures_keep_their_proportions_and_large_ones_their_size(tmp_path):
    tall = np.zeros((1, 300, 20), np.float32)
    drawn = pixels(write_grid(tmp_path / "x.png", ["a"], [("", [tall])], title="", data_range=RANGE))
    assert drawn.shape[0] == 2 * 18 + 300 + 18 + 8
    assert (drawn[54:354, 8:28] == 0).all()
    assert (drawn[54:354, 28:] == 255).all()


def test_many_rows_are_set_in_columns(tmp_path):
    rows = [(str(number), [np.zeros((1, 128, 128), np.float32)] * 3) for number in range(27)]
    drawn = pixels(write_grid(tmp_path / "x.png", ["a", "b", "c"], rows, title="t", data_range=RANGE))
    block = 3 * (128 + 8) + 16
    assert drawn.shape == (2 * 18 + 9 * (128 + 18 + 8), 3 * block, 3)
    assert (drawn[54:182, 8 + 2 * block : 136 + 2 * block] == 0).all()


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [("a", [np.zeros((1, 8, 8), np.float32)] * 2)],
        [("a", [np.zeros((1, 8, 8), np.float32)]), ("b", [np.zeros((1, 9, 8), np.float32)])],
        [("a", [np.zeros((8, 8), np.float32)])],
    ],
)
def test_what_is_no_grid_is_refused_and_nothing_written(tmp_path, rows):
    with pytest.raises(InvalidInput):
        write_grid(tmp_path / "out" / "x.png", ["a"], rows, title="", data_range=RANGE)
    assert list(tmp_path.iterdir()) == []

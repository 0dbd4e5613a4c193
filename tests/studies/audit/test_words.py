import pytest
import torch

import reconrisk as rr
from reconrisk.core.guarantee import Estimate
from reconrisk.data.dataset import Dataset
from reconrisk.releases.release import ForwardRelease
from reconrisk.studies.audit.words import format_percent, write_sentence, write_table

INPUTS = torch.rand(6, 2, generator=torch.Generator().manual_seed(0))
DATA = Dataset("toy", INPUTS, torch.zeros(6, dtype=torch.int64))
RELEASE = ForwardRelease(lambda inputs, labels: {"y": inputs.sum(0)}, INPUTS, DATA.labels)


@pytest.fixture(scope="module")
def result():
    noise = rr.defenses.clip_and_noise(noise_multiplier=3.0, clip_norm=1.0)
    options = {"attacks": ["gauss_newton"], "goals": ["psnr>=20", "mse<=0.1"], "max_risk": "psnr>=20: 10%"}
    return rr.audit(RELEASE, DATA, defenses=[None, noise], trials=3, budget=None, **options)


def test_the_sentence_names_every_defense_the_first_goal_the_bound_and_the_limit(result):
    words = write_sentence(result)
    assert words == result.sentence
    assert words.startswith(
        "From one update of 1 record, with the goal psnr>=20: without a defense, gauss_newton rebuilds 100%"
    )
    assert "under clip_and_noise(noise_multiplier=3, clip_norm=1)" in words
    assert "no covered adversary rebuilds more than" in words
    assert "psnr>=20: 10%" in words
    assert "mse<=0.1" not in words


def test_the_table_has_a_row_for_every_line(result):
    head, *rows = write_table(result).splitlines()
    assert head.split()[:3] == ["goal", "defense", "success"]
    for line, row in zip(result.lines, rows, strict=False):
        assert row.startswith(str(line.goal))
        assert line.defense in row
        assert line.verdict.value in row
        assert format_percent(line.success) in row
    assert result.table() == write_table(result)
    assert str(result) == f"{write_table(result)}\n\n{result.sentence}"


def test_the_bound_of_a_line_is_the_smallest_that_was_compared(result):
    without, noisy = result.lines[:2]
    assert without.bound is None
    values = [each.guarantee.value for each in noisy.comparisons if each.is_compared]
    assert noisy.bound.value == min(values)


def test_the_sentence_says_plainly_that_no_attack_was_run():
    noise = rr.defenses.clip_and_noise(noise_multiplier=3.0, clip_norm=1.0)
    stopped = rr.audit(RELEASE, DATA, defenses=[None, noise], attacks=["gauss_newton"], trials=3, budget=1e-6)
    assert stopped.sentence.startswith(
        "From one update of 1 record, with the goal psnr>=20: without a defense, no attack was run to its end; under "
    )
    assert (
        "no attack was run to its end, and no covered adversary rebuilds more than" in stopped.sentence
    )  # what is proved needs no trial
    assert "not run of records" not in stopped.sentence


def test_what_was_not_run_is_said():
    assert format_percent(Estimate(0.0, 0.0, 1.0, 0.95, 0, "nothing was run")) == "not run"


def test_the_table_ends_with_every_guarantee_once_compared_or_why_not(result):
    text = write_table(result)
    comparisons = [each for line in result.lines for each in line.comparisons]
    assert any(each.is_compared for each in comparisons)
    assert any(not each.is_compared for each in comparisons)
    for each in comparisons:
        (said,) = [row for row in text.splitlines() if f": {each.guarantee}; " in row]
        assert each.guarantee.scope.value in said
        if each.is_compared:
            assert f"compared, tightness {each.tightness:.2g}" in said
        else:
            assert f"not compared: {each.why}" in said
    first = next(line for line in result.lines if line.comparisons)
    assert f"\n{first.goal} under {first.defense}: " in text.replace(", mse<=0.1", "")

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = Path(__file__).with_name("killed_audits.py")
TRIALS = 12 * 4  # updates, and two attacks beside two guesses

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="audits are forked, which this system cannot do")


def driven(*words):
    done = subprocess.run(
        [sys.executable, str(DRIVER), *map(str, words)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    return folder, driven("kill", folder, 6)


def test_an_audit_killed_ten_times_comes_to_the_result_of_one_that_was_not(killed):
    _, found = killed
    assert (found["kills"], found["exit"]) == (10, 0)
    assert len(found["whole"]["trials"]) == TRIALS
    assert found["killed"] == found["whole"]
    assert None not in found["killed"]["estimates"]


def test_no_trial_that_was_kept_is_computed_again(killed):
    folder, _ = killed
    log = [json.loads(line) for line in (folder / "killed.log").read_text().splitlines()]
    begun = [tuple(key) for word, *key in log if word == "begun"]
    assert len(set(begun)) == TRIALS
    assert len(begun) <= TRIALS + 10  # a kill ends at most the one trial that was being computed
    kept = set()
    for word, *key in log:
        assert not (word == "begun" and tuple(key) in kept), key
        if word == "kept":
            kept.add(tuple(key))


def test_what_killed_processes_leave_behind_is_no_more_than_one_file_each(killed):
    folder, found = killed
    files = sorted(path.name for path in (folder / "killed.db.arrays").rglob("*.safetensors"))
    assert len([name for name in files if not name.startswith("tmp")]) == TRIALS
    assert len(files) <= TRIALS + found["kills"]


def test_audits_side_by_side_on_one_store_come_to_what_each_comes_to_alone(tmp_path):
    found = driven("side_by_side", tmp_path)
    assert found["exits"] == [0, 0, 0]
    assert found["trials"] == [TRIALS, TRIALS]
    for alone, shared in found["pairs"]:
        assert shared == alone
    assert found["pairs"][0] != found["pairs"][1]

import os
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.core.reconstruction import AttackReport, Cost, Ending, Status
from reconrisk.data.dataset import Dataset
from reconrisk.studies.audit import store as store_file
from reconrisk.studies.audit import store as store_module
from reconrisk.studies.audit.result import Standing
from reconrisk.studies.audit.run import audit
from reconrisk.studies.audit.store import VERSION, Store
from reconrisk.studies.common.runs import RunInfo, Trial, TrialKey, TrialScores

OLD_STORE = Path(__file__).with_name("store_of_version_1.db")
"""An audit of a linear model on three records, kept by the release before stable tags."""

INFO = RunInfo("abc123", "2026-01-01T00:00:00+00:00", "Linear", "d1", "rr.audit(...)", '{"seed": 0}')
QUICK = {"attacks": ["analytic"], "budget": None}


def trial(draw=0, attack="analytic", *, settings="Analytic()", seconds=0.5, score=20.0):
    account = AttackReport("Analytic(estimate=1)", Status(Ending.EXACT, "solved"), (0.0,), Cost(seconds, 3))
    key = TrialKey("none", attack, draw)
    return Trial(key, (7,), 2**63 - 1, (TrialScores("psnr", (score,)),), account, settings=settings)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new" / "audit.db"


@pytest.fixture(scope="module")
def tiny():
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    return nn.Linear(4, 2), Dataset("toy", torch.rand(20, 4, generator=generator), torch.arange(20) % 2)


def filled(path, count=3):
    with Store.open(path) as store:
        store.begin(INFO)
        for draw in range(count):
            store.add(INFO.run, trial(draw), torch.full((1, 2), float(draw)))
    return path


@pytest.mark.parametrize("where", ["file", "memory"])
def test_what_is_kept_comes_back(path, where):
    with Store.open(path if where == "file" else None) as store:
        store.begin(INFO)
        store.begin(replace(INFO, created="later"))
        store.add(INFO.run, trial(), torch.ones(1, 2))
        assert store.info("a") == INFO
        assert store.trials(INFO.run) == (trial(),)
        assert store.trials("another") == ()
        assert torch.equal(store.estimates(INFO.run, trial().key), torch.ones(1, 2))
        assert store.estimates(INFO.run, trial(1).key) is None


def test_scores_that_are_no_numbers_come_back(path):
    with Store.open(path) as store:
        store.begin(INFO)
        for draw, score in enumerate((float("inf"), float("-inf"))):
            store.add(INFO.run, trial(draw, score=score), torch.full((1, 2), float("nan")))
        assert [each.values("psnr") for each in store.trials(INFO.run)] == [(float("inf"),), (float("-inf"),)]


def test_a_trial_with_other_settings_replaces_the_one_before_and_its_estimates(path):
    with Store.open(path) as store:
        store.begin(INFO)
        store.add(INFO.run, trial(), torch.zeros(1, 2))
        store.add(INFO.run, trial(settings="Analytic(2)"), torch.ones(1, 2))
        assert [each.settings for each in store.trials(INFO.run)] == ["Analytic(2)"]
        assert torch.equal(store.estimates(INFO.run, trial().key), torch.ones(1, 2))
    assert len(list(path.parent.rglob("*.safetensors"))) == 1


def test_estimates_that_were_written_before_their_trial_was_not_do_no_harm(path, monkeypatch):
    filled(path, 1)
    with Store.open(path) as store:
        monkeypatch.setattr(store_module, "to_json", lambda value: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            store.add(INFO.run, trial(settings="Analytic(2)"), torch.ones(1, 2))
        monkeypatch.undo()
        assert store.trials(INFO.run) == (trial(),)
        assert torch.equal(store.estimates(INFO.run, trial().key), torch.zeros(1, 2))
        store.add(INFO.run, trial(settings="Analytic(2)"), torch.ones(1, 2))
        assert torch.equal(store.estimates(INFO.run, trial().key), torch.ones(1, 2))
    assert len(list(path.parent.rglob("*.safetensors"))) == 1


def test_lost_or_damaged_estimates_are_none(path):
    filled(path, 2)
    first, second = sorted(path.parent.rglob("*.safetensors"))
    first.unlink()
    second.write_bytes(b"\x00" * 7)
    with Store.read(path) as store:
        assert [store.estimates(INFO.run, trial(draw).key) for draw in (0, 1)] == [None, None]
        assert len(store.trials(INFO.run)) == 2


def test_old_leftovers_of_killed_writes_are_removed_and_new_ones_stay(path):
    folder = next(iter({file.parent for file in filled(path).parent.rglob("*.safetensors")}))
    old, new = folder / "tmpold.safetensors", folder / "tmpnew.safetensors"
    old.write_bytes(b"private")
    new.write_bytes(b"being written")
    os.utime(old, (time.time() - 7200,) * 2)
    with Store.open(path) as store:
        store.begin(INFO)
    assert (old.exists(), new.exists(), len(list(folder.iterdir()))) == (False, True, 4)


def test_summaries_count_trials_and_time_of_every_run(path):
    with Store.open(filled(path)) as store:
        store.begin(replace(INFO, run="def456", created="2026-01-02T00:00:00+00:00", data="d2"))
        first, second = store.runs()
    assert (first.run, first.data, first.trials, first.seconds, first.sentence) == ("abc123", "d1", 3, 1.5, None)
    assert (second.run, second.trials, second.seconds, second.planned) == ("def456", 0, 0.0, None)


def test_listing_reads_no_trial(path):
    with Store.open(filled(path)) as store:
        plan = "\n".join(row[-1] for row in store._connection.execute(f"EXPLAIN QUERY PLAN {store_module._SUMMARIES}"))
    assert "USING COVERING INDEX cost" in plan


def test_summaries_of_finished_runs_have_name_verdict_and_worst_standing(path, tiny):
    result = audit(*tiny, trials=3, store=path, **QUICK, max_risk=["psnr>=20: 1%", "mse<=0.05: 100%"])
    assert {check.standing for line in result.lines for check in line.limits} == {Standing.ABOVE, Standing.MEASURED}
    with Store.read(path) as store:
        (found,) = store.runs()
        assert (found.data, found.standing, found.sentence) == ("toy", Standing.ABOVE.value, result.sentence)
        assert (found.trials, found.planned, found.run) == (result.done, result.planned, result.run)
        assert store.result(result.run[:4]) == result
        assert store.result() == result
        assert found.seconds == pytest.approx(sum(attack.seconds for attack in result.attacks))


def test_more_trials_add_to_those_that_are_there(path, tiny, monkeypatch):
    few = audit(*tiny, trials=2, store=path, **QUICK)
    with Store.read(path) as store:
        before = set(store.trials(few.run))
    more = audit(*tiny, trials=5, store=path, **QUICK)
    with Store.read(path) as store:
        assert more.run == few.run
        assert before < set(store.trials(few.run))


def test_other_public_records_are_another_run(path, tiny):
    model, data = tiny
    first = audit(model, data, trials=1, store=path, **QUICK, options=rr.AuditOptions(public=data.subset(range(5))))
    second = audit(
        model, data, trials=1, store=path, **QUICK, options=rr.AuditOptions(public=data.subset(range(5, 10)))
    )
    assert first.run != second.run


def test_runs_are_found_by_the_beginning_of_their_name(path):
    with Store.open(filled(path)) as store:
        for run in ("abd999", "abc12345"):
            store.begin(replace(INFO, run=run, created="2026-01-02T00:00:00+00:00"))
        assert store.name("abd") == "abd999"
        assert store.name("abc123") == "abc123"  # a whole name, though another begins so
        assert store.name() == "abc12345"
        with pytest.raises(InvalidInput, match=r"one run. .*abd999.* begin with it"):
            store.name("ab")
        with pytest.raises(InvalidInput, match=r"Expected run='abd998' .* one of .*abc123.*Did you mean abd999\?"):
            store.name("abd998")


def test_many_runs_are_not_all_named_in_an_error(path):
    with Store.open(path) as store:
        for number in range(20):
            store.begin(replace(INFO, run=f"{number:06d}"))
        with pytest.raises(InvalidInput, match=r"000019, .*000012 and 12 older ones"):
            store.name("x")


def test_a_run_without_result_says_what_to_do(path):
    with (
        Store.read(filled(path)) as store,
        pytest.raises(InvalidInput, match=r"'abc123' to have a result.*Run the same"),
    ):
        store.result("abc")


def test_a_store_without_runs_says_so(path):
    with Store.open(path) as store, pytest.raises(InvalidInput, match="found none"):
        store.result()


@pytest.mark.skipif(os.name == "nt", reason="other permissions")
def test_only_the_owner_can_read_what_depends_on_private_records(path):
    with Store.open(path) as store:
        store.begin(INFO)
        store.add(INFO.run, trial(), torch.ones(1, 2))
        made = [file for file in path.parent.rglob("*") if file != path.parent]
        assert {file.suffix for file in made} >= {".db", ".db-wal", ".safetensors"}
        assert {stat.S_IMODE(file.stat().st_mode) & 0o077 for file in made} == {0}


def contents_of(folder):
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def other_database(path, *, kind=0, version=0):
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE precious (value)")
        connection.execute(f"PRAGMA application_id = {kind}")
        connection.execute(f"PRAGMA user_version = {version}")


@pytest.mark.parametrize("opening", [Store.open, Store.read])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_text("my thesis"), "not an SQLite file. Name a store.*Nothing was changed"),
        (lambda path: path.mkdir(), "it is a folder"),
        (other_database, "database of another program"),
        (lambda path: other_database(path, version=1), "database of another program"),
        (
            lambda path: other_database(path, kind=0x52524953, version=VERSION + 1),
            f"store of version {VERSION + 1}, written by a later reconrisk; this one reads version {VERSION}. Update",
        ),
        (
            lambda path: path.write_bytes(OLD_STORE.read_bytes()),
            f"store of version 1, written by an earlier reconrisk; this one reads version {VERSION}. Choose a new "
            "path, or use the version of reconrisk that wrote it. Nothing was changed",
        ),
        (lambda path: path.write_bytes(b"SQLite format 3\x00" + b"\xff" * 5000), "is damaged|not a database"),
    ],
)
def test_what_is_no_store_is_refused_and_not_touched(tmp_path, opening, make, message):
    path = tmp_path / "thing"
    make(path)
    before = contents_of(tmp_path)
    with pytest.raises(InvalidFile, match=message), opening(path):
        pass
    assert contents_of(tmp_path) == before


def test_a_store_that_is_read_must_be_there(path):
    with pytest.raises(InvalidFile, match="there is no such file"), Store.read(path):
        pass
    assert not path.parent.exists()


def test_a_store_that_is_read_cannot_be_written(path):
    with Store.read(filled(path)) as store, pytest.raises(InvalidFile, match="readonly"):
        store.begin(replace(INFO, run="new"))


def test_a_store_where_nobody_may_write_can_be_read(path, monkeypatch):
    filled(path)
    monkeypatch.setattr(store_file.os, "access", lambda *_: False)
    before = sorted(path.parent.iterdir())
    with Store.read(path) as store:
        assert len(store.trials("abc123")) == 3
        assert sorted(path.parent.iterdir()) == before


@pytest.mark.parametrize("beginning", [b"", b"killed"])
def test_a_store_whose_making_was_cut_short_is_made(path, beginning):
    path.parent.mkdir()
    path.touch()
    if beginning:  # the journal mode was set, and then the process was killed
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
    with pytest.raises(InvalidFile, match="it is empty"), Store.read(path):
        pass
    filled(path)
    with Store.read(path) as store:
        assert len(store.trials("abc123")) == 3


def test_damage_inside_is_an_error_that_names_the_file(path):
    filled(path, 200)
    whole = path.read_bytes()
    path.write_bytes(whole[:8192] + b"\xa5" * (len(whole) - 8192))
    with pytest.raises(InvalidFile, match=r"audit.db.*damaged"), Store.read(path) as store:
        store.trials(INFO.run)


@pytest.mark.parametrize("text", ["{", '{"kind": "gaussian", "noise_multiplier": 1.0}', '{"kind": "trial"}', "[]"])
def test_a_damaged_trial_is_an_error_that_names_its_run(path, text):
    filled(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE trials SET trial = ? WHERE draw = 1", (text,))
    with Store.read(path) as store, pytest.raises(InvalidFile, match=r"trials of run abc123.*damaged"):
        store.trials(INFO.run)


def add_many(store, count):
    for draw in range(count):
        store.add(INFO.run, trial(draw), torch.ones(1, 2))


def fill_up(store):
    """Let the file grow no more, as on a full disk."""
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count = {pages}")


def test_a_full_disk_refuses_the_trial_keeps_those_before_and_lets_it_go_on(path):
    with Store.open(filled(path, 1)) as store:
        fill_up(store)
        with pytest.raises(InvalidFile, match=r"full. Free space .* it resumes"):
            add_many(store, 200)
        kept = len(store.trials(INFO.run))
        assert 1 <= kept < 200
    with Store.open(path) as store:
        assert store._connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        store.add(INFO.run, trial(kept), torch.ones(1, 2))
        assert len(store.trials(INFO.run)) == kept + 1


def test_a_disk_too_full_for_estimates_refuses_the_trial(path, monkeypatch):
    def write(path, write, *, secret):
        raise OSError(28, "No space left on device")

    with Store.open(filled(path)) as store:
        monkeypatch.setattr(store_module, "write_atomically", write)
        with pytest.raises(InvalidFile, match=r"analytic, draw 9: No space left on device. Free space"):
            store.add(INFO.run, trial(9), torch.ones(1, 2))
        assert len(store.trials(INFO.run)) == 3


def test_an_audit_ends_at_a_full_disk_and_goes_on_when_there_is_space(path, tiny, monkeypatch):
    connect = store_module.connect

    def limited(path):
        connection = connect(path)
        connection.execute("PRAGMA max_page_count = 14")
        return connection

    monkeypatch.setattr(store_module, "connect", limited)
    with pytest.raises(InvalidFile, match=r"full. Free space"):
        audit(*tiny, trials=40, store=path, **QUICK)
    monkeypatch.undo()
    with Store.read(path) as store:
        (found,) = store.runs()
    result = audit(*tiny, store=path, trials=40, **QUICK)
    assert result.is_complete
    assert 0 < found.trials < result.done
    assert result.lines == audit(*tiny, trials=40, **QUICK).lines


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_disk_that_is_really_full(tmp_path):
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", tmp_path], check=False)
    if mounted.returncode != 0:
        pytest.skip("mounting is not permitted")
    try:
        path = tmp_path / "audit.db"
        with Store.open(path) as store:
            store.begin(INFO)
            with pytest.raises(InvalidFile, match="Free space on the disk"):
                add_many(store, 1000)
            kept = len(store.trials(INFO.run))
            assert 0 < kept < 1000
        for file in tmp_path.rglob("*.safetensors"):
            file.unlink()
        with Store.open(path) as store:
            store.add(INFO.run, trial(kept), torch.ones(1, 2))
            assert len(store.trials(INFO.run)) == kept + 1
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_store_held_for_long_says_so(path, monkeypatch):
    monkeypatch.setattr(store_file, "_BUSY_SECONDS", 0.05)
    filled(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with Store.open(path) as store, pytest.raises(InvalidFile, match=r"locked. Another process"):
            store.add(INFO.run, trial(9), torch.ones(1, 2))
        other.execute("ROLLBACK")
    with Store.open(path) as store:
        store.add(INFO.run, trial(9), torch.ones(1, 2))
        assert len(store.trials(INFO.run)) == 4


WRITER = """
import sys
import threading
from dataclasses import replace
from reconrisk.studies.audit.store import connect, transaction
connection = connect(__import__("pathlib").Path(sys.argv[1]))
for number in range(200):
    with transaction(connection):
        connection.execute("INSERT OR REPLACE INTO runs (run, created, subject, data, info) VALUES (?, '', '', '', '')",
                           (f"{sys.argv[2]}{number}",))
"""


def test_processes_that_make_and_fill_one_store_at_once_lose_nothing(path):
    words = [sys.executable, "-c", WRITER, str(path)]
    writers = [subprocess.Popen([*words, name], stderr=subprocess.PIPE, text=True) for name in ("a", "b", "b", "c")]
    errors = [writer.communicate()[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * 4, errors
    with Store.read(path) as store:
        assert len(store.runs()) == 600


def test_listing_loads_no_torch(path):
    filled(path)
    program = (
        "import sys; from reconrisk.studies.audit.store import Store\n"
        "with Store.read(sys.argv[1]) as store: store.runs(), store.trials('abc123')\n"
        "sys.exit('torch' in sys.modules or 'scipy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(path)], check=False).returncode == 0


def test_a_path_relative_to_here_is_read(path, monkeypatch):
    monkeypatch.chdir(filled(path).parent)
    with Store.read(Path("audit.db")) as store:
        assert len(store.runs()) == 1


@pytest.mark.parametrize("name", ["a?b#c%20.db", "ünï.db", "it's.db"])
def test_any_name_can_be_that_of_a_store(tmp_path, name):
    filled(tmp_path / name)
    with Store.read(tmp_path / name) as store:
        assert len(store.trials("abc123")) == 3
    assert sorted(file.name for file in tmp_path.iterdir()) == [name, f"{name}.arrays"]


def test_a_transaction_that_fails_leaves_nothing(path):
    with closing(store_file.connect(path)) as connection:
        twice = "INSERT INTO runs (run, created, subject, data, info) VALUES (?, '', '', '', '')"
        with pytest.raises(sqlite3.IntegrityError), store_file.transaction(connection):
            connection.executemany(twice, [("a",), ("a",)])
        assert connection.execute("SELECT COUNT(*) FROM runs").fetchone() == (0,)


def test_making_a_store_waits_for_another_process_that_is_making_it(path):
    path.parent.mkdir()
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("PRAGMA journal_mode = WAL")
    other.execute("PRAGMA journal_mode = DELETE")
    other.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.3, other.close)
    timer.start()
    try:
        with Store.open(path) as store:
            store.begin(INFO)
    finally:
        timer.join()


def test_a_store_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InvalidFile, match="Choose a folder"), Store.open(tmp_path / "file" / "audit.db"):
        pass
    assert (tmp_path / "file").read_text() == "mine"


def test_trials_come_update_by_update_however_long_they_took(path):
    with Store.open(path) as store:
        store.begin(INFO)
        for draw, seconds in ((1, 0.1), (0, 0.2), (2, 0.0)):
            for attack in ("b", "a"):
                store.add(INFO.run, trial(draw, attack, seconds=seconds), torch.ones(1, 2))
        keys = [each.key for each in store.trials(INFO.run)]
    assert [(key.draw, key.attack) for key in keys] == [(d, a) for d in range(3) for a in "ab"]

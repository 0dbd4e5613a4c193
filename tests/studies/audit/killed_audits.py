"""Audits in processes that are killed or run side by side; started by ``test_store_kill.py``.

One process loads torch and forks a child for every audit, which is fast and, with a single thread, safe.
"""

import json
import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

import reconrisk as rr
from reconrisk.core.reconstruction import Cost
from reconrisk.data.dataset import Dataset
from reconrisk.studies.audit.run import audit
from reconrisk.studies.audit.store import Store
from reconrisk.studies.common.experiment import Experiment

KILLS = 10
UPDATES = 12
ATTACKS = ("analytic", ("inverting_gradients", {"steps": 5}))


def run_audit(store, *, seed=0):
    data = Dataset("toy", torch.rand(40, 1, 3, 3, generator=torch.Generator().manual_seed(1)), torch.arange(40) % 2)
    torch.manual_seed(2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 4), nn.Sigmoid(), nn.Linear(4, 2))
    return audit(
        model, data, trials=UPDATES, attacks=ATTACKS, store=store, options=rr.AuditOptions(seed=seed), budget=None
    )


def log_trials(path):
    """Write down which trials are begun and which are kept, in the order in which that happens."""
    begin, keep = Experiment.trial, Store.add

    def note(word, key):
        with path.open("a") as file:
            file.write(json.dumps([word, key.defense, key.attack, key.draw]) + "\n")

    def trial(self, key):
        note("begun", key)
        return begin(self, key)

    def add(self, run, trial, estimates):
        keep(self, run, trial, estimates)
        note("kept", trial.key)

    Experiment.trial, Store.add = trial, add


def die_at_line(number):
    """Kill this process at a line of the code that writes trials, the ``number``-th that is executed."""
    left = number

    def count(frame, event, _):
        nonlocal left
        name = Path(frame.f_code.co_filename).name
        if name not in ("store.py", "store_file.py", "files.py"):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return count

    sys.settrace(count)


def forked(act):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    return child


def normalised(trial):
    return replace(trial, account=replace(trial.account, cost=Cost(0.0, trial.account.cost.evaluations)))


def contents(store, run=None):
    """What a run has come to, without what differs from one to the next by its nature."""
    with Store.read(store) as opened:
        result = opened.result(run)
        found = sorted(opened.trials(result.run), key=lambda trial: repr(trial.key))
        estimates = [opened.estimates(result.run, trial.key) for trial in found]
    attacks = tuple(replace(attack, seconds=0.0) for attack in result.attacks)
    plain = replace(result, created="", seconds=0.0, attacks=attacks)
    rebuilt = [None if each is None else each.nan_to_num(-1.0).tolist() for each in estimates]
    return {"result": repr(plain), "trials": [repr(normalised(each)) for each in found], "estimates": rebuilt}


def kill(folder, seed):
    """An audit killed ten times, and one that was not."""
    chance = random.Random(seed)
    run_audit(None)  # children start with everything loaded
    begun = time.monotonic()
    os.waitpid(forked(lambda: logged_audit(folder, "whole")), 0)
    seconds = time.monotonic() - begun
    kills = 0
    for attempt in range(4 * KILLS):
        at_line = chance.randrange(1, 250) if attempt % 2 else None
        child = forked(lambda at_line=at_line: logged_audit(folder, "killed", at_line))
        if at_line is None:
            time.sleep(chance.uniform(0, seconds / 4))
            os.kill(child, signal.SIGKILL)
        kills += os.WIFSIGNALED(os.waitpid(child, 0)[1])
        if kills == KILLS:
            break
    last = os.waitstatus_to_exitcode(os.waitpid(forked(lambda: logged_audit(folder, "killed")), 0)[1])
    return {"kills": kills, "exit": last} | {name: contents(folder / f"{name}.db") for name in ("whole", "killed")}


def logged_audit(folder, name, at_line=None):
    log_trials(folder / f"{name}.log")
    if at_line is not None:
        die_at_line(at_line)
    run_audit(folder / f"{name}.db")


def side_by_side(folder):
    """Two audits with seeds of their own and one more of the first seed at once on one store, and each alone."""
    run_audit(None)
    children = [forked(lambda seed=seed: run_audit(folder / "shared.db", seed=seed)) for seed in (0, 1, 0)]
    exits = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    found = []
    for seed in (0, 1):
        run = run_audit(folder / f"alone{seed}.db", seed=seed).run
        found.append([contents(folder / f"alone{seed}.db"), contents(folder / "shared.db", run)])
    with Store.read(folder / "shared.db") as shared:
        return {"exits": exits, "pairs": found, "trials": [run.trials for run in shared.runs()]}


if __name__ == "__main__":
    torch.set_num_threads(1)
    outcome = kill(Path(sys.argv[2]), int(sys.argv[3])) if sys.argv[1] == "kill" else side_by_side(Path(sys.argv[2]))
    sys.stdout.write(json.dumps(outcome))

"""A store with 100,000 trials of 20 runs: all runs listed and two of them compared; the result is the trials listed.

Runs are of 4,096 records under two defenses. Ours reads counts and times from an index and compares the results that
runs left; peers parse every trial. The last contender is what an audit reads that goes on where it was.
"""

from __future__ import annotations

import atexit
import json
import sqlite3
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from reconrisk.core.storage.serialization import from_json, to_json
from reconrisk.data.dataset import Dataset
from reconrisk.defenses import prune
from reconrisk.studies.audit.comparison import compare
from reconrisk.studies.audit.result import AuditResult, Exposure
from reconrisk.studies.audit.run import audit
from reconrisk.studies.audit.store import Store
from reconrisk.studies.common.runs import Trial

RUNS, TRIALS, POPULATION = 20, 5000, 4096


def _audited(path: Path) -> tuple[AuditResult, tuple[Trial, ...]]:
    """A small audit whose trials and result are then copied."""
    rng = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    data = Dataset("toy", torch.rand(40, 1, 3, 3, generator=rng), torch.arange(40) % 2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 4), nn.Sigmoid(), nn.Linear(4, 2))
    attacks = ["analytic", ("inverting_gradients", {"steps": 2})]
    defenses = [None, prune(0.5)]
    result = audit(model, data, trials=4, attacks=attacks, defenses=defenses, store=path, budget=None)
    with Store.read(path) as store:
        return result, store.trials(result.run)


def _store() -> Path:
    """A store in a folder that goes away with the process."""
    folder = tempfile.TemporaryDirectory(prefix="reconrisk-")
    atexit.register(folder.cleanup)
    path = Path(folder.name) / "audit.db"
    result, trials = _audited(path)
    exposures = tuple(
        Exposure(defense.label, record, "analytic", record, 0, 20.0, (True, False))
        for defense in result.defenses
        for record in range(POPULATION)
    )
    with Store.open(path) as store:
        info = store.info()
        store._connection.execute("DELETE FROM runs")
        store._connection.execute("DELETE FROM trials")
        for number in range(RUNS):
            run = f"{number:012x}"
            store.begin(replace(info, run=run))
            store.finish(run, replace(result, run=run, exposures=exposures, seed=number))
            store._connection.execute("BEGIN")
            store._connection.executemany("INSERT INTO trials VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", _rows(run, trials))
            store._connection.execute("COMMIT")
    return path


def _rows(run: str, trials: tuple[Trial, ...]) -> list[tuple[object, ...]]:
    rows = []
    for number in range(TRIALS):
        original = trials[number % len(trials)]
        trial = replace(original, key=replace(original.key, draw=number))
        account = trial.account
        key = (run, trial.key.defense, trial.key.attack, number)
        rows.append((*key, account.status.ending.value, account.cost.seconds, 0, "none", to_json(trial)))
    return rows


def ours() -> Callable[[], object]:
    """Counts from the index, results as they were left."""
    path = _store()

    def work() -> object:
        with Store.read(path) as store:
            listed = store.runs()
            before, after = (store.result(f"{run:012x}", with_exposures=False) for run in (0, 1))
            compare(before, after)
        return sum(run.trials for run in listed)

    return work


def listing() -> Callable[[], object]:
    """Listing alone."""
    path = _store()

    def work() -> object:
        with Store.read(path) as store:
            return sum(run.trials for run in store.runs())

    return work


def naive_json() -> Callable[[], object]:
    """Every trial parsed by the json module: counted and timed by run, and success counted anew for two runs."""
    path = _store()

    def work() -> object:
        counts: dict[str, int] = {}
        seconds: dict[str, float] = {}
        reached: dict[tuple[str, str, str], int] = {}
        for run, text in sqlite3.connect(path).execute("SELECT run, trial FROM trials"):
            trial = json.loads(text)
            counts[run] = counts.get(run, 0) + 1
            seconds[run] = seconds.get(run, 0.0) + trial["account"]["cost"]["seconds"]
            if run in ("000000000000", "000000000001"):
                key = (run, trial["key"]["defense"], trial["key"]["attack"])
                hits = sum(float(value) >= 20 for value in trial["scores"][0]["values"])
                reached[key] = reached.get(key, 0) + hits
        return sum(counts.values())

    return work


def one_run() -> Callable[[], object]:
    """The 5,000 trials of one run as objects, which an audit reads that goes on."""
    path = _store()

    def work() -> object:
        rows = sqlite3.connect(path).execute("SELECT trial FROM trials WHERE run = '000000000000'")
        return sum(len(from_json(text).records) for (text,) in rows)

    return work


CONTENDERS = {
    "reconrisk": ours,
    "reconrisk, listing alone": listing,
    "json of every trial": naive_json,
    "trials of one run as objects": one_run,
}

"""Figure 6 of guo2022: the CIFAR-10 pictures that leak most and least while a ConvNet trains with DP-SGD.

The paper says that the exposed ones are hard to classify and the others typical: told here by the network itself. The
small scale trains on pictures of half the side, averaged, for fewer steps; it draws them in full.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, cross_entropy

from reconrisk.data import load_dataset
from reconrisk.data.dataset import Dataset
from reconrisk.integrations.fisher_accountant.account import FisherAccount, average_accounts
from reconrisk.integrations.fisher_accountant.accountant import FisherAccountant
from reconrisk.models import guo2022_cifar10
from reconrisk.reports.leakage import Record, write_leakage
from reproductions.frame import Drawing, Finding, Scale, need_data, reproduce
from reproductions.guo2022.figure3 import rank_correlation
from reproductions.private_training import Setting, accuracy, private_steps, record_logits

SETTING = Setting(noise_multiplier=0.5, step_size=0.1, clip_norm=1.0, batch=200)
RECORDS = 50_000
SHOWN = 8


@dataclass(frozen=True)
class Plan:
    """What a scale trains: steps, runs, by how much pictures shrink, and which records to track."""

    steps: int
    runs: int
    shrink: int
    tracked: int | None
    records_per_step: int | None
    probes: int


PLANS = {
    "small": Plan(steps=300, runs=1, shrink=2, tracked=300, records_per_step=20, probes=2),
    "paper": Plan(steps=5000, runs=10, shrink=1, tracked=None, records_per_step=None, probes=2),
}


@dataclass(frozen=True, eq=False)
class Run:
    """What one training showed: its account, and logits of the tracked records and accuracy at its end."""

    account: FisherAccount
    logits: Tensor
    accuracy: float


def run(scale: Scale) -> Sequence[Finding | Drawing]:
    """Leakage of every tracked picture, and how well the network classifies those that leak most and least."""
    need_data()
    plan, train, test = PLANS[scale], load_dataset("cifar-10", split="train"), load_dataset("cifar-10", split="test")
    small, unseen = (_shrunk(data, plan.shrink) for data in (train, test))
    runs = [_trained(plan, small, unseen, seed) for seed in range(plan.runs)]
    account = average_accounts([each.account for each in runs])
    labels = train.class_labels[account.records]
    losses = torch.stack([cross_entropy(each.logits, labels, reduction="none") for each in runs]).mean(0)
    hits = torch.stack([(each.logits.argmax(1) == labels).double() for each in runs]).mean(0)
    mean = sum(each.accuracy for each in runs) / len(runs)
    return [
        *_findings(account, losses, hits, mean, _remark(plan, small, len(labels))),
        Drawing("figure6.png", partial(_draw, account, train)),
    ]


def _shrunk(dataset: Dataset, factor: int) -> Dataset:
    return dataset if factor == 1 else replace(dataset, inputs=avg_pool2d(dataset.inputs, factor))


def _trained(plan: Plan, train: Dataset, test: Dataset, seed: int) -> Run:
    rng = torch.Generator().manual_seed(seed)
    model = guo2022_cifar10(train.shape, rng=rng)
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    accountant = FisherAccountant(
        model,
        train.inputs,
        train.class_labels,
        records=None if plan.tracked is None else order[: plan.tracked],
        records_per_step=plan.records_per_step,
        probes=plan.probes,
        clip="smooth",
    )
    for _ in private_steps(model, train, SETTING, steps=plan.steps, accountants=[accountant], rng=rng):
        pass
    account = accountant.account()
    return Run(account, record_logits(model, train.inputs[account.records]), accuracy(model, test))


def _remark(plan: Plan, train: Dataset, tracked: int) -> str:
    incomplete = f", incomplete: {len(train):,} of {RECORDS:,} records" if len(train) != RECORDS else ""
    side = train.shape[-1]
    return f"{SETTING}, T {plan.steps}, {side}x{side}, {tracked:,} records tracked, runs: {plan.runs}{incomplete}"


def _findings(account: FisherAccount, losses: Tensor, hits: Tensor, test: float, remark: str) -> list[Finding]:
    leakage = account.dfil()
    order = leakage.argsort(descending=True)
    fifth = len(order) // 5
    ends = [f"{hits[part].mean():.3f}" for part in (order[:fifth], order[-fifth:])]
    spread = " / ".join(f"{value:.3g}" for value in (leakage.max(), leakage.median(), leakage.min()))
    error = (account.standard_errors / account.traces).median()
    bounds = f"{1 / leakage.max():.3g} / {1 / leakage.median():.3g}"
    return [
        Finding("Figure 6, CIFAR-10: test accuracy", "-", f"{test:.4f}", remark),
        Finding("dFIL, largest / median / least", "-", f"{spread}; median relative error {error:.2g}", remark),
        Finding("MSE bound from the largest / median dFIL", "-", bounds, remark),
        Finding(
            "accuracy on the fifth of the tracked records with most / least dFIL",
            "most: difficult even for humans; least: typical, easy",
            " / ".join(ends),
            remark,
        ),
        Finding(
            "rank correlation of dFIL and final loss",
            "positive, by eye",
            rank_correlation(leakage.numpy(), losses.numpy()),
            remark,
        ),
    ]


def _draw(account: FisherAccount, train: Dataset, path: Path) -> None:
    """The paper captions the root of what it calls dFIL."""
    order = account.dfil().argsort(descending=True)
    roots = account.dfil().sqrt()
    names = train.classes or tuple(map(str, range(10)))

    def shown(part: Tensor) -> list[tuple[str, Record]]:
        rows = [(int(place), int(account.records[place])) for place in part]
        return [
            (f"{names[int(train.class_labels[record])]}\n{roots[place]:.3g}", train.inputs[record].numpy())
            for place, record in rows
        ]

    rows = [("most dFIL", shown(order[:SHOWN])), ("least dFIL", shown(order[-SHOWN:].flip(0)))]
    write_leakage(path, rows, data_range=train.data_range, note="class and root of dFIL above each record")


if __name__ == "__main__":
    sys.exit(reproduce(run))

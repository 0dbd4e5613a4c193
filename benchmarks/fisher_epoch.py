"""An epoch of DP-SGD with Opacus with and without the Fisher accountant on every record: 60,000 digits, batch 600.

The accountant is asked for 10 % relative standard error; "without" is the epoch alone, so one over its number is the
price. The result of ours is the median relative standard error at the end, over probes and choice of steps. The digits
are those of MNIST where RECONRISK_DATA names a folder that holds them, else the bundled ones repeated.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.data import load_dataset
from reconrisk.integrations.fisher_accountant.accountant import FisherAccountant
from reconrisk.models import guo2022_mnist

RECORDS, BATCH = 60_000, 600
RELATIVE_ERROR = 0.1


def digits() -> tuple[Tensor, Tensor]:
    """All 60,000 training digits, or as many from repeating the bundled ones."""
    try:
        found = load_dataset("mnist-full", split="train")
    except (InvalidFile, InvalidInput):
        found = load_dataset("mnist", split="train")
    rows = torch.arange(RECORDS) % len(found)
    return found.inputs[rows], found.class_labels[rows]


def _epoch(*, account: bool) -> Callable[[], float | None]:
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    inputs, labels = digits()

    def epoch() -> float | None:
        torch.manual_seed(0)
        model = guo2022_mnist(rng=torch.Generator().manual_seed(0))
        accountant = FisherAccountant(model, inputs, labels, relative_error=RELATIVE_ERROR) if account else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Opacus warns about its generator and about full backward hooks
            private, optimizer, loader = PrivacyEngine().make_private(
                module=model,
                optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5),
                data_loader=DataLoader(TensorDataset(inputs, labels), batch_size=BATCH),
                noise_multiplier=1.0,
                max_grad_norm=1.0,
            )
            if accountant is not None:
                accountant.attach(optimizer, loader, total_steps=len(loader))
            for records, targets in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(private(records), targets).backward()
                optimizer.step()
        return None if accountant is None else _probe_error(accountant)

    return epoch


def _probe_error(accountant: FisherAccountant) -> float:
    account = accountant.account()
    return float((account.standard_errors / account.traces).median())


def ours() -> Callable[[], float | None]:
    """With the accountant on all records."""
    return _epoch(account=True)


def without() -> Callable[[], float | None]:
    """Opacus alone."""
    return _epoch(account=False)


CONTENDERS = {"with the accountant (ours)": ours, "without": without}

"""The state of a Fisher account as named tensors, and its file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from reconrisk.core.digest import content_digest
from reconrisk.core.errors import InvalidFile
from reconrisk.core.storage.files import write_whole
from reconrisk.core.validation import invalid_input
from reconrisk.integrations.fisher_accountant.account import FisherAccount, TrainingPhase
from reconrisk.integrations.fisher_accountant.checks import checked_clip, checked_indices, checked_subsampling
from reconrisk.integrations.fisher_accountant.ledger import InformationLedger

_REMEDY = "Pass a file or state that the accountant of these records wrote."
_LEDGER = "ledger."
_OWN = ("fingerprint", "phases", "probes", "rng")
_FORMAT = 2  # of the digests in a fingerprint
_DIGITS = 15  # hexadecimal, as many as fit into a whole number of torch


@dataclass(frozen=True, eq=False)
class AccountSettings:
    """What an account was kept with, as far as it must be known to read it: ``records`` are those tracked."""

    subsampling: str
    delta: float | None
    clip: str
    block: int | None
    records: Tensor

    def fingerprint(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Tracked records and settings in a few numbers: enough to notice a mix-up."""
        kinds = (self.subsampling, self.delta, checked_clip(self.clip).__name__, self.block)
        settings = (*kinds, self.records, tuple(inputs.shape), str(labels.dtype))
        digests = (content_digest(part)[:_DIGITS] for part in (settings, (inputs, labels)))
        return torch.tensor([_FORMAT, *(int(digest, 16) for digest in digests)], dtype=torch.int64)

    def account(
        self, ledger: InformationLedger | None, phases: Sequence[TrainingPhase], inputs: Tensor
    ) -> FisherAccount:
        """What a ledger knows of the tracked records."""
        if ledger is None:
            raise invalid_input("steps", 0, ">= 1", "Train first: attach the accountant or call step().")
        return FisherAccount(
            traces=ledger.totals(),
            standard_errors=ledger.standard_errors(),
            least=ledger.finished.clone(),
            degrees=ledger.degrees,
            dimension=inputs[0].numel(),
            records=self.records.clone(),
            phases=tuple(phases),
            overshoot=checked_clip(self.clip)(1.0).largest_norm,
            subsampling=self.subsampling,
            resolution=float(torch.finfo(inputs.dtype).eps),
        )

    def tensors(self) -> dict[str, Tensor]:
        """The settings as :func:`_settings_from_state` reads them."""
        text = json.dumps([self.subsampling, self.delta, self.clip, self.block])
        return {"settings": torch.tensor(list(text.encode()), dtype=torch.uint8), "records": self.records.clone()}


def _settings_from_state(state: Mapping[str, Tensor], count: int) -> AccountSettings:
    """The settings of an account of some of ``count`` records."""
    if "settings" not in state or "records" not in state:
        raise invalid_input("state", sorted(state), "to have 'settings' and 'records'", _REMEDY)
    try:
        subsampling, delta, clip, block = json.loads(bytes(state["settings"].tolist()))
        checked_clip(clip)
    except (TypeError, ValueError) as error:
        raise invalid_input("settings", "unreadable", "to be subsampling, delta, clip and block", _REMEDY) from error
    records = checked_indices(state["records"], count)
    return AccountSettings(*checked_subsampling(subsampling, delta), clip, block, records)


def read_account(path: str | Path, inputs: Tensor, labels: Tensor) -> FisherAccount:
    """The account in a file that an accountant of these records wrote, whatever its settings and its model.

    Guarantee: an account of other records or labels is refused.
    """
    state = read_state(path)
    settings = _settings_from_state(state, len(inputs))
    tracked, theirs = (each[settings.records.to(each.device)] for each in (inputs, labels))
    ledger, phases, _ = split_state(state, len(tracked), settings.fingerprint(tracked, theirs))
    return settings.account(ledger, phases, tracked)


def merged_state(
    ledger: InformationLedger | None,
    phases: Sequence[TrainingPhase],
    probes: int | None,
    rng: torch.Generator,
    fingerprint: Tensor,
    settings: AccountSettings,
) -> dict[str, Tensor]:
    """All of it under names; phases as rows of noise multiplier, clip norm, rate, Poisson or not, steps."""
    rows = [(p.noise_multiplier, p.clip_norm, p.sampling_probability, float(p.poisson), p.steps) for p in phases]
    state = {
        "fingerprint": fingerprint,
        "phases": torch.tensor(rows, dtype=torch.float64).reshape(-1, 5),
        "probes": torch.tensor(probes or 0),
        "rng": rng.get_state(),
        **settings.tensors(),
    }
    return state if ledger is None else {**state, **{_LEDGER + k: v for k, v in ledger.tensors().items()}}


def split_state(
    state: Mapping[str, Tensor], records: int, fingerprint: Tensor
) -> tuple[InformationLedger | None, list[TrainingPhase], int | None]:
    """What :func:`merged_state` merged, if it is of these records and settings."""
    for name in _OWN:
        if name not in state:
            raise invalid_input("state", sorted(state), f"to have {name!r}", _REMEDY)
    found = state["fingerprint"].cpu()
    if found.shape != fingerprint.shape or int(found[0]) != _FORMAT:
        raise invalid_input("state", "of another version of reconrisk", "to be of this one", _REMEDY)
    if not torch.equal(found, fingerprint):
        same_settings = int(found[1]) == int(fingerprint[1])
        what = "records or labels" if same_settings else "settings or number of records"
        raise invalid_input("fingerprint", found.tolist(), f"to be {fingerprint.tolist()}", f"Other {what}.")
    rows = state["phases"].tolist()
    phases = [TrainingPhase(noise, clip, rate, bool(poisson), int(n)) for noise, clip, rate, poisson, n in rows]
    probes = int(state["probes"]) or None
    entries = {name[len(_LEDGER) :]: value.cpu() for name, value in state.items() if name.startswith(_LEDGER)}
    if not entries:
        return None, phases, probes
    if "block" not in entries:
        raise invalid_input("state", sorted(state), "to have 'ledger.block'", _REMEDY)
    ledger = InformationLedger(records, int(entries["block"]))
    ledger.restore(entries)
    return ledger, phases, probes


def write_state(path: str | Path, state: Mapping[str, Tensor]) -> None:
    """Write a safetensors file beside its place and move it there, so that a failure leaves the old file."""
    write_whole(path, lambda temporary: save_file(dict(state), temporary), secret=True)


def read_state(path: str | Path) -> Mapping[str, Tensor]:
    """The tensors of a file that :func:`write_state` wrote, whatever its suffix; anything else is refused."""
    path = Path(path)
    if not path.is_file():
        raise InvalidFile(path, "file", "There is no such file.", _REMEDY)
    try:
        return load_file(path)
    except Exception as error:  # on foreign bytes the parser raises nearly anything
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise InvalidFile(path, "whole file", f"It cannot be read as safetensors ({cause}).", _REMEDY) from error

"""State of a Fisher account as named tensors, and its file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from reconrisk.core.digest import content_digest
from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.core.storage.files import write_atomically
from reconrisk.core.validation import invalid_input
from reconrisk.integrations.fisher_accountant.account import FisherAccount, TrainingPhase
from reconrisk.integrations.fisher_accountant.checks import check_indices, check_subsampling, clip_by_name
from reconrisk.integrations.fisher_accountant.ledger import InformationLedger

_REMEDY = "Pass a file or state that the accountant of these records wrote."
_LEDGER = "ledger."  # prefix of the entries of the ledger
_OWN = ("fingerprint", "phases", "probes", "rng")  # entries that every state has
_FORMAT = 2  # version of the fingerprint
_DIGITS = 15  # hexadecimal digits of a digest: 60 bits fit into an int64


@dataclass(frozen=True, eq=False)
class AccountSettings:
    """Settings of an account that are needed to read it.

    Attributes:
        subsampling: Factor for amplification by sampling: ``"exact"``, ``"none"`` or ``"guo2022"``.
        delta: Delta of ``"guo2022"``, or None.
        clip: ``"hard"`` or ``"smooth"``.
        block: Records per step if the user chose it, or None.
        records: Indices of the tracked records.
    """

    subsampling: str
    delta: float | None
    clip: str
    block: int | None
    records: Tensor

    def compute_fingerprint(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return digests of settings and tracked records as a few numbers, enough to notice a mix-up.

        Args:
            inputs: Tracked records.
            labels: Their labels.

        Returns:
            Three integers: version of the format, digest of the settings, digest of the records.
        """
        kinds = (self.subsampling, self.delta, clip_by_name(self.clip).__name__, self.block)
        settings = (*kinds, self.records, tuple(inputs.shape), str(labels.dtype))
        digests = (content_digest(part)[:_DIGITS] for part in (settings, (inputs, labels)))
        return torch.tensor([_FORMAT, *(int(digest, 16) for digest in digests)], dtype=torch.int64)

    def make_account(
        self, ledger: InformationLedger | None, phases: Sequence[TrainingPhase], inputs: Tensor
    ) -> FisherAccount:
        """Return the account of a ledger.

        Args:
            ledger: Running estimates; None before the first step, which is refused.
            phases: Settings of the training.
            inputs: Tracked records.

        Returns:
            The account, with copies of the tensors of the ledger.
        """
        if ledger is None:
            raise InvalidInput(
                "Expected at least one accounted step, got 0. Train with the accountant attached, or call step()."
            )
        return FisherAccount(
            traces=ledger.totals(),
            standard_errors=ledger.standard_errors(),
            least=ledger.finished.clone(),
            degrees=ledger.degrees,
            dimension=inputs[0].numel(),
            records=self.records.clone(),
            phases=tuple(phases),
            overshoot=clip_by_name(self.clip)(1.0).largest_norm,
            subsampling=self.subsampling,
            resolution=float(torch.finfo(inputs.dtype).eps),
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return the settings as tensors for :func:`_settings_from_state`."""
        text = json.dumps([self.subsampling, self.delta, self.clip, self.block])
        # as bytes, because safetensors stores tensors only
        return {"settings": torch.tensor(list(text.encode()), dtype=torch.uint8), "records": self.records.clone()}


def _settings_from_state(state: Mapping[str, Tensor], count: int) -> AccountSettings:
    """Return the settings in a state of an account of some of ``count`` records."""
    if "settings" not in state or "records" not in state:
        raise invalid_input("names in state", sorted(state), "to include 'settings' and 'records'", _REMEDY)
    try:
        subsampling, delta, clip, block = json.loads(bytes(state["settings"].tolist()))
        clip_by_name(clip)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"Expected state['settings'] to hold subsampling, delta, clip and block, but it is unreadable. {_REMEDY}"
        ) from error
    records = check_indices(state["records"], count)
    return AccountSettings(*check_subsampling(subsampling, delta), clip, block, records)


def read_account(path: str | Path, inputs: Tensor, labels: Tensor) -> FisherAccount:
    """Read the account from a file that an accountant of these records wrote, for any settings and model.

    Args:
        path: Path of the file.
        inputs: All training records.
        labels: Their labels.

    Returns:
        The account.

    Raises:
        InvalidFile: If the file cannot be read.
        InvalidInput: If it belongs to other records or labels, or to another version of the format.

    Guarantee: an account of other records or labels is refused.
    """
    state = read_state(path)
    settings = _settings_from_state(state, len(inputs))
    tracked, theirs = (each[settings.records.to(each.device)] for each in (inputs, labels))
    ledger, phases, _ = split_state(state, len(tracked), settings.compute_fingerprint(tracked, theirs))
    return settings.make_account(ledger, phases, tracked)


def merge_state(
    ledger: InformationLedger | None,
    phases: Sequence[TrainingPhase],
    probes: int | None,
    rng: torch.Generator,
    fingerprint: Tensor,
    settings: AccountSettings,
) -> dict[str, Tensor]:
    """Return the full state of an accountant as named tensors.

    Args:
        ledger: Running estimates; None before the first step.
        phases: Settings of the training, stored as rows of noise multiplier, clip norm, rate, Poisson or not, steps.
        probes: Number of random directions that the trial evaluation chose, or None.
        rng: Generator of random directions and of the order of records.
        fingerprint: Digests from :meth:`AccountSettings.compute_fingerprint`.
        settings: Settings of the account.

    Returns:
        Tensors by name.
    """
    rows = [(p.noise_multiplier, p.clip_norm, p.sampling_probability, float(p.poisson), p.steps) for p in phases]
    state = {
        "fingerprint": fingerprint,
        "phases": torch.tensor(rows, dtype=torch.float64).reshape(-1, 5),
        "probes": torch.tensor(probes or 0),  # 0 for None
        "rng": rng.get_state(),
        **settings.tensors(),
    }
    return state if ledger is None else {**state, **{_LEDGER + k: v for k, v in ledger.tensors().items()}}


def split_state(
    state: Mapping[str, Tensor], records: int, fingerprint: Tensor
) -> tuple[InformationLedger | None, list[TrainingPhase], int | None]:
    """Return the parts of a state from :func:`merge_state`.

    Args:
        state: Tensors by name.
        records: Number of tracked records.
        fingerprint: Digests of the present records and settings.

    Returns:
        Ledger, phases and number of probes.

    Raises:
        InvalidInput: If the state is incomplete, of another version, or of other records or settings.
    """
    for name in _OWN:
        if name not in state:
            raise invalid_input("names in state", sorted(state), f"to include {name!r}", _REMEDY)
    found = state["fingerprint"].cpu()
    if found.shape != fingerprint.shape or int(found[0]) != _FORMAT:
        raise InvalidInput(f"Expected a state of this version of reconrisk, got one of another version. {_REMEDY}")
    if not torch.equal(found, fingerprint):
        same_settings = int(found[1]) == int(fingerprint[1])
        what = "records or labels" if same_settings else "settings or number of records"
        raise invalid_input(
            "fingerprint", found.tolist(), f"to be {fingerprint.tolist()}", f"Pass the {what} of the saved account."
        )
    rows = state["phases"].tolist()
    phases = [TrainingPhase(noise, clip, rate, bool(poisson), int(n)) for noise, clip, rate, poisson, n in rows]
    probes = int(state["probes"]) or None
    entries = {name[len(_LEDGER) :]: value.cpu() for name, value in state.items() if name.startswith(_LEDGER)}
    if not entries:
        return None, phases, probes
    if "block" not in entries:
        raise invalid_input("names in state", sorted(state), "to include 'ledger.block'", _REMEDY)
    ledger = InformationLedger(records, int(entries["block"]))
    ledger.restore(entries)
    return ledger, phases, probes


def write_state(path: str | Path, state: Mapping[str, Tensor]) -> None:
    """Write a safetensors file atomically: a failure leaves the old file.

    Args:
        path: Path of the file, readable by its owner only.
        state: Tensors by name.
    """
    write_atomically(path, lambda temporary: save_file(dict(state), temporary), secret=True)


def read_state(path: str | Path) -> Mapping[str, Tensor]:
    """Read the tensors of a file that :func:`write_state` wrote, whatever its suffix.

    Args:
        path: Path of the file.

    Returns:
        Tensors by name.

    Raises:
        InvalidFile: If there is no such file, or it is not safetensors.
    """
    path = Path(path)
    if not path.is_file():
        raise InvalidFile(path, "file", "There is no such file.", _REMEDY)
    try:
        return load_file(path)
    except Exception as error:  # the parser raises many types on other content
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise InvalidFile(
            path, "whole file", f"Expected a safetensors file, found other content ({cause}).", _REMEDY
        ) from error

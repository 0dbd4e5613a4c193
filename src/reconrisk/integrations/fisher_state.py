"""The state of a Fisher account as named tensors, and its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from reconrisk.core.errors import InvalidFile
from reconrisk.core.files import write_whole
from reconrisk.core.validation import refuse
from reconrisk.integrations.fisher_account import TrainingPhase
from reconrisk.integrations.fisher_ledger import InformationLedger

_REMEDY = "Pass a file or state that the accountant of these records wrote."
_LEDGER = "ledger."
_OWN = ("fingerprint", "phases", "probes", "rng")


def merged_state(
    ledger: InformationLedger | None,
    phases: Sequence[TrainingPhase],
    probes: int | None,
    rng: torch.Generator,
    fingerprint: Tensor,
) -> dict[str, Tensor]:
    """All of it under names; phases as rows of noise multiplier, clip norm, rate, Poisson or not, steps."""
    rows = [(p.noise_multiplier, p.clip_norm, p.sampling_probability, float(p.poisson), p.steps) for p in phases]
    state = {
        "fingerprint": fingerprint,
        "phases": torch.tensor(rows, dtype=torch.float64).reshape(-1, 5),
        "probes": torch.tensor(probes or 0),
        "rng": rng.get_state(),
    }
    return state if ledger is None else {**state, **{_LEDGER + k: v for k, v in ledger.tensors().items()}}


def split_state(
    state: Mapping[str, Tensor], records: int, fingerprint: Tensor
) -> tuple[InformationLedger | None, list[TrainingPhase], int | None]:
    """What :func:`merged_state` merged, if it is of these records and settings."""
    for name in _OWN:
        if name not in state:
            raise refuse("state", sorted(state), f"to have {name!r}", _REMEDY)
    if not torch.equal(state["fingerprint"].cpu(), fingerprint):
        same_settings = int(state["fingerprint"][0]) == int(fingerprint[0])
        what = "records or labels" if same_settings else "settings or number of records"
        raise refuse("fingerprint", state["fingerprint"].tolist(), f"to be {fingerprint.tolist()}", f"Other {what}.")
    rows = state["phases"].tolist()
    phases = [TrainingPhase(noise, clip, rate, bool(poisson), int(n)) for noise, clip, rate, poisson, n in rows]
    probes = int(state["probes"]) or None
    entries = {name[len(_LEDGER) :]: value.cpu() for name, value in state.items() if name.startswith(_LEDGER)}
    if not entries:
        return None, phases, probes
    if "block" not in entries:
        raise refuse("state", sorted(state), "to have 'ledger.block'", _REMEDY)
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

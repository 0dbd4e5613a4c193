"""The frame of every reproduction: ``python -m reproductions.<paper>.<figure> --scale small|paper``.

A reproduction is a function from a scale to findings; this file parses the command, runs it, and appends one row per
finding to ``RESULTS.md`` with the command and the commit. The small scale ends within ten minutes on two cores.
Pictures are drawn only where ``--out FOLDER`` says so.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.core.guarantee import Estimate
from reconrisk.data import data_folders

Scale = Literal["small", "paper"]

RESULTS = Path(__file__).with_name("RESULTS.md")

HEADER = """# What the papers report, and what comes out here

Each row is appended by the script in its command; none is written by hand. Rows are never removed: where a later commit
changes a number, both stay.

| paper | what | paper's number | ours | scale | seconds | command | commit |
|---|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Finding:
    """One number of a paper beside ours; ``remark`` says what differs between the two settings, if anything."""

    what: str
    paper: str
    ours: Estimate | str
    remark: str = ""


@dataclass(frozen=True)
class Drawing:
    """A paper's picture redrawn: ``write`` makes the file, which is called ``name``, at the path it gets."""

    name: str
    write: Callable[[Path], object]


def reproduce(run: Callable[[Scale], Sequence[Finding | Drawing]], *, argv: Sequence[str] | None = None) -> int:
    """Run a reproduction from the command line and record its findings; the exit code is 2 without its data."""
    module = run.__module__ if run.__module__ != "__main__" else sys.modules["__main__"].__spec__.name
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=run.__doc__)
    parser.add_argument("--scale", choices=["small", "paper"], default="small")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file to append to")
    parser.add_argument("--out", type=Path, help="folder for pictures; without it none is drawn")
    options = parser.parse_args(argv)
    if options.out is not None and options.out.exists() and not options.out.is_dir():
        parser.error(f"--out {options.out} is a file, a folder is needed")
    begun = time.monotonic()
    try:
        results = run(options.scale)
    except (InvalidInput, InvalidFile) as error:
        print(f"{module}: {error}", file=sys.stderr)
        return 2
    seconds = time.monotonic() - begun
    command = f"python -m {module} --scale {options.scale}"
    findings = [each for each in results if isinstance(each, Finding)]
    rows = [_row(module, finding, options.scale, seconds, command) for finding in findings]
    _append(options.results, rows)
    print("".join(rows), end="")
    if options.out is not None:
        _draw(options.out, [each for each in results if isinstance(each, Drawing)])
    return 0


def need_data() -> None:
    """Refuse to start where ``RECONRISK_DATA`` names no folder with the papers' data sets."""
    if not any(folder.exists for folder in data_folders()):
        given = os.environ.get("RECONRISK_DATA")
        raise InvalidInput(f"Expected RECONRISK_DATA={given!r} to name a folder with data sets. See docs/data.md.")


def _draw(folder: Path, drawings: Sequence[Drawing]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for drawing in drawings:
        drawing.write(folder / drawing.name)
        print(f"drawn {folder / drawing.name}")


def _row(module: str, finding: Finding, scale: Scale, seconds: float, command: str) -> str:
    paper = module.split(".")[1]
    what = finding.what + (f" ({finding.remark})" if finding.remark else "")
    cells = [paper, what, finding.paper, str(finding.ours), scale, f"{seconds:.0f}", f"`{command}`", _commit()]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _commit() -> str:
    """The short hash of the code that ran, with a mark if the tree had uncommitted changes outside the results."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "..", ":!RESULTS.md")
        return git("rev-parse", "--short", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "no repository"


def _append(path: Path, rows: Sequence[str]) -> None:
    text = path.read_text() if path.exists() else HEADER
    temporary = path.with_suffix(".new")
    temporary.write_text(text + "".join(rows))
    temporary.replace(path)

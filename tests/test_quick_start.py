import os
import re
import subprocess
import sys
from pathlib import Path

from reconrisk.core.storage.serialization import from_json

README = Path(__file__).parents[1] / "README.md"


def test_the_quick_start_ends_in_a_report_in_ten_lines(tmp_path):
    parts = r"## Audit your own model\n.*?```py\n(.*?)```\n\nIt prints:\n\n```text\n(.*?)```"
    found = re.search(parts, README.read_text(), re.DOTALL)
    program, printed = found.groups()
    assert len([line for line in program.splitlines() if line.strip()]) <= 10
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit.html", "audit.json"]
    result = from_json((tmp_path / "audit.json").read_text())
    assert result.is_complete
    assert " ".join(done.stdout.split()) == " ".join(printed.split()) == result.sentence
    # what the text below it says, whatever the weights and records that are drawn
    bare, noisy = (line for line in result.lines if str(line.goal) == "psnr>=20")
    assert (bare.success.value, noisy.success.value) == (1.0, 0.0)
    assert min(each.guarantee.value for each in noisy.comparisons if each.is_compared) < 1

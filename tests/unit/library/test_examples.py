# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/reference/library.md run, print what they say, and have the types that mypy --strict wants."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vgpuctl.cli.command_table import COMMANDS
from vgpuctl.library import GpuHost

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/reference/library.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
PRINTED = re.compile(r"^\s*print\(.*\)  # (.*)$", re.MULTILINE)
OTHER_NAMES = {"advise": "advise_workload", "export": "export_host", "import": "import_host"}
NOT_CALLS = ("agent", "controller", "events", "sim", "completion", "migration-call", "print-helper")


def test_there_are_ten() -> None:
    assert len(EXAMPLES) >= 10
    assert all(PRINTED.search(example) for example in EXAMPLES)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_prints_what_it_says(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(example, "docs/reference/library.md", "exec"), {"__name__": "example"})
    printed = out.getvalue().splitlines()
    assert [line for line in printed if line in PRINTED.findall(example)] == PRINTED.findall(example), printed


def test_the_examples_are_typed(tmp_path: Path) -> None:
    for number, example in enumerate(EXAMPLES):
        (tmp_path / f"example_{number}.py").write_text(example)
    config = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    words = [sys.executable, "-m", "mypy", *config, *map(str, sorted(tmp_path.glob("*.py")))]
    checked = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in NOT_CALLS])
def test_every_command_is_a_documented_call(command: str) -> None:
    call = getattr(GpuHost, OTHER_NAMES.get(command, command.replace("-", "_")))
    assert call.__doc__
    assert "return" in call.__annotations__

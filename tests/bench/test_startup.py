"""How long vgpuctl takes to print its version, its help or a completion, compared with importing click alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.conftest import Tell
from tests.bench.paired import environment, paired, runs, seconds, vgpuctl

LIMIT = 1.6
CASES = {
    "--version": (["--version"], None, "vgpuctl "),
    "--help": (["--help"], None, "create-vm"),
    "completion of commands": ([], "vgpuctl cre", "create-vm"),
    "completion of options": ([], "vgpuctl create-vm --", "--profile"),
}


@pytest.mark.parametrize("case", CASES)
def test_startup(case: str, bench: Tell, tmp_path: Path) -> None:
    words, line, expected = CASES[case]
    variables = {}
    if line is not None:
        word_index = len(line.split()) - (0 if line.endswith(" ") else 1)
        variables = {"_VGPUCTL_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(word_index)}
    env = environment(tmp_path, **variables)
    ours = vgpuctl(*words)
    theirs = [sys.executable, "-c", "import click"]
    output = subprocess.run(ours, env=env, capture_output=True, text=True, check=True).stdout
    assert expected in output
    pair = paired(lambda: seconds(ours, env), lambda: seconds(theirs, env), runs(9, 41))
    bench(f"startup {case}", pair.ratio, LIMIT, f"{pair.medians()} of 'import click'")

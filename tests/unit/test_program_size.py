# SPDX-License-Identifier: Apache-2.0
"""The size of the program: what counts, and what is missing afterwards is listed."""

from __future__ import annotations

from tests import program_size

ERRORS = """
class Full(Exception):
    \"\"\"As in kernel_vgpu_mgr.c.\"\"\"

    code = "full"
"""
PORT = """
import os
class Disk(Protocol):
    \"\"\"A disk.\"\"\"

    def write(self) -> None:
        \"\"\"Write it.\"\"\"

    def read(self) -> None: ...
"""
USE = 'if a:\n    raise Full("it is full", hint="stop a VM")  # CVE-2024-1234\nraise Full("it is full")\n'
FILES = {"vgpuctl/errors.py": ERRORS, "vgpuctl/ports/disk.py": PORT, "vgpuctl/use.py": USE}


def sizes(files: dict[str, str]) -> dict[str, int]:
    """Return all numbers of these files."""
    counts = program_size.count(files)
    return {what: program_size.size(counts, what) for what in counts}


def test_each_number_counts_what_it_says() -> None:
    assert sizes(FILES) == {
        "statements": 2 + 4 + 3,
        "files": 3,
        "with a docstring": 3,
        "error codes": 1,
        "messages and hints": 2,
        "cited sources": 2,
        "fault points": 2,
    }


def test_neither_imports_docstrings_nor_long_lines_change_the_statements() -> None:
    more = {"vgpuctl/use.py": '"""Text."""\nimport re\n' + USE}
    assert sizes(more)["statements"] == sizes({"vgpuctl/use.py": USE})["statements"]


def test_a_port_of_v0_1_0_counts_too() -> None:
    assert sizes({"vgpuctl/model/seams.py": PORT})["fault points"] == 2


def test_a_step_is_no_port() -> None:
    assert sizes({"vgpuctl/ports/step.py": PORT})["fault points"] == 0

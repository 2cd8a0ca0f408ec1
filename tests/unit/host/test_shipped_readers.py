# SPDX-License-Identifier: Apache-2.0
"""The programs for other makers' GPUs that are shipped, on texts of the form that their makers' documents describe."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from tests.json_schema import reader_schema
from vgpuctl.host.usage.programs import run_programs
from vgpuctl.model.usage import EngineUse, GpuUse, ReaderProgram, VgpuUse

READERS = Path(__file__).resolve().parents[3] / "templates/monitoring/readers"
VM, MDEV = "11111111-2222-4333-8444-555555555555", "aaaaaaaa-0000-4000-8000-000000000001"
MTHREADS = f"""\
Timestamp : Fri Nov 27 10:00:00 2026
Driver Version : 2.9.2

GPU 00000000:3B:00.0
    Active vGPUs : 2
    vGPU ID : 7
        VM UUID : {VM}
        vGPU Type : mtgpu-1102
        vGPU UUID : {MDEV}
        FB Memory Usage
            Total : 2048 MiB
            Used : 512 MiB
        Utilization
            Gpu : 25 %
            Memory : 5 %
            Encoder : N/A
    vGPU ID : 8
        VM UUID : N/A
        FB Memory Usage :
            Total : ? MiB
            Used : 1 GiB
"""


def run_shipped(
    directory: Path, name: str, original: str, text: str
) -> tuple[list[GpuUse], list[VgpuUse], dict[str, str]]:
    """Run a shipped program whose command is a script with this text."""
    command = directory / "command"
    command.write_text(f"#!/bin/sh\n{text}\n")
    reader = directory / name
    reader.write_text((READERS / name).read_text().replace(original, str(command)))
    for file in (command, reader):
        file.chmod(0o755)
    user = "root" if os.geteuid() == 0 else os.environ["USER"]
    return run_programs((ReaderProgram(name, str(reader), user, 30.0),), require_trusted=lambda _: None)


def test_moore_threads(tmp_path: Path) -> None:
    text = f"[ \"$*\" = 'vgpu -q' ] && cat <<'END'\n{MTHREADS}END\n"
    _, vgpus, failed = run_shipped(tmp_path, "mthreads-gmi", "/usr/bin/mthreads-gmi", text)
    assert failed == {}
    first = VgpuUse(
        "0000:3b:00.0",
        (MDEV,),
        vm_uuid=VM,
        memory_size_bytes=2 << 30,
        memory_used_bytes=512 << 20,
        engines=EngineUse(sm=0.25, memory=0.05),
    )
    assert vgpus == [first, VgpuUse("0000:3b:00.0", (), memory_used_bytes=1 << 30)]


def test_a_command_that_fails_or_is_missing(tmp_path: Path) -> None:
    assert "status" in run_shipped(tmp_path, "mthreads-gmi", "/usr/bin/mthreads-gmi", "exit 9")[2]["mthreads-gmi"]
    program = ReaderProgram("mthreads-gmi", str(READERS / "mthreads-gmi"), "root", 30.0)
    missing = run_programs((program,), require_trusted=lambda _: None)
    assert "status" in missing[2]["mthreads-gmi"]


@pytest.mark.parametrize(
    "text", ["", "\x1b[31m:::\n : \nGPU 00000000:3B:00.0\nvGPU ID : 1\nUsed : 99999999999999999999999 MiB\n"]
)
def test_a_text_that_says_nothing(tmp_path: Path, text: str) -> None:
    script = f"cat <<'END'\n{text}\nEND"
    gpus, vgpus, failed = run_shipped(tmp_path, "mthreads-gmi", "/usr/bin/mthreads-gmi", script)
    assert (gpus, failed) == ([], {})
    assert all(vgpu.memory_used_bytes is None for vgpu in vgpus)


@pytest.mark.parametrize(
    ("printed", "is_right"),
    [
        ({}, True),
        ({"gpus": [{"address": "0000:3b:00.0", "memory_used_bytes": 1 << 30, "engines": {"sm": 0.5}}]}, True),
        ({"vgpus": [{"gpu": "0000:3b:00.0", "carriers": ["0000:3b:00.4"]}]}, True),
        ({"gpus": [{"memory_used_bytes": 1}]}, False),
        ({"gpus": [{"address": "0000:3b:00.0", "memory": 1}]}, False),
        ({"gpus": [{"address": "0000:3b:00.0", "engines": {"sm": 50}}]}, False),
        ({"vgpus": [{"gpu": "0000:3b:00.0", "memory_used_bytes": "1 GiB"}]}, False),
        ({"cards": []}, False),
        ([], False),
    ],
)
def test_the_published_schema_takes_what_the_agent_takes(tmp_path: Path, printed: object, is_right: bool) -> None:
    program = tmp_path / "reader"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(printed)}\nEND\n")
    program.chmod(0o755)
    user = "root" if os.geteuid() == 0 else os.environ["USER"]
    _, _, failed = run_programs((ReaderProgram("r", str(program), user, 30.0),), require_trusted=lambda _: None)
    assert (failed == {}) is is_right, failed
    assert Draft202012Validator(reader_schema()).is_valid(printed) is is_right

# SPDX-License-Identifier: Apache-2.0
"""Every command through an agent: the document that it prints is the one that it prints on the host itself."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.agent.conftest import running
from tests.command_cases import AGENTS, CASES, IMAGE, lines
from vgpuctl.cli import entry

HERE_ONLY = (
    *AGENTS, "completion", "end-migration", "events", "install-host", "migrate-vm", "top", "uninstall-host"
)  # fmt: skip
"""Commands that make no call, that name the Python which runs them, that only an agent knows, or tell the time."""
_VARIES = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{8}(?=\.qcow2)|52:54:00(:[0-9a-f]{2}){3}"
    r"|\d{4}-\d\d-\d\dT[\d:]+Z|\"duration_seconds\": [\d.]+|\"(arguments|host)\": \"[^\"]*\""
)
Run = Callable[[str], Any]


def prepare(run: Run, name: str) -> None:
    """Make what the lines of `CASES` need."""
    profile = {"h100-mig": "H100-1-10C", "rtx-pro-6000": "DC-4Q", "t4": "T4-4Q"}.get(name, "A100-4C")
    gives = "--mode passthrough --gpus 2" if name == "h100-pcie-x8" else f"--profile {profile}"
    made = [run(f"create-vm {vm} {gives}") for vm in ("runs", "off")] + [run("stop-vm off")]
    if name == "mixed":
        made.append(run(f"create-vm cloned --profile A100-4C --image {IMAGE}"))
        made += [run("create-vgpu lab --profile T4-4Q"), run("cordon A16")]
    assert all(document["ok"] for document in made), made


@pytest.mark.parametrize("command", [name for name in CASES if name not in HERE_ONLY])
def test_a_command_prints_the_same_document(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = CASES[command].host
    spec = tmp_path / "spec.yaml"
    spec.write_text("name: new\nprofile: A100-4C\n")
    line = lines(command, "runs", off="off", cloned="cloned", spec=spec)[0]

    def run(text: str, host: str) -> Any:
        capsys.readouterr()
        status = entry.main(["--host", host, "--json", "--yes", *shlex.split(text)])
        return {**json.loads(capsys.readouterr().out), "status": status}

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "direct"))
    prepare(lambda text: run(text, f"sim:{name}"), name)
    shutil.copytree(tmp_path / "direct", tmp_path / "agent")
    direct = run(line, f"sim:{name}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "agent"))
    with running(f"sim:{name}", tmp_path) as agent:
        through = run(line, f"agent:{agent.path}")
    assert shown(through) == shown(direct)


def shown(document: Any) -> str:
    """Return a document without what is new each time."""
    return _VARIES.sub("…", json.dumps(document, indent=1, sort_keys=True))

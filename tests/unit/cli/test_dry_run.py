# SPDX-License-Identifier: Apache-2.0
"""A dry run changes nothing of the host, even after killed commands; without root, a change fails before it reads."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.command_cases import AGENTS, CASES, GPU, IMAGE, lines
from tests.unit.cli.command_tree import has_dry_run
from tests.unit.cli.conftest import Ran, Run, child
from vgpuctl.host.claim_store import ClaimStore
from vgpuctl.host.operation_files import OperationFiles
from vgpuctl.host.processes import HostProcesses
from vgpuctl.model.gpu import Backend
from vgpuctl.model.vm import Claim, DrainedVm, ProcessId

DEAD = ProcessId(4194399, 1)
DEAD_UUID = "6c9a3b4e-0000-4000-8000-000000000000"
COMMANDS = [command for command in CASES if has_dry_run(command) and command not in AGENTS]


def files(state: Path) -> dict[str, bytes]:
    """Return every file below, without lock files."""
    paths = (path for path in sorted(state.rglob("*")) if path.is_file() and path.name != "lock")
    return {str(path.relative_to(state)): path.read_bytes() for path in paths}


def leave(state: Path, running: str, off: str) -> None:
    """Create what killed commands leave: a note for each VM, a claim, and an unfinished file."""
    processes = HostProcesses()
    store = ClaimStore(state / "run", processes, OperationFiles(state / "run", processes))
    for uuid in (running, off):
        store.add_drained_vm(DrainedVm(uuid, GPU, DEAD))
    stray = Claim(f"{GPU[:-1]}7", Backend.VENDOR_VF, GPU, f"{GPU[:-1]}7", "gone", DEAD_UUID, None, None, DEAD, "test")
    with store.lock(1):
        store.add(stray)
    (state / "etc/vgpuctl").mkdir(parents=True, exist_ok=True)
    (state / f"etc/vgpuctl/.host.yaml.vgpuctl-{DEAD.pid}-{DEAD.start_ticks}").write_text("version: 1\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_is_written(command: str, vgpuctl: Run, tmp_path: Path) -> None:
    name = CASES[command].host
    spec = tmp_path / "spec.yaml"
    spec.write_text("name: new\nprofile: A100-4C\n")

    def run(text: str) -> Ran:
        return vgpuctl("--host", f"sim:{name}", "--json", *shlex.split(text))

    profile = {"h100-mig": "H100-1-10C", "rtx-pro-6000": "DC-4Q", "t4": "T4-4Q"}.get(name, "A100-4C")
    gives = "--mode passthrough --gpus 2" if name == "h100-pcie-x8" else f"--profile {profile}"
    made = [run(f"create-vm {vm} {gives}") for vm in ("runs", "off")]
    assert [ran.status for ran in (*made, run("stop-vm off"))] == [0, 0, 0], made[0].out
    if name == "mixed":
        assert run(f"create-vm cloned --profile A100-4C --image {IMAGE}").status == 0
        assert run("create-vgpu lab --profile T4-4Q").status == 0
        assert run("cordon A16").status == 0
    state = tmp_path / "state/vgpuctl" / name
    leave(state, *(ran.document["data"]["uuid"] for ran in made))
    before = files(state)
    line = lines(command, "runs", off="off", cloned="cloned", spec=spec)[0]
    ran = run(f"{line} --dry-run")
    assert ran.document["ok"], ran.out
    assert files(state) == before


_AS_NOBODY = """
import contextlib, importlib, io, json, os, pkgutil, sys
import vgpuctl
for module in pkgutil.walk_packages(vgpuctl.__path__, "vgpuctl."):  # nobody may not read a checkout below /root
    if not module.name.endswith("__main__") and "remote.bootstrap_script" not in module.name:
        with contextlib.suppress(ImportError):
            importlib.import_module(module.name)
from vgpuctl.cli.entry import main
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
results = []
for words in json.loads(sys.argv.pop()):
    sys.argv[:] = ["vgpuctl", *words]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = main(words)
    results.append((status, out.getvalue(), err.getvalue()))
print(json.dumps(results))
"""


def as_nobody(*command_lines: str) -> list[Ran]:
    """Run command lines as a user without rights, one after the other in one process."""
    ran = child(json.dumps([shlex.split(line) for line in command_lines]), code=_AS_NOBODY)
    assert (ran.returncode, ran.stderr) == (0, "")
    return [Ran(*result) for result in json.loads(ran.stdout)]


CHANGES = [name for name, case in CASES.items() if has_dry_run(name) and "{spec}" not in case.words]
"""All but ensure-vm, which reads its spec first."""
LINES = [line for name in CHANGES for line in lines(name, "vdi-1")]


def test_root_is_required_first() -> None:
    for line, ran in zip(LINES, as_nobody(*LINES), strict=True):
        first, hint = ran.err.splitlines()
        assert (ran.status, ran.out) == (1, ""), line
        assert first.startswith("vgpuctl: root is required to change this host, and "), line
        assert first.endswith("is not root   [os-error]"), line
        quoted = "'" in line
        assert hint == f"  hint: {'run the same command with sudo' if quoted else f'sudo vgpuctl {line}'}"


def test_root_is_required_in_json_and_not_by_a_dry_run() -> None:
    ran, dry = as_nobody("install-host --json", "install-host --dry-run")
    error = ran.document["error"]
    assert (ran.status, error["code"], error["exit_status"], error["undone"]) == (1, "os-error", 1, [])
    assert dry.status == 0

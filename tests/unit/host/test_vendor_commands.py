# SPDX-License-Identifier: Apache-2.0
"""sriov-manage and nvidia-smi get their arguments, and while they run vgpuctl has no open NVML handle."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.hosts import claim_store
from tests.unit.host.nvml_library import ADDRESS, LIBRARY
from vgpuctl.errors import Stuck
from vgpuctl.host.claim_store import ClaimStore
from vgpuctl.host.commands import HostVendorCommands
from vgpuctl.host.processes import HostProcesses
from vgpuctl.model.port_values import CommandResult

INIT = 'int nvmlInitWithFlags(u flags) { say("init"); return INIT; }'
SHUTDOWN = 'int nvmlShutdown(void) { say("shutdown"); return SUCCESS; }'
HOLDING = (
    "#include <fcntl.h>\n#include <unistd.h>\nstatic int held = -1;\n",
    'int nvmlInitWithFlags(u flags) { held = open(NODE, O_RDONLY); say("init"); return INIT; }',
    'int nvmlShutdown(void) { close(held); say("shutdown"); return SUCCESS; }',
)
ASK = """
import os, sys
from vgpuctl.host.nvml import HostNvml
from vgpuctl.host.commands import HostVendorCommands
nvml = HostNvml()
assert nvml.gpu(sys.argv[1]) is not None
assert nvml.status().available
commands = HostVendorCommands(sys.argv[2], lock_held=lambda: False, store=None, processes=None)
print(commands.sriov_manage("-e", sys.argv[1], deadline_seconds=10).text)
"""

INTERRUPTED = """
import sys
from pathlib import Path
from tests.hosts import claim_store
from vgpuctl.host.processes import HostProcesses
from vgpuctl.host.commands import HostVendorCommands
processes = HostProcesses()
records = claim_store(Path(sys.argv[1]))
commands = HostVendorCommands(sys.argv[2], lock_held=lambda: False, store=records, processes=processes)
try:
    commands.sriov_manage(sys.argv[3], sys.argv[4], deadline_seconds=20)
except BaseException as error:
    print(type(error).__name__, error)
"""
"""A process of its own is interrupted: in that of the tests a signal may arrive in a hook of the garbage collector,
and be lost there."""


def interrupted(tmp_path: Path, command: str, flag: str) -> str:
    """Run a command that interrupts its caller, and return the resulting exception."""
    words = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "run"), command, flag, ADDRESS]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout


def script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def fifo(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


def store(tmp_path: Path) -> ClaimStore:
    return claim_store(tmp_path / "run")


def commands(tmp_path: Path, path: str, *, locked: bool = False) -> HostVendorCommands:
    records, processes = store(tmp_path), HostProcesses()
    return HostVendorCommands(path, lock_held=lambda: locked, store=records, processes=processes)


def gone(tmp_path: Path) -> None:
    """Wait until no command is recorded."""
    until = time.monotonic() + 30
    while store(tmp_path).stuck_writes():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_sriov_manage_gets_flag_and_address(tmp_path: Path) -> None:
    command = script(tmp_path / "sriov-manage", 'echo "ran $*"; echo "Cannot obtain unbindLock" >&2; exit 4')
    done = commands(tmp_path, command).sriov_manage("-d", ADDRESS, deadline_seconds=10)
    assert (done.status, done.text) == (4, f"ran -d {ADDRESS}\nCannot obtain unbindLock\n")


@pytest.mark.parametrize(("unload", "words"), [(True, "-r gim"), (False, "gim")])
def test_modprobe_gets_the_module(tmp_path: Path, unload: bool, words: str) -> None:
    command = script(tmp_path / "modprobe", 'echo "ran $*"; exit 1')
    records, processes = store(tmp_path), HostProcesses()
    vendor = HostVendorCommands(modprobe=command, lock_held=lambda: False, store=records, processes=processes)
    done = vendor.modprobe("gim", unload=unload, address=ADDRESS, deadline_seconds=10)
    assert (done.status, done.text) == (1, f"ran {words}\n")


def test_a_missing_sriov_manage_is_not_a_failed_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        commands(tmp_path, str(tmp_path / "no")).sriov_manage("-e", "x", deadline_seconds=1)


def test_one_that_does_not_end_is_left_alone_and_recorded_until_it_has_ended(tmp_path: Path) -> None:
    command = script(tmp_path / "sriov-manage", f"read line <{fifo(tmp_path)}; touch {tmp_path}/ended")
    with pytest.raises(Stuck, match="it continues as process") as raised:
        commands(tmp_path, command).sriov_manage("-e", ADDRESS, deadline_seconds=0.1)
    (write,) = store(tmp_path).stuck_writes()
    assert (write.process.pid, write.gpu) == (raised.value.facts["pid"], ADDRESS)
    assert write.process == HostProcesses().find_process(write.process.pid)
    (tmp_path / "fifo").write_text("go on\n")
    gone(tmp_path)
    assert (tmp_path / "ended").exists()


def test_a_second_interruption_leaves_it_alone_and_recorded(tmp_path: Path) -> None:
    twice = "sleep 0.5; kill -INT $PPID; sleep 0.8; kill -INT $PPID"
    command = script(tmp_path / "sriov-manage", f"{twice}; read line <{fifo(tmp_path)}")
    text = interrupted(tmp_path, command, "-e")
    assert text.startswith("Stuck")
    assert "was not waited for" in text
    assert [w.gpu for w in store(tmp_path).stuck_writes()] == [ADDRESS]
    (tmp_path / "fifo").write_text("go on\n")
    gone(tmp_path)


def test_a_slow_one_is_recorded_while_it_runs_and_not_after(tmp_path: Path) -> None:
    stuck = tmp_path / "run" / "stuck"
    command = script(tmp_path / "sriov-manage", f"sleep 1.5; ls {stuck}; echo $$")
    done = commands(tmp_path, command).sriov_manage("-e", ADDRESS, deadline_seconds=20)
    recorded, pid = done.text.split()
    assert recorded == pid
    assert list(stuck.iterdir()) == []


def test_an_interruption_waits_until_it_has_given_the_gpu_back(tmp_path: Path) -> None:
    command = script(tmp_path / "sriov-manage", f"sleep 0.5; kill -INT $PPID; sleep 0.3; touch {tmp_path}/given-back")
    assert interrupted(tmp_path, command, "-d").startswith("KeyboardInterrupt")
    assert (tmp_path / "given-back").exists()


def test_nothing_is_run_under_the_host_lock(tmp_path: Path) -> None:
    command = script(tmp_path / "sriov-manage", f"touch {tmp_path}/ran")
    with pytest.raises(AssertionError):
        commands(tmp_path, command, locked=True).sriov_manage("-e", "x", deadline_seconds=1)
    assert not (tmp_path / "ran").exists()


def reset(tmp_path: Path, body: str, *, locked: bool = False, deadline_seconds: float = 10) -> CommandResult:
    """Reset a GPU with an nvidia-smi of this script."""
    command = script(tmp_path / "nvidia-smi", body)
    records, processes = store(tmp_path), HostProcesses()
    ours = HostVendorCommands(nvidia_smi=command, lock_held=lambda: locked, store=records, processes=processes)
    return ours.reset_gpu(ADDRESS, deadline_seconds=deadline_seconds)


def test_a_reset_is_for_one_gpu_with_both_streams(tmp_path: Path) -> None:
    done = reset(tmp_path, 'echo "ran $*"; echo "In use by another client" >&2; exit 19')
    assert (done.status, done.text) == (19, f"ran --gpu-reset -i {ADDRESS}\nIn use by another client\n")


def test_a_reset_that_does_not_end_is_left_alone_and_recorded(tmp_path: Path) -> None:
    body = f"read line <{fifo(tmp_path)}; touch {tmp_path}/ended"
    with pytest.raises(Stuck, match="it continues as process"):
        reset(tmp_path, body, deadline_seconds=0.1)
    (write,) = store(tmp_path).stuck_writes()
    assert (write.gpu, write.text) == (ADDRESS, "nvidia-smi --gpu-reset")
    assert write.path == f"/sys/bus/pci/devices/{ADDRESS}/reset"
    (tmp_path / "fifo").write_text("go on\n")
    gone(tmp_path)
    assert (tmp_path / "ended").exists()


def test_nothing_is_reset_under_the_host_lock(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        reset(tmp_path, f"touch {tmp_path}/ran", locked=True)
    assert not (tmp_path / "ran").exists()


def test_a_host_without_nvidia_smi_says_which_file_it_lacks(tmp_path: Path) -> None:
    missing = str(tmp_path / "nvidia-smi")
    none = HostVendorCommands(
        nvidia_smi=missing, lock_held=lambda: False, store=store(tmp_path), processes=HostProcesses()
    )
    with pytest.raises(FileNotFoundError) as raised:
        none.reset_gpu(ADDRESS, deadline_seconds=1)
    assert raised.value.filename == missing


def test_nvml_holds_no_driver_node_during_sriov_manage(tmp_path: Path) -> None:
    node = tmp_path / "nvidia0"
    node.write_text("")
    top, init, shutdown = HOLDING
    assert INIT in LIBRARY
    assert SHUTDOWN in LIBRARY
    (tmp_path / "nvml.c").write_text(top + LIBRARY.replace(INIT, init).replace(SHUTDOWN, shutdown))
    known = [f'-DLOG="{tmp_path}/log"', f'-DNODE="{node}"', '-DDRIVER="550.144.02"', "-DINIT=0", "-DMEMORY=40960ULL"]
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", "libnvidia-ml.so.1", "nvml.c", *known], cwd=tmp_path, check=True)
    command = script(tmp_path / "sriov-manage", 'ls -l "/proc/$PPID/fd" "/proc/$$/fd"')
    done = subprocess.run(
        [sys.executable, "-c", ASK, ADDRESS, command],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "/proc/" in done.stdout
    assert str(node) not in done.stdout
    assert "init" in (tmp_path / "log").read_text()

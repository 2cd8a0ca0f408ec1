# SPDX-License-Identifier: Apache-2.0
"""Processes, the real ones and those of a captured /proc.

The clock.
"""

import contextlib
import os
import shutil
import subprocess
import sys

import pytest

from vgpuctl.host.processes import HostClock, HostProcesses, redact_command
from vgpuctl.model.vm import ProcessId

WAIT = "import sys; print(flush=True); sys.stdin.read()"


@contextlib.contextmanager
def child(*argv, **options):
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options) as process:
        assert process.stdout.readline() == b"\n"
        yield process
        process.stdin.close()


def test_this_process_lives():
    processes = HostProcesses()
    this = processes.current_process()
    assert this.pid == os.getpid()
    assert processes.is_alive(this)
    assert not processes.is_alive(ProcessId(this.pid, this.start_ticks - 1))


def test_a_process_that_ended_is_dead_before_and_after_it_is_collected():
    processes = HostProcesses()
    with child(sys.executable, "-c", WAIT) as process:
        result = processes.find_process(process.pid)
        assert processes.is_alive(result)
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not processes.is_alive(result)
        assert processes.find_process(process.pid) is None
    assert not processes.is_alive(result)


def test_a_name_with_parentheses_and_spaces_does_not_shift_the_fields(tmp_path):
    program = tmp_path / "a) S 1 (b"
    shutil.copy(os.path.realpath(sys.executable), program)
    with child(str(program), "-I", "-S", "-c", WAIT) as process:
        result = HostProcesses().find_process(process.pid)
        assert abs(result.start_ticks - HostProcesses().current_process().start_ticks) < 100 * 3600 * 24
        with open(f"/proc/{process.pid}/stat") as file:
            assert "a) S 1 (b" in file.read()
        assert HostProcesses().is_alive(result)


def test_holders_of_a_node(tmp_path):
    node = tmp_path / "7"
    node.write_text("")
    with open(node) as held, child(sys.executable, "-c", WAIT, "--token", "x", stderr=held) as process:
        result = HostProcesses().find_holders((str(node), "/dev/not/there"))
        assert [holder.pid for holder in result] == sorted([os.getpid(), process.pid])
        command = next(holder.command for holder in result if holder.pid == process.pid)
        assert command.startswith(sys.executable)
        assert command.endswith("--token ***")
        node.unlink()
        assert len(HostProcesses().find_holders((str(node),))) == 2


def test_no_node_has_no_holder():
    assert HostProcesses().find_holders(()) == ()


def captured(root, *, holds=None, closed=False, state="S"):
    """A /proc with one process; `closed`: nobody, not even root, can list its fd directory."""
    directory = root / "proc/42"
    directory.mkdir(parents=True)
    numbers = " ".join(["0"] * 18 + ["777"] + ["0"] * 10)
    (directory / "stat").write_text(f"42 (qemu) {state} {numbers}\n")
    (directory / "cmdline").write_bytes(b"qemu-system-x86_64\0-name\0vdi\0")
    if closed:
        return
    (directory / "fd").mkdir()
    if holds:
        (directory / "fd/9").symlink_to(holds)


def test_a_captured_proc_is_read_below_its_root(tmp_path):
    captured(tmp_path, holds="/dev/vfio/7")
    processes = HostProcesses(str(tmp_path))
    assert processes.is_alive(ProcessId(42, 777))
    assert [(h.pid, h.command) for h in processes.find_holders(("/dev/vfio/7",))] == [
        (42, "qemu-system-x86_64 -name vdi")
    ]
    assert processes.find_holders(("/dev/vfio/8",)) == ()


def test_a_capture_without_processes_does_not_say_that_one_is_gone(tmp_path):
    for proc in (None, tmp_path / "proc"):
        if proc is not None:
            proc.mkdir()
        assert HostProcesses(str(tmp_path)).is_alive(ProcessId(42, 777))
    captured(tmp_path)
    assert not HostProcesses(str(tmp_path)).is_alive(ProcessId(42, 778))
    assert not HostProcesses(str(tmp_path)).is_alive(ProcessId(43, 777))


BLIND = """
import os, sys
from vgpuctl.host.processes import HostProcesses
node = sys.argv[1]
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    print(HostProcesses().find_holders((node,)))
except PermissionError:
    print("blind")
held = os.open(node, os.O_RDONLY)
print([h.pid == os.getpid() for h in HostProcesses().find_holders((node,))])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_unreadable_processes_are_not_no_holders():
    done = subprocess.run([sys.executable, "-c", BLIND, "/dev/zero"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["blind", "[True]"]


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["vgpuctl", "list-gpus"], "vgpuctl list-gpus"),
        (["x", "--password=geheim", "y"], "x --password=*** y"),
        (["x", "--api-token", "geheim", "y"], "x --api-token *** y"),
        (["x", "--connect", "qemu+unix://me:geheim@/system"], "x --connect qemu+unix://***@/system"),
        (["x" * 300], "x" * 200),
    ],
)
def test_secrets_are_not_written_down(argv, shown):
    assert redact_command(argv) == shown


def test_the_command_is_named_without_its_directory():
    assert HostProcesses(argv=["/usr/bin/vgpuctl", "list-gpus"]).command_line() == "vgpuctl list-gpus"
    assert HostProcesses(argv=[]).command_line() == ""


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("--cloud-init", "#cloud-config\npassword: hunter2"), "vgpuctl --cloud-init ***"),
        (("--cloud-init=password: hunter2", "-v"), "vgpuctl --cloud-init=*** -v"),
        (("--network-config", '{"wifis": "hunter2"}'), "vgpuctl --network-config ***"),
        (("create-vm", "web\npassword: hunter2"), "vgpuctl create-vm ***"),
        (("--cloud-init", "/root/my data.yaml"), "vgpuctl --cloud-init '/root/my data.yaml'"),
        (("--cloud-init", "user-{:03}.yaml"), "vgpuctl --cloud-init 'user-{:03}.yaml'"),
    ],
)
def test_the_content_of_a_file_is_hidden(words, shown):
    assert redact_command(("vgpuctl", *words)) == shown


def test_it_goes_on():
    clock = HostClock()
    before, wall = clock.monotonic(), clock.now()
    clock.sleep(0.001)
    assert clock.monotonic() >= before + 0.001
    assert wall > 1_700_000_000

# SPDX-License-Identifier: Apache-2.0
"""Processes, the real ones and those of a captured /proc, and running programs."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys

import pytest

from vgpuctl.host import commands
from vgpuctl.host.processes import HostProcesses, redact_command
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


def python(code, **options):
    return commands.run_command([sys.executable, "-c", code], **{"deadline_seconds": 30, **options})


def test_status_and_both_streams_come_back():
    result = python("import sys; print('out'); print('why\\n\\nlast ', file=sys.stderr); sys.exit(3)")
    assert (result.status, result.stdout, result.error_line) == (3, "out\n", "last")
    assert python("import sys; sys.exit(4)").error_line == "it ended with status 4"


def test_it_can_be_given_input_and_otherwise_has_none():
    code = "import sys; print(sys.stdin.read())"
    assert python(code, stdin="a").stdout == "a\n"
    assert python(code).stdout == "\n"


def test_its_language_is_fixed_and_its_session_its_own():
    code = "import os; print(os.environ['LC_ALL'], sorted(os.environ), os.getsid(0) == os.getpid())"
    result = python(code).stdout
    assert result.startswith("C [")
    assert "HOME" not in result
    assert result.endswith("True\n")


def test_no_shell_reads_the_arguments():
    assert (
        commands.run_command(
            [sys.executable, "-c", "import sys; print(sys.argv[1])", "$(id); *"], deadline_seconds=30
        ).stdout
        == "$(id); *\n"
    )


def test_a_name_without_its_directory_is_refused():
    with pytest.raises(ValueError, match="absolute"):
        commands.run_command(["qemu-img"], deadline_seconds=1)


def test_what_is_not_installed_is_an_oserror():
    with pytest.raises(FileNotFoundError):
        commands.run_command(["/no/such/command"], deadline_seconds=1)


def test_the_deadline_kills_the_child_alone_and_does_not_wait_for_what_it_started(tmp_path):
    fifo, mine = tmp_path / "fifo", tmp_path / "pid"
    os.mkfifo(fifo)
    # The grandchild keeps the child's pipes open, and itself waits in the FIFO.
    code = '(printf alive > "$1") & echo $$ > "$2"; wait'
    with pytest.raises(TimeoutError, match="did not end"):
        commands.run_command(["/bin/sh", "-c", code, "sh", str(fifo), str(mine)], deadline_seconds=1)
    with pytest.raises(ProcessLookupError):
        os.kill(int(mine.read_text()), 0)
    assert fifo.read_bytes() == b"alive"


def test_commands_are_looked_for_where_the_system_installs_them():
    assert commands.find_command("sh") == "/usr/bin/sh"
    assert commands.find_command("no-such-command-here") is None


def watched(code, report):
    return commands.run_watched([sys.executable, "-c", code], report)


def test_a_watched_command_reports_its_output_and_ends_with_its_status():
    seen = []
    result = watched("import sys; print('1%', flush=True); print('why', file=sys.stderr); sys.exit(3)", seen.append)
    assert (result.status, result.error_line) == (3, "why")
    assert "".join(seen) == "1%\n"


def test_a_watched_command_that_says_nothing_is_reported_too(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    seen = []

    def report(text):
        seen.append(text)
        fifo.write_text("go on")

    assert watched(f"open({str(fifo)!r}).read()", report).status == 0
    assert seen == [""]


def test_a_watched_command_dies_when_its_report_raises():
    pids = []

    def report(text):
        if text:
            pids.append(int(text))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watched("import os, signal; print(os.getpid(), flush=True); signal.pause()", report)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)

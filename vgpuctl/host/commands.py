# SPDX-License-Identifier: Apache-2.0
"""Runs vendor and QEMU commands: only this module and `host.usage.processes` start a program and read its output.

A command never runs through a shell. It always runs by absolute path, in the C locale (vgpuctl parses its output), in
its own session (Ctrl-C at the terminal must not interrupt it half-way), and with a deadline.

Those that come with a GPU's driver implement `ports.VendorCommands`. sriov-manage (NVIDIA's vGPU host driver) unbinds
the GPU and nvidia-smi resets it, so vgpuctl must not have NVML open: `host.nvml` opens and closes it for each query.
These commands must not be stopped half-way: one that does not end is left alone and recorded, like a write that hangs
in the kernel, and nobody changes its GPU before it has ended.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, TYPE_CHECKING

from vgpuctl.errors import Stuck
from vgpuctl.host.uninterruptible import ProcessLookup, StuckWriteStore
from vgpuctl.model.port_values import CommandResult
from vgpuctl.model.vm import ProcessId, StuckWrite
from vgpuctl.value import Value

if TYPE_CHECKING:
    import subprocess

_DIRECTORIES = ("/usr/bin", "/usr/local/bin", "/bin", "/usr/sbin", "/sbin", "/usr/libexec")
_OUTPUT_BYTES = 64 << 10
_REAP_SECONDS = 2.0
_SLOW_SECONDS = 0.5
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

SRIOV_MANAGE = "/usr/lib/nvidia/sriov-manage"
NVIDIA_SMI = "/usr/bin/nvidia-smi"
MODPROBE = "/usr/sbin/modprobe"
"""The path, unless another directory for commands has it."""


class CompletedCommand(Value):
    """The result of a command that ended by itself."""

    status: int
    stdout: str
    stderr: str

    @property
    def error_line(self) -> str:
        """Return the last line on stderr, where tools print the reason."""
        lines = [line.strip() for line in self.stderr.splitlines() if line.strip()]
        return lines[-1] if lines else f"it ended with status {self.status}"


class StillRunning(Exception):
    """vgpuctl stopped waiting for a command, which continues as process `pid`."""

    def __init__(self, text: str, pid: int) -> None:
        super().__init__(text)
        self.pid = pid


def find_command(name: str) -> str | None:
    """Return a command's path, searching only the system's own directories."""
    return next((p for d in _DIRECTORIES if os.access(p := f"{d}/{name}", os.X_OK)), None)


def run_command(
    argv: Sequence[str], *, deadline_seconds: float, stdin: str | None = None, keep_output: bool = True
) -> CompletedCommand:
    """Run a command to its end. Without `keep_output` nobody reads what it prints, however much that is.

    Raises:
        OSError: it could not be started.
        TimeoutError: the deadline passed; the child was killed, its own children were not.
    """
    import subprocess  # slow to load, and commands that only read start no program

    if not os.path.isabs(argv[0]):
        raise ValueError(f"not an absolute path: {argv[0]}")
    child = subprocess.Popen(  # noqa: S603 - a list and no shell, by absolute path
        list(argv),
        stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
        stdout=subprocess.PIPE if keep_output else subprocess.DEVNULL,
        stderr=subprocess.PIPE if keep_output else subprocess.DEVNULL,
        text=True,
        errors="replace",
        env={"LC_ALL": "C", "PATH": PATH},
        start_new_session=True,
    )
    try:
        stdout, stderr = child.communicate(stdin, timeout=deadline_seconds)
    except subprocess.TimeoutExpired:
        _kill(child)
        raise TimeoutError(f"{argv[0]} did not end within {deadline_seconds:g} seconds") from None
    except BaseException:
        _kill(child)
        raise
    return CompletedCommand(child.returncode, stdout or "", stderr or "")


def run_watched(
    argv: Sequence[str], report: Callable[[str], None], environment: Mapping[str, str] | None = None
) -> CompletedCommand:
    """Run a command that takes as long as it takes; `report` gets its latest output about twice a second.

    `environment`: None: nothing but the C locale and the system's PATH.

    When `report` raises, or a signal arrives, the command is killed before the exception goes on.

    Raises:
        OSError: it could not be started.
    """
    import subprocess  # slow to load, and commands that only read start no program

    if not os.path.isabs(argv[0]):
        raise ValueError(f"not an absolute path: {argv[0]}")
    with tempfile.TemporaryFile() as errors:  # not a pipe: nobody reads it before the end
        child = subprocess.Popen(  # noqa: S603 - a list and no shell, by absolute path
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={"LC_ALL": "C", "PATH": PATH} if environment is None else dict(environment),
            start_new_session=True,
        )
        try:
            while child.stdout is not None and (output := _read_output(child.stdout)) != b"":
                report(output.decode(errors="replace") if output is not None else "")
            child.wait()
        except BaseException:
            _kill(child)
            raise
        errors.seek(0)
        return CompletedCommand(child.returncode, "", errors.read().decode(errors="replace"))


def _read_output(pipe: IO[bytes]) -> bytes | None:
    """Return what arrived in a pipe, None if nothing arrived for half a second, and no bytes at its end."""
    poll = select.poll()  # select(2) takes no descriptor above 1,023
    poll.register(pipe, select.POLLIN)
    return os.read(pipe.fileno(), _OUTPUT_BYTES) if poll.poll(1000 * _SLOW_SECONDS) else None


def _run_uninterrupted(
    argv: Sequence[str], *, deadline_seconds: float, report_slow: Callable[[int], None]
) -> CompletedCommand:
    """Run a command that must not be stopped half-way: it unbinds devices from their drivers and binds them again.

    It is never signalled. An interruption of this process is raised once the command has ended; a second one stops
    waiting for the command. Both streams are in `stdout`. `report_slow` gets the pid of a command that does not end
    soon, so that the caller can record it, and always before the wait is abandoned. An interrupted call is repeated.

    Raises:
        OSError: it could not be started.
        StillRunning: the deadline passed, or a second interruption came.
    """
    import subprocess  # slow to load, and commands that only read start no program

    if not os.path.isabs(argv[0]):
        raise ValueError(f"not an absolute path: {argv[0]}")
    with tempfile.TemporaryFile() as output:  # not a pipe: a process that writes to a closed pipe is killed
        child = subprocess.Popen(  # noqa: S603 - a list and no shell, by absolute path
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={"LC_ALL": "C", "PATH": PATH},
            start_new_session=True,
        )
        interruption = _wait_for_child(child, argv[0], deadline_seconds, report_slow)
        if interruption is not None:
            raise interruption
        output.seek(0)
        return CompletedCommand(child.returncode, output.read().decode(errors="replace"), "")


def _wait_for_child(
    child: subprocess.Popen[bytes], name: str, deadline_seconds: float, report_slow: Callable[[int], None]
) -> BaseException | None:
    """Wait for a child's end and return the interruption that came meanwhile, if any."""
    import subprocess  # slow to load, and commands that only read start no program

    deadline = time.monotonic() + deadline_seconds
    interruption: BaseException | None = None
    is_slow = reported = False
    while True:
        try:
            if is_slow and not reported:
                report_slow(child.pid)
                reported = True
            remaining = max(0.0, deadline - time.monotonic())
            child.wait(timeout=remaining if reported else min(remaining, _SLOW_SECONDS))
            return interruption
        except subprocess.TimeoutExpired:
            if reported:
                text = f"{name} has not ended after {deadline_seconds:g} seconds; it continues as process {child.pid}"
                raise StillRunning(text, child.pid) from interruption
            is_slow = True
        except BaseException as error:
            if interruption is not None:
                if not reported:
                    report_slow(child.pid)
                raise StillRunning(
                    f"{name} was not waited for; it continues as process {child.pid}", child.pid
                ) from error
            interruption = error


def _kill(child: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """Kill a child and close its pipes; a grandchild may keep them open forever."""
    import subprocess  # slow to load, and commands that only read start no program

    child.kill()
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                continue
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=_REAP_SECONDS)  # a process that hangs in the kernel does not die; never wait for it


class HostVendorCommands:
    """The installed commands. Running one while `lock_held()` raises AssertionError. `store` records stuck ones."""

    def __init__(
        self,
        sriov_manage: str = SRIOV_MANAGE,
        nvidia_smi: str | None = None,
        modprobe: str | None = None,
        *,
        lock_held: Callable[[], bool],
        store: StuckWriteStore,
        processes: ProcessLookup,
    ) -> None:
        self._sriov_manage = sriov_manage
        self._nvidia_smi = nvidia_smi
        self._modprobe = modprobe
        self._lock_held = lock_held
        self._records = store
        self._processes = processes

    def sriov_manage(self, flag: str, address: str, *, deadline_seconds: float) -> CommandResult:
        """Run sriov-manage to its end and keep both streams, because it prints errors on either."""
        argv = [self._sriov_manage, flag, address]
        return self._run(argv, address, "sriov_numvfs", f"sriov-manage {flag}", deadline_seconds)

    def reset_gpu(self, address: str, *, deadline_seconds: float) -> CommandResult:
        """Run nvidia-smi's reset to its end."""
        argv = [self._nvidia_smi or find_command("nvidia-smi") or NVIDIA_SMI, "--gpu-reset", "-i", address]
        return self._run(argv, address, "reset", "nvidia-smi --gpu-reset", deadline_seconds)

    def modprobe(self, module: str, *, unload: bool, address: str, deadline_seconds: float) -> CommandResult:
        """Run modprobe to its end: unloading a driver waits in the kernel for whoever uses its devices."""
        words = [*(["-r"] if unload else []), module]
        argv = [self._modprobe or find_command("modprobe") or MODPROBE, *words]
        return self._run(argv, address, "driver", f"modprobe {' '.join(words)}", deadline_seconds)

    def _run(self, argv: list[str], address: str, attribute: str, label: str, deadline_seconds: float) -> CommandResult:
        """Run a command to its end; `attribute`: the GPU's file that it writes, `label`: its text in the entry."""
        if self._lock_held():
            raise AssertionError(f"{label} {address} under the host lock")
        if not os.path.exists(argv[0]):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
        recorded: list[StuckWrite] = []

        def record(pid: int) -> None:
            process = self._processes.find_process(pid) or ProcessId(pid, 0)
            recorded.append(StuckWrite(process, address, f"/sys/bus/pci/devices/{address}/{attribute}", label))
            with suppress(OSError):  # the command already runs: its result matters more than the entry
                self._records.add_stuck_write(recorded[-1])

        try:
            result = _run_uninterrupted(argv, deadline_seconds=deadline_seconds, report_slow=record)
        except StillRunning as error:
            raise _stuck_error(str(error), error.pid, address, " ".join(argv)) from error
        except BaseException:  # an interruption, raised once the command has ended
            self._forget_stuck(recorded)
            raise
        self._forget_stuck(recorded)
        return CommandResult(result.status, result.stdout)

    def _forget_stuck(self, recorded: list[StuckWrite]) -> None:
        for write in recorded:
            self._records.remove_stuck_write(write)


def _stuck_error(text: str, pid: int, address: str, command: str) -> Stuck:
    return Stuck(
        text,
        hint=f"cat /proc/{pid}/stack shows where it waits; run the command again when it has ended",
        pid=pid,
        gpu=address,
        command=command,
    )

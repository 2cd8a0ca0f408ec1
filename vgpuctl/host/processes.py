# SPDX-License-Identifier: Apache-2.0
"""The host's processes, read from /proc, and its clock.

A pid alone does not identify a process, because the kernel reuses it. A process is identified by its pid and its start
time in clock ticks since boot, field 22 of /proc/<pid>/stat (proc(5)). The second field of that file is the command's
name in parentheses and may itself contain spaces and parentheses, so fields are counted from the last ")".
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from vgpuctl.host.files import HostFiles
from vgpuctl.model.file_content import CONTENT_OPTIONS, is_file_content
from vgpuctl.model.port_values import DeviceUser
from vgpuctl.model.vm import ProcessId

_GONE_ERRNOS = (errno.ENOENT, errno.ESRCH)
_DEAD_STATES = ("Z", "X", "x")
_SECRET_OPTION = re.compile(r"(--?[\w-]*(?:passw|secret|token|credential|private-key)[\w-]*)(=.*)?", re.I | re.S)
_SECRET_KEY = re.compile(r"passw|secret|token|credential|private[-_]key", re.I)
_SECRET_IN_URI = re.compile(r"(\w+://)[^/@\s]*@")
_MAX_COMMAND_LENGTH = 200


def redact_command(argv: Sequence[str], max_length: int = _MAX_COMMAND_LENGTH) -> str:
    """Join a command line for logs that others read, as a shell takes it, at most `max_length` long.

    Passwords and other secrets are `***`.
    """
    return " ".join(_redact_words(argv, shlex.quote))[:max_length]


def redact_text(text: str, max_length: int) -> str:
    """Return a text for logs that others read, without secrets, at most `max_length` long."""
    return " ".join(_redact_words(text.split(" "), str))[:max_length]


def is_secret_key(key: str) -> bool:
    """Return whether a key like `admin_password` names a secret."""
    return _SECRET_KEY.search(key) is not None


def _redact_words(words: Sequence[str], quote: Callable[[str], str]) -> Iterator[str]:
    hide_next = hide_content = False
    for word in words:
        option = _SECRET_OPTION.fullmatch(word)
        name, equals, value = word.partition("=")
        if hide_next or (hide_content and is_file_content(word)):
            yield "***"
        elif option is not None and option[2] is not None:
            yield f"{option[1]}=***"
        elif equals and name in CONTENT_OPTIONS and is_file_content(value):
            yield f"{name}=***"
        elif "\n" in word:
            yield "***"
        else:
            yield _SECRET_IN_URI.sub(r"\1***@", quote(word))
        hide_next = option is not None and option[2] is None
        hide_content = word in CONTENT_OPTIONS


class ProcessTable(Protocol):
    """Says which processes are alive."""

    def is_alive(self, process: ProcessId) -> bool:
        """Return whether exactly this process is still alive."""


class HostProcesses:
    """The processes in a root's /proc; implements `ports.Processes`."""

    def __init__(self, root: str = "/", *, argv: Sequence[str] | None = None) -> None:
        self._files = HostFiles(root, lock_held=lambda: False)
        self._captured = root != "/"
        self._argv = argv

    def current_process(self) -> ProcessId:
        """Return the calling process; always from the running system, whatever the root."""
        fields = _stat_fields(HostFiles(lock_held=lambda: False), "self")
        if fields is None:
            raise FileNotFoundError(errno.ENOENT, "proc is not mounted", "/proc/self/stat")
        return ProcessId(os.getpid(), fields[1])

    def find_process(self, pid: int) -> ProcessId | None:
        """Return a process by pid, or None when it has ended or is a zombie."""
        fields = _stat_fields(self._files, pid)
        return None if fields is None or fields[0] in _DEAD_STATES else ProcessId(pid, fields[1])

    def command_line(self) -> str:
        """Return this process's command line, without secrets."""
        argv = sys.argv if self._argv is None else self._argv
        return redact_command([os.path.basename(argv[0]), *argv[1:]] if argv else [])

    def is_alive(self, process: ProcessId) -> bool:
        """Return whether exactly this process is still alive; a zombie is not.

        In a captured tree without processes, or with unreadable ones, that is unknown. There every process counts as
        alive, because vgpuctl must not report a leak on a guess.
        """
        try:
            return self.find_process(process.pid) == process or (self._captured and not self._has_processes())
        except OSError:
            if not self._captured:
                raise
            return True

    def find_holders(self, nodes: tuple[str, ...]) -> tuple[DeviceUser, ...]:
        """Return the processes that have any of these device nodes open.

        QEMU sees its nodes in a private /dev that libvirt creates. The kernel still prints the usual name, with
        " (deleted)" after it once libvirt has removed the node from there.
        """
        if not nodes:
            return ()
        targets = frozenset(nodes) | {f"{node} (deleted)" for node in nodes}
        holders: list[DeviceUser] = []
        unreadable: str | None = None
        for name in self._files.listdir("/proc"):
            if not name.isdecimal():
                continue
            try:
                is_holder = self._has_open(f"/proc/{name}/fd", targets)
            except PermissionError:
                if self.find_process(int(name)) is not None:
                    unreadable = unreadable or f"/proc/{name}/fd"
                continue
            if is_holder:
                holders.append(DeviceUser(int(name), self._read_command(name)))
        if unreadable is not None and not holders:
            raise PermissionError(errno.EACCES, "not every process could be inspected", unreadable)
        return tuple(sorted(holders, key=lambda holder: holder.pid))

    def _has_processes(self) -> bool:
        try:
            return any(name.isdecimal() for name in self._files.listdir("/proc"))
        except OSError:
            return False

    def _has_open(self, directory: str, targets: frozenset[str]) -> bool:
        """Return whether a link in /proc/<pid>/fd is one of these; files that close meanwhile are skipped."""
        try:
            names = self._files.listdir(directory)
        except OSError as error:
            if error.errno in _GONE_ERRNOS:
                return False
            raise
        for name in names:
            try:
                if self._files.readlink(f"{directory}/{name}") in targets:
                    return True
            except OSError as error:
                if error.errno not in _GONE_ERRNOS:
                    raise
        return False

    def _read_command(self, name: str) -> str:
        """Return a process's command line, or its kernel name when it has none."""
        for file, separator in (("cmdline", "\0"), ("comm", "\n")):
            try:
                text = self._files.read(f"/proc/{name}/{file}")
            except OSError:
                continue
            words = text.rstrip("\0\n").split(separator)
            if words != [""]:
                return redact_command(words)
        return "?"


def _stat_fields(files: HostFiles, pid: int | str) -> tuple[str, int] | None:
    """Return state and start ticks from a stat file, or None when the process has ended."""
    try:
        text = files.read(f"/proc/{pid}/stat")
    except OSError as error:
        if error.errno in _GONE_ERRNOS:
            return None
        raise
    fields = text.rpartition(")")[2].split()
    try:
        return fields[0], int(fields[19])
    except (IndexError, ValueError):
        return None


class HostClock:
    """Real time; implements `ports.Clock`. `after_sleep` is called after each sleep; it may raise to end a wait."""

    def __init__(self, after_sleep: Callable[[], None] = lambda: None) -> None:
        self._after_sleep = after_sleep

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds of a clock that never jumps."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep; callers keep it short, because they notice a signal only afterwards."""
        time.sleep(seconds)
        self._after_sleep()

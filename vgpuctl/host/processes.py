# SPDX-License-Identifier: Apache-2.0
"""The host's processes, read from /proc.

A pid alone is not a process: it is given away again. A process is its pid and its start time in clock ticks
since boot, field 22 of /proc/<pid>/stat (proc(5)); the second field of that file is the command's name in
parentheses and may itself hold spaces and parentheses, so fields are counted from its last one.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Sequence

from vgpuctl.host.files import HostFiles
from vgpuctl.model.records import Holder
from vgpuctl.model.vm import ProcessId

_GONE = (errno.ENOENT, errno.ESRCH)
_DEAD = ("Z", "X", "x")
_SECRET_OPTION = re.compile(r"(--?[\w-]*(?:passw|secret|token|credential|private-key)[\w-]*)(=.*)?", re.I | re.S)
_SECRET_IN_URI = re.compile(r"(\w+://)[^/@\s]*@")
_COMMAND_LENGTH = 200


def redacted(argv: Sequence[str], longest: int = _COMMAND_LENGTH) -> str:
    """Join a command line for records that others read, without passwords and the like, in so many characters."""
    words: list[str] = []
    hide_next = False
    for word in argv:
        option = _SECRET_OPTION.fullmatch(word)
        if hide_next:
            words.append("***")
        elif option is not None and option[2] is not None:
            words.append(f"{option[1]}=***")
        else:
            words.append(_SECRET_IN_URI.sub(r"\1***@", word))
        hide_next = option is not None and option[2] is None
    return " ".join(words)[:longest]


class HostProcesses:
    """The processes below a root's /proc, as `seams.Processes`."""

    def __init__(self, root: str = "/", *, argv: Sequence[str] | None = None) -> None:
        self._files = HostFiles(root, lock_held=lambda: False)
        self._captured = root != "/"
        self._argv = argv

    def this(self) -> ProcessId:
        """Return the calling process; always the running system's, whatever the root."""
        found = _stat_fields(HostFiles(lock_held=lambda: False), "self")
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "proc is not mounted", "/proc/self/stat")
        return ProcessId(os.getpid(), found[1])

    def started(self, pid: int) -> ProcessId | None:
        """Return a process by pid, or None when it is gone or only waits to be collected."""
        found = _stat_fields(self._files, pid)
        return None if found is None or found[0] in _DEAD else ProcessId(pid, found[1])

    def command(self) -> str:
        """Return the calling command line, without secrets."""
        argv = sys.argv if self._argv is None else self._argv
        return redacted([os.path.basename(argv[0]), *argv[1:]] if argv else [])

    def alive(self, process: ProcessId) -> bool:
        """Say whether exactly this process still lives; a zombie does not.

        In a captured tree without processes, or where it cannot be read, that is not known: there they count as alive,
        as nothing may be called leaked on a guess.
        """
        try:
            return self.started(process.pid) == process or (self._captured and not self._has_processes())
        except OSError:
            if not self._captured:
                raise
            return True

    def holders(self, nodes: tuple[str, ...]) -> tuple[Holder, ...]:
        """Return who has any of these device nodes open.

        QEMU sees its nodes in a private /dev that libvirt makes; the kernel still prints the usual name, with
        " (deleted)" behind it once libvirt took the node out of there.
        """
        if not nodes:
            return ()
        wanted = frozenset(nodes) | {f"{node} (deleted)" for node in nodes}
        found: list[Holder] = []
        blind: str | None = None
        for name in self._files.listdir("/proc"):
            if not name.isdecimal():
                continue
            try:
                holds = self._has_open(f"/proc/{name}/fd", wanted)
            except PermissionError:
                if self.started(int(name)) is not None:
                    blind = blind or f"/proc/{name}/fd"
                continue
            if holds:
                found.append(Holder(int(name), self._command_of(name)))
        if blind is not None and not found:
            raise PermissionError(errno.EACCES, "not every process could be looked at", blind)
        return tuple(sorted(found, key=lambda holder: holder.pid))

    def _has_processes(self) -> bool:
        try:
            return any(name.isdecimal() for name in self._files.listdir("/proc"))
        except OSError:
            return False

    def _has_open(self, directory: str, wanted: frozenset[str]) -> bool:
        """Say whether a link in /proc/<pid>/fd is one of these; files that close meanwhile are passed over."""
        try:
            names = self._files.listdir(directory)
        except OSError as error:
            if error.errno in _GONE:
                return False
            raise
        for name in names:
            try:
                if self._files.readlink(f"{directory}/{name}") in wanted:
                    return True
            except OSError as error:
                if error.errno not in _GONE:
                    raise
        return False

    def _command_of(self, name: str) -> str:
        """Return a process's command line, or its kernel name when it shows none."""
        for file, separator in (("cmdline", "\0"), ("comm", "\n")):
            try:
                text = self._files.read(f"/proc/{name}/{file}")
            except OSError:
                continue
            words = text.rstrip("\0\n").split(separator)
            if words != [""]:
                return redacted(words)
        return "?"


def _stat_fields(files: HostFiles, pid: int | str) -> tuple[str, int] | None:
    """Return state and start ticks from a stat file, or None when the process is gone."""
    try:
        text = files.read(f"/proc/{pid}/stat")
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise
    fields = text.rpartition(")")[2].split()
    try:
        return fields[0], int(fields[19])
    except (IndexError, ValueError):
        return None

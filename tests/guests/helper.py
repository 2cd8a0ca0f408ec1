# SPDX-License-Identifier: Apache-2.0
"""The helper's program for guests with Linux, and a simulated VM's guest in which it runs."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

PROGRAM = Path(__file__).parents[2] / "templates/guest/vgpuctl_guest.py"
SESSION = "Id={id}\nName={name}\nClass={kind}\nState={state}\nIdleHint={idle}\nIdleSinceHint={since}\n"
WAIT_SECONDS = 30.0


def load_program() -> ModuleType:
    """Import the program, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("vgpuctl_guest", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


program = load_program()


class Programs:
    """The programs of a guest: loginctl knows the sessions, the others only note what they were started with."""

    def __init__(self) -> None:
        self.sessions: list[str] = []
        self.ran: list[tuple[str, ...]] = []
        self.failing: set[str] = set()
        self.stdin: str | None = None
        self.groups = ""
        self.users: set[str] | None = None
        """The accounts of the guest; None: whoever is asked for is one."""
        self.failed = "no"

    def log_on(self, name: str, *, kind: str = "user", state: str = "active", since: int = 0) -> None:
        """Begin a session."""
        idle = "yes" if since else "no"
        self.sessions.append(
            SESSION.format(id=len(self.sessions) + 1, name=name, kind=kind, state=state, idle=idle, since=since)
        )

    def __call__(self, words: tuple[str, ...], stdin: str | None = None) -> str:
        """Run a program."""
        if words[0] in self.failing:
            raise program.RequestRefused(f"{words[0]} failed: {self.failed}")
        if words[:2] == ["loginctl", "list-sessions"]:
            return "".join(f"{n} 1000 somebody seat0\n" for n, _ in enumerate(self.sessions, 1))
        if words[0] == "loginctl":
            return "\n".join(self.sessions)
        if words[:2] == ["getent", "group"]:
            return self.groups
        if words[:2] == ["getent", "passwd"] and self.users is not None and words[2] not in self.users:
            raise program.RequestRefused("getent failed: exit status 2")
        if words[0] == "useradd" and self.users is not None:
            self.users.add(words[-1])
        self.ran.append(tuple(words))
        self.stdin = stdin or self.stdin
        return ""


@contextmanager
def listen_for(state: Path, uuid: str, folder: str = "channels") -> Iterator[socket.socket]:
    """Yield the socket to which a simulated VM's channel connects; `state`: the directory of the simulated host."""
    channels = state / folder
    channels.mkdir(exist_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.settimeout(WAIT_SECONDS)
    directory = os.open(channels, os.O_RDONLY)
    try:
        listening.bind(f"/proc/self/fd/{directory}/{uuid}")  # the path itself may be too long for a socket
        listening.listen(1)
        yield listening
    finally:
        (channels / uuid).unlink()
        os.close(directory)
        listening.close()


class SimulatedGuest:
    """A guest that runs the helper's own program: the other end of a simulated VM's channel."""

    def __init__(self, state: Path, uuid: str, root: Path) -> None:
        """`state`: the directory of the simulated host; `root`: the guest's file tree."""
        self.programs = Programs()
        self.guest = program.Guest(root, self.programs)
        self._ends = False
        self._socket = listen_for(state, uuid)

    def _serve(self, listening: socket.socket) -> None:
        connection, _ = listening.accept()
        connection.setblocking(False)
        program.serve(program.Port(connection.fileno()), self.guest, lambda: self._ends)
        connection.close()

    def __enter__(self) -> SimulatedGuest:
        threading.Thread(target=self._serve, args=(self._socket.__enter__(),), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends = True
        self._socket.__exit__(kind, error, trace)


class Peer:
    """The host's end of a port, as a test speaks through it."""

    def __init__(self) -> None:
        self.end, guest_end = socket.socketpair()
        self.end.settimeout(WAIT_SECONDS)
        guest_end.setblocking(False)
        self._guest_end = guest_end
        self.port: Any = program.Port(guest_end.fileno())
        self._lines = self.end.makefile("rb")

    def line(self) -> bytes:
        """Return the next line of the guest."""
        return self._lines.readline()

# SPDX-License-Identifier: Apache-2.0
"""A simulated VM's guest in which the real qemu-ga runs, and one that answers whatever a test wants."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.guests.helper import listen_for
from tests.guests.roots import ENTER, GuestRoot
from tests.namespaces import unshare
from vgpuctl.errors import LibvirtFailed
from vgpuctl.ports.guests import GuestAgent

WAIT_SECONDS = 30.0
DIRECTORY = "guest-agents"
WALL = "#!/bin/sh\ncat >>/run/wall\n"
SHUTDOWN = "#!/bin/sh\nprintf '%s\\n' \"$@\" >>/run/shutdown\n"
COMMANDS = (
    "guest-get-osinfo",
    "guest-exec",
    "guest-exec-status",
    "guest-file-open",
    "guest-file-write",
    "guest-file-close",
)
Answer = Callable[[str, Mapping[str, Any]], object]
"""Returns a whole reply as JSON, or bytes."""


class AgentRoot(GuestRoot):
    """A guest's root with qemu-ga, and programs that only note what they were started with."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        (path / "sbin").unlink()
        (path / "sbin").mkdir()
        shutil.copy("/usr/sbin/qemu-ga", path / "sbin/qemu-ga")
        (path / "dev/null").touch()  # programs are started with it
        self.put_program("wall", WALL)
        (path / "sbin/shutdown").write_text(SHUTDOWN)
        (path / "sbin/shutdown").chmod(0o755)

    def noted(self, program: str) -> list[str]:
        """Return the lines that a program noted."""
        path = self.path / "run" / program
        return path.read_text().splitlines() if path.exists() else []

    @contextmanager
    def running(self, port: GuestAgent, state: Path, uuid: str, *options: str) -> Iterator[None]:
        """Run qemu-ga, with processes of its own, as a VM's guest agent; `state`: the simulated host's directory."""
        (state / DIRECTORY).mkdir(exist_ok=True)
        (state / DIRECTORY / uuid).symlink_to(self.path / "run/qga.sock")
        words = ["/sbin/qemu-ga", "-m", "unix-listen", "-p", "/run/qga.sock", "-t", "/run", *options]
        own = unshare("--pid", "--fork", "--kill-child")
        argv = [*own, "sh", "-ec", ENTER, "sh", str(self.path), *words]
        env = {"PATH": "/usr/bin:/sbin", "LC_ALL": "C.UTF-8"}
        with subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            try:
                end = time.monotonic() + WAIT_SECONDS
                while not answers(port, uuid):
                    assert process.poll() is None, process.stderr and process.stderr.read()
                    assert time.monotonic() < end
                yield
            finally:
                process.kill()
                (state / DIRECTORY / uuid).unlink()


def answers(port: GuestAgent, uuid: str) -> bool:
    """Return whether a guest agent answers; wait a little for it."""
    with suppress(LibvirtFailed):
        port.command(uuid, "guest-ping", {}, wait_seconds=1)
        return True
    time.sleep(0.02)
    return False


@contextmanager
def answering(state: Path, uuid: str, answer: Answer) -> Iterator[None]:
    """Be the guest agent of a simulated VM; it answers what `answer` returns for a command and its arguments."""
    with listen_for(state, uuid, DIRECTORY) as listening:
        listening.settimeout(None)
        thread = threading.Thread(target=_serve, args=(listening, answer), daemon=True)
        thread.start()
        yield
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(WAIT_SECONDS)


def _serve(listening: socket.socket, answer: Answer) -> None:
    while True:
        try:
            end, _ = listening.accept()
        except OSError:
            return
        with suppress(OSError), end, end.makefile("r") as lines:
            for line in lines:
                asked = json.loads(line)
                command, arguments = asked["execute"], asked["arguments"]
                reply = {"return": arguments["id"]} if command == "guest-sync" else answer(command, arguments)
                end.sendall(reply if isinstance(reply, bytes) else json.dumps(reply).encode() + b"\n")

# SPDX-License-Identifier: Apache-2.0
"""The hosts of the demonstration: for each a process of the real agent, on a simulated host below one directory.

with demo_hosts() as (directory, hosts):
hosts["gpu01"].kill()
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vgpuctl.agent.client import connect
from vgpuctl.agent.connection import LOCAL_AGENT
from vgpuctl.errors import Failed, FileFailed, VgpuctlError
from vgpuctl.sim.guest_channels import DIRECTORY

NAMES = ("gpu01", "gpu02", "gpu03", "gpu04")
SCENARIO = "a100-40"
PROFILE = "A100-8C"
IMAGES = ("/srv/images/ubuntu-24.04.qcow2", "/srv/images/ubuntu-24.04-new.qcow2")
START_SECONDS = 60.0
POLL_SECONDS = 0.05
LOG_BYTES = 2000


class DemoGuest:
    """What the helper in one simulated guest says: who is logged on there."""

    def __init__(self, directory: Path, uuid: str) -> None:
        """`directory`: of the channels of its host."""
        self._users: tuple[str, ...] = ()
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._listening = _listen(directory, uuid)
        threading.Thread(target=self._run, name=f"guest-{uuid}", daemon=True).start()

    def log_on(self, *users: str) -> None:
        """Have these users logged on, and nobody else."""
        with self._lock:
            self._users = users
            self._report()

    def close(self) -> None:
        """Say nothing any more."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        with self._lock:
            if self._connection is not None:
                self._connection.close()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                with self._lock:
                    self._connection = connection
                    self._report()
                with suppress(OSError):
                    while connection.recv(4096):
                        pass

    def _report(self) -> None:
        users = [{"user": user, "state": "active", "idle_seconds": 0} for user in self._users]
        line = json.dumps({"type": "report", "helper": "1.0", "users": users, "mps": False})
        if self._connection is not None:
            with suppress(OSError):  # its VM stopped
                self._connection.sendall(f"{line}\n".encode())


def _listen(directory: Path, name: str) -> socket.socket:
    """Listen at a socket; a directory's descriptor keeps its path as short as sockets need it."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        (directory / name).unlink(missing_ok=True)
        listening.bind(f"/proc/self/fd/{descriptor}/{name}")
        listening.listen(4)
    finally:
        os.close(descriptor)
    return listening


class DemoHost:
    """A simulated host, and the process of its agent."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.address = f"{LOCAL_AGENT}:{directory}/{name}.sock"
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Whether the agent runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the agent; `wait_until_ready` waits for it."""
        socket_path = self.address.removeprefix(f"{LOCAL_AGENT}:")
        argv = [sys.executable, "-m", "vgpuctl", "--host", f"sim:{SCENARIO}", "agent", "run", "--socket", socket_path]
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - this program itself
                [*argv, "--state", str(self._directory / f"{self.name}-state")],
                env={**_environment(), "XDG_STATE_HOME": str(self._home)},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,  # Ctrl-C is for the demonstration, which ends its hosts itself
            )  # fmt: skip

    def wait_until_ready(self) -> None:
        """Wait until the agent answers.

        Raises:
            Failed: it does not.
        """
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                connect(self.address).read_fleet()
                return
            except VgpuctlError as error:
                if not self.is_running or time.monotonic() > end:
                    raise Failed(f"the agent of {self.name} does not answer: {self._last_words() or error}") from error
            time.sleep(POLL_SECONDS)

    def kill(self) -> None:
        """End the agent at once, as when a host dies."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def guest(self, uuid: str) -> DemoGuest:
        """Return the helper in a guest of this host."""
        return DemoGuest(self._home / "vgpuctl" / SCENARIO / DIRECTORY, uuid)

    @property
    def _home(self) -> Path:
        return self._directory / self.name

    @property
    def _log(self) -> Path:
        return self._directory / f"{self.name}.log"

    def _last_words(self) -> str:
        lines = self._log.read_bytes()[-LOG_BYTES:].decode(errors="replace").splitlines()
        errors = [line.removeprefix("vgpuctl: ") for line in lines if line.startswith("vgpuctl: ")]
        return (errors or lines or [""])[-1]


def _environment() -> dict[str, str]:
    """Return the environment without what tells a service of systemd's, or a command of another host."""
    own = ("NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "STATE_DIRECTORY", "VGPUCTL_HOST")
    return {name: value for name, value in os.environ.items() if name not in own}


@contextmanager
def demo_hosts() -> Iterator[tuple[Path, dict[str, DemoHost]]]:
    """Yield a temporary directory and the running hosts by name; afterwards nothing of them is left.

    Raises:
        FileFailed: there is no room for the directory. Failed: a host does not start.
    """
    try:
        directory = Path(tempfile.mkdtemp(prefix="vgpuctl-demo-"))
    except OSError as error:
        raise FileFailed(
            f"a temporary directory cannot be made: {error}", hint=f"df -h {tempfile.gettempdir()}"
        ) from error
    hosts = {name: DemoHost(name, directory) for name in NAMES}
    try:
        for host in hosts.values():
            host.start()
        for host in hosts.values():
            host.wait_until_ready()
        yield directory, hosts
    finally:
        for host in hosts.values():
            host.kill()
        shutil.rmtree(directory, ignore_errors=True)

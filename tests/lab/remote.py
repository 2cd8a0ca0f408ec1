"""Runs commands inside L2 over ssh: one master connection, cheap sessions, and only the image's keys."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lab import recipe
from tests.lab.errors import LabError

# No post-quantum algorithm, and none that is slow on an emulated CPU.
CRYPTO = ("KexAlgorithms=curve25519-sha256", "Ciphers=aes128-gcm@openssh.com,chacha20-poly1305@openssh.com")
# An emulated CPU with a nested guest misses its timer now and then, and stands still for minutes, until an interrupt
# comes from outside: a packet in each second is one. An L2 that is only slow is not given up.
AWAKE = ("ServerAliveInterval=1", "ServerAliveCountMax=100000")
# ssh itself exits with 255 if the connection fails, as opposed to the command.
CONNECTION_LOST = 255


@dataclass(frozen=True)
class Result:
    """The result of a command in L2."""

    argv: str
    returncode: int
    stdout: str
    stderr: str


class Remote:
    """The ssh connection to one running L2. Close it before loadvm replaces L2's state."""

    def __init__(self, image: Path, work: Path, port: int) -> None:
        self._control = work / "ssh"
        self._master: subprocess.Popen[bytes] | None = None
        options = [
            *("BatchMode=yes", "StrictHostKeyChecking=yes", f"HostKeyAlias={recipe.HOST_NAME}"),
            *(f"UserKnownHostsFile={image / 'known_hosts'}", "GlobalKnownHostsFile=/dev/null"),
            *(f"IdentityFile={image / 'id_ed25519'}", "IdentitiesOnly=yes", f"ControlPath={self._control}"),
            *("PreferredAuthentications=publickey", "LogLevel=ERROR", "GSSAPIAuthentication=no", *CRYPTO, *AWAKE),
        ]
        words = (word for option in options for word in ("-o", option))
        self._base = ["ssh", "-F", "none", "-p", str(port), *words]

    def connect(self, *, deadline_seconds: float, patience: float = 30) -> None:
        """Retry until L2 answers. `patience` limits one try: short while L2 boots, long if L2 is busy."""
        end = time.monotonic() + deadline_seconds
        while not self._try_master(min(patience, deadline_seconds)):
            if time.monotonic() > end:
                raise LabError(f"no ssh answer from the emulated host within {deadline_seconds:g} s")
            time.sleep(0.1)

    def _try_master(self, patience: float) -> bool:
        self.close()
        options = ("-o", "ControlMaster=yes", "-o", f"ConnectTimeout={max(1, int(patience))}")
        devnull = subprocess.DEVNULL
        self._master = subprocess.Popen(
            [*self._base, *options, "-N", "root@127.0.0.1"],
            stdin=devnull,
            stdout=devnull,
            stderr=devnull,
            start_new_session=True,
        )
        end = time.monotonic() + patience
        while self._master.poll() is None and time.monotonic() < end:
            if self._control.exists():
                return True
            time.sleep(0.02)
        return False

    @property
    def connected(self) -> bool:
        """Return whether the master connection is open, as far as L1 knows."""
        return self._master is not None and self._master.poll() is None and self._control.exists()

    def argv(self, command: Sequence[str] | str, *, tty: bool = False) -> list[str]:
        """Return the ssh command line for a command in L2. A list is quoted; a string is a script for L2's shell."""
        text = command if isinstance(command, str) else shlex.join(command)
        return [*self._base, "-o", "ControlMaster=no", *(["-tt"] if tty else []), "root@127.0.0.1", text]

    def run(
        self,
        command: Sequence[str] | str,
        *,
        timeout: float,
        stdin: bytes = b"",
        watch: Callable[[], str | None] | None = None,
    ) -> Result:
        """Run a command in L2 and return its result, whatever its exit status is.

        Raise TimeoutExpired past the deadline, or as soon as `watch` returns a reason.
        """
        argv = self.argv(command)
        end = time.monotonic() + timeout
        # A file, not a pipe: a second call of communicate() would not continue to send stdin.
        with tempfile.TemporaryFile() as source:
            source.write(stdin)
            source.seek(0)
            process = subprocess.Popen(argv, stdin=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with process:
            try:
                while True:
                    left = end - time.monotonic()
                    try:
                        out, err = process.communicate(timeout=max(0.01, min(1.0, left)))
                        break
                    except subprocess.TimeoutExpired:
                        # The process is killed below. Its pipes never reach EOF: the master has them open too.
                        if left <= 1.0 or (watch is not None and watch()):
                            raise
            except BaseException:
                process.kill()
                raise
        printed = (part.decode(errors="replace") for part in (out, err))
        return Result(argv[-1], process.returncode, *printed)

    def start(self, command: Sequence[str] | str) -> subprocess.Popen[str]:
        """Start a command and return at once, for tests that run many commands in parallel."""
        pipe = subprocess.PIPE
        return subprocess.Popen(self.argv(command), stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def close(self) -> None:
        """Drop the connection without a message to L2."""
        if self._master is not None:
            if self._master.poll() is None:
                self._master.kill()
            self._master.wait(10)
            self._master = None
        self._control.unlink(missing_ok=True)

"""One QEMU process on a private disk: starts it, controls it through QMP, reads its console, detects its death."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from pathlib import Path

from tests.lab import recipe
from tests.lab.build import Built
from tests.lab.errors import LabDied, LabError
from tests.lab.qmp import Qmp
from tests.lab.tools_tree import qemu, qemu_environment

# Enough for the packets of a TCP connection at full speed; the kernel's name for the option is not in Python.
LINK_BUFFER_BYTES = 8 << 20
SO_RCVBUFFORCE = 33

PANIC = re.compile(r"Kernel panic - not syncing.*|corrupted stack end detected.*")


class Emulator:
    """Runs in the directory `work`, which holds disk.qcow2. Creates console.log, qemu.log and the QMP socket there."""

    def __init__(self, built: Built, work: Path, flavour: str, load: str | None = None) -> None:
        self.work = work
        self._console_start = _size(work / "console.log")
        (work / "qmp").unlink(missing_ok=True)
        self.link = _link()
        argv = command(built, work, flavour, load, self.link.fileno())
        with (work / "qemu.log").open("ab") as log:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=work,
                env={**os.environ, **qemu_environment(built.tools)},
                start_new_session=True,
                pass_fds=(self.link.fileno(),),
            )
        try:
            self.qmp = self._control()
            self.port = self._forwarded_port()
        except BaseException:
            self.kill()
            raise

    def _control(self) -> Qmp:
        """Connect to QMP. QEMU creates the socket before it loads a snapshot, and answers only after that."""
        end = time.monotonic() + 60
        while not (self.work / "qmp").exists():
            if self.process.poll() is not None or time.monotonic() > end:
                raise LabError(f"the emulator did not start:\n{self.log_text()}")
            time.sleep(0.02)
        try:
            return Qmp(self.work / "qmp", deadline_seconds=60)
        except LabError as exc:
            raise LabError(f"the emulator did not start: {exc}\n{self.log_text()}") from exc

    def _forwarded_port(self) -> int:
        """Return the port on L1 that QEMU chose for the forward to L2's sshd."""
        listing = self.qmp.monitor("info usernet")
        result = re.search(r"TCP\[HOST_FORWARD\]\s+\d+\s+127\.0\.0\.1\s+(\d+)", listing)
        if result is None:
            raise LabError(f"no forwarded port in: {listing}")
        return int(result[1])

    def save(self, tag: str) -> None:
        """Save memory, devices and disk under a name; replace an older snapshot of that name."""
        answer = self.qmp.monitor(f"savevm {tag}")
        if answer.strip():
            raise LabError(f"savevm {tag}: {answer.strip()}")

    def load(self, tag: str) -> None:
        """Restore a saved state in the same QEMU process."""
        answer = self.qmp.monitor(f"loadvm {tag}")
        if answer.strip():
            raise LabError(f"loadvm {tag}: {answer.strip()}")
        self._console_start = _size(self.work / "console.log")

    def console_text(self) -> str:
        """Return what the kernel and systemd printed since the last load."""
        path = self.work / "console.log"
        if not path.exists():
            return ""
        with path.open("rb") as handle:
            handle.seek(self._console_start)
            return handle.read().decode(errors="replace")

    def log_text(self) -> str:
        """Return what QEMU itself printed."""
        path = self.work / "qemu.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def death(self) -> str | None:
        """Return the proof that the emulator or its guest is dead, or None.

        For a silent guest the caller decides, because only the caller can query the guest.
        """
        status = self.process.poll()
        if status is not None:
            return f"the emulator ended with status {status}: {self.log_text()[-500:]}"
        panic = PANIC.search(self.console_text())
        return panic[0].strip() if panic else None

    def quit(self) -> None:
        """Let QEMU flush its disk and quit; kill it if it does not end in time."""
        try:
            self.qmp.execute("quit")
            self.process.wait(30)
        except (LabDied, LabError, subprocess.TimeoutExpired):
            pass
        self.kill()

    def kill(self) -> None:
        """Kill the process at once."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)
        self.link.close()

    def connect(self, other: Emulator) -> None:
        """Send what leaves the second network card to another emulator. QEMU has the same socket."""
        self.link.connect(other.link.getsockname())


def _link() -> socket.socket:
    """Return the socket behind the second network card. While it is not connected, whatever L2 sends there is lost.

    UDP drops what the other side does not read. A socket that waits would hold L2's packets back, and an L2 whose state
    is saved meanwhile never sends again.
    """
    link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LINK_BUFFER_BYTES)
    if os.geteuid() == 0:
        link.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, LINK_BUFFER_BYTES)
    link.bind(("127.0.0.1", 0))
    return link


def command(built: Built, work: Path, flavour: str, load: str | None, link: int) -> list[str]:
    """Return QEMU's command line. Its devices must be the same when a snapshot is saved and when it is loaded."""
    return [
        # If the test run is killed, the kernel kills its emulator too.
        *("setpriv", "--pdeathsig", "KILL", "--"),
        *qemu(built.tools),
        *("-name", "vgpulab"),
        *recipe.machine_arguments(),
        *("-kernel", str(built.image / "vmlinuz"), "-initrd", str(built.image / "initrd")),
        *("-append", recipe.kernel_command_line(flavour)),
        *("-drive", f"if=none,id=root,file={work / 'disk.qcow2'},format=qcow2,cache=unsafe,discard=unmap"),
        *("-netdev", "user,id=control,restrict=on,hostfwd=tcp:127.0.0.1:0-:22"),
        *("-netdev", f"dgram,id=link,local.type=fd,local.str={link}"),
        *("-chardev", f"file,id=console,path={work / 'console.log'},append=on", "-serial", "chardev:console"),
        *("-chardev", f"socket,id=helper,path={work / 'helper'},server=on,wait=off"),
        *("-qmp", f"unix:{work / 'qmp'},server=on,wait=off"),
        *recipe.device_arguments(),
        *(("-loadvm", load) if load else ()),
    ]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0

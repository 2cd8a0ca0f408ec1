"""One QEMU process on a private disk: its start, its control socket, its console, and whether it is there."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

from tests.lab import recipe
from tests.lab.build import Built
from tests.lab.errors import LabDied, LabError
from tests.lab.foreign import qemu, qemu_environment
from tests.lab.qmp import Qmp

PANIC = re.compile(r"Kernel panic - not syncing.*|corrupted stack end detected.*")


class Emulator:
    """Runs in `work`, which holds disk.qcow2; makes console.log, qemu.log and the control socket there."""

    def __init__(self, built: Built, work: Path, flavour: str, load: str | None = None) -> None:
        self.work = work
        self._console_start = _size(work / "console.log")
        (work / "qmp").unlink(missing_ok=True)
        argv = command(built, work, flavour, load)
        with (work / "qemu.log").open("ab") as log:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=work,
                env={**os.environ, **qemu_environment(built.tools)},
                start_new_session=True,
            )
        try:
            self.qmp = self._control()
            self.port = self._forwarded_port()
        except BaseException:
            self.kill()
            raise

    def _control(self) -> Qmp:
        """The socket appears before a snapshot is loaded; the first answer comes after it."""
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
        """The emulator chose a free port; it lists its forwards."""
        listing = self.qmp.monitor("info usernet")
        found = re.search(r"TCP\[HOST_FORWARD\]\s+\d+\s+127\.0\.0\.1\s+(\d+)", listing)
        if found is None:
            raise LabError(f"no forwarded port in: {listing}")
        return int(found[1])

    def save(self, tag: str) -> None:
        """Memory, devices and disk, under a name; an older one of that name is replaced."""
        answer = self.qmp.monitor(f"savevm {tag}")
        if answer.strip():
            raise LabError(f"savevm {tag}: {answer.strip()}")

    def load(self, tag: str) -> None:
        """Back to a saved state, in the same process."""
        answer = self.qmp.monitor(f"loadvm {tag}")
        if answer.strip():
            raise LabError(f"loadvm {tag}: {answer.strip()}")
        self._console_start = _size(self.work / "console.log")

    def console_text(self) -> str:
        """What the kernel and systemd printed since the last load."""
        path = self.work / "console.log"
        if not path.exists():
            return ""
        with path.open("rb") as handle:
            handle.seek(self._console_start)
            return handle.read().decode(errors="replace")

    def log_text(self) -> str:
        """What the emulator itself printed."""
        path = self.work / "qemu.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def death(self) -> str | None:
        """Why it is certainly dead, or None. The caller decides about a silent guest, because it can query it."""
        status = self.process.poll()
        if status is not None:
            return f"the emulator ended with status {status}: {self.log_text()[-500:]}"
        panic = PANIC.search(self.console_text())
        return panic[0].strip() if panic else None

    def quit(self) -> None:
        """Lets the emulator flush its disk; then makes sure."""
        try:
            self.qmp.execute("quit")
            self.process.wait(30)
        except (LabDied, LabError, subprocess.TimeoutExpired):
            pass
        self.kill()

    def kill(self) -> None:
        """By pid, without asking."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)


def command(built: Built, work: Path, flavour: str, load: str | None) -> list[str]:
    """The whole command line. Its device part must be the same when a snapshot is saved and loaded."""
    return [
        # A test run that is killed takes its emulator with it.
        *("setpriv", "--pdeathsig", "KILL", "--"),
        *qemu(built.tools),
        *("-name", "vgpulab"),
        *recipe.machine_arguments(),
        *("-kernel", str(built.image / "vmlinuz"), "-initrd", str(built.image / "initrd")),
        *("-append", recipe.kernel_command_line(flavour)),
        *("-drive", f"if=none,id=root,file={work / 'disk.qcow2'},format=qcow2,cache=unsafe,discard=unmap"),
        *("-netdev", "user,id=control,restrict=on,hostfwd=tcp:127.0.0.1:0-:22"),
        *("-chardev", f"file,id=console,path={work / 'console.log'},append=on", "-serial", "chardev:console"),
        *("-qmp", f"unix:{work / 'qmp'},server=on,wait=off"),
        *recipe.device_arguments(),
        *(("-loadvm", load) if load else ()),
    ]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0

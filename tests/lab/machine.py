"""The virtual GPU host as tests see it: start, run, save, load, hot plug, tell when it is dead."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.lab import recipe
from tests.lab.build import Built
from tests.lab.emulator import Emulator
from tests.lab.errors import CommandFailed, LabDied, LabError
from tests.lab.foreign import qemu_img
from tests.lab.remote import CONNECTION_LOST, Remote, Result

BOOT_DEADLINE_SECONDS = 240.0
CONNECT_DEADLINE_SECONDS = 60.0


class Lab:
    """One L2. Its disk is a private copy, so the cache stays as it was built."""

    def __init__(self, built: Built, *, flavour: str = "normal", snapshot: Path | None = None) -> None:
        self.flavour = flavour
        self.work = Path()
        self.built = built
        self._snapshot = snapshot
        self._emulator: Emulator | None = None
        self._remote: Remote | None = None
        self._plugged: list[str] = []
        self._tags: set[str] = set()

    def start(self) -> None:
        """From the snapshot when there is one, else a cold boot; returns when L2 answers.

        Called again, it forgets everything and starts afresh: the way out when L2 died.
        """
        self.stop()
        self.work = Path(tempfile.mkdtemp(prefix="vgpulab-"))
        disk = self.work / "disk.qcow2"
        if self._snapshot is not None:
            shutil.copy(self._snapshot, disk)
            self._launch("base")
        else:
            backing = ("-b", self.built.image / "disk.raw", "-F", "raw")
            qemu_img(self.built.tools, "create", "-q", "-f", "qcow2", *backing, disk)
            self._launch(None)

    def _launch(self, tag: str | None) -> None:
        self._plugged.clear()
        self._emulator = Emulator(self.built, self.work, self.flavour, tag)
        self._remote = Remote(self.built.image, self.work, self._emulator.port)
        if tag:
            self._connect(CONNECT_DEADLINE_SECONDS)
            self._set_clock()
        else:
            self._connect(BOOT_DEADLINE_SECONDS, patience=5)

    def _connect(self, deadline_seconds: float, *, patience: float = 30) -> None:
        try:
            self.remote.connect(deadline_seconds=deadline_seconds, patience=patience)
        except LabError as exc:
            raise LabDied(f"{exc}; {self.dead() or 'its console: ' + self.console_text()[-2000:]}") from exc

    def _set_clock(self) -> None:
        """A restored guest lives at the time of its snapshot."""
        self.run(["date", "-s", f"@{time.time():.3f}"])

    def stop(self) -> None:
        """Ends the emulator and removes its disk and all that was saved on it."""
        if self._remote is not None:
            self._remote.close()
        if self._emulator is not None:
            self._emulator.kill()
        self._remote = self._emulator = None
        self._tags.clear()
        if self.work != Path():
            shutil.rmtree(self.work, ignore_errors=True)
            self.work = Path()

    def shut(self) -> None:
        """Ends the emulator so that its disk, with all snapshots, is whole and can be kept or used again."""
        self.remote.close()
        self.emulator.quit()
        self._remote = self._emulator = None

    @property
    def emulator(self) -> Emulator:
        """The running emulator."""
        if self._emulator is None:
            raise LabError("the lab is not started")
        return self._emulator

    @property
    def remote(self) -> Remote:
        """The connection to L2."""
        if self._remote is None:
            raise LabError("the lab is not started")
        return self._remote

    def pause(self) -> None:
        """Takes no CPU until `resume`; the guest does not notice but for its clock."""
        self.emulator.qmp.execute("stop")

    def resume(self) -> None:
        """Goes on after `pause`."""
        self.emulator.qmp.execute("cont")

    def reboot(self, *, hard: bool = False, timeout: float = 240) -> None:
        """Restarts L2 in good order, or as the reset button does; returns when it has booted and settled."""
        before = self.boot_id()
        if hard:
            self.emulator.qmp.execute("system_reset")
        else:
            self.remote.run(["systemctl", "reboot"], timeout=60)
        end = time.monotonic() + timeout
        while True:
            self.remote.close()
            self._connect(max(1.0, end - time.monotonic()), patience=5)
            if self.boot_id() != before:
                break
        self.run("systemctl is-system-running --wait", check=False, timeout=timeout)

    def boot_id(self) -> str:
        """Another one after each boot of L2's kernel."""
        return self.read("/proc/sys/kernel/random/boot_id").strip()

    def save(self, tag: str) -> None:
        """Keeps memory, devices and disk under a name."""
        if self._plugged:
            raise LabError("an emulated NVMe cannot be saved: save before hotplug_nvme")
        self.emulator.save(tag)
        self._tags.add(tag)

    def load(self, tag: str) -> None:
        """Back to a saved state. A hot-plugged device is part of none, so then a fresh emulator loads it."""
        reason = self.dead()
        if reason is not None:
            raise LabDied(f"the emulated host died: {reason}")
        if self._plugged:
            self.shut()
            self._launch(tag)
            return
        self.remote.close()
        self.emulator.load(tag)
        self._connect(CONNECT_DEADLINE_SECONDS)
        self._set_clock()

    def at(self, tag: str, make: Callable[[Lab], None], *, on: str = "session") -> None:
        """Loads the state `tag`; the first time it is made, by `make` on the state `on`, and saved.

        For what many tests start from. It survives a death of L2, which a fixture of wider scope would not.
        """
        if tag in self._tags:
            self.load(tag)
            return
        self.load(on)
        make(self)
        self.save(tag)

    def hotplug_nvme(self, *, timeout: float = 60) -> str:
        """Plugs an NVMe with 16 VFs into an empty root port; its PCI address, once L2 sees it."""
        free = [port for port in recipe.NVME_PORTS if port not in self._plugged]
        if not free:
            raise LabError("all NVMe ports are taken")
        port = free[0]
        before = set(self.pci_addresses())
        self._plugged.append(port)
        self.emulator.qmp.execute("device_add", recipe.nvme_properties(port))
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            new = sorted(set(self.pci_addresses()) - before)
            if new:
                return new[0]
        raise LabError(f"the hot-plugged NVMe did not appear within {timeout:g} s")

    def pci_addresses(self) -> list[str]:
        """All PCI functions that L2's kernel knows."""
        return self.run(["ls", "/sys/bus/pci/devices"]).stdout.split()

    def run(
        self,
        command: Sequence[str] | str,
        *,
        check: bool = True,
        timeout: float = 120,
        stdin: str | bytes = b"",
    ) -> Result:
        """Runs a command (a list) or a script (a string) as root in L2.

        LabDied when L2 died under it; CommandFailed past the deadline, and with `check` for a status not 0.
        """
        data = stdin.encode() if isinstance(stdin, str) else stdin
        if not self.remote.connected:
            self._connect(CONNECT_DEADLINE_SECONDS)
        try:
            result = self.remote.run(command, timeout=timeout, stdin=data, watch=self.dead)
        except subprocess.TimeoutExpired as exc:
            self.raise_if_dead()
            printed = b"".join(part for part in (exc.stdout, exc.stderr) if part).decode(errors="replace")
            raise CommandFailed(f"in the lab: {command}", None, printed) from None
        if result.returncode == CONNECTION_LOST:
            self.raise_if_dead()
        if check and result.returncode != 0:
            said = result.stdout + result.stderr
            raise CommandFailed(f"in the lab: {result.argv}", result.returncode, said)
        return result

    def wait_until(self, script: str, *, timeout: float = 60) -> None:
        """Waits inside L2 until the script's status is 0; CommandFailed past the deadline."""
        loop = f"until {{ {script}\n}}; do sleep 0.1; done"
        self.run(["timeout", f"{timeout:g}", "bash", "-c", loop], timeout=timeout + 30)

    def start_command(self, command: Sequence[str] | str) -> subprocess.Popen[str]:
        """Starts a command in L2 and returns at once."""
        if not self.remote.connected:
            self._connect(CONNECT_DEADLINE_SECONDS)
        return self.remote.start(command)

    def push(self, tree: Path, dest: str, *, timeout: float = 120) -> None:
        """Copies what is under `tree` (or one file) into the directory `dest` of L2."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for path in sorted(tree.iterdir()) if tree.is_dir() else [tree]:
                archive.add(path, path.name, filter=_owned_by_root)
        script = f"mkdir -p '{dest}' && tar -xf - -C '{dest}'"
        self.run(script, stdin=buffer.getvalue(), timeout=timeout)

    def read(self, path: str) -> str:
        """The text of a file in L2."""
        return self.run(["cat", path]).stdout

    def console_text(self) -> str:
        """What L2's console printed since the last load."""
        return self._emulator.console_text() if self._emulator else ""

    def alive(self) -> bool:
        """Whether L2 still runs: its process is there, no panic, and it answers or at least still prints."""
        try:
            self.raise_if_dead()
        except LabDied:
            return False
        return True

    def dead(self) -> str | None:
        """Why it is certainly dead, without asking it anything; None when there is no such sign."""
        return self._emulator.death() if self._emulator else "the emulator is not running"

    def raise_if_dead(self, *, patience: float = 60) -> None:
        """LabDied with the reason. Silence alone is death only when the console stands still as well."""
        reason = self.dead()
        if reason is None:
            printed = len(self.console_text())
            try:
                if self.remote.connected and self._answers(30):
                    return
                self.remote.connect(deadline_seconds=patience)
                return
            except LabError:
                reason = self.dead()
                if reason is None and len(self.console_text()) == printed:
                    reason = f"no answer within {patience:g} s and a console that stands still"
        if reason is not None:
            raise LabDied(f"the emulated host died: {reason}")

    def _answers(self, timeout: float) -> bool:
        try:
            return self.remote.run(["true"], timeout=timeout).returncode == 0
        except subprocess.TimeoutExpired:
            return False


def _owned_by_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry

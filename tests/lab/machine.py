"""The virtual GPU host for tests: start, run commands, save, load, hot-plug devices, detect its death."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.lab import recipe
from tests.lab.build import Built
from tests.lab.emulator import Emulator
from tests.lab.errors import CommandFailed, LabDied, LabError
from tests.lab.remote import CONNECTION_LOST, Remote, Result
from tests.lab.tools_tree import qemu_img

BOOT_DEADLINE_SECONDS = 240.0
CONNECT_DEADLINE_SECONDS = 60.0


class Lab:
    """One L2. Its disk is a private copy, so the cache stays unchanged."""

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
        """Start from the snapshot if there is one, else with a cold boot; return when L2 answers.

        A second call discards all state and starts again. Use it after L2 died.
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
        """Set L2's clock, because a restored guest has the time of its snapshot."""
        self.run(["date", "-s", f"@{time.time():.3f}"])

    def stop(self) -> None:
        """Kill the emulator and remove its disk with all saved states."""
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
        """End the emulator cleanly, so that its disk with all snapshots can be used again."""
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
        """Stop L2 until `resume`, so that it uses no CPU. The guest notices this only by its clock."""
        self.emulator.qmp.execute("stop")

    def resume(self) -> None:
        """Continue after `pause`."""
        self.emulator.qmp.execute("cont")

    def reboot(self, *, hard: bool = False, timeout: float = 240) -> None:
        """Reboot L2 cleanly, or with `hard` as the reset button does; return when its boot is complete."""
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
        """Return the boot ID of L2's kernel. It changes with each boot."""
        return self.read("/proc/sys/kernel/random/boot_id").strip()

    def save(self, tag: str) -> None:
        """Save memory, devices and disk under a name."""
        if self._plugged:
            raise LabError("a hot-plugged device cannot be saved: save before it is plugged")
        self.emulator.save(tag)
        self._tags.add(tag)

    def load(self, tag: str) -> None:
        """Restore a saved state. No state contains a hot-plugged device; with one, a new QEMU loads the state."""
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
        """Load the state `tag`. The first call loads the state `on`, runs `make`, and saves the result as `tag`.

        Use it for a state that many tests start from. Unlike a fixture of wider scope, it survives a death of L2.
        """
        if tag in self._tags:
            self.load(tag)
            return
        self.load(on)
        make(self)
        self.save(tag)

    def hotplug_nvme(self, *, timeout: float = 60) -> str:
        """Plug an NVMe with 16 VFs into an empty root port; return its PCI address as soon as L2 sees it."""
        return self._plug(recipe.nvme_properties, self.pci_addresses, timeout)

    def hotplug_disk(self, disk: Path, *, timeout: float = 60) -> str:
        """Plug a raw disk, which L2 can only read, into an empty root port; return its name as soon as L2 sees it."""
        file = {"driver": "file", "filename": str(disk)}
        node = {"driver": "raw", "node-name": "plugged", "read-only": True, "file": file}
        self.emulator.qmp.execute("blockdev-add", node)
        return self._plug(
            lambda port: {"driver": "virtio-blk-pci", "drive": "plugged", "id": "plugged", "bus": f"port-{port}"},
            lambda: self.run(["ls", "/sys/block"]).stdout.split(),
            timeout,
        )

    def _plug(
        self, properties: Callable[[str], Mapping[str, object]], read: Callable[[], list[str]], timeout: float
    ) -> str:
        """Add a device at an empty root port, and return what is new in what `read` returns."""
        free = [port for port in recipe.NVME_PORTS if port not in self._plugged]
        if not free:
            raise LabError("all ports for hot-plugged devices are taken")
        port = free[0]
        before = set(read())
        self._plugged.append(port)
        self.emulator.qmp.execute("device_add", properties(port))
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            new = sorted(set(read()) - before)
            if new:
                return new[0]
        raise LabError(f"the hot-plugged device did not appear within {timeout:g} s")

    def pci_addresses(self) -> list[str]:
        """Return the addresses of all PCI functions in L2's kernel."""
        return self.run(["ls", "/sys/bus/pci/devices"]).stdout.split()

    def run(
        self,
        command: Sequence[str] | str,
        *,
        check: bool = True,
        timeout: float = 120,
        stdin: str | bytes = b"",
    ) -> Result:
        """Run a command (a list) or a script (a string) as root in L2.

        Raise LabDied if L2 dies meanwhile. Raise CommandFailed past the deadline and, with `check`, if the exit status
        is not 0.
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
            output = result.stdout + result.stderr
            raise CommandFailed(f"in the lab: {result.argv}", result.returncode, output)
        return result

    def wait_until(self, script: str, *, timeout: float = 60) -> None:
        """Wait inside L2 until the script's exit status is 0; raise CommandFailed past the deadline."""
        loop = f"until {{ {script}\n}}; do sleep 0.1; done"
        self.run(["timeout", f"{timeout:g}", "bash", "-c", loop], timeout=timeout + 30)

    def start_command(self, command: Sequence[str] | str) -> subprocess.Popen[str]:
        """Start a command in L2 and return at once."""
        if not self.remote.connected:
            self._connect(CONNECT_DEADLINE_SECONDS)
        return self.remote.start(command)

    def push(self, tree: Path, dest: str, *, timeout: float = 120) -> None:
        """Copy the content of `tree` (or one file) into the directory `dest` of L2."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for path in sorted(tree.iterdir()) if tree.is_dir() else [tree]:
                archive.add(path, path.name, filter=_owned_by_root)
        script = f"mkdir -p '{dest}' && tar -xf - -C '{dest}'"
        self.run(script, stdin=buffer.getvalue(), timeout=timeout)

    def read(self, path: str) -> str:
        """Return the text of a file in L2."""
        return self.run(["cat", path]).stdout

    def console_text(self) -> str:
        """Return what L2's console printed since the last load."""
        return self._emulator.console_text() if self._emulator else ""

    def alive(self) -> bool:
        """Return whether L2 still runs: QEMU runs, no panic, and L2 answers or at least still prints."""
        try:
            self.raise_if_dead()
        except LabDied:
            return False
        return True

    def dead(self) -> str | None:
        """Return the proof that L2 is dead, or None if there is none. This does not query L2."""
        return self._emulator.death() if self._emulator else "the emulator is not running"

    def raise_if_dead(self, *, patience: float = 60) -> None:
        """Raise LabDied with the reason if L2 is dead. A silent L2 is dead only if its console is silent too."""
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

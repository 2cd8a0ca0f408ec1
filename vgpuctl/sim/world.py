# SPDX-License-Identifier: Apache-2.0
"""Opening a simulated host by its scenario's name or file, and what a person can do to it: reboot, reset.

The caller joins these seams with the real claims and lock, which work on the real directory `run_dir`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from vgpuctl.errors import HostCannot, NotFound
from vgpuctl.model.records import Holder
from vgpuctl.model.vm import ProcessId, StuckWrite
from vgpuctl.regular_file import read_regular
from vgpuctl.sim import scheduler
from vgpuctl.sim.audit import SimAudit
from vgpuctl.sim.core import Core
from vgpuctl.sim.host_tree import nvidia_node, vfio_name
from vgpuctl.sim.hypervisor import EMULATOR, SimHypervisor
from vgpuctl.sim.kernel_log import SimKernelLog
from vgpuctl.sim.manage import SimVendorCommands
from vgpuctl.sim.nvml import SimNvml
from vgpuctl.sim.state import FIRST_PID, State
from vgpuctl.sim.storage import SimStorage
from vgpuctl.sim.sysfs import SimSysfs
from vgpuctl.sim.turns import in_turn

SCENARIOS = ("a100-40", "t4", "a16", "l40s-x4", "h100-mig", "rtx-pro-6000", "mixed", "empty")
"""The built-in scenarios."""
MOST_BYTES = 1 << 20
"""No scenario is larger."""
_BUILT_IN = Path(__file__).parent / "scenarios"
CONSOLE_PID = FIRST_PID - 1
CLIENT_PID = FIRST_PID - 2
"""That of the first GPU's client of NVIDIA's driver; the others have the numbers below."""


@in_turn
class SimWorld:
    """One simulated host. `name` is the scenario as it was typed."""

    def __init__(self, core: Core, text: str, file: str) -> None:
        self._core = core
        self._text = text
        self._file = file
        self.name = core.name
        self.sysfs = SimSysfs(core)
        self.nvml = SimNvml(core)
        self.kernel_log = SimKernelLog(core)
        self.hypervisor = SimHypervisor(core)
        self.storage = SimStorage(core)
        self.audit = SimAudit(core.directory)
        self.vendor = SimVendorCommands(core)
        self.run_dir: Path = core.directory / "run"
        self.host_file: Path = core.directory / "etc" / "vgpuctl" / "host.yaml"
        for directory in (self.run_dir, core.directory / "etc"):
            directory.mkdir(mode=0o700, exist_ok=True)

    @property
    def machine_id(self) -> str:
        """The host's /etc/machine-id."""
        return self._core.machine_id

    @property
    def title(self) -> str:
        """The scenario's one line for people."""
        return str(self._core.machine.scenario["title"])

    @property
    def lock_held(self) -> Callable[[], bool]:
        """Says whether this process holds the host lock; changing calls and libvirt's then raise."""
        return self._core.lock_held

    @lock_held.setter
    def lock_held(self, value: Callable[[], bool]) -> None:
        self._core.lock_held = value

    # --------------------------------------------------------------- processes

    def holders(self, nodes: tuple[str, ...]) -> tuple[Holder, ...]:
        """Return the simulated processes that have any of these device nodes open."""
        state = self._core.look()
        wanted = set(nodes)
        found = [
            Holder(running.pid, f"{EMULATOR} -name guest={running.name}")
            for running in state.running.values()
            if wanted.intersection(node for c in running.carriers for node in _nodes(state, c))
        ]
        for number, gpu in enumerate(state.machine.gpus.values()):
            if gpu.console and state.driver(gpu.own) == gpu.own.driver and f"/dev/dri/card{number}" in wanted:
                found.append(Holder(CONSOLE_PID, "/usr/lib/xorg/Xorg :0"))
            bound = gpu.nvml and state.driver(gpu.own) == "nvidia"
            if gpu.held_by and bound and wanted & {"/dev/nvidiactl", f"/dev/{nvidia_node(state, gpu)}"}:
                found.append(Holder(CLIENT_PID - number, gpu.held_by))
        return tuple(found)

    def alive(self, process: ProcessId) -> bool:
        """Say whether a simulated process lives: a VM's, or a write that waits in the kernel."""
        state = self._core.look()
        pids = {running.pid for running in state.running.values()}
        return process.pid in pids or process.pid in state.parked

    def stuck(self) -> tuple[StuckWrite, ...]:
        """Return the writes that wait in the simulated kernel: the caller shows them beside the real ones."""
        return self.sysfs.stuck()

    # ------------------------------------------------------------ power switch

    def reboot(self) -> None:
        """Turn the host off and on: VMs stop, devices go, VFs are as the scenario boots them, /run is empty."""
        with self._core.change("reboot", self.name) as change:
            change.add("boot")
            change.records += scheduler.loaded(self._modprobe_files())
            self._empty_run()

    def reset(self) -> None:
        """Forget everything that happened, and read the scenario again."""
        with self._core.journal.locked():
            _remove(self.host_file.parent)
            self._core.forget(_digest(self._text), _compile(self._text, self._file))
            self.audit.forget()
            self._empty_run()
            _remove(self._core.directory / "etc" / "modprobe.d")

    def close(self) -> None:
        """Close the journal's files."""
        self._core.journal.close()

    def _modprobe_files(self) -> list[str]:
        """Return what modprobe reads of /etc, in its order."""
        return [path.read_text() for path in sorted((self._core.directory / "etc" / "modprobe.d").glob("*.conf"))]

    def _empty_run(self) -> None:
        for path in self.run_dir.iterdir():
            _remove(path)


def open_world(text: str, *, state_dir: Path | None = None, lock_held: Callable[[], bool] | None = None) -> SimWorld:
    """Open a simulated host: a built-in scenario's name, or a scenario file's path.

    Raises:
        NotFound: there is no such scenario.
        InvalidInput: the file is wrong (with its line), or was changed since the host was first used.
    """
    world, content, file = _world(text, state_dir)
    world._core.begin(_digest(content), partial(_compile, content, file))
    if lock_held is not None:
        world.lock_held = lock_held
    return world


def reset_world(text: str, *, state_dir: Path | None = None) -> SimWorld:
    """Open a simulated host after forgetting its state, also when that is damaged or of an older scenario."""
    world, _, _ = _world(text, state_dir)
    world._core.journal.forget()
    world.close()
    fresh = open_world(text, state_dir=state_dir)
    fresh.reset()
    return fresh


def _world(text: str, state_dir: Path | None) -> tuple[SimWorld, str, str]:
    content, file, stem = _source(text)
    base = _states()
    directory = state_dir if state_dir is not None else base / stem
    try:
        if state_dir is None:
            base.mkdir(mode=0o700, parents=True, exist_ok=True)
        return SimWorld(Core(text, directory), content, file), content, file
    except OSError as exc:
        raise HostCannot(
            f"the simulated host {text} cannot keep its state in {directory}: {exc.strerror}",
            hint="name a directory that can be written: XDG_STATE_HOME=DIR vgpuctl …",
            check="state-directory",
            errno=exc.errno,
        ) from exc


def _source(text: str) -> tuple[str, str, str]:
    """Return the scenario's content, its name in messages, and the state directory's name."""
    if text in SCENARIOS:
        return (_BUILT_IN / f"{text}.yaml").read_text(), f"{text}.yaml", text
    path = Path(text).expanduser()
    try:
        content = read_regular(str(path), MOST_BYTES).decode("utf-8")
    except (OSError, ValueError) as exc:
        import difflib

        near = difflib.get_close_matches(text, SCENARIOS, 1)
        more = f"did you mean '{near[0]}'? " if near else ""
        raise NotFound(
            f"there is no scenario '{text}', and no file of that name can be read",
            hint=f"{more}built in: {', '.join(SCENARIOS)}; a file of your own is described in docs/scenarios.md",
        ) from exc
    short = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:8]
    return content, text, f"{path.stem}-{short}"


def _states() -> Path:
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".local" / "state") / "vgpuctl"


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def _compile(content: str, file: str) -> dict[str, Any]:
    from vgpuctl.sim.scenario import compile_scenario

    return compile_scenario(content, file)


def _nodes(state: State, carrier: str) -> list[str]:
    """Return the device nodes that a VM's QEMU holds for one carrier."""
    mdev = state.mdevs.get(carrier)
    if mdev is not None:
        return [f"/dev/vfio/{mdev.group}"]
    function = state.machine.functions.get(carrier)
    if function is None:
        return []
    name = vfio_name(state, function)
    return [f"/dev/vfio/{function.group}"] + ([f"/dev/vfio/devices/{name}"] if name else [])


def _remove(path: Path) -> None:
    """Remove a file or a directory with all that is in it; another process may have been faster."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    import shutil

    shutil.rmtree(path, ignore_errors=True)

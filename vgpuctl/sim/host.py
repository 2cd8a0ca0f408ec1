# SPDX-License-Identifier: Apache-2.0
"""Opening a simulated host by its scenario's name or file, and what an admin can do to it: reboot, reset.

The caller combines these ports with the real claims and lock, which work in the real directory `run_dir`.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from vgpuctl.errors import HostCannot, NotFound
from vgpuctl.model.port_values import DeviceUser
from vgpuctl.model.vm import ProcessId, StuckWrite
from vgpuctl.regular_file import read_regular_file
from vgpuctl.sim import drm, mtgpu, vgpu_scheduler
from vgpuctl.sim.core import Core, serialize_calls
from vgpuctl.sim.domain_events import SimDomainEvents
from vgpuctl.sim.domain_xml import host_arch
from vgpuctl.sim.guest_agent import SimGuestAgent
from vgpuctl.sim.guest_channels import SimGuestChannels
from vgpuctl.sim.host_tree import nvidia_node_name, vfio_device_name
from vgpuctl.sim.hypervisor import EMULATOR_PREFIX, SimHypervisor
from vgpuctl.sim.image_folders import SimImageFolders
from vgpuctl.sim.kernel_messages import SimKernelMessages
from vgpuctl.sim.logs import SimAudit, SimKernelLog
from vgpuctl.sim.nvml import SimNvml
from vgpuctl.sim.scenario import compile_scenario
from vgpuctl.sim.state import FIRST_PID, State
from vgpuctl.sim.storage import SimStorage
from vgpuctl.sim.sysfs import SimSysfs
from vgpuctl.sim.usage import SimUsage
from vgpuctl.sim.vendor_commands import SimVendorCommands, load_gim, modprobe_files
from vgpuctl.sim.volume_bin import SimVolumeBin

SCENARIOS = (
    "a100-40",
    "t4",
    "a16",
    "l40s-x4",
    "h100-mig",
    "rtx-pro-6000",
    "ascend",
    "mtt-s3000",
    "makers",
    "mi300x",
    "b60",
    "hgx-h100",
    "h100-pcie-x8",
    "mixed",
    "empty",
)
"""The built-in scenarios."""
URI_PREFIX = "sim:"
MAX_SCENARIO_BYTES = 1 << 20
"""The largest scenario file that is read."""
SCENARIO_DIRECTORY = Path(__file__).parent / "scenarios"
CONSOLE_PID = FIRST_PID - 1
DRIVER_CLIENT_PID = FIRST_PID - 2
"""The pid of the process that has NVIDIA's driver open for the first GPU. Further GPUs count down from it."""


@serialize_calls
class SimHost:
    """One simulated host. `name` is the scenario as given on the command line."""

    def __init__(self, core: Core, text: str, file: str) -> None:
        self._core = core
        self._text = text
        self._file = file
        core.open_peer = open_peer
        self.name = core.name
        self.sysfs = SimSysfs(core)
        self.nvml = SimNvml(core)
        self.kernel_log = SimKernelLog(core)
        self.kernel_messages = SimKernelMessages(core.directory)
        self.hypervisor = SimHypervisor(core)
        self.domain_events = SimDomainEvents(core)
        self.guest_channels = SimGuestChannels(core)
        self.guest_agent = SimGuestAgent(core)
        self.storage = SimStorage(core)
        self.volume_bin = SimVolumeBin(core)
        self.image_folders = SimImageFolders(core, self.storage)
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
    def migration_uri(self) -> str:
        """The address by which another simulated host sends a VM here, wherever the state is."""
        return f"{URI_PREFIX}{self._core.directory}"

    @property
    def title(self) -> str:
        """The scenario's one-line description."""
        return str(self._core.machine.scenario["title"])

    @property
    def lock_held(self) -> Callable[[], bool]:
        """A function that says whether this process holds the host lock. Writes and libvirt calls then raise."""
        return self._core.lock_held

    @lock_held.setter
    def lock_held(self, value: Callable[[], bool]) -> None:
        self._core.lock_held = value

    def usage(self, now: Callable[[], float]) -> SimUsage:
        """Return what reads the use of its GPUs, at the time that `now` returns, in seconds since 1970."""
        return SimUsage(self._core, now)

    # --------------------------------------------------------------- processes

    def find_holders(self, nodes: tuple[str, ...]) -> tuple[DeviceUser, ...]:
        """Return the simulated processes that have any of these device nodes open."""
        state = self._core.read_state()
        requested = set(nodes)
        holders = [
            DeviceUser(running.pid, f"{EMULATOR_PREFIX}{host_arch(state.machine.scenario)} -name guest={running.name}")
            for running in state.running.values()
            if requested.intersection(node for c in running.carriers for node in _device_nodes(state, c))
            or requested.intersection(drm.nodes_of_domain(state, running.xml))
        ]
        for number, gpu in enumerate(state.machine.gpus.values()):
            if (
                gpu.console
                and state.driver(gpu.own_function) == gpu.own_function.driver
                and f"/dev/dri/card{number}" in requested
            ):
                holders.append(DeviceUser(CONSOLE_PID, "/usr/lib/xorg/Xorg :0"))
            is_bound = gpu.nvml and state.driver(gpu.own_function) == "nvidia"
            if gpu.held_by and is_bound and requested & {"/dev/nvidiactl", f"/dev/{nvidia_node_name(state, gpu)}"}:
                holders.append(DeviceUser(DRIVER_CLIENT_PID - number, gpu.held_by))
        return tuple(holders)

    def is_alive(self, process: ProcessId) -> bool:
        """Say whether a simulated process is alive: a VM's, or a write that hangs in the kernel."""
        state = self._core.read_state()
        pids = {running.pid for running in state.running.values()}
        return process.pid in pids or process.pid in state.blocked_writes

    def stuck_writes(self) -> tuple[StuckWrite, ...]:
        """Return the writes that hang in the simulated kernel. The caller shows them together with the real ones."""
        return self.sysfs.stuck_writes()

    # ------------------------------------------------------------ power switch

    def reboot(self) -> None:
        """Power cycle the host: VMs stop, mdevs disappear, VFs are as the scenario boots them, /run is empty."""
        with self._core.operation("reboot", self.name) as change:
            change.add("boot")
            texts = tuple(modprobe_files(self._core.directory))
            change.records += vgpu_scheduler.module_records(texts) + mtgpu.module_records(texts)
            if self._core.state.gim_config:
                change.records += load_gim(self._core)
            self._empty_run_directory()

    def reset(self) -> None:
        """Discard everything that happened, and read the scenario again."""
        with self._core.journal.locked():
            _remove(self.host_file.parent)
            self._core.reset_state(_digest(self._text), compile_scenario(self._text, self._file))
            self.audit.clear()
            self._empty_run_directory()
            _remove(self._core.directory / "etc/modprobe.d")
            (self._core.directory / "etc/gim_config").unlink(missing_ok=True)

    def close(self) -> None:
        """Close the journal's files."""
        self._core.journal.close()

    def _empty_run_directory(self) -> None:
        for path in self.run_dir.iterdir():
            _remove(path)


def open_host(scenario: str, *, state_dir: Path | None = None, lock_held: Callable[[], bool] | None = None) -> SimHost:
    """Open a simulated host: a built-in scenario's name, or a scenario file's path.

    Raises:
        NotFound: there is no such scenario.
        InvalidInput: the file is wrong (the error names the line), or was changed since the host was first used.
    """
    host, content, file = _build_host(scenario, state_dir)
    host._core.open_state(_digest(content), partial(compile_scenario, content, file))
    if lock_held is not None:
        host.lock_held = lock_held
    return host


def open_peer(uri: str) -> Core:
    """Open the host that a VM is sent to: `sim:SCENARIO` as on the command line, or `sim:DIRECTORY` of its state.

    Raises:
        VgpuctlError: there is no such host, or its state cannot be used.
    """
    scenario = uri.removeprefix(URI_PREFIX)
    if not uri.startswith(URI_PREFIX):
        raise NotFound(f"'{uri}' is not the address of a simulated host", hint="write it as sim:SCENARIO")
    directory = Path(scenario)
    if directory.is_absolute() and (directory / "journal").is_file():
        core = Core(scenario, directory)
        core.read_state()
        return core
    return open_host(scenario)._core


def reset_host(scenario: str, *, state_dir: Path | None = None) -> SimHost:
    """Discard a simulated host's state and open it. The state may be damaged or of an older scenario."""
    host, _, _ = _build_host(scenario, state_dir)
    host._core.journal.remove()
    host.close()
    new_host = open_host(scenario, state_dir=state_dir)
    new_host.reset()
    return new_host


def _build_host(text: str, state_dir: Path | None) -> tuple[SimHost, str, str]:
    content, file, stem = _read_source(text)
    base = _state_home()
    directory = state_dir if state_dir is not None else base / stem
    try:
        if state_dir is None:
            base.mkdir(mode=0o700, parents=True, exist_ok=True)
        return SimHost(Core(text, directory), content, file), content, file
    except OSError as exc:
        raise HostCannot(
            f"the simulated host {text} cannot store its state in {directory}: {exc.strerror}",
            hint="XDG_STATE_HOME=DIR vgpuctl ... uses another directory",
            check="state-directory",
            errno=exc.errno,
        ) from exc


def _read_source(text: str) -> tuple[str, str, str]:
    """Return the scenario's content, its name in messages, and the state directory's name."""
    if text in SCENARIOS:
        return (SCENARIO_DIRECTORY / f"{text}.yaml").read_text(), f"{text}.yaml", text
    path = Path(text).expanduser()
    try:
        content = read_regular_file(str(path), MAX_SCENARIO_BYTES).decode("utf-8")
    except (OSError, ValueError) as exc:
        matches = difflib.get_close_matches(text, SCENARIOS, 1)
        suggestion = f"did you mean '{matches[0]}'? " if matches else ""
        raise NotFound(
            f"unknown scenario '{text}', and no file of this name can be read",
            hint=f"{suggestion}built in: {', '.join(SCENARIOS)}; for your own: vgpuctl sim list-scenarios --help",
        ) from exc
    path_hash = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:8]
    return content, text, f"{path.stem}-{path_hash}"


def _state_home() -> Path:
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".local" / "state") / "vgpuctl"


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def _device_nodes(state: State, carrier: str) -> list[str]:
    """Return the device nodes that a VM's QEMU holds for one carrier."""
    mdev = state.mdevs.get(carrier)
    if mdev is not None:
        return [f"/dev/vfio/{mdev.group}"]
    function = state.machine.functions.get(carrier)
    if function is None:
        return []
    name = vfio_device_name(state, function)
    return [f"/dev/vfio/{function.group}"] + ([f"/dev/vfio/devices/{name}"] if name else [])


def _remove(path: Path) -> None:
    """Remove a file or a directory tree. It is no error if another process removed it first."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    shutil.rmtree(path, ignore_errors=True)

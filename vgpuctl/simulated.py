# SPDX-License-Identifier: Apache-2.0
"""Join a simulated host with this machine's processes, claims and lock into one Host.

A simulated host brings its own kernel, libvirt and storage. Claims, the lock, processes and time are this machine's;
they are below the simulated host's own /run, so that several vgpuctl processes see each other as on a real host.
The library and libvirt's hook open a simulated host here; the sim commands reboot and reset it.
"""

from __future__ import annotations

import os
from uuid import uuid4

from vgpuctl import sim
from vgpuctl.errors import InvalidInput
from vgpuctl.host.atomic_files import open_unfinished_files
from vgpuctl.host.claim_store import ClaimStore
from vgpuctl.host.domain_joins import DomainJoinFiles
from vgpuctl.host.driver_discs import DriverDiscFiles
from vgpuctl.host.guest_reports import GuestReportFiles
from vgpuctl.host.host_file import HostFileOnDisk
from vgpuctl.host.operation_files import OperationFiles
from vgpuctl.host.processes import HostClock, HostProcesses
from vgpuctl.host.system_files import HostSystem
from vgpuctl.host.usage_history import HISTORY_NAME, UsageHistoryFile
from vgpuctl.model.port_values import DeviceUser
from vgpuctl.model.vm import ProcessId, StuckWrite
from vgpuctl.ports.host import Host

PREFIX = "sim:"


def open_simulated_host(scenario: str, clock: HostClock | None = None, wait_seconds: float = 60.0) -> Host:
    """Return the simulated host of a built-in scenario, by its name, or of a scenario file.

    `wait_seconds`: for the locks that other processes hold for microseconds.

    Raises:
        NotFound: there is no such scenario.
        InvalidInput: its file is invalid, or was changed since the host was first used.
    """
    sim_host, clock = sim.open_host(scenario), clock or HostClock()
    processes = SimProcesses(sim_host)
    operations = OperationFiles(sim_host.run_dir, processes)
    claims = SimClaims(processes, operations, sim_host, clock, wait_seconds)
    sim_host.lock_held = lambda: claims.is_locked
    return Host(
        name=f"{PREFIX}{scenario}",
        sysfs=sim_host.sysfs,
        nvml=sim_host.nvml,
        hypervisor=sim_host.hypervisor,
        storage=sim_host.storage,
        processes=processes,
        operations=operations,
        claims=claims,
        clock=clock,
        machine_id=sim_host.machine_id,
        new_uuid=lambda: str(uuid4()),
        audit_log=sim_host.audit,
        system=_system(sim_host),
        host_file=HostFileOnDisk(
            sim_host.host_file, lock_held=lambda: claims.is_locked, clock=clock, wait_seconds=wait_seconds
        ),
        vendor_commands=sim_host.vendor,
        system_log=sim_host.kernel_log,
        unfinished_files=open_unfinished_files(
            sim_host.run_dir.parent, sim_host.run_dir, sim_host.host_file, processes
        ),
        domain_events=sim_host.domain_events,
        volume_bin=sim_host.volume_bin,
        kernel_messages=sim_host.kernel_messages,
        usage=sim_host.usage(clock.now),
        guest_reports=GuestReportFiles(sim_host.run_dir),
        guest_channels=sim_host.guest_channels,
        driver_discs=DriverDiscFiles(sim_host.run_dir.parent / "drivers", clock, of_root=False),
        domain_joins=DomainJoinFiles(sim_host.host_file.parent / "domain-joins", owner=os.geteuid()),
        image_folders=sim_host.image_folders,
        guest_agent=sim_host.guest_agent,
        usage_history=UsageHistoryFile(sim_host.run_dir.parent / HISTORY_NAME),
        close=sim_host.close,
    )


def _system(sim_host: sim.SimHost) -> HostSystem:
    return HostSystem(sim_host.run_dir.parent, allow_systemctl=False)


def scenario_of(name: str, *, root: str = "/", connect: str | None = None) -> str:
    """Return the scenario's name or file of a simulated host's name.

    Raises:
        InvalidInput: it names a real host, or the other arguments, which are for real hosts, are given.
    """
    if not name.startswith(PREFIX):
        raise InvalidInput(
            f"--host {name} is not a simulated host",
            hint="use for example --host sim:a100-40; 'vgpuctl sim list-scenarios' lists them",
        )
    if connect is not None or root != "/":
        raise InvalidInput("--root and --connect are for --host local: a simulated host has its own")
    return name.removeprefix(PREFIX)


def list_scenarios() -> list[tuple[str, str]]:
    """Return name and title of each built-in scenario; only the title is read from its file."""
    return [(name, _title(name)) for name in sim.SCENARIOS]


def _title(name: str) -> str:
    text = (sim.SCENARIO_DIRECTORY / f"{name}.yaml").read_text(encoding="utf-8")
    lines = (line for line in text.splitlines() if line.startswith("title:"))
    return next(lines, "").removeprefix("title:").strip()


def reboot(scenario: str) -> bool:
    """Boot a simulated host again: devices are gone, VMs are off. Return whether it has an enabled boot unit to run."""
    from vgpuctl.operations import installation

    host = sim.open_host(scenario)
    host.reboot()
    return installation.is_boot_unit_enabled(_system(host))


def reset(scenario: str) -> None:
    """Forget what happened on a simulated host."""
    sim.reset_host(scenario)


class SimProcesses(HostProcesses):
    """This machine's processes and the simulated ones; only simulated processes hold device nodes."""

    def __init__(self, host: sim.SimHost) -> None:
        super().__init__()
        self._host = host

    def is_alive(self, process: ProcessId) -> bool:
        """Return whether exactly this process is still alive, here or on the simulated host."""
        return super().is_alive(process) or self._host.is_alive(process)

    def find_holders(self, nodes: tuple[str, ...]) -> tuple[DeviceUser, ...]:
        """Return the simulated processes that have any of these device nodes open."""
        return self._host.find_holders(nodes)


class SimClaims(ClaimStore):
    """The claims below the simulated host's /run, and the writes that are stuck in its kernel."""

    def __init__(
        self,
        processes: SimProcesses,
        operations: OperationFiles,
        host: sim.SimHost,
        clock: HostClock,
        wait_seconds: float,
    ) -> None:
        super().__init__(host.run_dir, processes, operations, clock=clock, wait_seconds=wait_seconds)
        self._host = host

    def stuck_writes(self) -> tuple[StuckWrite, ...]:
        """Return the writes that are still stuck, recorded or simulated."""
        return (*super().stuck_writes(), *self._host.stuck_writes())

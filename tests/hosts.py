# SPDX-License-Identifier: Apache-2.0
"""A simulated host as the program sees it: the simulator's ports, real claims and lock, and a clock without waiting.

Every test gets its host in its own directory. Another process that opens the same directory gets the same host.
`picture` returns everything that a command could leave behind on a host, so that a test can compare it.
"""

from __future__ import annotations

import itertools
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copytree
from typing import Any

from vgpuctl.config.vm_request import VmRequest
from vgpuctl.config.vm_spec import with_seed
from vgpuctl.host.atomic_files import open_unfinished_files
from vgpuctl.host.claim_store import ClaimStore
from vgpuctl.host.domain_joins import DomainJoinFiles
from vgpuctl.host.driver_discs import DriverDiscFiles
from vgpuctl.host.guest_reports import GuestReportFiles
from vgpuctl.host.host_file import HostFileOnDisk
from vgpuctl.host.operation_files import OperationFiles
from vgpuctl.host.processes import HostProcesses
from vgpuctl.host.system_files import HostSystem
from vgpuctl.host.usage_history import HISTORY_NAME, UsageHistoryFile
from vgpuctl.model.outcome import Confirm, Context, NoProgress, Outcome, Progress, Subjects
from vgpuctl.model.port_values import DeviceUser
from vgpuctl.model.vm import Claim, Operation
from vgpuctl.operations.create import create_vm
from vgpuctl.operations.ensure_vm import set_vm as set_vm_operation
from vgpuctl.operations.power import delete_vm, start_vm, stop_vm
from vgpuctl.operations.reconcile import reconcile
from vgpuctl.operations.steps.claims import TakeClaim
from vgpuctl.operations.transaction import Transaction
from vgpuctl.ports.host import Host
from vgpuctl.sim import SimHost, open_host
from vgpuctl.sim.core import JOURNAL_FORMAT
from vgpuctl.value import replace

WAIT_SECONDS = 30.0


Silent = NoProgress


class EagerClock:
    """A clock that advances only in sleep(), which returns immediately; for tests that run in one process."""

    def __init__(self, seconds: float = 1_000_000.0) -> None:
        self.seconds = seconds

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class SimProcesses(HostProcesses):
    """This machine's processes; the simulated host knows which of them hold a simulated device node."""

    def __init__(self, sim: SimHost) -> None:
        super().__init__(argv=["vgpuctl", "test"])
        self.sim = sim

    def find_holders(self, nodes: tuple[str, ...]) -> tuple[DeviceUser, ...]:
        return tuple(self.sim.find_holders(nodes))


@dataclass(frozen=True)
class SimulatedHost:
    """A Host on the simulator, and the simulator's own controls."""

    ports: Host
    sim: SimHost
    directory: Path
    scenario: str

    def again(self) -> SimulatedHost:
        """The same host, opened by another operation after this one was killed."""
        kill_operation(self.ports)
        return open_sim_host(self.directory, self.scenario)


def kill_operation(ports: Host) -> None:
    """Let go of the lock of a host's operation and leave its file, as the kernel does when a process is killed."""
    operations: Any = ports.operations
    if operations._descriptor is not None:
        os.close(operations._descriptor)
        operations._descriptor = None


def claim_store(run_dir: Path, command: str = "vgpuctl test", **options: Any) -> ClaimStore:
    """Open a run directory as an operation of its own, with this command line."""
    processes = HostProcesses(argv=command.split())
    return ClaimStore(run_dir, processes, OperationFiles(run_dir, processes), **options)


def living_operation(ports: Host) -> Operation:
    """Begin another operation on the host, which lives as long as this test process; return it."""
    claims: Any = ports.claims
    operations = OperationFiles(claims._run_dir, HostProcesses())
    operations.begin()
    return operations.current()


def open_sim_host(
    directory: Path, scenario: str = "a100-40", text: str | None = None, clock: Any = None
) -> SimulatedHost:
    """Open a host by a built-in scenario's name, a scenario file's path, or a scenario's `text`."""
    if text is not None:
        directory.mkdir(parents=True, exist_ok=True)
        scenario = str(directory / "scenario.yaml")
        Path(scenario).write_text(text)
    own_clock = clock or EagerClock()
    stores: list[ClaimStore] = []
    state = directory / "state"
    sim = open_host(scenario, state_dir=state, lock_held=lambda: bool(stores) and stores[0].is_locked)
    processes = SimProcesses(sim)
    operations = OperationFiles(sim.run_dir, processes)
    stores.append(ClaimStore(sim.run_dir, processes, operations, clock=clock))
    ports = Host(
        name=f"sim:{scenario}",
        sysfs=sim.sysfs,
        nvml=sim.nvml,
        hypervisor=sim.hypervisor,
        storage=sim.storage,
        processes=processes,
        operations=operations,
        claims=stores[0],
        clock=own_clock,
        machine_id=sim.machine_id,
        driver_discs=DriverDiscFiles(directory / "drivers", own_clock, of_root=False),
        domain_joins=DomainJoinFiles(sim.host_file.parent / "domain-joins", owner=os.geteuid()),
        new_uuid=lambda: str(uuid.uuid4()),
        system=HostSystem(state, allow_systemctl=False),
        host_file=HostFileOnDisk(sim.host_file, lock_held=lambda: stores[0].is_locked),
        vendor_commands=sim.vendor,
        system_log=sim.kernel_log,
        unfinished_files=open_unfinished_files(state, sim.run_dir, sim.host_file, processes),
        domain_events=sim.domain_events,
        volume_bin=sim.volume_bin,
        kernel_messages=sim.kernel_messages,
        usage=sim.usage(own_clock.now),
        usage_history=UsageHistoryFile(state / HISTORY_NAME),
        guest_reports=GuestReportFiles(sim.run_dir),
        guest_channels=sim.guest_channels,
        guest_agent=sim.guest_agent,
    )
    return SimulatedHost(ports, sim, directory, scenario)


def copied(host: SimulatedHost, directory: Path) -> SimulatedHost:
    """Copy a host into a new directory; the operation that wrote its claims is dead there.

    This is faster than creating the host again.
    """
    copytree(host.directory, directory)
    return open_sim_host(directory, host.scenario)


def with_other_hardware(host: SimulatedHost, text: str) -> SimulatedHost:
    """Boot the same host (VMs, disks, /etc) with the hardware, kernel and driver of another scenario."""
    host.sim.close()
    kill_operation(host.ports)
    change_hardware(Path(host.scenario), text, host.directory / "state")
    return open_sim_host(host.directory, text=text)


def change_hardware(scenario: Path, text: str, state: Path | None = None) -> None:
    """Write another text into the file of a simulated host, which keeps VMs and disks, as after a boot."""
    kept = ("domain", "pool", "file")
    old: Any = open_host(str(scenario), state_dir=state)
    core = old._core
    records = [record for record in core.read_state().records() if record[0] in kept]
    old.close()
    shutil.rmtree(old.run_dir)
    for name in ("journal", "lock"):
        (core.directory / name).unlink()
    scenario.write_text(text)
    new: Any = open_host(str(scenario), state_dir=state)
    header = {
        "vgpuctl-sim": JOURNAL_FORMAT,
        "digest": new._core.digest,
        "machine_id": core.machine_id,
        "scenario": new._core.machine.scenario,
    }
    with new._core.journal.locked():
        devices = [record for record in new._core.machine.scenario["found"] if record[0] not in kept]
        new._core.journal.replace(header, [*devices, *records])
    new.close()


_names = (f"vm-{number:03d}" for number in itertools.count(1))


def request(profile: str | None = None, count: int = 1, name: str | None = None, **changes: Any) -> VmRequest:
    """Return a request for a small VM; `changes` are the fields of VmRequest that matter to the test."""
    profiles = ((profile, count),) if profile else ()
    values = {"name": name or next(_names), "profiles": profiles, "memory_mib": 1024, "vcpus": 1, **changes}
    if "gpu" in values and not isinstance(values["gpu"], tuple):
        values["gpu"] = () if values["gpu"] is None else (values["gpu"],)
    return with_seed(VmRequest(**values), values.get("seed"))


def yes(question: str, details: tuple[str, ...]) -> None:
    """Confirm everything."""


def context(
    *,
    dry_run: bool = False,
    wait_seconds: float = WAIT_SECONDS,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
) -> Context:
    """Return how an operation of a test works: quietly, with the answer yes."""
    return Context(progress or Silent(), wait_seconds, Subjects(), dry_run, confirm or yes)


@contextmanager
def operation(ports: Host) -> Iterator[None]:
    """End the operation of `ports` with the block, as the command line does with each command."""
    try:
        yield
    finally:
        ports.operations.end()


def take_over(
    ports: Host, claims: tuple[Claim, ...], wait_seconds: float = 0, *, include_missing: bool = True
) -> tuple[TakeClaim, ...]:
    """Take claims over as the operation of `ports`; return those that were missing."""
    with Transaction(ports, context(wait_seconds=wait_seconds)) as tx:
        tx.take_over(claims, include_missing=include_missing)
        return tx.hand_over()


def create(
    ports: Host, wanted: VmRequest, *, start: bool = True, dry_run: bool = False, progress: Progress | None = None
) -> Outcome:
    """Run create-vm."""
    with operation(ports):
        return create_vm(ports, context(dry_run=dry_run, progress=progress), wanted, start=start)


def delete(ports: Host, name: str, *, keep_disks: bool = False, confirm: Confirm | None = None) -> Outcome:
    """Run delete-vm --yes, or with another answer to its question."""
    with operation(ports):
        return delete_vm(ports, context(confirm=confirm or yes), name, keep_disks=keep_disks)


def start(ports: Host, name: str) -> Outcome:
    """Run start-vm."""
    with operation(ports):
        return start_vm(ports, context(), name)


def stop(ports: Host, name: str, *, force: bool = True) -> Outcome:
    """Run stop-vm."""
    with operation(ports):
        return stop_vm(ports, context(), name, force=force)


def set_vm(ports: Host, wanted: VmRequest, *fields: str, **options: Any) -> Outcome:
    """Run set-vm --yes for these fields of a request; `fields` empty: for its profile."""
    sources = {**wanted.sources, **dict.fromkeys(fields or ("profile",), "given")}
    drain = options.pop("drain", False)
    return set_vm_operation(ports, context(**options), replace(wanted, sources=sources), drain=drain)


def run_reconcile(ports: Host, *, dry_run: bool = False) -> Outcome:
    """Run reconcile."""
    with operation(ports):
        return reconcile(ports, context(dry_run=dry_run))


@dataclass(frozen=True)
class Picture:
    """What exists on a host, no matter who created it. Pools are left out: a created pool stays and does no harm."""

    mdevs: dict[str, tuple[str, str, str]]
    types: dict[str, int]
    params: dict[str, str]
    drivers: dict[str, str | None]
    domains: dict[str, tuple[str, str]]
    running: dict[str, tuple[str, ...]]
    files: dict[str, tuple[int, str | None]]
    claims: dict[str, str] = field(default_factory=dict)


def picture(host: SimulatedHost) -> Picture:
    """Take a picture of a host, from the simulator's own state and the claims."""
    state = host.sim._core.read_state()
    return Picture(
        mdevs={m.uuid: (m.parent, m.type_key, m.params) for m in state.mdevs.values()},
        types=dict(state.vf_types),
        params=dict(state.vf_params),
        drivers=dict(state.drivers),
        domains={d.uuid: (d.name, d.xml) for d in state.domains.values()},
        running={r.uuid: r.carriers for r in state.running.values()},
        files={f.path: (f.size, f.base) for f in state.files.values()},
        claims={c.carrier: c.vm_uuid for c in host.ports.claims.all()},
    )


Act = Callable[[Host], object]

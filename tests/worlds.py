# SPDX-License-Identifier: Apache-2.0
"""A simulated host as the program gets it: the simulator's seams, the real claims and lock, a clock that runs ahead.

Every test gets its host in a directory of its own; opening the same directory in another process gives the same
host. `picture` is what a host is, made to be compared: everything that a command could leave behind.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copytree
from typing import Any

from vgpuctl.engine.create import create_vm
from vgpuctl.engine.power import delete_vm, start_vm, stop_vm
from vgpuctl.engine.reconcile import reconcile
from vgpuctl.host.atomic import unfinished_below
from vgpuctl.host.claims import ClaimStore
from vgpuctl.host.host_file import HostFileOnDisk
from vgpuctl.host.processes import HostProcesses
from vgpuctl.host.system import HostSystem
from vgpuctl.model.outcome import Confirm, Outcome
from vgpuctl.model.records import Holder
from vgpuctl.model.vm import ProcessId
from vgpuctl.model.wish import VmWish, Where
from vgpuctl.model.world import World
from vgpuctl.sim import SimWorld, open_world

WAIT_SECONDS = 30.0


class Silent:
    """Progress that nobody sees."""

    def planned(self, steps: tuple[str, ...]) -> None: ...
    def started(self, number: int, text: str) -> None: ...
    def finished(self, number: int, text: str) -> None: ...
    def undoing(self, text: str) -> None: ...


class EagerClock:
    """Time that passes only while somebody pauses; for tests that run in one process."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    def pause(self, seconds: float) -> None:
        self.seconds += seconds


@dataclass(frozen=True)
class SimProcesses:
    """This machine's processes; who holds a simulated device node, the simulated host says.

    With `later` the caller poses as a process that came after all those who wrote claims before: they are gone.
    """

    real: HostProcesses
    sim: SimWorld
    later: int = 0

    def this(self) -> ProcessId:
        me = self.real.this()
        return ProcessId(me.pid, me.start_ticks + self.later)

    def command(self) -> str:
        return "vgpuctl test"

    def alive(self, process: ProcessId) -> bool:
        return process == self.this() or (self.later == 0 and self.real.alive(process))

    def holders(self, nodes: tuple[str, ...]) -> tuple[Holder, ...]:
        return tuple(self.sim.holders(nodes))


@dataclass(frozen=True)
class Host:
    """A World on the simulator, and the simulator's own switches."""

    world: World
    sim: SimWorld
    directory: Path
    scenario: str

    later: int = 0

    def again(self) -> Host:
        """The same host, opened by a later process: those who wrote claims before are gone."""
        return open_host(self.directory, self.scenario, later=self.later + 1)


def open_host(
    directory: Path, scenario: str = "a100-40", text: str | None = None, clock: Any = None, later: int = 0
) -> Host:
    """Open a host by a built-in scenario's name, a scenario file's path, or a scenario's `text`."""
    if text is not None:
        directory.mkdir(parents=True, exist_ok=True)
        scenario = str(directory / "scenario.yaml")
        Path(scenario).write_text(text)
    stores: list[ClaimStore] = []
    state = directory / "state"
    sim = open_world(scenario, state_dir=state, lock_held=lambda: bool(stores) and stores[0].held)
    processes = SimProcesses(HostProcesses(), sim, later)
    stores.append(ClaimStore(sim.run_dir, processes, processes.command(), clock=clock))
    world = World(
        name=f"sim:{scenario}",
        sysfs=sim.sysfs,
        nvml=sim.nvml,
        hypervisor=sim.hypervisor,
        storage=sim.storage,
        processes=processes,
        claims=stores[0],
        clock=clock or EagerClock(),
        machine_id=sim.machine_id,
        new_uuid=lambda: str(uuid.uuid4()),
        system=HostSystem(state, services=False),
        host_file=HostFileOnDisk(sim.host_file, lock_held=lambda: stores[0].held),
        vendor=sim.vendor,
        kernel_log=sim.kernel_log,
        unfinished=unfinished_below(state, sim.run_dir, sim.host_file, processes),
    )
    return Host(world, sim, directory, scenario, later)


def copied(host: Host, directory: Path) -> Host:
    """Copy a host into a directory that is not there, as the same process sees it: faster than to make it anew."""
    copytree(host.directory, directory)
    return open_host(directory, host.scenario, later=host.later)


_names = (f"vm-{number:03d}" for number in itertools.count(1))


def wish(profile: str | None = None, count: int = 1, name: str | None = None, **changes: Any) -> VmWish:
    """Return a wish for a small VM; `changes` are the fields of VmWish that matter to the test."""
    values: dict[str, Any] = {
        "name": name or next(_names),
        "profiles": ((profile, count),) if profile else (),
        "mode": "vgpu",
        "memory_mib": 1024,
        "vcpus": 1,
        "image": None,
        "disks": (),
        "cdrom": None,
        "network": "default",
        "os": "linux",
        "storage_pool": "default",
        "hotplug_slots": 4,
        "vgpu_params": (),
        "template": "vm",
        "force_console": False,
    }
    named = changes.pop("gpu", None)
    where = changes.pop("where", Where(gpus=() if named is None else (named,)))
    return VmWish(**{**values, "where": where, **changes})


def yes(question: str, details: tuple[str, ...]) -> None:
    """Confirm everything."""


def create(world: World, wanted: VmWish, *, start: bool = True, dry_run: bool = False) -> Outcome:
    """create-vm."""
    return create_vm(world, wanted, start=start, dry_run=dry_run, wait_seconds=WAIT_SECONDS, progress=Silent())


def delete(world: World, name: str, *, keep_disks: bool = False, confirm: Confirm | None = None) -> Outcome:
    """delete-vm --yes, or with another answer to its question."""
    return delete_vm(
        world,
        name,
        keep_disks=keep_disks,
        dry_run=False,
        confirm=confirm or yes,
        wait_seconds=WAIT_SECONDS,
        progress=Silent(),
    )


def start(world: World, name: str) -> Outcome:
    """start-vm."""
    return start_vm(world, name, dry_run=False, wait_seconds=WAIT_SECONDS, progress=Silent())


def stop(world: World, name: str, *, force: bool = True) -> Outcome:
    """stop-vm."""
    return stop_vm(world, name, force=force, dry_run=False, wait_seconds=WAIT_SECONDS, progress=Silent())


def mend(world: World, *, dry_run: bool = False) -> Outcome:
    """Reconcile."""
    return reconcile(world, dry_run=dry_run, wait_seconds=WAIT_SECONDS, progress=Silent())


@dataclass(frozen=True)
class Picture:
    """What exists on a host, whoever made it. Pools are left out: one that was made stays, it harms nobody."""

    mdevs: dict[str, tuple[str, str, str]]
    types: dict[str, int]
    params: dict[str, str]
    drivers: dict[str, str | None]
    domains: dict[str, tuple[str, str]]
    running: dict[str, tuple[str, ...]]
    files: dict[str, tuple[int, str | None]]
    claims: dict[str, str] = field(default_factory=dict)


def picture(host: Host) -> Picture:
    """Take a picture of a host, from the simulator's own state and the claims."""
    state = host.sim._core.look()
    return Picture(
        mdevs={m.uuid: (m.parent, m.type_key, m.params) for m in state.mdevs.values()},
        types=dict(state.types),
        params=dict(state.params),
        drivers=dict(state.drivers),
        domains={d.uuid: (d.name, d.xml) for d in state.domains.values()},
        running={r.uuid: r.carriers for r in state.running.values()},
        files={f.path: (f.size, f.base) for f in state.files.values()},
        claims={c.carrier: c.vm_uuid for c in host.world.claims.all()},
    )


Act = Callable[[World], object]

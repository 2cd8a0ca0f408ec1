# SPDX-License-Identifier: Apache-2.0
"""What a simulated host is now: the replay of its journal.

Each record names one of the `_on_…` methods here. They check nothing and cannot fail on what the simulator
wrote: the rules are checked before a record is made. `records` gives a short journal that replays to the same
state, for compacting.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from typing import Any

from vgpuctl.sim.journal import Record
from vgpuctl.sim.machine import Machine, SimFunction
from vgpuctl.sim.partition_state import Partitions
from vgpuctl.sim.things import Parked, Running, SimDomain, SimFile, SimMdev, SimPool

FIRST_PID = 5_000_000
"""Above the kernel's highest pid, so that a simulated process is never mistaken for a real one."""
FIRST_GROUP = 4000


@dataclass(eq=False)
class State:
    """Everything that changes. `generation` counts changes; readers cache by it."""

    machine: Machine
    generation: int = 0
    mdevs: dict[str, SimMdev] = field(default_factory=dict)
    vfs: dict[str, int] = field(default_factory=dict)
    types: dict[str, int] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    drivers: dict[str, str | None] = field(default_factory=dict)
    overrides: dict[str, str] = field(default_factory=dict)
    autoprobe: dict[str, int] = field(default_factory=dict)
    schedulers: dict[str, list[Any]] = field(default_factory=dict)
    module: tuple[str, str] = ("", "")
    partitions: Partitions = field(default_factory=Partitions)
    parked: dict[int, Parked] = field(default_factory=dict)
    domains: dict[str, SimDomain] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    running: dict[str, Running] = field(default_factory=dict)
    users: dict[str, str] = field(default_factory=dict)
    on_gpu: dict[str, dict[str, str]] = field(default_factory=dict)
    pools: dict[str, SimPool] = field(default_factory=dict)
    files: dict[str, SimFile] = field(default_factory=dict)
    hits: dict[int, int] = field(default_factory=dict)
    next_pid: int = FIRST_PID
    next_group: int = FIRST_GROUP

    def __post_init__(self) -> None:
        """Start as after a boot."""
        self._boot_devices()

    # ---------------------------------------------------------------- questions

    def exists(self, address: str) -> bool:
        """Say whether a function is there now: a VF only while it is enabled."""
        function = self.machine.functions.get(address)
        if function is None:
            return False
        return function.kind != "vf" or function.index < self.vfs[function.gpu]

    def driver(self, function: SimFunction) -> str | None:
        """Return the driver that a function is bound to now."""
        if function.address in self.drivers:
            return self.drivers[function.address]
        return function.driver

    def used_by(self, carriers: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of these carriers that a running domain holds."""
        return tuple(carrier for carrier in carriers if carrier in self.users)

    def mdevs_on(self, address: str) -> tuple[SimMdev, ...]:
        """Return the mdevs whose parent is this function."""
        function = self.machine.functions[address]
        return tuple(
            mdev
            for carrier in self.on_gpu.get(function.gpu, ())
            if (mdev := self.mdevs.get(carrier)) is not None and mdev.parent == address
        )

    def freed(self, uuid: str) -> list[Record]:
        """Return the records of a domain's end: it is off, and writes that waited for it go on."""
        return [["off", uuid], *self.released(*self.running[uuid].carriers)]

    def released(self, *carriers: str) -> list[Record]:
        """Return the records of writes that go on when these carriers are let go."""
        made: list[Record] = []
        held = set(carriers)
        for parked in self.parked.values():
            still = [c for c in parked.carriers if c in self.users and c not in held]
            if held & set(parked.carriers) and not still:
                made += [["unpark", parked.pid], *parked.records]
        return made

    # ------------------------------------------------------------------ replay

    def apply(self, records: list[Record]) -> None:
        """Carry out the records of one operation."""
        for name, *arguments in records:
            getattr(self, f"_on_{name}")(*arguments)
        self.generation += 1

    def _boot_devices(self) -> None:
        volatile: tuple[dict[Any, Any], ...] = (
            self.mdevs,
            self.types,
            self.params,
            self.drivers,
            self.overrides,
            self.autoprobe,
            self.schedulers,
            self.parked,
            self.running,
            self.users,
        )
        for table in volatile:
            table.clear()
        self.partitions.boot({gpu.address for gpu in self.machine.gpus.values() if gpu.keeps_mig})
        self.vfs = {gpu.address: gpu.vfs_enabled for gpu in self.machine.gpus.values()}
        self.on_gpu = {address: {} for address in self.machine.gpus}
        self.next_group = FIRST_GROUP
        self.module = ("", "")

    def _on_boot(self) -> None:
        self._boot_devices()

    def _on_mdev(self, uuid: str, parent: str, type_key: str, group: int) -> None:
        self.mdevs[uuid] = SimMdev(uuid, parent, type_key, group)
        self.on_gpu[self.machine.functions[parent].gpu][uuid] = type_key
        self.next_group = max(self.next_group, group + 1)

    def _on_unmdev(self, uuid: str) -> None:
        mdev = self.mdevs.pop(uuid, None)
        if mdev is not None:
            self.on_gpu[self.machine.functions[mdev.parent].gpu].pop(uuid, None)
            self.partitions.places.pop(uuid, None)

    def _on_type(self, address: str, number: int) -> None:
        gpu = self.machine.gpus[self.machine.functions[address].gpu]
        if number:
            self.types[address] = number
            self.on_gpu[gpu.address][address] = gpu.by_number[number].key
        else:
            self.types.pop(address, None)
            self.params.pop(address, None)
            self.partitions.places.pop(address, None)
            self.on_gpu[gpu.address].pop(address, None)

    def _on_params(self, carrier: str, text: str) -> None:
        if carrier in self.mdevs:
            self.mdevs[carrier].params = text
        else:
            self.params[carrier] = text

    def _on_vfs(self, address: str, number: int) -> None:
        """Set the number of VFs; those that go take their vGPUs and bindings with them, new ones are fresh."""
        self.vfs[address] = number
        self.schedulers.pop(address, None)
        self.partitions.lose(address)
        probe = self.autoprobe.get(address, 1)
        for function in self.machine.gpus[address].vfs:
            if function.index >= number:
                self._strip(function.address)
                self.drivers.pop(function.address, None)
                self.overrides.pop(function.address, None)
            elif not probe and function.address not in self.drivers:
                self.drivers[function.address] = None

    def _on_driver(self, address: str, name: str | None) -> None:
        """Bind or unbind: an unbound function loses what its driver made on it, VFs included."""
        function = self.machine.functions[address]
        if name == self.driver(function):
            return
        if self.vfs.get(address):
            self._on_vfs(address, 0)
        self.schedulers.pop(address, None)
        self.partitions.lose(address)
        self._strip(address)
        if name == function.driver:
            self.drivers.pop(address, None)
        else:
            self.drivers[address] = name

    def _strip(self, address: str) -> None:
        for mdev in self.mdevs_on(address):
            self._on_unmdev(mdev.uuid)
        if address in self.types:
            self._on_type(address, 0)

    def _on_override(self, address: str, text: str) -> None:
        if text:
            self.overrides[address] = text
        else:
            self.overrides.pop(address, None)

    def _on_autoprobe(self, address: str, number: int) -> None:
        self.autoprobe[address] = number

    def _on_scheduler(self, address: str, *values: Any) -> None:
        """Set a GPU's vGPU scheduler: policy, adaptive, averaging factor, slice in ns."""
        self.schedulers[address] = list(values)

    def _on_partition(self, name: str, *values: Any) -> None:
        """Change how a GPU is partitioned."""
        self.partitions.apply(name, *values)

    def _on_module(self, dwords: str, per_device: str) -> None:
        """Load nvidia.ko with these registry words."""
        self.module = (dwords, per_device)

    def _on_domain(self, uuid: str, name: str, xml: str) -> None:
        self.domains[uuid] = SimDomain(uuid, name, xml)
        self.names[name] = uuid

    def _on_splice(self, uuid: str, start: int, end: int, text: str) -> None:
        domain = self.domains[uuid]
        domain.xml = domain.xml[:start] + text + domain.xml[end:]

    def _on_splice_live(self, uuid: str, start: int, end: int, text: str) -> None:
        running = self.running[uuid]
        running.xml = running.xml[:start] + text + running.xml[end:]

    def _on_transient(self, uuid: str) -> None:
        self.domains[uuid].persistent = False

    def _on_undefine(self, uuid: str) -> None:
        domain = self.domains.pop(uuid, None)
        if domain is not None:
            self.names.pop(domain.name, None)

    def _on_run(
        self, uuid: str, pid: int, carriers: list[str], taken: dict[str, str | None], xml: str | None = None
    ) -> None:
        domain = self.domains[uuid]
        for address in taken:
            self._on_driver(address, "vfio-pci")
        self.running[uuid] = Running(
            uuid, domain.name, pid, xml if xml is not None else domain.xml, tuple(carriers), dict(taken)
        )
        self.users.update((carrier, uuid) for carrier in carriers)
        self.next_pid = max(self.next_pid, pid + 1)

    def _on_off(self, uuid: str) -> None:
        running = self.running.pop(uuid, None)
        if running is None:
            return
        for carrier in running.carriers:
            self.users.pop(carrier, None)
        for address, driver in running.taken.items():
            self._on_driver(address, driver)
        domain = self.domains.get(uuid)
        if domain is not None and not domain.persistent:
            self._on_undefine(uuid)

    def _on_plug(self, uuid: str, carrier: str, taken: dict[str, str | None], xml: str) -> None:
        """Add a device to a running domain."""
        running = self.running[uuid]
        for address in taken:
            self._on_driver(address, "vfio-pci")
        running.taken.update(taken)
        running.carriers = (*running.carriers, carrier)
        running.xml = xml
        self.users[carrier] = uuid

    def _on_unplug(self, uuid: str, carrier: str, xml: str) -> None:
        """Take a device from a running domain."""
        running = self.running[uuid]
        running.carriers = tuple(c for c in running.carriers if c != carrier)
        running.xml = xml
        self.users.pop(carrier, None)
        if carrier in running.taken:
            self._on_driver(carrier, running.taken.pop(carrier))

    def _on_pool(
        self, name: str, path: str, active: bool, kind: str = "dir", capacity: int | None = None, used: int = 0
    ) -> None:
        self.pools[name] = SimPool(name, path, active, kind, capacity, used)

    def _on_unpool(self, name: str) -> None:
        self.pools.pop(name, None)

    def _on_file(self, path: str, size: int, kind: str, base: str | None, allocation: int, *more: Any) -> None:
        self.files[path] = SimFile(path, size, kind, base, allocation, *more)

    def _on_unfile(self, path: str) -> None:
        self.files.pop(path, None)

    def _on_hit(self, index: int) -> None:
        self.hits[index] = self.hits.get(index, 0) + 1

    def _on_hits(self, index: int, number: int) -> None:
        self.hits[index] = number

    def _on_park(self, pid: int, gpu: str, path: str, text: str, carriers: list[str], records: list[Record]) -> None:
        self.parked[pid] = Parked(pid, gpu, path, text, tuple(carriers), records)
        self.next_pid = max(self.next_pid, pid + 1)

    def _on_unpark(self, pid: int) -> None:
        self.parked.pop(pid, None)

    def _on_counters(self, pid: int, group: int) -> None:
        self.next_pid, self.next_group = pid, group

    def file(self, path: str) -> SimFile | None:
        """Return the file that a path leads to; `link` is another name of a file, symbolic or hard."""
        file = self.files.get(posixpath.normpath(path))
        return file if file is None or file.link is None else self.files.get(file.link)

    # --------------------------------------------------------------- compacting

    def records(self) -> list[Record]:
        """Return records that make a fresh state equal to this one."""
        # A PF's driver comes before its VFs (binding drops them), and autoprobe after them (it unbinds them).
        lent = {address for running in self.running.values() for address in running.taken}
        bound: list[Record] = [["driver", *item] for item in self.drivers.items() if item[0] not in lent]
        made = [record for record in bound if record[1] in self.vfs]
        made += [["vfs", address, number] for address, number in self.vfs.items()]
        made += [["autoprobe", *item] for item in self.autoprobe.items()]
        made += [record for record in bound if record[1] not in self.vfs]
        made += [["override", *item] for item in self.overrides.items()]
        made += [["module", *self.module]] if any(self.module) else []
        made += [["scheduler", address, *values] for address, values in self.schedulers.items()]
        for mdev in self.mdevs.values():
            made.append(["mdev", mdev.uuid, mdev.parent, mdev.type_key, mdev.group])
            if mdev.params:
                made.append(["params", mdev.uuid, mdev.params])
        made += [["type", *item] for item in self.types.items()]
        made += [["params", *item] for item in self.params.items()]
        made += self.partitions.records()
        for domain in self.domains.values():
            made.append(["domain", domain.uuid, domain.name, domain.xml])
        for run in self.running.values():
            made.append(["run", run.uuid, run.pid, list(run.carriers), run.taken, run.xml])
        made += [["transient", domain.uuid] for domain in self.domains.values() if not domain.persistent]
        for pool in self.pools.values():
            made.append(["pool", pool.name, pool.path, pool.active, pool.kind, pool.capacity, pool.used])
        for file in self.files.values():
            fields = [file.path, file.size, file.format, file.base, file.allocation]
            made.append(["file", *fields, file.firmware, file.problem, file.digest, file.link])
        made += [["hits", *item] for item in self.hits.items()]
        for parked in self.parked.values():
            fields = [parked.pid, parked.gpu, parked.path, parked.text]
            made.append(["park", *fields, list(parked.carriers), parked.records])
        made.append(["counters", self.next_pid, self.next_group])
        return made

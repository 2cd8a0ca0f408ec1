# SPDX-License-Identifier: Apache-2.0
"""The current state of a simulated host: the replay of its journal.

Each record names one of the `_on_…` methods here. They check nothing and cannot fail on records that the simulator
wrote: it checks the rules before it makes a record. `records` returns a short journal with the same state.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from typing import Any

from vgpuctl.sim.domain_replay import DomainReplay
from vgpuctl.sim.journal import JournalRecord
from vgpuctl.sim.machine import Machine, SimFunction
from vgpuctl.sim.objects import BlockedWrite, Partitions, RunningDomain, SimDomain, SimFile, SimMdev, SimPool

FIRST_PID = 5_000_000
"""Above the kernel's highest pid, so nobody mistakes a simulated process for a real one."""
FIRST_IOMMU_GROUP = 4000


@dataclass(eq=False)
class State(DomainReplay):
    """Everything that changes. `generation` counts the changes, and readers use it as a cache key."""

    machine: Machine
    generation: int = 0
    mdevs: dict[str, SimMdev] = field(default_factory=dict)
    vfs: dict[str, int] = field(default_factory=dict)
    vf_types: dict[str, int] = field(default_factory=dict)
    vf_params: dict[str, str] = field(default_factory=dict)
    drivers: dict[str, str | None] = field(default_factory=dict)
    driver_overrides: dict[str, str] = field(default_factory=dict)
    autoprobe: dict[str, int] = field(default_factory=dict)
    schedulers: dict[str, list[Any]] = field(default_factory=dict)
    xe_values: dict[str, dict[tuple[int, str], int]] = field(default_factory=dict)
    module_options: tuple[str, str] = ("", "")
    module_parameters: dict[str, dict[str, str]] = field(default_factory=dict)
    partitions: Partitions = field(default_factory=Partitions)
    blocked_writes: dict[int, BlockedWrite] = field(default_factory=dict)
    domains: dict[str, SimDomain] = field(default_factory=dict)
    uuids_by_name: dict[str, str] = field(default_factory=dict)
    running: dict[str, RunningDomain] = field(default_factory=dict)
    carrier_users: dict[str, str] = field(default_factory=dict)
    vgpus_by_gpu: dict[str, dict[str, str]] = field(default_factory=dict)
    pools: dict[str, SimPool] = field(default_factory=dict)
    files: dict[str, SimFile] = field(default_factory=dict)
    fault_hits: dict[int, int] = field(default_factory=dict)
    gim_config: str = ""
    gim_modes: dict[str, tuple[int, int]] = field(default_factory=dict)
    boots: int = 0
    next_pid: int = FIRST_PID
    next_iommu_group: int = FIRST_IOMMU_GROUP

    def __post_init__(self) -> None:
        """Start in the state after a boot."""
        self._boot_devices()

    # ------------------------------------------------------------------ queries

    def exists(self, address: str) -> bool:
        """Say whether a function exists now. A VF exists only while it is enabled."""
        function = self.machine.functions.get(address)
        if function is None:
            return False
        return function.kind != "vf" or function.index < self.vfs[function.gpu]

    def driver(self, function: SimFunction) -> str | None:
        """Return the driver that a function is bound to now."""
        if function.address in self.drivers:
            return self.drivers[function.address]
        return function.driver

    def used_carriers(self, carriers: tuple[str, ...]) -> tuple[str, ...]:
        """Return the carriers among these that a running domain holds."""
        return tuple(carrier for carrier in carriers if carrier in self.carrier_users)

    def mdevs_on(self, address: str) -> tuple[SimMdev, ...]:
        """Return the mdevs whose parent is this function."""
        function = self.machine.functions[address]
        return tuple(
            mdev
            for carrier in self.vgpus_by_gpu.get(function.gpu, ())
            if (mdev := self.mdevs.get(carrier)) is not None and mdev.parent == address
        )

    def stop_records(self, uuid: str, reason: str) -> list[JournalRecord]:
        """Return the records that stop a domain, for libvirt's reason. Writes that waited for it continue."""
        return [["off", uuid, reason], *self.release_records(*self.running[uuid].carriers)]

    def release_records(self, *carriers: str) -> list[JournalRecord]:
        """Return the records of the writes that continue when these carriers are released."""
        continued: list[JournalRecord] = []
        released = set(carriers)
        for blocked in self.blocked_writes.values():
            remaining = [c for c in blocked.carriers if c in self.carrier_users and c not in released]
            if released & set(blocked.carriers) and not remaining:
                continued += [["unpark", blocked.pid], *blocked.records]
        return continued

    # ------------------------------------------------------------------ replay

    def apply(self, records: list[JournalRecord]) -> None:
        """Apply the records of one operation."""
        for name, *arguments in records:
            getattr(self, f"_on_{name}")(*arguments)
        self.generation += 1

    def _boot_devices(self) -> None:
        volatile: tuple[dict[Any, Any], ...] = (
            self.mdevs,
            self.vf_types,
            self.vf_params,
            self.drivers,
            self.driver_overrides,
            self.autoprobe,
            self.schedulers,
            self.xe_values,
            self.module_parameters,
            self.blocked_writes,
            self.running,
            self.carrier_users,
        )
        for table in volatile:
            table.clear()
        self.partitions.reset_at_boot({gpu.address for gpu in self.machine.gpus.values() if gpu.keeps_mig})
        self.vfs = {gpu.address: gpu.vfs_enabled for gpu in self.machine.gpus.values()}
        self.vgpus_by_gpu = {address: {} for address in self.machine.gpus}
        self.next_iommu_group = FIRST_IOMMU_GROUP
        self.module_options = ("", "")

    def _on_boot(self) -> None:
        self.boots += 1
        self._boot_devices()
        for domain in self.domains.values():
            domain.stop_reason = None

    def _on_mdev(self, uuid: str, parent: str, type_key: str, group: int) -> None:
        self.mdevs[uuid] = SimMdev(uuid, parent, type_key, group)
        self.vgpus_by_gpu[self.machine.functions[parent].gpu][uuid] = type_key
        self.next_iommu_group = max(self.next_iommu_group, group + 1)

    def _on_unmdev(self, uuid: str) -> None:
        mdev = self.mdevs.pop(uuid, None)
        if mdev is not None:
            self.vgpus_by_gpu[self.machine.functions[mdev.parent].gpu].pop(uuid, None)
            self.partitions.placements.pop(uuid, None)

    def _on_type(self, address: str, number: int) -> None:
        gpu = self.machine.gpus[self.machine.functions[address].gpu]
        if number:
            self.vf_types[address] = number
            self.vgpus_by_gpu[gpu.address][address] = gpu.types_by_number[number].key
        else:
            self.vf_types.pop(address, None)
            self.vf_params.pop(address, None)
            self.partitions.placements.pop(address, None)
            self.vgpus_by_gpu[gpu.address].pop(address, None)

    def _on_params(self, carrier: str, text: str) -> None:
        if carrier in self.mdevs:
            self.mdevs[carrier].params = text
        else:
            self.vf_params[carrier] = text

    def _on_vfs(self, address: str, number: int) -> None:
        """Set the number of VFs. Removed VFs lose their vGPUs and bindings, and new VFs start without any."""
        self.vfs[address] = number
        self.schedulers.pop(address, None)
        if not number:
            self.xe_values.pop(address, None)
        self.partitions.forget_gpu(address)
        autoprobe = self.autoprobe.get(address, 1)
        for function in self.machine.gpus[address].vfs:
            if function.index >= number:
                self._drop_vgpus(function.address)
                self.drivers.pop(function.address, None)
                self.driver_overrides.pop(function.address, None)
            elif not autoprobe and function.address not in self.drivers:
                self.drivers[function.address] = None

    def _on_driver(self, address: str, name: str | None) -> None:
        """Bind or unbind a driver. An unbound function loses what its driver created on it, VFs included."""
        function = self.machine.functions[address]
        if name == self.driver(function):
            return
        if self.vfs.get(address):
            self._on_vfs(address, 0)
        self.schedulers.pop(address, None)
        self.partitions.forget_gpu(address)
        self._drop_vgpus(address)
        if name == function.driver:
            self.drivers.pop(address, None)
        else:
            self.drivers[address] = name

    def _drop_vgpus(self, address: str) -> None:
        for mdev in self.mdevs_on(address):
            self._on_unmdev(mdev.uuid)
        if address in self.vf_types:
            self._on_type(address, 0)

    def _on_override(self, address: str, text: str) -> None:
        if text:
            self.driver_overrides[address] = text
        else:
            self.driver_overrides.pop(address, None)

    def _on_autoprobe(self, address: str, number: int) -> None:
        self.autoprobe[address] = number

    def _on_scheduler(self, address: str, *values: Any) -> None:
        """Set a GPU's vGPU scheduler: policy, adaptive, averaging factor, slice in ns."""
        self.schedulers[address] = list(values)

    def _on_xe(self, address: str, vfid: int, name: str, value: int) -> None:
        """Set a value of a function in xe's `sriov_admin`; `vfid` 0 is the host's."""
        self.xe_values.setdefault(address, {})[vfid, name] = value

    def _on_partition(self, name: str, *values: Any) -> None:
        """Change how a GPU is partitioned."""
        self.partitions.apply(name, *values)

    def _on_module(self, dwords: str, per_device: str) -> None:
        """Load nvidia.ko with these registry values (RegistryDwords)."""
        self.module_options = (dwords, per_device)

    def _on_parameter(self, module: str, name: str, value: str) -> None:
        """Load a module with this value of a parameter."""
        self.module_parameters.setdefault(module, {})[name] = value

    def _on_gim_config(self, text: str) -> None:
        """AMD's driver gim writes its file of settings; a boot keeps it."""
        self.gim_config = text

    def _on_gim_modes(self, address: str, compute: int, memory: int) -> None:
        """Set how many compute and memory partitions an AMD GPU has."""
        self.gim_modes[address] = (compute, memory)

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
        self.fault_hits[index] = self.fault_hits.get(index, 0) + 1

    def _on_hits(self, index: int, number: int) -> None:
        self.fault_hits[index] = number

    def _on_park(
        self, pid: int, gpu: str, path: str, text: str, carriers: list[str], records: list[JournalRecord]
    ) -> None:
        self.blocked_writes[pid] = BlockedWrite(pid, gpu, path, text, tuple(carriers), records)
        self.next_pid = max(self.next_pid, pid + 1)

    def _on_unpark(self, pid: int) -> None:
        self.blocked_writes.pop(pid, None)

    def _on_counters(self, pid: int, group: int, boots: int = 0) -> None:
        self.next_pid, self.next_iommu_group, self.boots = pid, group, boots

    def find_file(self, path: str) -> SimFile | None:
        """Return the file that a path leads to. It follows `link`, a symbolic or hard link to another file."""
        file = self.files.get(posixpath.normpath(path))
        return file if file is None or file.link is None else self.files.get(file.link)

    # --------------------------------------------------------------- compacting

    def records(self) -> list[JournalRecord]:
        """Return records that make a fresh state equal to this one."""
        # A PF's driver comes before its VFs (binding removes them), and autoprobe after them (it unbinds them).
        borrowed = {address for running in self.running.values() for address in running.previous_drivers}
        bound: list[JournalRecord] = [["driver", *item] for item in self.drivers.items() if item[0] not in borrowed]
        journal = [record for record in bound if record[1] in self.vfs]
        journal += [["vfs", address, number] for address, number in self.vfs.items()]
        journal += [["autoprobe", *item] for item in self.autoprobe.items()]
        journal += [record for record in bound if record[1] not in self.vfs]
        journal += [["override", *item] for item in self.driver_overrides.items()]
        journal += [["module", *self.module_options]] if any(self.module_options) else []
        journal += [["gim_config", self.gim_config]] if self.gim_config else []
        journal += [["gim_modes", address, *modes] for address, modes in self.gim_modes.items()]
        journal += [["scheduler", address, *values] for address, values in self.schedulers.items()]
        journal += [["parameter", m, *item] for m, values in self.module_parameters.items() for item in values.items()]
        journal += [["xe", name, *key, v] for name, values in self.xe_values.items() for key, v in values.items()]
        for mdev in self.mdevs.values():
            journal.append(["mdev", mdev.uuid, mdev.parent, mdev.type_key, mdev.group])
            if mdev.params:
                journal.append(["params", mdev.uuid, mdev.params])
        journal += [["type", *item] for item in self.vf_types.items()]
        journal += [["params", *item] for item in self.vf_params.items()]
        journal += self.partitions.records()
        journal += self.domain_records()
        for pool in self.pools.values():
            journal.append(["pool", pool.name, pool.path, pool.active, pool.kind, pool.capacity, pool.used])
        journal += [file_record(file) for file in self.files.values()]
        journal += [["hits", *item] for item in self.fault_hits.items()]
        for blocked in self.blocked_writes.values():
            fields = [blocked.pid, blocked.gpu, blocked.path, blocked.text]
            journal.append(["park", *fields, list(blocked.carriers), blocked.records])
        journal.append(["counters", self.next_pid, self.next_iommu_group, self.boots])
        return journal


def file_record(file: SimFile) -> JournalRecord:
    """Return the record that creates a file, or replaces it."""
    fields = [file.path, file.size, file.format, file.base, file.allocation]
    more = [file.firmware, file.problem, file.digest, file.link]
    return ["file", *fields, *more] if file.tag is None else ["file", *fields, *more, file.tag]

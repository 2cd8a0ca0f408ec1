# SPDX-License-Identifier: Apache-2.0
"""The objects that a simulated host has: mdevs, domains, pools, files, hanging writes, and its GPUs' partitions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vgpuctl.model.gpu import GpuInstance, PlacementSpan
from vgpuctl.sim.journal import JournalRecord


@dataclass(slots=True)
class SimMdev:
    """An mdev that exists."""

    uuid: str
    parent: str
    type_key: str
    group: int
    params: str = ""


@dataclass(slots=True)
class SavedMemory:
    """The memory of a domain in libvirt's own file (managed save): its definition and state when it was saved."""

    xml: str
    state: str


@dataclass(slots=True)
class SimDomain:
    """A domain. One that is not persistent disappears when it stops. `stop_reason`: why it is off; None: not known."""

    uuid: str
    name: str
    xml: str
    persistent: bool = True
    stop_reason: str | None = None
    saved: SavedMemory | None = None


@dataclass(slots=True)
class RunningDomain:
    """A running domain: its process, its XML at the start, its devices, and the drivers that they had before.

    `resets`: how often it was reset or its guest rebooted. `state`: what libvirt says it is; "paused", for example.
    `moved_by`: the process that moves it to another host, or 0.
    """

    uuid: str
    name: str
    pid: int
    xml: str
    carriers: tuple[str, ...]
    previous_drivers: dict[str, str | None]
    resets: int = 0
    state: str = "running"
    moved_by: int = 0


@dataclass(slots=True)
class SimPool:
    """A storage pool."""

    name: str
    path: str
    active: bool
    kind: str = "dir"
    capacity: int | None = None
    used: int = 0


@dataclass(slots=True)
class SimFile:
    """A disk image on the simulated file system. `digest`: the SHA-256 of its whole content, if vgpuctl wrote it.

    `link`: the file that this path is only another name of. `tag`: LVM's tag of a logical volume.
    """

    path: str
    size: int
    format: str
    base: str | None
    allocation: int
    firmware: str = "none"
    problem: str | None = None
    digest: str | None = None
    link: str | None = None
    tag: str | None = None


@dataclass(slots=True)
class BlockedWrite:
    """A write that hangs in the kernel until nobody uses `carriers`."""

    pid: int
    gpu: str
    path: str
    text: str
    carriers: tuple[str, ...]
    records: list[JournalRecord]


@dataclass(slots=True)
class Partitions:
    """How the GPUs are partitioned: MIG, GPU instances, mixed sizes, and vGPU placements. A part of `State`.

    Each record "partition" names one of the `_on_…` methods here; `records` recreates the records.
    `mig_modes`: MIG now, and after the GPU's next reset. `placements`: a vGPU's placement id and GPU instance.
    `schedulers`: the schedulers that NVML set for GPU instances.
    """

    mig_modes: dict[str, tuple[bool, bool]] = field(default_factory=dict)
    instances: dict[str, dict[int, GpuInstance]] = field(default_factory=dict)
    mixed_size_gpus: set[str] = field(default_factory=set)
    placements: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)
    schedulers: dict[str, dict[int, list[Any]]] = field(default_factory=dict)

    def is_mig_enabled(self, address: str) -> bool:
        """Say whether MIG is on."""
        return self.mig_modes.get(address, (False, False))[0]

    def instances_on(self, address: str) -> tuple[GpuInstance, ...]:
        """Return a GPU's instances."""
        return tuple(self.instances.get(address, {}).values())

    def placement_id(self, carrier: str) -> int | None:
        """Return a vGPU's placement id on a GPU of mixed sizes."""
        return self.placements.get(carrier, (None, None))[0]

    def instance_id(self, carrier: str) -> int | None:
        """Return the GPU instance that holds a vGPU."""
        return self.placements.get(carrier, (None, None))[1]

    def reset_at_boot(self, mig_keepers: set[str]) -> None:
        """Clear what a driver reload loses. The GPUs in `mig_keepers` keep MIG, in the mode that was pending."""
        self.mig_modes = {a: (pending, pending) for a, (_, pending) in self.mig_modes.items() if a in mig_keepers}
        for table in (self.instances, self.mixed_size_gpus, self.placements, self.schedulers):
            table.clear()

    def forget_gpu(self, address: str) -> None:
        """Clear what a GPU loses when its driver is unbound: everything but the MIG mode."""
        self.instances.pop(address, None)
        self.mixed_size_gpus.discard(address)
        self.schedulers.pop(address, None)

    # ------------------------------------------------------------------ replay

    def apply(self, name: str, *values: Any) -> None:
        """Apply one record."""
        getattr(self, f"_on_{name}")(*values)

    def _on_mig(self, address: str, enabled: bool, pending: bool) -> None:
        self.mig_modes[address] = (enabled, pending)

    def _on_make(self, address: str, gi_id: int, profile_id: int, start: int, size: int) -> None:
        self.instances.setdefault(address, {})[gi_id] = GpuInstance(gi_id, profile_id, PlacementSpan(start, size))

    def _on_destroy(self, address: str, gi_id: int) -> None:
        for table in (self.instances, self.schedulers):
            table.get(address, {}).pop(gi_id, None)
            if not table.get(address):
                table.pop(address, None)

    def _on_mixed(self, address: str, enabled: bool) -> None:
        if enabled:
            self.mixed_size_gpus.add(address)
        else:
            self.mixed_size_gpus.discard(address)

    def _on_place(self, carrier: str, placement_id: int | None, gi_id: int | None) -> None:
        self.placements[carrier] = (placement_id, gi_id)

    def _on_scheduler(self, address: str, gi_id: int, *values: Any) -> None:
        self.schedulers.setdefault(address, {})[gi_id] = list(values)

    def _on_lose(self, address: str) -> None:
        self.forget_gpu(address)

    def records(self) -> list[JournalRecord]:
        """Return the records of the partitions. Those of vGPUs' placements come last."""
        entries: list[JournalRecord] = [["mig", address, *both] for address, both in self.mig_modes.items()]
        for address, instances in self.instances.items():
            entries += [
                ["make", address, i.gi_id, i.profile_id, i.placement.start, i.placement.size]
                for i in instances.values()
            ]
        for address, schedulers in self.schedulers.items():
            entries += [["scheduler", address, gi_id, *values] for gi_id, values in schedulers.items()]
        entries += [["mixed", address, True] for address in sorted(self.mixed_size_gpus)]
        entries += [["place", carrier, *both] for carrier, both in self.placements.items()]
        return [["partition", *record] for record in entries]

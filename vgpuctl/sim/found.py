# SPDX-License-Identifier: Apache-2.0
"""What exists on the host when the simulation begins: partitions, other people's vGPUs, and the VMs that use them.

They are made by the same rules as everything later, so a scenario cannot hold what a driver would refuse.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from vgpuctl.sim import mdev, mig, mixed, vendor
from vgpuctl.sim.journal import Record
from vgpuctl.sim.machine import Machine, SimGpu, SimType, build
from vgpuctl.sim.nvml_codes import RefusedByNvml
from vgpuctl.sim.reading import Table, Value
from vgpuctl.sim.room import placed, room_on
from vgpuctl.sim.scenario_gpu import GPU_KEYS
from vgpuctl.sim.state import State

VGPU_KEYS = ("profile", "count", "vm", "running", "uuid")
_SPACE = uuid.UUID("6f9f6c1e-3a0b-4f0e-9a53-6a3d5b1f8c11")


def found_records(compiled: Mapping[str, Any], entries: list[Value]) -> list[Record]:
    """Return the records of every `mig:`, `mixed_size:` and `vgpus:` entry, and of the VMs that they name."""
    machine = build(compiled)
    maker = _Maker(machine)
    position = 0
    for entry in entries:
        table = entry.table(GPU_KEYS)
        for _ in range(table.number("count", 1)):
            gpu = machine.gpus[compiled["gpus"][position]["address"]]
            position += 1
            maker.partition(gpu, table)
            for value in table.items("vgpus"):
                maker.add(gpu, value.table(VGPU_KEYS))
    return maker.records()


class _Maker:
    """Makes foreign vGPUs on a state of its own and remembers which VM has which."""

    def __init__(self, machine: Machine) -> None:
        self._state = State(machine)
        self._made: list[Record] = []
        self._vms: dict[str, list[str]] = {}
        self._running: dict[str, bool] = {}
        self._taken: set[str] = set()

    def partition(self, gpu: SimGpu, table: Table) -> None:
        """Turn MIG on and make the GPU instances that the entry names, or mix sizes."""
        if table.get("mig") is not None:
            if not gpu.gi_profiles:
                table.need("mig").wrong(f"{gpu.model} has no MIG")
            self._do([["partition", "mig", gpu.address, True, True]])
        names = {profile.name: profile.profile_id for profile in gpu.gi_profiles.values()}
        values = table.items("mig")
        wanted = [names[value.choice(names)] for value in values]
        for number, value in enumerate(values, 1):
            if mig.starts(gpu, wanted[:number]) is None:
                raise value.error(f"{gpu.address} has no room for {value.text()}")
        for profile_id, start in zip(wanted, mig.starts(gpu, wanted) or (), strict=True):
            self._do(mig.make(self._state, gpu, profile_id, start)[1])
        if table.flag("mixed_size", False):
            try:
                self._do(mixed.set_mode(self._state, gpu, enabled=True))
            except RefusedByNvml:
                raise table.need("mixed_size").error(f"{gpu.address} cannot mix sizes") from None

    def _do(self, records: list[Record]) -> None:
        self._made += records
        self._state.apply(records)

    def add(self, gpu: SimGpu, table: Table) -> None:
        vm = table.get("vm")
        for _ in range(table.number("count", 1, 1, 64)):
            carrier = self._carrier(gpu, table)
            if vm is not None:
                self._vms.setdefault(vm.text(), []).append(carrier)
                self._running[vm.text()] = table.flag("running", True)

    def records(self) -> list[Record]:
        made = list(self._made)
        for number, (name, carriers) in enumerate(self._vms.items()):
            own = str(uuid.uuid5(_SPACE, f"vm/{name}"))
            made.append(["domain", own, name, _xml(name, own, carriers, self._managed)])
            if self._running[name]:
                taken = {c: self._state.driver(self._state.machine.functions[c]) for c in carriers if self._managed(c)}
                made.append(["run", own, self._state.next_pid + number, carriers, taken])
        return made

    def _managed(self, carrier: str) -> bool:
        function = self._state.machine.functions.get(carrier)
        return function is not None and carrier not in self._state.types

    def _carrier(self, gpu: SimGpu, table: Table) -> str:
        if gpu.backend in ("sriov-vf", "passthrough"):
            return self._whole(gpu, table)
        wanted = table.need("profile")
        names = {kind.name.split()[-1]: kind for kind in gpu.types.values()}
        names |= {kind.name: kind for kind in gpu.types.values()}
        kind = names.get(wanted.text()) or gpu.types.get(wanted.text())
        if kind is None:
            wanted.wrong(f"{gpu.model} has no profile '{wanted.text()}'; it has {', '.join(sorted(names))}")
        for function in gpu.functions:
            offers = mdev.is_parent(self._state, gpu, function) or vendor.is_carrier(self._state, gpu, function)
            if self._state.exists(function.address) and offers and room_on(self._state, gpu, function, kind):
                return self._make(gpu, function.address, kind, table)
        raise wanted.error(f"{gpu.address} has no room for {wanted.text()}")

    def _make(self, gpu: SimGpu, address: str, kind: SimType, table: Table) -> str:
        given = table.get("uuid")
        if gpu.backend == "vendor-vf":
            record: Record = ["type", address, kind.number]
            carrier = address
        else:
            drawn = uuid.uuid5(_SPACE, f"{address}/{len(self._made)}")
            carrier = given.text().lower() if given is not None else str(drawn)
            record = ["mdev", carrier, address, kind.key, self._state.next_group]
        self._do([record, *placed(self._state, gpu, kind, carrier)])
        return carrier

    def _whole(self, gpu: SimGpu, table: Table) -> str:
        """Return a free VF, or the GPU itself: such a device is taken only by a VM that refers to it."""
        if table.get("vm") is None:
            table.owner.wrong(f"{gpu.address} is {gpu.backend}: name the VM that has the device")
        kind = "vf" if gpu.backend == "sriov-vf" else "pf"
        for function in gpu.functions:
            free = self._state.exists(function.address) and function.address not in self._taken
            if function.kind == kind and free:
                self._taken.add(function.address)
                return function.address
        raise table.owner.error(f"{gpu.address} has no free device left")


def _xml(name: str, own: str, carriers: list[str], managed: Any) -> str:
    """Return the XML of somebody else's VM: nothing in it says vgpuctl."""
    devices = []
    for carrier in carriers:
        if ":" in carrier:
            domain, bus, rest = carrier.split(":")
            slot, function = rest.split(".")
            source = f'<address domain="0x{domain}" bus="0x{bus}" slot="0x{slot}" function="0x{function}"/>'
            kind = f'type="pci" managed="{"yes" if managed(carrier) else "no"}"'
        else:
            source, kind = f'<address uuid="{carrier}"/>', 'type="mdev" managed="no" model="vfio-pci"'
        devices.append(f'<hostdev mode="subsystem" {kind}><source>{source}</source></hostdev>')
    return (
        f'<domain type="kvm"><name>{name}</name><uuid>{own}</uuid><memory unit="KiB">4194304</memory>'
        f'<vcpu placement="static">2</vcpu><os><type arch="x86_64" machine="pc-q35-8.2">hvm</type></os>'
        f"<devices>{''.join(devices)}</devices></domain>"
    )

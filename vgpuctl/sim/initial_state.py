# SPDX-License-Identifier: Apache-2.0
"""What exists on the host when the simulation begins: partitions, unmanaged vGPUs, and the VMs that use them.

The same rules create them as everything later, so a scenario cannot contain what a driver would refuse.
"""

from __future__ import annotations

import difflib
import uuid
from collections.abc import Mapping
from typing import Any

from vgpuctl.sim import gim, mdev, mig, mixed_size, vendor_vf
from vgpuctl.sim.domain_xml import MACHINE_TYPES, PCIE_MACHINES, host_arch
from vgpuctl.sim.journal import JournalRecord
from vgpuctl.sim.machine import Machine, SimGpu, SimType, build_machine
from vgpuctl.sim.mixed_size import count_available_on, placement_records
from vgpuctl.sim.refusals import NvmlError
from vgpuctl.sim.scenario_gpu import GPU_KEYS
from vgpuctl.sim.scenario_reader import YamlMapping, YamlValue
from vgpuctl.sim.state import State

INITIAL_VGPU_KEYS = ("profile", "count", "vm", "running", "uuid")
_UUID_NAMESPACE = uuid.UUID("6f9f6c1e-3a0b-4f0e-9a53-6a3d5b1f8c11")


def initial_records(compiled: Mapping[str, Any], entries: list[YamlValue]) -> list[JournalRecord]:
    """Return the records for every `mig:`, `mixed_size:` and `vgpus:` entry, and for the VMs that they name."""
    machine = build_machine(compiled)
    builder = _Builder(machine)
    builder.load_gim()
    position = 0
    for entry in entries:
        mapping = entry.mapping(GPU_KEYS)
        for _ in range(mapping.number("count", 1)):
            gpu = machine.gpus[compiled["gpus"][position]["address"]]
            position += 1
            builder.partition(gpu, mapping)
            for value in mapping.items("vgpus"):
                builder.add_vgpus(gpu, value.mapping(INITIAL_VGPU_KEYS))
    return builder.records()


class _Builder:
    """Creates unmanaged vGPUs in a state of its own and remembers which VM has which."""

    def __init__(self, machine: Machine) -> None:
        self._state = State(machine)
        self._records: list[JournalRecord] = []
        self._vms: dict[str, list[str]] = {}
        self._running: dict[str, bool] = {}
        self._taken: set[str] = set()

    def load_gim(self) -> None:
        """Load AMD's driver with the numbers of VFs that the GPUs have."""
        text = gim.initial_config(tuple(self._state.machine.gpus.values()))
        if text:
            modes = [
                ["gim_modes", gpu.address, *gim.initial_modes(gpu)]
                for gpu in self._state.machine.gpus.values()
                if gpu.own_function.driver == "gim"
            ]
            self._apply([["gim_config", text], *modes])

    def partition(self, gpu: SimGpu, table: YamlMapping) -> None:
        """Turn MIG on and create the GPU instances that the entry names, or turn mixed sizes on."""
        if table.get("mig") is not None:
            if not gpu.gi_profiles:
                table.require("mig").reject(f"{gpu.model} has no MIG")
            self._apply([["partition", "mig", gpu.address, True, True]])
        ids_by_name = {profile.name: profile.profile_id for profile in gpu.gi_profiles.values()}
        values = table.items("mig")
        profile_ids = [ids_by_name[value.choice(ids_by_name)] for value in values]
        for number, value in enumerate(values, 1):
            if mig.find_starts(gpu, profile_ids[:number]) is None:
                raise value.error(f"{gpu.address} has no room for {value.text()}")
        for profile_id, start in zip(profile_ids, mig.find_starts(gpu, profile_ids) or (), strict=True):
            self._apply(mig.create_instance(self._state, gpu, profile_id, start)[1])
        if table.flag("mixed_size", False):
            try:
                self._apply(mixed_size.set_mode(self._state, gpu, enabled=True))
            except NvmlError:
                raise table.require("mixed_size").error(f"{gpu.address} cannot mix sizes") from None

    def _apply(self, records: list[JournalRecord]) -> None:
        self._records += records
        self._state.apply(records)

    def add_vgpus(self, gpu: SimGpu, table: YamlMapping) -> None:
        vm = table.get("vm")
        for _ in range(table.number("count", 1, 1, 64)):
            carrier = self._create_carrier(gpu, table)
            if vm is not None:
                self._vms.setdefault(vm.text(), []).append(carrier)
                self._running[vm.text()] = table.flag("running", True)

    def records(self) -> list[JournalRecord]:
        journal_records = list(self._records)
        for number, (name, carriers) in enumerate(self._vms.items()):
            vm_uuid = str(uuid.uuid5(_UUID_NAMESPACE, f"vm/{name}"))
            arch = host_arch(self._state.machine.scenario)
            xml = _domain_xml(name, vm_uuid, arch, carriers, self._is_managed)
            journal_records.append(["domain", vm_uuid, name, xml])
            if self._running[name]:
                drivers = {
                    c: self._state.driver(self._state.machine.functions[c]) for c in carriers if self._is_managed(c)
                }
                pid, live_xml = (
                    self._state.next_pid + number,
                    _domain_xml(name, vm_uuid, arch, carriers, self._is_managed, live=True),
                )
                journal_records.append(["run", vm_uuid, pid, carriers, drivers, live_xml])
        return journal_records

    def _is_managed(self, carrier: str) -> bool:
        function = self._state.machine.functions.get(carrier)
        return function is not None and carrier not in self._state.vf_types

    def _create_carrier(self, gpu: SimGpu, table: YamlMapping) -> str:
        if gpu.backend in ("sriov-vf", "passthrough"):
            return self._take_device(gpu, table)
        profile = table.require("profile")
        types_by_name = {kind.name.split()[-1]: kind for kind in gpu.types.values()}
        types_by_name |= {kind.name: kind for kind in gpu.types.values()}
        kind = types_by_name.get(profile.text()) or gpu.types.get(profile.text())
        if kind is None:
            near = difflib.get_close_matches(profile.text(), types_by_name, n=3, cutoff=0) or sorted(types_by_name)[:3]
            profile.reject(
                f"{gpu.model} has no profile '{profile.text()}'; it has {len(gpu.types)}, like {', '.join(near)}:"
                " without vgpus: in the scenario, vgpuctl list-profiles --all lists them"
            )
        for function in gpu.functions:
            offers = mdev.is_parent(self._state, gpu, function) or vendor_vf.is_carrier(self._state, gpu, function)
            if self._state.exists(function.address) and offers and count_available_on(self._state, gpu, function, kind):
                return self._create_vgpu(gpu, function.address, kind, table)
        raise profile.error(f"{gpu.address} has no room for {profile.text()}")

    def _create_vgpu(self, gpu: SimGpu, address: str, kind: SimType, table: YamlMapping) -> str:
        configured = table.get("uuid")
        if gpu.backend == "vendor-vf":
            record: JournalRecord = ["type", address, kind.number]
            carrier = address
        else:
            seed = uuid.uuid5(_UUID_NAMESPACE, f"{address}/{len(self._records)}").bytes
            chosen = uuid.UUID(bytes=seed, version=4)  # the form of uuidgen, with which admins make mdevs
            carrier = configured.text().lower() if configured is not None else str(chosen)
            record = ["mdev", carrier, address, kind.key, self._state.next_iommu_group]
        self._apply([record, *placement_records(self._state, gpu, kind, carrier)])
        return carrier

    def _take_device(self, gpu: SimGpu, table: YamlMapping) -> str:
        """Return a free VF, or the GPU itself. Only a VM can take such a device, so the entry must name one."""
        if table.get("vm") is None:
            table.owner.reject(f"{gpu.address} is {gpu.backend}: name the VM that has the device")
        kind = "vf" if gpu.backend == "sriov-vf" else "pf"
        for function in gpu.functions:
            is_free = self._state.exists(function.address) and function.address not in self._taken
            if function.kind == kind and is_free:
                self._taken.add(function.address)
                return function.address
        raise table.owner.error(f"{gpu.address} has no free device left")


def _domain_xml(name: str, vm_uuid: str, arch: str, carriers: list[str], is_managed: Any, *, live: bool = False) -> str:
    """Return the XML of an unmanaged VM: nothing in it mentions vgpuctl. `live`: as libvirt shows it while it runs."""
    devices = []
    for number, carrier in enumerate(carriers):
        if ":" in carrier:
            domain, bus, slot_function = carrier.split(":")
            slot, function = slot_function.split(".")
            source = f'<address domain="0x{domain}" bus="0x{bus}" slot="0x{slot}" function="0x{function}"/>'
            attributes = f'type="pci" managed="{"yes" if is_managed(carrier) else "no"}"'
        else:
            source, attributes = f'<address uuid="{carrier}"/>', 'type="mdev" managed="no" model="vfio-pci"'
        alias = f'<alias name="hostdev{number}"/>' if live else ""
        devices.append(f'<hostdev mode="subsystem" {attributes}><source>{source}</source>{alias}</hostdev>')
    return (
        f'<domain type="kvm"><name>{name}</name><uuid>{vm_uuid}</uuid><memory unit="KiB">4194304</memory>'
        f'<vcpu placement="static">2</vcpu><os><type arch="{arch}" machine="{MACHINE_TYPES[PCIE_MACHINES[arch]]}">'
        "hvm</type></os>"
        f"<devices>{''.join(devices)}</devices></domain>"
    )

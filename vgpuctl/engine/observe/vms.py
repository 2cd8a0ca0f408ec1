# SPDX-License-Identifier: Apache-2.0
"""Read every domain through libvirt and keep what vgpuctl needs of it."""

from __future__ import annotations

from vgpuctl.errors import LibvirtFailed
from vgpuctl.model.records import DomainRecord
from vgpuctl.model.vm import Vm
from vgpuctl.model.world import World
from vgpuctl.value import replace


def read_vm(world: World, record: DomainRecord) -> Vm:
    """Turn one domain into a Vm; devices of the running domain that its config lacks are added."""
    from vgpuctl.domain.parse import hostdevs_of, parse, refers_to_more  # with lxml, which a host without VMs spares
    from vgpuctl.domain.sources import names_more, sources_of

    vm = parse(record.xml, record.state, world.machine_id)
    if not record.persistent:
        vm = replace(vm, persistent=False)
    if record.live_xml is None:
        return vm
    if names_more(record.live_xml, {d.base for d in vm.promise.disks if d.base} if vm.promise else ()):
        vm = replace(vm, backing=sources_of(record.xml, record.live_xml).backing)
    if not refers_to_more(record.live_xml, record.xml):
        return vm
    known = {h.carrier for h in vm.hostdevs}
    plugged = tuple(h for h in hostdevs_of(record.live_xml) if h.carrier not in known)
    return replace(vm, hostdevs=vm.hostdevs + plugged) if plugged else vm


def read_vms(world: World) -> tuple[tuple[Vm, ...], tuple[str, ...]]:
    """Return every VM, and a sentence for each domain whose XML could not be understood."""
    vms: list[Vm] = []
    problems: list[str] = []
    for record in world.hypervisor.domains():
        try:
            vms.append(read_vm(world, record))
        except (ValueError, LibvirtFailed) as error:
            problems.append(f"the domain {record.name} cannot be read: {error}")
    return tuple(vms), tuple(problems)

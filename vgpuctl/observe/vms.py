# SPDX-License-Identifier: Apache-2.0
"""Read every domain through libvirt and return what vgpuctl needs of it."""

from __future__ import annotations

from functools import lru_cache

from vgpuctl.domain.domain_xml import (
    has_unknown_backing_file,
    names_other_devices,
    parse_disk_sources,
    parse_domain,
    parse_hostdevs,
)
from vgpuctl.errors import LibvirtFailed
from vgpuctl.model.port_values import DomainInfo
from vgpuctl.model.vm import Vm, VmState
from vgpuctl.ports.host import Host
from vgpuctl.value import replace


def read_vm(host: Host, domain: DomainInfo) -> Vm:
    """Convert one domain to a Vm, including devices of the running domain that its persistent config lacks."""
    return _parse(domain.xml, domain.live_xml, domain.state, host.machine_id, persistent=domain.persistent)


@lru_cache(maxsize=2048)
def _parse(xml: str, live_xml: str | None, state: VmState, machine_id: str, *, persistent: bool) -> Vm:
    """Convert a domain; cached, because a command for many VMs reads each of them again and again, mostly unchanged."""
    vm = parse_domain(xml, state, machine_id)
    if not persistent:
        vm = replace(vm, persistent=False)
    if live_xml is None:
        return vm
    if has_unknown_backing_file(live_xml, {d.base for d in vm.record.disks if d.base} if vm.record else ()):
        vm = replace(vm, backing_pairs=parse_disk_sources(xml, live_xml).backing_pairs)
    if not names_other_devices(live_xml, xml):
        return replace(vm, live_carriers=frozenset(h.carrier for h in vm.hostdevs))
    live_hostdevs = parse_hostdevs(live_xml)
    carriers = {h.carrier for h in vm.hostdevs}
    live_only = tuple(h for h in live_hostdevs if h.carrier not in carriers)
    return replace(vm, hostdevs=vm.hostdevs + live_only, live_carriers=frozenset(h.carrier for h in live_hostdevs))


def read_vms(host: Host) -> tuple[tuple[Vm, ...], tuple[str, ...]]:
    """Return every VM, and a sentence for each domain whose XML could not be parsed."""
    vms: list[Vm] = []
    problems: list[str] = []
    for domain in host.hypervisor.domains():
        try:
            vms.append(read_vm(host, domain))
        except (ValueError, LibvirtFailed) as error:
            problems.append(f"the domain {domain.name} cannot be read: {error}")
    return tuple(vms), tuple(problems)

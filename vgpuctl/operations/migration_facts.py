# SPDX-License-Identifier: Apache-2.0
"""Gather the facts of the host to which a VM is to move; `plans.migration_checks` checks them. Nothing is changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from vgpuctl.config.vm_request import VmRequest
from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.domain.move_facts import MoveFacts, parse_move_facts
from vgpuctl.errors import VgpuctlError
from vgpuctl.model.numbers import parse_meminfo_mib
from vgpuctl.model.port_values import PoolInfo
from vgpuctl.model.results.migration import MigrationOfferResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import VmState
from vgpuctl.observe.migration_host import read_migration_host
from vgpuctl.operations.facts import INTERFACES, host_memory_mib, read_guest_host, read_topology
from vgpuctl.operations.plans.migration_target import TargetFacts, copied_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vgpuctl.ports.host import Host


def gather_target_facts(host: Host, snapshot: Snapshot, offer: MigrationOfferResult) -> TargetFacts:
    """Query libvirt, storage, NVML and files once each for what an offered VM names.

    `snapshot`: of this host, with types and models (`ReadScope(types=True)`).

    Raises:
        LibvirtFailed: the definition that the source sent cannot be read, or libvirt does not answer.
    """
    vm = parse_domain(offer.definition, VmState.STOPPED, offer.host.machine_id)
    domain, capabilities = parse_move_facts(offer.definition), host.hypervisor.capabilities()
    pools = {name: host.storage.pool(name) for name in sorted({d.pool for d in offer.disks if d.pool is not None})}
    gpus = [gpu.address for gpu in snapshot.gpus]
    ecc = {address: state.enabled for address in gpus if (state := host.nvml.ecc(address)) is not None}
    return TargetFacts(
        host=read_migration_host(host, snapshot, arch=capabilities.arch, sends=False),
        snapshot=snapshot,
        capabilities=capabilities,
        networks={name: host.hypervisor.network(name) for name in domain.networks},
        interfaces=_read_interfaces(host),
        bridges=read_guest_host(host, VmRequest(nics=tuple(n for n in vm.nics if n.vlan is not None))).bridges,
        topology=read_topology(host),
        memory_mib=host_memory_mib(host),
        free_memory_mib=_free_memory_mib(host),
        pools=pools,
        files=_read_files(host, _paths(offer, domain, vm.render_node, pools)),
        has_ecc=ecc,
        pair_limits=_read_pair_limits(host, snapshot, offer),
    )


def _read_pair_limits(
    host: Host, snapshot: Snapshot, offer: MigrationOfferResult
) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return, by carrier and GPU, why NVML says that a GPU with the profile does not take the vGPU."""
    limits = {}
    for vgpu in offer.vgpus:
        for gpu in snapshot.gpus:
            if vgpu.metadata is None or not any(vgpu.profile in (known.profile, known.name) for known in gpu.types):
                continue
            pairing = host.nvml.pairing(gpu.address, vgpu.metadata)
            if pairing is not None and not pairing.live:
                limits[vgpu.carrier, gpu.address] = pairing.limits
    return limits


def _paths(
    offer: MigrationOfferResult, domain: MoveFacts, render_node: str | None, pools: Mapping[str, PoolInfo | None]
) -> set[str]:
    copies = (copied_file(pools.get(d.pool or ""), d.volume) for d in offer.disks)
    bases = (disk.base for disk in offer.disks)
    named = {*domain.files, render_node, *copies, *bases, *(disk.path for disk in offer.disks)}
    return {path for path in named if path is not None and path.startswith("/")}


def _read_files(host: Host, paths: Iterable[str]) -> dict[str, bool]:
    """Return whether each path leads to something; one that cannot be followed is left out."""
    files: dict[str, bool] = {}
    for path in sorted(paths):
        try:
            files[path] = host.storage.resolve(path) is not None
        except (VgpuctlError, OSError):
            continue
    return files


def _read_interfaces(host: Host) -> frozenset[str] | None:
    try:
        return frozenset(host.sysfs.listdir(INTERFACES))
    except OSError:
        return None


def _free_memory_mib(host: Host) -> int | None:
    try:
        return parse_meminfo_mib(host.sysfs.read("/proc/meminfo"), "MemAvailable")
    except OSError:
        return None

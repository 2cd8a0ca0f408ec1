# SPDX-License-Identifier: Apache-2.0
"""What the host has room for, for its controller: its GPUs as numbers, and its memory, CPUs and storage."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from vgpuctl.config.vm_request import VmRequest
from vgpuctl.errors import VgpuctlError
from vgpuctl.gpu.division import is_given_whole, sizes_of
from vgpuctl.gpu.gpu_kind import GpuKind, State
from vgpuctl.gpu.kind_rules import data_of_state, rule_of
from vgpuctl.gpu.slice_kind import MAX_UNITS, Footprint, SliceKind
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.host_room import MUCH_MIB, GpuRoom, HostRoom
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import OFF_OR_UNKNOWN_STATES
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.facts import find_gpu_holders, host_memory_mib, read_topology
from vgpuctl.operations.guards import require_libvirt
from vgpuctl.operations.plans.choose_whole import offer_whole_gpus
from vgpuctl.operations.seen_addresses import read_tables
from vgpuctl.placement.fleet import build_fleet_state
from vgpuctl.placement.vm_placement import list_rooms
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


STEP_MIB = 4096


def read_room(host: Host) -> HostRoom:
    """Return what the host has room for now.

    Raises:
        HostCannot: libvirt does not answer: the memory of its VMs and its storage are not known then.
    """
    snapshot = observe(host, ReadScope(types=True))
    require_libvirt(snapshot)
    kinds: dict[GpuKind, int] = {}
    gpus = _gpu_rooms(host, snapshot, kinds)
    total = host_memory_mib(host)
    cpus = len(read_topology(host).online_cpus)
    pools = host.storage.pools()
    return HostRoom(
        rules=tuple(map(rule_of, kinds)),
        gpus=gpus,
        memory_mib=None if total is None else max(0, total - _memory_of_vms(snapshot)),
        cpus=cpus or None,
        storage_mib={
            pool.name: _in_steps(pool.available_bytes >> 20)
            for pool in pools
            if pool.active and pool.available_bytes is not None
        },
        networks={one.name: one.forward for one in host.hypervisor.networks() if one.forward is not None},
        own_addresses=tuple(sorted(str(one) for one in read_tables(host).own if not one.is_loopback)),
    )


def _in_steps(mib: int) -> int:
    """Return free storage such that it does not change with everything that is written."""
    return mib if mib < STEP_MIB else min(mib - mib % STEP_MIB, MUCH_MIB)


def _memory_of_vms(snapshot: Snapshot) -> int:
    """Return the memory in MiB that VMs have, or can have at any time: a device keeps all of it in the host's memory.

    A desktop's VM that is off counts, because its controller starts it whenever its pool needs it.
    """
    return sum(
        vm.memory_mib
        for vm in snapshot.vms
        if vm.state not in OFF_OR_UNKNOWN_STATES or (vm.record is not None and vm.record.desktop is not None)
    )


def _gpu_rooms(host: Host, snapshot: Snapshot, kinds: dict[GpuKind, int]) -> tuple[GpuRoom, ...]:
    """Return the GPUs that VMs get; adds their kinds to `kinds`, with their numbers.

    A GPU that is reserved for some VMs is described like any other one: the controller knows who asks.
    """
    reserved = {gpu.address: gpu.reserved_for for gpu in snapshot.gpus}
    gpus = tuple(replace(gpu, reserved_for=()) for gpu in snapshot.gpus if gpu.is_display_class)
    snapshot = replace(snapshot, gpus=gpus)
    fleet = build_fleet_state(snapshot, gpus)
    numbers: dict[str, tuple[GpuKind, State]] = {
        gpu.address: (fleet.fleet.kind_of(fleet.fleet.group_of(index)), fleet.fleet.group_of(index).state)
        for index, gpu in enumerate(fleet.gpus)
    }
    free = _free_whole_gpus(host, snapshot)
    rooms = []
    for gpu in gpus:
        known = numbers.get(gpu.address) or _counted_room(snapshot, gpu)
        taken = snapshot.vgpus_on(gpu.address)
        is_whole = gpu.address in free or is_given_whole(gpu, taken)
        if known is None and not is_whole:
            continue
        rule = None if known is None else kinds.setdefault(known[0], len(kinds))
        state = () if known is None else data_of_state(*known)
        rooms.append(
            GpuRoom(
                model=gpu.model,
                pci_id=gpu.pci_id,
                rule=rule,
                state=state,
                vgpus=len(taken),
                whole=is_whole,
                free=gpu.address in free,
                reserved_for=reserved[gpu.address],
                address=gpu.address,
                framebuffer_mib=gpu.framebuffer_mib,
            )
        )
    return tuple(rooms)


def _counted_room(snapshot: Snapshot, gpu: Gpu) -> tuple[GpuKind, State] | None:
    """Return a GPU whose numbers are not known, as one that takes what is sure of each profile; None: it has none."""
    sizes = sizes_of(gpu.types)
    counts: dict[str, int] = {}
    for vgpu_type in gpu.types:
        ((_, room),) = list_rooms(snapshot, (gpu,), {gpu.address: vgpu_type})
        if vgpu_type.profile in sizes:
            counts[vgpu_type.profile] = min(room.guaranteed or 0, MAX_UNITS)
    if not counts:
        return None
    footprints = {profile: Footprint(units=((number, 1),)) for number, profile in enumerate(counts)}
    return SliceKind(gpu.model, gpu.framebuffer_mib or 0, sizes, footprints, pools=tuple(counts.values())), 0


def _free_whole_gpus(host: Host, snapshot: Snapshot) -> frozenset[str]:
    """Return the addresses of the GPUs that a VM can get as a whole now: also no process of the host has one open."""
    with suppress(VgpuctlError):  # the host has none
        functions = offer_whole_gpus(snapshot, VmRequest(mode="passthrough", gpus=1), "", "").functions
        holders = find_gpu_holders(host, tuple(vgpu for own in functions.values() for vgpu in own))
        return frozenset(functions) - {gpu for gpu, one in holders.items() if one.display or one.compute}
    return frozenset()

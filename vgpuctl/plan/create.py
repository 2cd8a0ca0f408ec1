# SPDX-License-Identifier: Apache-2.0
"""Plan a new VM: its disks, its design, and the steps claim, define, make, record, start in that order.

The record says `ready` before the VM runs: from then on its disk may hold somebody's work, and no crash may make
reconcile take the VM for a half-made one.
"""

from __future__ import annotations

from vgpuctl.backends import of
from vgpuctl.domain.render import render
from vgpuctl.errors import InvalidInput
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Plan, Step
from vgpuctl.model.vm import DiskRole, MadeDisk, Promise, PromisedVgpu, PromiseState
from vgpuctl.model.wish import DesignDisk, DomainDesign, ExistingDisk, NewDisk, VmWish
from vgpuctl.plan.choose import disk_stem, make_steps, vm_name
from vgpuctl.plan.differ import kept_spec
from vgpuctl.plan.facts import DEFAULT_POOL_PATH, Facts, choose_firmware, has_system, makes_disks
from vgpuctl.plan.pci_window import knows_width, window_mib, window_warnings
from vgpuctl.spec.fields import DEFAULT_DISK_GIB
from vgpuctl.steps.domain import DefineDomain, SetRecord, StartDomain
from vgpuctl.steps.seed import MakeSeed
from vgpuctl.steps.storage import MakePool, MakeVolume, StartPool
from vgpuctl.value import replace

MIB = 1 << 20


def made_disks(wish: VmWish, facts: Facts, uuid: str) -> tuple[MadeDisk, ...]:
    """Return the disks to make: the clone of the image first, then the sizes asked for, else one empty disk.

    The seed for cloud-init comes last.
    """
    directory = facts.pool.path if facts.pool is not None and facts.pool.path else DEFAULT_POOL_PATH
    directory = directory.rstrip("/")
    stem = disk_stem(vm_name(wish, uuid), uuid)
    sizes: list[tuple[int, str | None, str | None]] = []
    if wish.image is not None:
        base = facts.files.get(wish.image)
        if base is None:
            raise InvalidInput(f"there is no image {wish.image}")
        sizes.append((base.virtual_size_bytes, base.path, base.format))
    sizes += [(d.size_mib * MIB, None, None) for d in wish.disks if isinstance(d, NewDisk)]
    if not sizes and makes_disks(wish):
        sizes.append((DEFAULT_DISK_GIB * 1024 * MIB, None, None))
    disks = []
    for number, (size, base_path, base_format) in enumerate(sizes):
        volume = f"{stem}.qcow2" if number == 0 else f"{stem}-{number}.qcow2"
        disks.append(MadeDisk(wish.storage_pool, volume, f"{directory}/{volume}", size, base_path, base_format))
    if wish.cloud_init is not None:
        volume = f"{stem}-seed.iso"
        disks.append(MadeDisk(wish.storage_pool, volume, f"{directory}/{volume}", 0, role=DiskRole.SEED))
    return tuple(disks)


def make_design(
    snapshot: Snapshot, wish: VmWish, facts: Facts, uuid: str, vgpus: tuple[PromisedVgpu, ...]
) -> DomainDesign:
    """Return the design of the domain; pure, so that a dry run shows exactly what would be defined."""
    made = made_disks(wish, facts, uuid)
    promise = Promise(
        state=PromiseState.MAKING,
        vm_uuid=uuid,
        machine_id=snapshot.machine_id,
        vgpus=vgpus,
        disks=made,
        spec=kept_spec(wish),
        reserve=wish.reserve,
    )
    disks = [DesignDisk("disk", d.path, "qcow2") for d in made if d.role is DiskRole.DISK]
    for disk in wish.disks:
        if isinstance(disk, ExistingDisk):
            record = facts.files.get(disk.path)
            disks.append(DesignDisk("disk", disk.path, record.format if record else "raw"))
    if wish.cdrom is not None:
        disks.append(DesignDisk("cdrom", wish.cdrom, "raw"))
    disks += [DesignDisk("cdrom", d.path, "raw") for d in made if d.role is DiskRole.SEED]
    window = window_mib(wish, facts.bars_mib)
    return DomainDesign(
        name=vm_name(wish, uuid),
        uuid=uuid,
        memory_mib=wish.memory_mib,
        vcpus=wish.vcpus,
        kvm=facts.capabilities.kvm,
        emulator=facts.capabilities.emulator,
        firmware=choose_firmware(wish, facts),
        disks=tuple(disks),
        network=wish.network,
        hostdevs=tuple(of(v.backend).hostdev(v) for v in vgpus),
        hotplug_slots=wish.hotplug_slots,
        boot=_boot_order(wish),
        promise=promise,
        os=wish.os,
        pci_window_mib=window,
        host_width=window is not None and facts.capabilities.kvm and knows_width(snapshot),
    )


def _boot_order(wish: VmWish) -> tuple[str, ...]:
    if wish.cdrom is not None:
        return ("cdrom", "hd")
    if has_system(wish):
        return ("hd",)
    return ("hd", "network")


def takes_place(wish: VmWish, *, start: bool) -> bool:
    """Say whether a new VM has its vGPUs from the beginning: not when it stays off and reserves nothing then."""
    return start or wish.reserve == "always"


def create_plan(snapshot: Snapshot, wish: VmWish, facts: Facts, design: DomainDesign, *, start: bool) -> Plan:
    """Return the steps after the claims: define, storage, devices, record as ready, start."""
    steps: list[Step] = [DefineDomain(design, render(design, facts.template))]
    if design.promise.disks:
        if facts.pool is None:
            steps.append(MakePool(wish.storage_pool, DEFAULT_POOL_PATH))
        elif not facts.pool.active:
            steps.append(StartPool(wish.storage_pool))
    steps += [_make(d, wish, design, facts) for d in design.promise.disks]
    for vgpu in design.promise.vgpus if takes_place(wish, start=start) else ():
        steps += make_steps(snapshot, vgpu)
    ready = replace(design.promise, state=PromiseState.READY)
    steps.append(SetRecord(design.name, design.uuid, ready, was=design.promise))
    if start:
        steps.append(StartDomain(design.name, design.uuid))
    return Plan(steps=tuple(steps), notes=notes(snapshot, wish, design, facts), off=(design.uuid,))


def _make(disk: MadeDisk, wish: VmWish, design: DomainDesign, facts: Facts) -> Step:
    if disk.role is DiskRole.SEED and wish.cloud_init is not None:
        from vgpuctl.domain.seed import hostname  # with pycdlib: where it is missing nothing is begun

        return MakeSeed(disk, wish.cloud_init, design.uuid, hostname(design.name))
    base = facts.files.get(disk.base) if disk.base else None
    return MakeVolume(disk, () if base is None else base.chain)


def notes(snapshot: Snapshot, wish: VmWish, design: DomainDesign, facts: Facts) -> tuple[str, ...]:
    """Return what people must know beside the steps."""
    window = window_warnings(snapshot, wish, design, facts.bars_mib)
    if has_system(wish):
        return window
    return (
        *window,
        f"no system is on {design.name}'s disk: it boots from the network; "
        "give one with --image BASE.qcow2, --disk PATH or --cdrom INSTALLER.iso",
    )

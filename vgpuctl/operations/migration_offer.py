# SPDX-License-Identifier: Apache-2.0
"""A VM as its host offers it to another one, with every reason why it cannot leave now. Nothing is changed."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from vgpuctl.backends import backend_for
from vgpuctl.backends.versions import old_programs
from vgpuctl.domain.move_facts import MoveFacts, MovingDisk, parse_move_facts
from vgpuctl.errors import FileFailed, LibvirtFailed, VgpuctlError
from vgpuctl.model.caller import Rights
from vgpuctl.model.outcome import Context, QueryResult
from vgpuctl.model.port_values import DomainInfo
from vgpuctl.model.results.migration import (
    MigratingDiskResult,
    MigratingVgpuResult,
    MigrationHostResult,
    MigrationOfferResult,
)
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import NOT_RUNNING_STATES, AssignedVgpu, DiskRole, ManagedDisk, Vm
from vgpuctl.observe import ReadScope, observe
from vgpuctl.observe.claims import living_operations
from vgpuctl.observe.definition import refuse_changed_definition, refuse_missing_vgpus
from vgpuctl.observe.file_systems import FileSystems, read_file_systems
from vgpuctl.observe.migration_host import read_migration_host
from vgpuctl.observe.vgpu_migration import VgpuMigrationFacts, read_vgpu_migration
from vgpuctl.operations.controlled import refuse_controlled
from vgpuctl.operations.drained_vms import is_drained
from vgpuctl.operations.guards import (
    deleted_meanwhile,
    find_vm,
    refuse_busy_vm,
    refuse_gpus_in_setup,
    refuse_losing_vgpus,
    refuse_others_vm,
    refuse_stuck_gpus,
    require_system_libvirt,
)
from vgpuctl.operations.host_signature import sign
from vgpuctl.operations.leftovers import read_domain_leftovers
from vgpuctl.operations.plans.migration_reasons import SourceFacts, find_source_reasons, find_source_warnings
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

NETWORK_KINDS = ("network", "vhostuser", "vhostvdpa")
"""Where libvirt says that a disk is, if no path of this host leads to it (formatdomain, "disk")."""


def offer_vm(host: Host, context: Context, name: str, *, offline: bool = False) -> QueryResult[MigrationOfferResult]:
    """Return a VM as another host needs to know it, with every reason why it cannot leave now.

    `offline`: it is to be off while it moves; one that runs can be stopped, so that is no reason.

    Raises:
        NotFound: there is no such VM.
        NotYours: it is another account's.
        HostCannot: libvirt does not answer.
    """
    snapshot = observe(host, ReadScope(vm=name))
    vm = find_vm(snapshot, name)
    require_system_libvirt(snapshot)
    refuse_others_vm(context, vm)
    domain = host.hypervisor.find_domain(vm.uuid)
    if domain is None:
        raise deleted_meanwhile(vm)
    is_running = domain.live_xml is not None
    vgpu_facts = read_vgpu_migration(host, snapshot, vm) if is_running else {}
    facts = SourceFacts(
        host="",
        vm=vm,
        domain=parse_move_facts(domain.xml if offline else domain.live_xml or domain.xml),
        leftovers=read_domain_leftovers(host, vm),
        blockers=_read_blockers(host, vm) if is_running and not offline else None,
        vgpus=vgpu_facts,
        work=_find_work(host, context, snapshot, vm),
    )
    offer = _build_offer(host, snapshot, domain, facts, offline=offline)
    if context.account is not None:
        offer = replace(offer, signature=sign(host, offer))
    return QueryResult(offer, snapshot.warnings)


def _read_blockers(host: Host, vm: Vm) -> tuple[str, ...] | None:
    """Return what QEMU says; None also where it stopped just now, or cannot be asked."""
    try:
        return host.hypervisor.migration_blockers(vm.uuid)
    except LibvirtFailed:
        return None


def _build_offer(
    host: Host, snapshot: Snapshot, domain: DomainInfo, facts: SourceFacts, *, offline: bool
) -> MigrationOfferResult:
    vm = facts.vm
    own_host = read_migration_host(host, snapshot, arch=facts.domain.arch, sends=True)
    facts = replace(facts, host=own_host.name, has_old_programs=_has_old_programs(own_host, vm))
    return MigrationOfferResult(
        id=host.new_uuid(),
        name=vm.name,
        uuid=vm.uuid,
        state=str(vm.state),
        memory_mib=vm.memory_mib,
        vcpus=vm.vcpus,
        definition=domain.xml,
        host=own_host,
        vgpus=tuple(
            _vgpu_result(host, snapshot, vgpu, facts.vgpus.get(vgpu.carrier, VgpuMigrationFacts()))
            for vgpu in (() if vm.record is None else vm.record.vgpus)
        ),
        disks=_disk_results(host, vm, facts.domain),
        reasons=find_source_reasons(facts, offline=offline),
        warnings=find_source_warnings(facts, offline=offline),
    )


def _has_old_programs(own: MigrationHostResult, vm: Vm) -> bool:
    needs = {backend_for(v.backend).live_move for v in (() if vm.record is None else vm.record.vgpus)}
    return any(
        needed is not None and old_programs(needed, own.libvirt_version, own.qemu_version, own.kernel)
        for needed in needs
    )


def _find_work(host: Host, context: Context, snapshot: Snapshot, vm: Vm) -> tuple[tuple[str, str | None], ...]:
    """Return what other operations do with the VM or its GPUs, or left, and what a controller decides: all of it."""
    vgpus = () if vm.record is None else vm.record.vgpus
    gpus = [v.gpu for v in vgpus]
    is_controller = context.caller is not None and context.caller.rights is Rights.FLEET
    checks: list[Callable[[], object]] = [
        *(() if is_controller else (partial(refuse_controlled, context, vm),)),  # its move itself comes with a fence
        partial(refuse_busy_vm, host, vm),
        partial(refuse_losing_vgpus, snapshot, vm),
        partial(refuse_gpus_in_setup, snapshot, gpus),
        partial(refuse_stuck_gpus, snapshot, gpus),
    ]
    if vm.record is not None:
        checks += [partial(refuse_changed_definition, vm, vm.record, snapshot.gpus)]
        checks += [partial(refuse_missing_vgpus, vm, vm.record)] if vm.state not in NOT_RUNNING_STATES else []
    reasons: dict[tuple[str, str | None], None] = {}
    for check in checks:
        try:
            check()
        except FileFailed:
            raise
        except VgpuctlError as error:
            reasons[error.message, error.hint] = None
    if _is_in_progress(host, vm):
        reasons[f"another vgpuctl works on {vm.name}", "wait for it, then run the command again"] = None
    if is_drained(host, vm):
        hint = f"vgpuctl reconcile-host, or vgpuctl start-vm {shlex.quote(vm.name)}"
        reasons[f"a command shut {vm.name} down for a moment, to start it again", hint] = None
    return tuple(reasons)


def _is_in_progress(host: Host, vm: Vm) -> bool:
    """Return whether a note says that an operation works on a VM without claims; False if unknown, without root."""
    try:
        notes = [note for note in host.claims.vms_in_progress() if note.vm_uuid == vm.uuid]
    except OSError:
        return False
    own = host.operations.current().id
    return bool(living_operations(host, (note.operation for note in notes if note.operation != own)))


def _vgpu_result(host: Host, snapshot: Snapshot, vgpu: AssignedVgpu, known: VgpuMigrationFacts) -> MigratingVgpuResult:
    gpu = snapshot.gpu(vgpu.gpu)
    observed = next((v for v in snapshot.vgpus if v.carrier == vgpu.carrier and v.present), None)
    state = None
    if gpu is not None and gpu.scheduler is not None:
        gi_id = None if observed is None else observed.gi_id
        state = gpu.scheduler.state if gi_id is None else gpu.gi_schedulers.get(gi_id, gpu.scheduler.state)
    ecc = None if gpu is None else host.nvml.ecc(gpu.address)
    return MigratingVgpuResult(
        carrier=vgpu.carrier,
        backend=vgpu.backend.value,
        profile=vgpu.profile,
        gpu=vgpu.gpu,
        gpu_model="" if gpu is None else gpu.model,
        framebuffer_mib=vgpu.framebuffer_mib,
        scheduler=None if state is None or state.policy is None else state.policy.value,
        has_ecc=None if ecc is None else ecc.enabled,
        can_migrate=known.can_migrate,
        state_bytes=known.state_bytes,
        read_bytes_per_second=known.read_bytes_per_second,
        metadata=known.metadata,
        pci_id=None if gpu is None else gpu.pci_id,
    )


class _DiskReader(Value):
    """Looks at the disks of one VM. `managed`: those that vgpuctl made, by path, and by pool and name."""

    host: Host
    file_systems: FileSystems
    managed: Mapping[str | tuple[str, str], ManagedDisk]
    bases: Mapping[str, str]

    def read(self, disk: MovingDisk) -> MigratingDiskResult:
        """Return one disk with what the record, libvirt and the mounts say about it."""
        made = self.managed.get(disk.path) or (None if disk.volume is None else self.managed.get(disk.volume))
        path = disk.path or ("" if made is None else made.path) or self._volume_path(disk)
        is_network = disk.kind in NETWORK_KINDS or not path.startswith("/")
        is_shared = is_network or disk.is_declared_shared or self._is_on_shared_file_system(path)
        size = None if made is None or not made.capacity_bytes else made.capacity_bytes
        return MigratingDiskResult(
            device=disk.target,
            kind=disk.device,
            path=path,
            format=disk.format or (None if made is None else made.format),
            size_bytes=size if is_shared else self._size(path) or size,
            is_shared=is_shared,
            is_read_only=disk.is_read_only,
            made=made is not None,
            pool=made.pool if made is not None else None if disk.volume is None else disk.volume[0],
            volume=made.volume if made is not None else None if disk.volume is None else disk.volume[1],
            base=(None if made is None else made.base) or self.bases.get(path) or disk.base,
            content=None if made is None or is_shared else self._seed_content(made),
        )

    def _seed_content(self, made: ManagedDisk) -> str | None:
        """Return the content of a seed: libvirt copies no disc that a guest only reads."""
        if made.role is not DiskRole.SEED:
            return None
        return base64.b64encode(self.host.storage.read_private_volume(made.pool, made.volume)).decode()

    def _volume_path(self, disk: MovingDisk) -> str:
        try:
            volume = None if disk.volume is None else self.host.storage.volume(*disk.volume)
        except VgpuctlError:
            return ""
        return "" if volume is None else volume.path

    def _is_on_shared_file_system(self, path: str) -> bool:
        try:
            resolved = self.host.storage.resolve(path)
        except VgpuctlError:
            resolved = None
        return self.file_systems.is_shared(path if resolved is None else resolved.path)

    def _size(self, path: str) -> int | None:
        try:
            image = self.host.storage.image(path)
        except VgpuctlError:
            return None
        return None if image is None else image.virtual_size_bytes or None


def _disk_results(host: Host, vm: Vm, domain: MoveFacts) -> tuple[MigratingDiskResult, ...]:
    """Return the disks with a file, device or name; an empty CD-ROM drive is none."""
    made = () if vm.record is None else vm.record.disks
    managed: dict[str | tuple[str, str], ManagedDisk] = {d.path: d for d in made}
    managed |= {(d.pool, d.volume): d for d in made}
    reader = _DiskReader(host, read_file_systems(host.sysfs), managed, dict(vm.backing_pairs))
    return tuple(reader.read(disk) for disk in domain.disks if disk.path or disk.volume)

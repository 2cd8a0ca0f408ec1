# SPDX-License-Identifier: Apache-2.0
"""Create a VM: read the host, plan, claim, execute, read the VM again.

The order of the steps is claim, define, create, record, start. The record becomes `ready` before the VM runs. From then
on its disk may hold somebody's work, and after a crash reconcile must not treat the VM as half created.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from vgpuctl.backends import backend_for
from vgpuctl.config.arguments import DEFAULT_DISK_GIB, NONE, WINDOWS_11
from vgpuctl.config.vm_request import FIELDS, VmRequest
from vgpuctl.domain.render import render_domain
from vgpuctl.domain.settings import SETTINGS
from vgpuctl.errors import Exists, InvalidInput
from vgpuctl.model.autostart import keeps_last_state
from vgpuctl.model.domain_join import BlobUse
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.request import DesignDisk, DesignHostdev, DomainDesign, ExistingDisk, NewDisk
from vgpuctl.model.results.vms import ChangedVmResult, DiskResult, PlannedVmResult, StateWord
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, DiskRole, ManagedDisk, RecordState, Vm, VmRecord, VmState
from vgpuctl.observe import ReadScope, observe, scope_of_request
from vgpuctl.operations.controlled import with_desktop
from vgpuctl.operations.domain_join import blob_for_new_vm
from vgpuctl.operations.facts import gather_host_facts
from vgpuctl.operations.guards import require_system_libvirt, require_writable, with_account
from vgpuctl.operations.plans.choose import choose_vgpus, disk_stem, disk_volume_name, make_steps, vm_name
from vgpuctl.operations.plans.facts import (
    DEFAULT_POOL_PATH,
    HostFacts,
    check_facts,
    choose_firmware,
    creates_disks,
    has_boot_source,
    is_logical,
)
from vgpuctl.operations.plans.guest_devices import default_nic_model, needs_opengl, resolve_pins
from vgpuctl.operations.plans.pci_window import gpu_bars_mib, supports_maxphysaddr, window_mib, window_warnings
from vgpuctl.operations.plans.rendering import drawing_warnings, new_render_node
from vgpuctl.operations.plans.reserve import tentative_placement
from vgpuctl.operations.plans.results import field_sources, planned_vgpu
from vgpuctl.operations.plans.vm_diff import ADDRESSES_FIELD, request_fields_json
from vgpuctl.operations.plans.whole_gpus import topology_notes
from vgpuctl.operations.report_vm import add_to_vm, report_vm
from vgpuctl.operations.steps.domain import DefineDomain, SetRecordState, StartDomain
from vgpuctl.operations.steps.guest_driver import driver_steps
from vgpuctl.operations.steps.seed import CreateSeed, with_blob
from vgpuctl.operations.steps.storage import CreatePool, CreateVolume, StartPool
from vgpuctl.operations.transaction import Owner, Transaction
from vgpuctl.ports.step import Plan, Step
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

MIB = 1 << 20


def disks_to_create(request: VmRequest, facts: HostFacts, uuid: str) -> tuple[ManagedDisk, ...]:
    """Return the disks to create: first the clone of the image, then the requested sizes, else one empty disk.

    A logical pool has no linked clones: there the first disk is a full copy. The seed for cloud-init comes last.
    """
    disk_format = "raw" if is_logical(facts.pool) else "qcow2"
    directory = facts.pool.path if facts.pool is not None and facts.pool.path else DEFAULT_POOL_PATH
    directory = directory.rstrip("/")
    stem = disk_stem(vm_name(request, uuid), uuid)
    disk_specs: list[tuple[int, str | None, str | None]] = []
    if request.image is not None:
        image = facts.files.get(request.image)
        if image is None:
            raise InvalidInput(f"image {request.image} does not exist")
        disk_specs.append((image.virtual_size_bytes, image.path, image.format))
    disk_specs += [(d.size_mib * MIB, None, None) for d in request.disks if isinstance(d, NewDisk)]
    if not disk_specs and creates_disks(request):
        disk_specs.append((DEFAULT_DISK_GIB * 1024 * MIB, None, None))
    disks = []
    for number, (size, base_path, base_format) in enumerate(disk_specs):
        volume = disk_volume_name(stem, number, disk_format)
        path = f"{directory}/{volume}"
        disk = ManagedDisk(request.storage_pool, volume, path, size, base_format=base_format, format=disk_format)
        copied = base_path is not None and disk_format == "raw"
        disks.append(replace(disk, copied_from=base_path) if copied else replace(disk, base=base_path))
    if request.seed is not None:
        volume = f"{stem}-seed" if disk_format == "raw" else f"{stem}-seed.iso"
        path = f"{directory}/{volume}"
        disks.append(ManagedDisk(request.storage_pool, volume, path, 0, role=DiskRole.SEED, format="raw"))
    return tuple(disks)


def design_domain(
    snapshot: Snapshot, request: VmRequest, facts: HostFacts, uuid: str, vgpus: tuple[AssignedVgpu, ...]
) -> DomainDesign:
    """Return the design of the domain; pure, so that a dry run shows exactly what would be defined."""
    managed_disks = disks_to_create(request, facts, uuid)
    record = VmRecord(
        state=RecordState.CREATING,
        vm_uuid=uuid,
        machine_id=snapshot.machine_id,
        vgpus=vgpus,
        disks=managed_disks,
        request_json=request_fields_json(request, _request_addresses(request)),
        reserve=request.reserve,
        account=request.account,
        desktop=request.desktop,
    )
    needs_window = facts.capabilities.is_x86  # the machine "virt" has room for every BAR
    window = window_mib(request.pci_window, gpu_bars_mib(facts.bars_mib, vgpus)) if needs_window else None
    pins = resolve_pins(snapshot, request.cpu_pin, vgpus, facts.guest.topology)
    return DomainDesign(
        name=vm_name(request, uuid),
        uuid=uuid,
        memory_mib=request.memory_mib,
        vcpus=request.vcpus,
        kvm=facts.capabilities.kvm,
        emulator=facts.capabilities.emulator,
        arch=facts.capabilities.arch,
        machine=facts.capabilities.machine,
        firmware=choose_firmware(request, facts),
        disks=_design_disks(request, facts, managed_disks),
        nics=tuple(replace(nic, model=nic.model or default_nic_model(request.os)) for nic in request.nics),
        hostdevs=_hostdevs(request, vgpus),
        pinned_cpus=pins.cpus,
        memory_nodes=pins.nodes,
        settings=tuple((name, text) for name in SETTINGS if (text := getattr(request, FIELDS[name].attribute)) != NONE),
        display_needs_gl=request.display and needs_opengl(snapshot, vgpus[0]),
        hotplug_slots=request.hotplug_slots,
        boot=_boot_order(request),
        record=record,
        os=request.os,
        pci_window_mib=window,
        host_width=window is not None and facts.capabilities.kvm and supports_maxphysaddr(snapshot),
        render_node=new_render_node(snapshot, request, vm_name(request, uuid), uuid, facts.render_links),
    )


def _design_disks(
    request: VmRequest, facts: HostFacts, managed_disks: tuple[ManagedDisk, ...]
) -> tuple[DesignDisk, ...]:
    """Return the disks, then the CD-ROMs: the user's, the seed for cloud-init, and the disc with the guest's driver."""
    disks = [DesignDisk("disk", d.path, d.format) for d in managed_disks if d.role is DiskRole.DISK]
    for disk in request.disks:
        if isinstance(disk, ExistingDisk):
            image = facts.files.get(disk.path)
            disks.append(DesignDisk("disk", disk.path, image.format if image else "raw"))
    if request.cdrom is not None:
        disks.append(DesignDisk("cdrom", request.cdrom, "raw"))
    disks += [DesignDisk("cdrom", d.path, "raw") for d in managed_disks if d.role is DiskRole.SEED]
    if facts.driver is not None:
        disks.append(DesignDisk("cdrom", facts.driver.disc, "raw", is_optional=True))
    return tuple(disks)


def _hostdevs(request: VmRequest, vgpus: tuple[AssignedVgpu, ...]) -> tuple[DesignHostdev, ...]:
    """Return how the domain refers to its vGPUs; only the first one's screen can be in the console."""
    devices = [backend_for(v.backend).hostdev(v) for v in vgpus]
    return tuple(replace(device, display=request.display and n == 0) for n, device in enumerate(devices))


def _boot_order(request: VmRequest) -> tuple[str, ...]:
    if request.cdrom is not None:
        return ("cdrom", "hd")
    return ("hd",) if has_boot_source(request) or not request.nics else ("hd", "network")


def reserves_slots(request: VmRequest, *, start: bool) -> bool:
    """Say whether a new VM gets its vGPUs at once: not if it stays off and reserves nothing while off."""
    return start or request.reserve == "always"


def vm_creation_plan(
    snapshot: Snapshot, request: VmRequest, facts: HostFacts, design: DomainDesign, *, start: bool
) -> Plan:
    """Return the steps after the claims: define, storage, devices, record as ready, start."""
    steps: list[Step] = [DefineDomain(design, render_domain(design, facts.template)), *driver_steps(facts.driver)]
    if design.record.disks:
        if facts.pool is None:
            steps.append(CreatePool(request.storage_pool, DEFAULT_POOL_PATH))
        elif not facts.pool.active:
            steps.append(StartPool(request.storage_pool))
    steps += [_create_disk_step(d, request, design, facts) for d in design.record.disks]
    for vgpu in design.record.vgpus if reserves_slots(request, start=start) else ():
        steps += make_steps(snapshot, vgpu)
    should_run = start and keeps_last_state(design.record)
    ready = replace(design.record, state=RecordState.READY, should_run=should_run)
    steps.append(SetRecordState(design.name, design.uuid, ready, previous=design.record))
    if start:
        steps.append(StartDomain(design.name, design.uuid))
    return Plan(
        steps=tuple(steps), notes=creation_notes(snapshot, request, design, facts), vms_required_off=(design.uuid,)
    )


def _create_disk_step(disk: ManagedDisk, request: VmRequest, design: DomainDesign, facts: HostFacts) -> Step:
    if disk.role is DiskRole.SEED and request.seed is not None:
        # imports pycdlib: fails here if it is missing, before any step
        from vgpuctl.domain.cloud_init_seed import hostname_of_vm

        return CreateSeed(disk, request.seed, design.uuid, hostname_of_vm(design.name))
    image = facts.files.get(disk.image) if disk.image else None
    return CreateVolume(disk, () if image is None else image.backing_chain)


def creation_notes(snapshot: Snapshot, request: VmRequest, design: DomainDesign, facts: HostFacts) -> tuple[str, ...]:
    """Return notes for the user about the plan."""
    bars = gpu_bars_mib(facts.bars_mib, design.record.vgpus)
    window = (
        *topology_notes(snapshot, design.record.vgpus),
        *window_warnings(snapshot, request, design, bars),
        *_old_data_notes(design),
    )
    if has_boot_source(request):
        return window
    boots = "it boots from the network" if request.nics else "nothing boots"
    return (
        *window,
        f"{design.name}'s disk is empty: {boots}; use --image BASE.qcow2, --disk PATH or --cdrom INSTALLER.iso",
    )


def _old_data_notes(design: DomainDesign) -> tuple[str, ...]:
    """Return a note about disks on LVM that nothing is written to: a guest can read what was there before."""
    paths = [d.path for d in design.record.data_disks() if d.format == "raw" and d.image is None]
    if not paths:
        return ()
    return (f"{', '.join(paths)}: LVM does not erase, so {design.name} can read there what earlier volumes left",)


def check_network_configs(snapshot: Snapshot, requests: Iterable[VmRequest]) -> tuple[str, ...]:
    """Return warnings about the files for cloud-init of new VMs.

    Raises:
        InvalidInput: one names a MAC address that no card of its VM has.
    """
    from vgpuctl.config import cloud_init_files

    users = {address: vm for vm in snapshot.vms for address in _recorded_addresses(vm)}
    warnings: dict[str, None] = {}
    for request in requests:
        seed = request.seed
        if seed is None:
            continue
        if request.os == WINDOWS_11 and seed.paths:
            warnings[f"{', '.join(seed.paths)}: Windows applies it only if cloudbase-init is in the image"] = None
        if seed.network_config is not None:
            warnings |= dict.fromkeys(cloud_init_files.match_cards(seed.network_config, request.nics))
        for address in _request_addresses(request):
            if address in users:
                name = users[address].name
                warnings[f"VM {name} has the static address {address} too: the two cannot be on one network"] = None
    return tuple(warnings)


def _request_addresses(request: VmRequest) -> tuple[str, ...]:
    """Return the static addresses of a request, without prefix lengths."""
    from vgpuctl.config import cloud_init_files

    seed = request.seed
    if seed is None or seed.network_config is None:
        return ()
    return tuple(
        address.partition("/")[0].lower() for address in cloud_init_files.static_addresses(seed.network_config)
    )


def _recorded_addresses(vm: Vm) -> tuple[str, ...]:
    addresses = vm.record.request_fields.get(ADDRESSES_FIELD) if vm.record is not None else None
    return tuple(str(address) for address in addresses) if isinstance(addresses, list) else ()


class PreparedVm(Value):
    """A planned new VM; nothing is written yet. It can be made by a transaction."""

    seen: Snapshot
    request: VmRequest
    uuid: str
    facts: HostFacts
    design: DomainDesign
    warnings: tuple[str, ...]
    start: bool
    blob: BlobUse | None

    @property
    def scope(self) -> ReadScope:
        """What to read in order to choose its vGPUs."""
        return scope_of_request(self.request)

    @property
    def owner(self) -> Owner:
        """The VM; one that reserves no slots while it is off gets no claims."""
        reserves = reserves_slots(self.request, start=self.start)
        return Owner(self.design.name, self.design.record, is_new=True, reserves=reserves)

    def choose(self, seen: Snapshot) -> tuple[AssignedVgpu, ...]:
        """Return the vGPUs of the design, or those for a later snapshot."""
        return self.design.record.vgpus if seen is self.seen else choose_vgpus(seen, self.request, self.uuid)

    def design_with(self, vgpus: tuple[AssignedVgpu, ...]) -> DomainDesign:
        """Return the domain with these vGPUs."""
        return design_domain(self.seen, self.request, self.facts, self.uuid, vgpus)

    def plan(self, seen: Snapshot, vgpus: tuple[AssignedVgpu, ...]) -> Plan:
        """Return the steps that make it with these vGPUs."""
        design = self.design_with(vgpus)
        return with_blob(vm_creation_plan(seen, self.request, self.facts, design, start=self.start), self.blob)


def prepare_vm(host: Host, look: Callable[[ReadScope], Snapshot], request: VmRequest, *, start: bool) -> PreparedVm:
    """Read the host and plan a new VM; whatever prevents it is raised before anything is written."""
    uuid = host.new_uuid() if request.desktop is None else request.desktop.id
    snapshot = look(scope_of_request(request))
    require_system_libvirt(snapshot)
    refuse_existing_vm(snapshot, vm_name(request, uuid))
    if request.desktop is not None:
        refuse_existing_vm(snapshot, uuid)
    has_slots = reserves_slots(request, start=start)
    vgpus = choose_vgpus(snapshot, request, uuid) if has_slots else tentative_placement(snapshot, request, uuid)
    facts = gather_host_facts(host, snapshot, request, vgpus)
    warnings = (*check_facts(snapshot, request, vgpus, facts), *check_network_configs(snapshot, [request]))
    design = design_domain(snapshot, request, facts, uuid, vgpus)
    warnings += drawing_warnings(snapshot, design.render_node)
    blob = blob_for_new_vm(host, request, design.name, uuid)
    return PreparedVm(snapshot, request, uuid, facts, design, warnings, start, blob)


def refuse_existing_vm(snapshot: Snapshot, name: str) -> None:
    """Refuse a name that a VM already has.

    Raises:
        Exists: with the VM and what to do.
    """
    vm = snapshot.vm(name)
    if vm is not None:
        raise Exists(
            f"a VM {name} already exists ({vm.state})",
            hint=f"choose another name, or vgpuctl show-vm {name}",
            vm=name,
            uuid=vm.uuid,
        )


def render_xml(host: Host, request: VmRequest) -> str:
    """Return the domain XML that create-vm would define; writes nothing."""
    prepared = prepare_vm(host, partial(observe, host), request, start=True)
    return render_domain(prepared.design, prepared.facts.template)


def create_vm(
    host: Host, context: Context, request: VmRequest, *, start: bool
) -> Outcome[ChangedVmResult | PlannedVmResult]:
    """Create a VM that does not exist yet; if a GPU's driver refuses, the other GPUs are tried.

    Raises:
        VgpuctlError: the reason; everything created has been undone.
    """
    require_writable(host, context)
    request = with_desktop(with_account(request, context), context)

    def prepare(tx: Transaction) -> PreparedVm:
        prepared = prepare_vm(host, tx.look, request, start=start)
        if not prepared.owner.reserves or not prepared.design.record.vgpus:
            tx.note(prepared.owner.name, prepared.uuid)
        return prepared

    with Transaction(host, context) as tx:
        made = tx.make(prepare)
    prepared, design = made.making, made.making.design_with(made.vgpus)
    sources = field_sources(request, prepared.seen.placement_spec)
    if context.dry_run:
        planned = replace(_planned_vm(design, "absent", present=False), sources=sources)
        return Outcome(True, planned, made.steps, prepared.warnings, made.plan.notes, dry_run=True)
    unobserved = _planned_vm(design, VmState.UNKNOWN, present=prepared.owner.reserves)
    outcome = report_vm(host, unobserved, made.steps, made.plan.notes, (*prepared.warnings, *made.warnings))
    return add_to_vm(outcome, sources=sources)


def _planned_vm(design: DomainDesign, state: StateWord, *, present: bool) -> PlannedVmResult:
    """Return what is known of a VM from its design: not made yet, or just made and the host cannot be read."""
    return PlannedVmResult(
        name=design.name,
        uuid=design.uuid,
        state=state,
        vgpus=tuple(planned_vgpu(v, design.name, present=present) for v in design.record.vgpus),
        disks=tuple(
            DiskResult(
                path=d.path,
                device="cdrom" if d.role is DiskRole.SEED else "disk",
                size_bytes=d.capacity_bytes or None,
                base=d.base,
                copied_from=d.copied_from,
                made=True,
            )
            for d in design.record.disks
        ),
    )

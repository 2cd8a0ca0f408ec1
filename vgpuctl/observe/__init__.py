# SPDX-License-Identifier: Apache-2.0
"""Observe a host through its ports: one reader per source, joined by a pure function.

It writes nothing and needs no lock. A device that cannot be read stays in the snapshot with its `problem`: it does not
stop the others from being read, and never counts as free. If claims or stuck writes cannot be read, as without root, a
warning says so; they are not treated as absent.
"""

from __future__ import annotations

from vgpuctl.config.vm_request import VmRequest
from vgpuctl.errors import FileFailed
from vgpuctl.model.names import normalize_pci
from vgpuctl.model.outcome import VMS_UNKNOWN
from vgpuctl.model.port_values import ClaimList, HypervisorStatus, NvmlStatus
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import Claim, StuckWrite, Vm
from vgpuctl.observe.claims import living_operations, report_unreadable
from vgpuctl.observe.definition import read_vm, read_vms
from vgpuctl.observe.host_file import HostFileRead, read_host_file
from vgpuctl.observe.ownership import resolve_ownership
from vgpuctl.observe.pci import GpusRead, find_gpus, read_gpus
from vgpuctl.observe.scope import ReadScope as ReadScope
from vgpuctl.ports.host import Host
from vgpuctl.value import replace


def scope_of_vm(name: str) -> ReadScope:
    """Return the scope for a change of one VM that exists, by name or uuid: its cost does not grow with the GPUs."""
    return ReadScope(models=False, vm=name)


def scope_of_request(request: VmRequest) -> ReadScope:
    """Return the scope that is needed to place the vGPUs of a VM."""
    by_model = any(normalize_pci(text) is None for text in (*request.gpu, *request.not_gpu))
    return ReadScope(
        types=request.mode == "vgpu",
        models=by_model or request.gpus > 1,
        every_function=request.mode != "vgpu",
        profiles=frozenset(text for text, _ in request.profiles),
        nvlinks=request.mode == "passthrough",
    )


def observe(host: Host, scope: ReadScope) -> Snapshot:
    """Return a snapshot of the whole host: a new one, but for a reader whose host keeps snapshots."""
    if host.snapshots is None:
        return _observe(host, scope)
    return host.snapshots.get(scope, host.operations.state(), lambda: _observe(host, scope))


def _observe(host: Host, scope: ReadScope) -> Snapshot:
    status = host.hypervisor.status()
    vms: tuple[Vm, ...] = ()
    problems: tuple[str, ...] = ()
    if status.available:
        vms, problems = read_vms(host)
    warnings = problems if status.available else (f"{VMS_UNKNOWN}: {status.reason}",)
    if scope.vm is not None:
        scope = _limit_to_vm(host, scope, next((vm for vm in vms if scope.vm in (vm.name, vm.uuid)), None))
    snapshot = observe_devices(host, scope, vms=vms, status=status, warnings=warnings)
    return replace(snapshot, unread=(*problems, *snapshot.unread)) if problems else snapshot


def _limit_to_vm(host: Host, scope: ReadScope, vm: Vm | None) -> ReadScope:
    """Return the scope with the GPUs on which the VM has something by its record, its definition, or a claim."""
    if vm is None:
        return replace(scope, gpu_addresses=frozenset(), carriers=frozenset())
    assigned = () if vm.record is None else vm.record.vgpus
    carriers = frozenset(v.carrier for v in assigned) | {h.carrier for h in vm.hostdevs}
    gpus = frozenset(v.gpu for v in assigned) | claimed_gpus(host, None, carriers)
    gpus |= find_gpus(host.sysfs, carriers - {v.carrier for v in assigned})
    return replace(scope, gpu_addresses=gpus, carriers=carriers | gpus)


def observe_vm(host: Host, uuid: str) -> Snapshot:
    """Return a snapshot of one VM and its GPUs, for the report of a command that created or changed the VM.

    Its cost does not grow with the number of VMs. The other VMs are not read, so the owners of the other devices on
    these GPUs are unknown.
    """
    status = host.hypervisor.status()
    domain = host.hypervisor.find_domain(uuid)
    vms = () if domain is None else (read_vm(host, domain),)
    assigned = [v for vm in vms if vm.record is not None for v in vm.record.vgpus]
    carriers = frozenset(v.carrier for v in assigned)
    gpus = frozenset(v.gpu for v in assigned) | claimed_gpus(host, uuid, carriers)
    scope = ReadScope(models=False, gpu_addresses=gpus, carriers=carriers, cached_vgpus=())
    return observe_devices(host, scope, vms=vms, status=status)


def claimed_gpus(host: Host, uuid: str | None, carriers: frozenset[str]) -> frozenset[str]:
    """Return the GPUs of a VM's claims: an mdev created at each start may be on another GPU than its record says.

    `uuid` None: the claims of any VM.

    If the claims cannot be read, the result is empty; the snapshot taken afterwards warns about it.
    """
    try:
        return frozenset(c.gpu for c in host.claims.read(carriers).claims if uuid in (None, c.vm_uuid))
    except OSError:
        return frozenset()


def observe_devices(
    host: Host,
    scope: ReadScope,
    *,
    vms: tuple[Vm, ...],
    status: HypervisorStatus,
    warnings: tuple[str, ...] = (),
) -> Snapshot:
    """Read only devices and claims, and join them with VMs read before; makes no libvirt call."""
    host_file = read_host_file(host) if scope.cached_vgpus is None else HostFileRead(host_vgpus=scope.cached_vgpus)
    gpus_read = _read_gpus(host, replace(scope, models=True) if host_file.uses_models else scope)
    gpus = host_file.add_desired(gpus_read.gpus, () if scope.cached_vgpus is None else scope.cached_gpus)
    named = tuple(n for n in host_file.host_vgpus if scope.gpu_addresses is None or n.gpu in scope.gpu_addresses)
    claim_list, stuck, problems = _read_claims(host, scope)
    live_carriers = _live_carriers(host, claim_list.claims)
    owners_known = status.available and host_file.problem is None
    all_warnings = [*warnings, *gpus_read.warnings, *problems, *host_file.warnings]
    all_warnings += [f"the claim on {c} cannot be read; {c} counts as taken" for c in claim_list.unreadable]
    return Snapshot(
        gpus=gpus,
        vms=vms,
        claims=claim_list.claims,
        vgpus=resolve_ownership(
            gpus,
            vms,
            claim_list.claims,
            live_carriers,
            claim_list.unreadable,
            host_vgpus=named,
            owners_known=owners_known,
            of_vm=scope.vm,
            functions=gpus_read.addresses,
        ),
        stuck_writes=stuck,
        hypervisor=status,
        nvml=gpus_read.nvml,
        machine_id=host.machine_id,
        live_claim_carriers=live_carriers,
        unreadable_claims=claim_list.unreadable,
        warnings=tuple(all_warnings),
        host_file_problem=host_file.problem,
        host_file_hint=host_file.hint,
        host_vgpus=host_file.host_vgpus,
        placement_spec=host_file.placement,
        partial=scope.gpu_addresses is not None,
        unreadable_devices=gpus_read.warnings,
        unread=tuple(problems),
        nvswitches=gpus_read.nvswitches,
    )


def _read_claims(host: Host, scope: ReadScope) -> tuple[ClaimList, tuple[StuckWrite, ...], list[str]]:
    """Read the claims and the stuck writes; a warning names what only root may read, other failures are errors."""
    claim_list = ClaimList((), ())
    stuck: tuple[StuckWrite, ...] = ()
    denied: list[str] = []
    with report_unreadable("the claims"):
        try:
            claim_list = host.claims.read(scope.carriers)
        except PermissionError as error:
            denied.append(f"the claims ({error.filename})")
    with report_unreadable("the records of blocked writes"):
        try:
            stuck = host.claims.stuck_writes()
        except PermissionError as error:
            denied.append(f"the records of stuck writes ({error.filename})")
    if not denied:
        return claim_list, stuck, []
    text = " and ".join(denied)
    return claim_list, stuck, [f"{text} cannot be read without root: their contents are missing here"]


def _live_carriers(host: Host, claims: tuple[Claim, ...]) -> frozenset[str]:
    """Return the carriers whose claiming operation is still alive."""
    living = living_operations(host, (claim.operation for claim in claims))
    return frozenset(claim.carrier for claim in claims if claim.operation in living)


def _read_gpus(host: Host, scope: ReadScope) -> GpusRead:
    """Read the GPUs; if the listing as a whole fails, that is an error and not an empty list."""
    try:
        return read_gpus(host, scope)
    except OSError as error:
        raise FileFailed(
            f"the devices of this host cannot be read: {error.strerror or error} ({error.filename})",
            hint="journalctl -k -n 20 shows the kernel log",
            errno=error.errno,
            path=error.filename,
        ) from error


__all__ = [
    "Claim",
    "NvmlStatus",
    "ReadScope",
    "claimed_gpus",
    "observe",
    "observe_devices",
    "observe_vm",
    "scope_of_request",
    "scope_of_vm",
]

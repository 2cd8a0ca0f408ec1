# SPDX-License-Identifier: Apache-2.0
"""What only reads: the VMs and GPUs that a user means, lists, what fits of the profiles and why not, schedulers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vgpuctl.config.name_patterns import expand_braces, is_glob, is_pattern
from vgpuctl.errors import Failed, InvalidInput, VgpuctlError
from vgpuctl.gpu.profiles import find_types
from vgpuctl.gpu.room import divide
from vgpuctl.makers import slicing_notes, uses_nvml
from vgpuctl.model.gpu import Gpu, VgpuType
from vgpuctl.model.guest_report import GuestReport
from vgpuctl.model.names import parse_gpu_address
from vgpuctl.model.outcome import Context, QueryResult
from vgpuctl.model.results import SelectedResult
from vgpuctl.model.results.gpus import (
    ExplainResult,
    GpuDetailsResult,
    GpuResult,
    ProfileResult,
    ReasonResult,
    RoomResult,
)
from vgpuctl.model.results.moves import MoveResult
from vgpuctl.model.results.vms import GuestSoftwareResult, VmResult, VmRowResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vgpu_scheduler import GpuScheduler
from vgpuctl.model.vm import Vm
from vgpuctl.observe import ReadScope, observe
from vgpuctl.observe.nvml_facts import driver_version, loaded_parameters, read_modprobe
from vgpuctl.operations.boot import read_autostart_links
from vgpuctl.operations.guards import find_vm, require_libvirt
from vgpuctl.operations.guest_helper import helper_result, read_guest_reports
from vgpuctl.operations.guest_software import read_guest_software
from vgpuctl.operations.moves import find_pinned_vms
from vgpuctl.operations.plans.moves import find_blocking_carriers, plan_room_moves
from vgpuctl.operations.plans.results import (
    gpu_details,
    gpu_result,
    gpu_warnings,
    image_of,
    ownership_of,
    vgpu_results,
    vm_result,
    vm_row,
)
from vgpuctl.operations.plans.schedulers import SchedulerDetails, scheduler_details
from vgpuctl.operations.plans.selection import Candidate, Request, left_out_note, select
from vgpuctl.placement.constraints import match_gpus, select_gpus
from vgpuctl.placement.fit import none_beside, total_left
from vgpuctl.placement.fleet import build_fleet_state
from vgpuctl.placement.vm_placement import list_rooms, sum_free, sum_guaranteed
from vgpuctl.scheduler.modprobe_files import ModprobeFile
from vgpuctl.scheduler.registry_dword import LOG_MARKER, parse_scheduler_log
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def list_gpus(host: Host, *, everything: bool = False) -> QueryResult[tuple[GpuResult, ...]]:
    """Return every GPU; `everything` adds other SR-IOV functions and endpoints without a driver."""
    snapshot = observe(host, ReadScope(every_function=everything))
    gpus = tuple(gpu_result(snapshot, g) for g in snapshot.gpus)
    return QueryResult(gpus, (*snapshot.warnings, *gpu_warnings(snapshot.gpus)))


def show_gpu(host: Host, address: str) -> QueryResult[GpuDetailsResult]:
    """Return one GPU with its types, functions and vGPUs."""
    gpu_address = parse_gpu_address(address)
    snapshot = observe(host, ReadScope(types=True, every_function=True))
    gpu = with_logged_scheduler(host, select_gpus(snapshot, gpu_address)[0])
    scheduler, scheduler_warnings = read_scheduler_status(host, snapshot, gpu)
    warnings = (*snapshot.warnings, *gpu_warnings([gpu]), *scheduler_warnings)
    return QueryResult(gpu_details(snapshot, gpu, scheduler), warnings)


def list_profiles(
    host: Host, *, gpu: str | None = None, everything: bool = False
) -> QueryResult[tuple[ProfileResult, ...]]:
    """Return every profile and how many more of it can be created now, on all GPUs of the host together."""
    snapshot = observe(host, ReadScope(types=True, models=gpu is not None))
    gpus = select_gpus(snapshot, gpu)
    profiles = profile_results(snapshot, gpus, everything=everything)
    notes = slicing_notes(gpu for gpu in gpus if gpu.is_display_class)
    return QueryResult(profiles, (*snapshot.warnings, *gpu_warnings(gpus)), notes=notes)


def explain(host: Host, profile: str) -> QueryResult[ExplainResult]:
    """Return for every GPU how many vGPUs of a profile fit and what prevents more."""
    snapshot = observe(host, ReadScope(types=True))
    gpus = tuple(g for g in snapshot.gpus if g.is_display_class)
    pinned_vms = find_pinned_vms(host, snapshot) if snapshot.hypervisor.available else frozenset()
    return QueryResult(explain_profile(snapshot, gpus, profile, pinned_vms), snapshot.warnings)


def list_vms(host: Host, context: Context) -> QueryResult[tuple[VmRowResult, ...]]:
    """Return every VM, managed and unmanaged; who is logged on only in those that the caller may use.

    Raises:
        HostCannot: libvirt does not answer: an empty list would say that there are none.
    """
    snapshot = observe(host, ReadScope(models=False))
    require_libvirt(snapshot)
    reports = read_guest_reports(host, context, snapshot.vms)
    return QueryResult(tuple(vm_row(snapshot, v, reports.get(v.uuid)) for v in snapshot.vms), snapshot.warnings)


def show_vms(host: Host, context: Context, names: Sequence[str]) -> dict[str, QueryResult[VmResult]]:
    """Return VMs by name, from one look at the host; one that has just been deleted is left out."""
    snapshot = observe(host, ReadScope(models=False))
    vms = {vm.name: vm for vm in snapshot.vms}
    shown = [vms[name] for name in names if name in vms]
    software = read_guest_software(host, snapshot, shown).by_vm
    reports = read_guest_reports(host, context, shown)
    return {vm.name: QueryResult(_shown_vm(host, snapshot, vm, software, reports), snapshot.warnings) for vm in shown}


def show_vm(host: Host, context: Context, name: str) -> QueryResult[VmResult]:
    """Return one VM with its vGPUs and disks."""
    snapshot = observe(host, ReadScope(models=False))
    vm = find_vm(snapshot, name)
    software = read_guest_software(host, snapshot, (vm,)).by_vm
    reports = read_guest_reports(host, context, (vm,))
    return QueryResult(_shown_vm(host, snapshot, vm, software, reports), snapshot.warnings)


def _shown_vm(
    host: Host,
    snapshot: Snapshot,
    vm: Vm,
    software: Mapping[str, GuestSoftwareResult],
    reports: Mapping[str, GuestReport],
) -> VmResult:
    links = read_autostart_links(host)
    return replace(
        vm_result(snapshot, vm),
        libvirt_autostart=None if links is None else vm.name in links,
        guest_software=software.get(vm.uuid),
        helper_report=helper_result(reports.get(vm.uuid)),
    )


def profile_results(snapshot: Snapshot, gpus: tuple[Gpu, ...], *, everything: bool) -> tuple[ProfileResult, ...]:
    """Return a result for each profile: how many can be created now on these GPUs together.

    Profiles without room for one more are omitted unless `everything`.
    """
    by_name: dict[str, dict[str, VgpuType]] = {}
    for gpu in gpus:
        for vgpu_type in gpu.types:
            by_name.setdefault(vgpu_type.name, {})[gpu.address] = vgpu_type
    rooms = {name: list_rooms(snapshot, [g for g in gpus if g.address in t], t) for name, t in by_name.items()}
    free = {name: sum_free(room_list) for name, room_list in rooms.items()}
    excluded = _excluded_profiles(snapshot, gpus, by_name, free)
    results: list[ProfileResult] = []
    for name, types in by_name.items():
        if free[name] == 0 and not everything:
            continue
        first = next(iter(types.values()))
        ids = sorted({t.type_id for t in types.values()})
        shown_rooms = [(g, r) for g, r in rooms[name] if everything or r.free != 0]
        results.append(
            ProfileResult(
                profile=first.profile,
                name=name,
                type_id=ids[0] if len(ids) == 1 else None,
                framebuffer_mib=next((t.framebuffer_mib for t in types.values() if t.framebuffer_mib), None),
                max_per_gpu=_max_per_gpu([g for g, _ in rooms[name]], types),
                free=free[name],
                free_at_least=sum_guaranteed(rooms[name]),
                excludes=excluded[name],
                gpus=tuple(RoomResult(g.address, sum_free([(g, r)]), sum_guaranteed([(g, r)])) for g, r in shown_rooms),
            )
        )
    return tuple(sorted(results, key=_profile_key))


def _excluded_profiles(
    snapshot: Snapshot,
    gpus: tuple[Gpu, ...],
    by_name: dict[str, dict[str, VgpuType]],
    free: dict[str, int | None],
) -> dict[str, tuple[str, ...] | None]:
    """Return, by type name, the profiles that have room now and lose all of it once that type is used up.

    None if the state of a GPU with room for either is not known in numbers.
    """
    fleet_state = build_fleet_state(snapshot, gpus)
    profiles = {name: next(iter(types.values())).profile for name, types in by_name.items()}
    known_names = {
        name for name, n in free.items() if n is not None and n == total_left(fleet_state.fleet, profiles[name])
    }
    profiles_with_room = [profiles[name] for name, n in free.items() if n != 0]
    if len(known_names) < len(free):
        return dict.fromkeys(by_name)
    return {
        name: tuple(sorted(none_beside(fleet_state.fleet, profile, profiles_with_room)))
        for name, profile in profiles.items()
    }


def _max_per_gpu(gpus: list[Gpu], types: dict[str, VgpuType]) -> int | None:
    """Return the maximum of a profile on one of these GPUs; GPUs with mixed sizes may take fewer than others."""
    maxima = [
        maximum for maximum in (divide(g, ()).max_when_empty(types[g.address]) for g in gpus) if maximum is not None
    ]
    return max(maxima, default=None)


def _profile_key(result: ProfileResult) -> tuple[str, int, str]:
    return result.profile.rpartition("-")[0], result.framebuffer_mib or 0, result.profile


def explain_profile(
    snapshot: Snapshot, gpus: tuple[Gpu, ...], profile: str, pinned: frozenset[str] = frozenset()
) -> ExplainResult:
    """Return for each GPU how many of a profile fit, by which rule, and what blocks more; and moves that help.

    A profile without the model (`2B`) is for each GPU its own, as create-vm takes it. `pinned`: VMs that
    cannot be moved, by uuid.
    """
    types = find_types(snapshot, gpus, profile)
    offering_gpus = [g for g in gpus if g.address in types]
    names = sorted({vgpu_type.profile for vgpu_type in types.values()})
    rooms = list_rooms(snapshot, offering_gpus, types)
    free = sum_free(rooms)
    blocking_by_name = {name: find_blocking_carriers(snapshot, gpus, name) for name in names}
    blocking = {g.address: blocking_by_name[types[g.address].profile][g.address] for g in offering_gpus}
    return ExplainResult(
        profile=names[0] if len(names) == 1 else profile,
        free=free,
        free_at_least=sum_guaranteed(rooms),
        moves=_suggest_moves(snapshot, gpus, profile, pinned) if free == 0 else (),
        gpus=tuple(
            ReasonResult(
                address=gpu.address,
                model=gpu.model,
                free=sum_free([(gpu, room)]),
                free_at_least=sum_guaranteed([(gpu, room)]),
                rule=divide(gpu, ()).rule,
                reasons=room.reasons,
                in_the_way=blocking.get(gpu.address) if room.free == 0 else (),
                vgpus=vgpu_results(snapshot.vgpus_on(gpu.address)),
            )
            for gpu, room in list_rooms(snapshot, gpus, types)
        ),
    )


def _suggest_moves(
    snapshot: Snapshot, gpus: tuple[Gpu, ...], profile: str, pinned: frozenset[str]
) -> tuple[MoveResult, ...] | None:
    """Return the fewest moves that make room for one more; None if there are none or the answer is unknown."""
    if snapshot.host_file_problem is not None:
        return None
    try:
        plan = plan_room_moves(snapshot, gpus, [(profile, 1)], pinned)
    except VgpuctlError:
        return None
    return plan.results() or None


def with_logged_scheduler(host: Host, gpu: Gpu) -> Gpu:
    """Return a GPU with its scheduler from the kernel log if NVML does not report one."""
    is_known = gpu.scheduler is not None and gpu.scheduler.state is not None
    if is_known or not uses_nvml(gpu) or host.system_log is None:
        return gpu
    state = parse_scheduler_log(host.system_log.kernel_lines(LOG_MARKER) or (), gpu.address)
    return gpu if state is None else replace(gpu, scheduler=replace(gpu.scheduler or GpuScheduler(), state=state))


def read_scheduler_status(host: Host, snapshot: Snapshot, gpu: Gpu) -> tuple[SchedulerDetails, tuple[str, ...]]:
    """Return everything known about a GPU's scheduler and warnings for what could not be read."""
    if not uses_nvml(gpu):
        return scheduler_details(snapshot, gpu, None, None, ()), ()
    warnings: list[str] = []
    driver: str | None = None
    params: str | None = None
    files: tuple[ModprobeFile, ...] = ()
    try:
        driver, params = driver_version(host, snapshot), loaded_parameters(host)
        files = read_modprobe(host)
    except Failed as error:
        warnings.append(error.message)
    return scheduler_details(snapshot, gpu, driver, params, files), tuple(warnings)


Selected = QueryResult[tuple[SelectedResult, ...]]


def select_vms(host: Host, request: Request, *, managed_only: bool) -> Selected:
    """Return the VMs that a request selects; `managed_only`: globs, labels and "all" leave unmanaged ones out.

    Raises:
        NotFound, InvalidInput: as `select`.
    """
    snapshot = observe(host, ReadScope(models=False, gpu_addresses=frozenset()))
    require_libvirt(snapshot)
    selection = select(request, [_vm_candidate(vm) for vm in snapshot.vms], managed_only=managed_only)
    vms = {vm.name: vm for vm in snapshot.vms}
    rows = tuple(SelectedResult(name, str(vms[name].state), image_of(vms[name])) for name in selection.names)
    return QueryResult(rows, notes=left_out_note(selection, request.what))


def select_named_gpus(host: Host, request: Request) -> Selected:
    """Return the GPUs that a request selects, by address. "all" and globs select GPUs, and no other devices.

    With `everything`, a model that several GPUs have selects all of these.

    Raises:
        InvalidInput: several GPUs are of a model.
        NotFound: as `select`.
    """
    snapshot = observe(host, ReadScope(every_function=True))
    texts = [word for text in request.texts for word in (expand_braces(text) if is_pattern(text) else (text,))]
    addresses: list[str] = []
    for text in texts:
        matches = [] if is_glob(text) else [gpu.address for gpu in match_gpus(snapshot.gpus, text)]
        if len(matches) > 1 and not request.everything:
            raise InvalidInput(
                f"'{text}' means {len(matches)} GPUs here",
                hint=f"add --all for all of them, or name them: {', '.join(matches)}",
                gpus=matches,
            )
        addresses += matches or [text]
    candidates = [_gpu_candidate(gpu) for gpu in snapshot.gpus]
    if not addresses or any(map(is_glob, addresses)):
        named = set(addresses)
        candidates = [
            c for c, gpu in zip(candidates, snapshot.gpus, strict=True) if gpu.is_display_class or c.name in named
        ]
    selection = select(replace(request, texts=tuple(addresses)), candidates, managed_only=False)
    return QueryResult(tuple(SelectedResult(name, None) for name in selection.names))


def select_vgpus(host: Host, request: Request) -> Selected:
    """Return the vGPUs without a VM that a request selects, by name.

    Raises:
        NotFound, InvalidInput: as `select`.
    """
    snapshot = observe(host, ReadScope(models=False, gpu_addresses=frozenset()))
    selection = select(request, [Candidate(entry.name) for entry in snapshot.host_vgpus], managed_only=False)
    return QueryResult(tuple(SelectedResult(name, None) for name in selection.names))


def _vm_candidate(vm: Vm) -> Candidate:
    labels, owner = (vm.record.labels, vm.record.owner) if vm.record is not None else ({}, None)
    return Candidate(vm.name, (vm.uuid,), labels=labels, owner=owner, managed=ownership_of(vm) == "managed")


def _gpu_candidate(gpu: Gpu) -> Candidate:
    return Candidate(gpu.address, models=(gpu.model, *gpu.model.split()[-1:]))

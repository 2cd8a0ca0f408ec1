# SPDX-License-Identifier: Apache-2.0
"""Set up a GPU for a mode, and again after each boot, with its scheduler. `gpu_transaction` is the frame for it.

Size: set-mode, set-mig, set-mixed-size and the restore after a boot share these requests and plans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.config.host_spec import GpuSpec, dump_value, merge_gpu_entries
from vgpuctl.errors import Interrupted, NotFound, Refused, VerifyFailed, VgpuctlError
from vgpuctl.gpu_setup.set_scheduler import SCHEDULER_STEPS
from vgpuctl.gpu_setup.vf_memory import has_vf_memory
from vgpuctl.makers import sets_vfs_at_load, uses_nvml
from vgpuctl.model.gpu import Gpu, GpuMode, MigSpec
from vgpuctl.model.names import is_pci_address
from vgpuctl.model.numbers import format_size
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.results.gpus import GpuResult, PartitionResult, SetUpGpuResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vgpu_scheduler import SchedulerSpec
from vgpuctl.model.vm import Vm
from vgpuctl.observe import observe, observe_devices
from vgpuctl.observe.gim import read_gim_settings
from vgpuctl.observe.host_file import HOST_FILE_PATH
from vgpuctl.observe.nvml_facts import driver_version
from vgpuctl.observe.pci import find_absent
from vgpuctl.operations.claim import LIBVIRT_NOT_QUERIED
from vgpuctl.operations.desired_state import ALL_FUNCTIONS_SCOPE, host_file_steps
from vgpuctl.operations.execute import as_vgpuctl_error
from vgpuctl.operations.gpu_scheduler import restore_request, scheduler_transaction
from vgpuctl.operations.gpu_transaction import (
    GpuTransaction,
    StopConfirmation,
    TransactionPlan,
    find_vms_to_start,
    run_transaction,
)
from vgpuctl.operations.guards import (
    busy_gpu_error,
    refuse_gpus_in_setup,
    refuse_stuck_gpus,
    require_system_libvirt,
    require_writable,
    select_one_gpu,
)
from vgpuctl.operations.nvml_types import read_vgpu_types, resolve_mig_spec, with_nvml_placements
from vgpuctl.operations.plans.evict import Eviction
from vgpuctl.operations.plans.gim_vfs import GimRequest, other_gpus, plan_gim, target_modes
from vgpuctl.operations.plans.host_diff import (
    current_gpu_spec,
    describe_unapplied_settings,
    gpu_settings,
    merged_gpu_spec,
    partition_result,
)
from vgpuctl.operations.plans.layout import (
    chooses_vf_count,
    refuse_mode_conflicts,
    refuse_running_vms,
    refuse_vf_memory,
    target_vf_count,
    vms_to_drain,
)
from vgpuctl.operations.plans.partition_plan import (
    PartitionRequest,
    apply_request,
    build_partition_request,
    compute_partition_change,
    plan_in_place_change,
    refuse_missing_mode,
    unverifiable_off_reason,
    vf_recreation_steps,
)
from vgpuctl.operations.plans.results import gpu_result
from vgpuctl.operations.plans.schedulers import can_set_scheduler, has_scheduler, refuse_unsupported_scheduler
from vgpuctl.ports.step import Step
from vgpuctl.value import Value, extend, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from vgpuctl.ports.host import Host


GPU_ABSENT_CHECK = "gpu-absent"
"""The `check` fact of the error for a GPU of host.yaml that is on no bus."""


class ModeRequest(Value):
    """The requested setup of a GPU. `mode` None: the one that `mig` and `mixed_size` need, or none if VFs stay off.

    `update_host_file`: write the setup to host.yaml when it is done; `drain`: running VMs may be stopped.

    `scheduler`, `mig`, `mixed_size`: the setting afterwards, None for what host.yaml asks for; the last two are written
    to host.yaml if they are given. `compute_partition`, `memory_partition`: the modes of an AMD GPU with plain VFs,
    written to host.yaml if they are given. `final_steps`: further steps at the end. `after_boot`: MIG and mixed sizes
    need not be verified to be off, because a boot turns neither on, and VMs wait for the GPU's VFs.
    `vf_memory_mib`: the GPU memory of each plain VF, None for what host.yaml asks for.
    """

    gpu_address: str
    mode: str | None
    vfs: int | None = None
    drain: bool = False
    update_host_file: bool = True
    scheduler: SchedulerSpec | None = None
    final_steps: tuple[Step, ...] = ()
    mig: MigSpec | None = None
    mixed_size: bool | None = None
    compute_partition: str | None = None
    memory_partition: str | None = None
    after_boot: bool = False
    vf_memory_mib: int | None = None


class RestoredGpu(Value):
    """The result for one GPU of host.yaml: `steps` were done; `error` says why it is not as it should be.

    `unverified`: the settings that cannot be verified.
    """

    address: str
    steps: tuple[str, ...] = ()
    error: VgpuctlError | None = None
    unverified: str | None = None


def set_mode(host: Host, context: Context, request: ModeRequest) -> Outcome[SetUpGpuResult]:
    """Set up a GPU for a mode, with MIG or mixed sizes if they are requested, and write that to host.yaml.

    `confirm` is asked before running VMs are shut down.

    Raises:
        NeedsConfirmation: the answer is no; nothing was changed.
        Busy: another process is setting it up.
        InUse: a VM or a process uses it, or a VM's record assigns a slot that this would remove.
        HostCannot, InvalidInput, NoCapacity: the GPU has no such mode, number of VFs, or GPU instances.
        VerifyFailed: it was set and read back, and differs now.
        VgpuctlError: a step failed; completed steps were undone.
    """
    require_writable(host, context)
    snapshot = _observe(host)
    gpu = select_one_gpu(snapshot, request.gpu_address)
    refuse_gpus_in_setup(snapshot, [gpu.address])
    request = replace(request, gpu_address=gpu.address, mode=request.mode or _choose_mode(gpu, request))
    plan = _plan_transaction(host, snapshot, request)
    before, after = gpu_settings(current_gpu_spec(gpu)), gpu_settings(_spec_after(gpu, request, plan))
    lines = plan.lines
    if context.dry_run or not lines:
        result, partition, warnings = gpu_result(snapshot, plan.gpu), partition_result(plan.gpu), snapshot.warnings
    else:
        stops = StopConfirmation(context.confirm)
        stops.ask(plan)
        transaction = mode_transaction(host, request, lambda: _observe(host))
        lines = run_transaction(host, context, transaction, plan, stops)
        result, partition, warnings = _verify_after(host, snapshot, plan.gpu, request)
    data = extend(SetUpGpuResult, result, partition=partition, before=before, after=after)
    return Outcome(bool(lines), data, lines, warnings, dry_run=context.dry_run)


def _spec_after(gpu: Gpu, request: ModeRequest, plan: TransactionPlan) -> GpuSpec:
    """Return a GPU's settings after the setup, including those of host.yaml that are set along with it."""
    spec = replace(current_gpu_spec(gpu), mode=request.mode, vfs=None, mig=None, mixed_size=None)
    if request.mode == GpuMode.SRIOV:
        vf_count = target_vf_count(gpu, request.mode, request.vfs)
        modes = target_modes(gpu, _gim_request(request, vf_count)) or (None, None)
        spec = replace(spec, vfs=vf_count, compute_partition=modes[0], memory_partition=modes[1])
        memory_mib = _requested_vf_memory(gpu, request)
        spec = replace(spec, vf_memory=None if memory_mib is None else format_size(memory_mib))
    elif request.mode is not None and chooses_vf_count(gpu, request.mode):
        spec = replace(spec, vfs=target_vf_count(gpu, request.mode, request.vfs))
    if request.mode in (GpuMode.SRIOV, GpuMode.PASSTHROUGH):
        spec = replace(spec, scheduler=None)
    if request.mode == GpuMode.VGPU:
        mig = gpu.desired_mig if request.mig is None else request.mig
        mixed_size = gpu.desired_mixed_size if request.mixed_size is None else request.mixed_size
        spec = replace(spec, mig=mig, mixed_size=mixed_size)
    if any(isinstance(step, SCHEDULER_STEPS) for step in plan.gpu_steps):
        spec = replace(spec, scheduler=gpu.desired_scheduler)
    return merged_gpu_spec(gpu, spec)


def _verify_after(
    host: Host, before: Snapshot, gpu: Gpu, request: ModeRequest
) -> tuple[GpuResult, PartitionResult | None, tuple[str, ...]]:
    """Read the host again: a later step, the driver or another program may have reset what was read back as set.

    Everything is done and was read back: if the host cannot be read now, that is only a warning.

    Raises:
        VerifyFailed: with everything that differs from what was set.
    """
    try:
        current = observe(host, ALL_FUNCTIONS_SCOPE)
        gpu = select_one_gpu(current, gpu.address)
        partition = _requested_partition(host, gpu, request)
    except VgpuctlError as error:
        warning = f"the change is done, but the host could not be checked again: {error}"
        return gpu_result(before, gpu), None, (warning,)
    differences = describe_unapplied_settings(
        gpu,
        GpuSpec(
            request.mode,
            mig=partition.mig,
            mixed_size=partition.mixed_size,
            compute_partition=request.compute_partition,
            memory_partition=request.memory_partition,
        ),
    )
    if differences:
        raise VerifyFailed(
            f"it was set and verified, but has changed since: {'; '.join(differences)}",
            hint="journalctl -k -n 20; another program may also set this GPU",
            gpu=gpu.address,
        )
    return gpu_result(current, gpu), partition_result(gpu), current.warnings


def _choose_mode(gpu: Gpu, request: ModeRequest) -> str | None:
    """Return the mode of a GPU whose MIG or mixed sizes are set: with neither, a GPU reserved for passthrough stays so.

    None: mixed sizes are turned off on a GPU whose VFs are off and for which host.yaml has no settings; then host.yaml
    needs no entry. Turning MIG off differs: if that command is killed, the VFs stay off, and the same command must turn
    them on when it is run again.

    Raises:
        Refused: host.yaml leaves the GPU unmanaged.
    """
    if gpu.desired_mode is GpuMode.UNMANAGED:
        raise Refused(
            f"host.yaml leaves {gpu.address} unmanaged: vgpuctl changes nothing on it",
            hint=f"vgpuctl set-mode {gpu.address} vgpu",
            gpu=gpu.address,
        )
    partition_requested = (request.mig is not None and request.mig.is_requested) or request.mixed_size
    configured = gpu.desired_mode is not None or gpu.desired_mig is not None or gpu.desired_mixed_size is not None
    if (
        request.mig is None
        and not (partition_requested or configured or gpu.vfs_enabled)
        and uses_nvml(gpu)
        and gpu.backend is None
    ):
        return None
    return str(
        GpuMode.PASSTHROUGH if gpu.desired_mode is GpuMode.PASSTHROUGH and not partition_requested else GpuMode.VGPU
    )


def _observe(host: Host) -> Snapshot:
    snapshot = observe(host, ALL_FUNCTIONS_SCOPE)
    require_system_libvirt(snapshot)
    return snapshot


def restore_gpus(
    host: Host,
    context: Context,
    gpus: Mapping[str, GpuSpec],
    *,
    vms: tuple[Vm, ...] = (),
    gpu_addresses: frozenset[str] | None = None,
) -> tuple[RestoredGpu, ...]:
    """Bring every GPU of host.yaml to its mode, as after a boot; one that is as it should be is left alone.

    `gpu_addresses`: only these GPUs; None for all.

    libvirt is not called: `vms` are all VMs of this host, read from its files. Their records prevent a change as they
    do in `set_mode`; whether the VMs run is unknown, and a VF that somebody holds is not removed. This waits only for
    the VFs themselves, stops no VM, and does not write host.yaml. A GPU that cannot be set up does not stop the others:
    its `error` says why. Sorted by address.

    Raises:
        Interrupted: a signal arrived.
    """

    def read_gpus() -> Snapshot:
        return observe_devices(host, ALL_FUNCTIONS_SCOPE, vms=vms, status=LIBVIRT_NOT_QUERIED)

    results = []
    for address, spec in sorted(_specs_by_address(gpus, read_gpus() if gpus else None, gpu_addresses).items()):
        steps: list[str] = []
        error: VgpuctlError | None = None
        unverified: str | None = None
        if spec.mode == GpuMode.UNMANAGED or (spec.mode, spec.scheduler, spec.mig, spec.mixed_size) == (None,) * 4:
            continue
        try:
            _refuse_absent(host, address)
            for transaction in _restore_transactions(host, address, spec, read_gpus):
                snapshot = read_gpus()
                try:
                    plan = transaction.plan(snapshot)
                except Refused as refused:
                    raise busy_gpu_error(host, address) or refused from refused
                unverified = unverifiable_off_reason(snapshot, plan.gpu, PartitionRequest(spec.mig, spec.mixed_size))
                is_planned = context.dry_run or not plan.lines
                steps += plan.lines if is_planned else run_transaction(host, context, transaction, plan)
        except Interrupted:
            raise
        except Exception as failure:  # noqa: BLE001 - one GPU must not keep the host's VMs without their vGPUs
            error = as_vgpuctl_error(failure)
        results.append(RestoredGpu(address, tuple(steps), error, unverified))
    return tuple(results)


def _refuse_absent(host: Host, address: str) -> None:
    """Refuse a GPU of host.yaml that is on no bus: waiting would not bring it.

    Raises:
        NotFound: with what to correct.
    """
    if find_absent(host.sysfs, (address,)):
        raise NotFound(
            f"gpus: in {HOST_FILE_PATH} names {address}, and no such GPU is on this host",
            hint=f"correct or remove {address} in {HOST_FILE_PATH}; vgpuctl list-gpus shows the GPUs",
            check=GPU_ABSENT_CHECK,
            gpu=address,
        )


def _specs_by_address(
    gpus: Mapping[str, GpuSpec], snapshot: Snapshot | None, addresses: frozenset[str] | None
) -> dict[str, GpuSpec]:
    """Return the settings of each GPU present, and of each named address that is missing: it may still appear."""
    by_address = {key: spec for key, spec in gpus.items() if is_pci_address(key)}
    present = {g.address: merge_gpu_entries(gpus, g) for g in (snapshot.gpus if snapshot is not None else ())}
    return {
        address: spec
        for address, spec in {**by_address, **present}.items()
        if addresses is None or address in addresses
    }


def _restore_transactions(
    host: Host, address: str, spec: GpuSpec, observe_gpus: Callable[[], Snapshot]
) -> Iterator[GpuTransaction]:
    """Yield a GPU's transactions, each when the one before is done: VFs first, because new VFs reset the scheduler."""
    refuse_missing_mode(address, spec.mode, spec.mig, spec.mixed_size)
    if spec.mode is not None:
        request = ModeRequest(address, spec.mode, spec.vfs, update_host_file=False, scheduler=spec.scheduler)
        request = replace(request, mig=spec.mig, mixed_size=spec.mixed_size, after_boot=True)
        modes = {"compute_partition": spec.compute_partition, "memory_partition": spec.memory_partition}
        request = replace(request, **modes)
        yield mode_transaction(host, request, observe_gpus)
    if spec.scheduler is not None and has_scheduler(select_one_gpu(observe_gpus(), address), spec.mode):
        scheduler_request = restore_request(host, address, spec.scheduler, observe_gpus)
        if scheduler_request is not None:
            yield scheduler_transaction(host, scheduler_request, observe_gpus)


def _plan_transaction(host: Host, snapshot: Snapshot, request: ModeRequest) -> TransactionPlan:
    gpu = select_one_gpu(snapshot, request.gpu_address)
    all_others = tuple(g.address for g in other_gpus(snapshot, gpu))
    refuse_stuck_gpus(snapshot, [gpu.address, *all_others])
    eviction = _plan_steps(host, snapshot, gpu, request)
    file_steps = (
        host_file_steps(host, gpu, _host_file_keys(gpu, request))
        if request.update_host_file and request.mode is not None
        else ()
    )
    vms_to_start = find_vms_to_start(host, snapshot, gpu, eviction.vms_to_stop)
    final_steps = (*file_steps, *request.final_steps)
    others = all_others if eviction.steps else ()
    refuse_gpus_in_setup(snapshot, others)
    return TransactionPlan(gpu, eviction.vms_to_stop, eviction.steps, final_steps, vms_to_start, others)


def _host_file_keys(gpu: Gpu, request: ModeRequest) -> dict[str, object]:
    """Return the keys to write to host.yaml; with the number of VFs that is chosen, so that a boot creates as many."""
    keys: dict[str, object] = {"mode": request.mode, "vfs": None, "vf_memory": None}
    if request.mode == GpuMode.SRIOV:
        memory_mib = _requested_vf_memory(gpu, request)
        keys["vf_memory"] = None if memory_mib is None else format_size(memory_mib)
    if request.mode is not None and chooses_vf_count(gpu, request.mode):
        keys["vfs"] = target_vf_count(gpu, request.mode, request.vfs)
    if request.mig is not None:
        keys["mig"] = dump_value(request.mig)
    if request.mixed_size is not None:
        keys["mixed_size"] = request.mixed_size
    return keys | _partition_mode_keys(gpu, request)


def _partition_mode_keys(gpu: Gpu, request: ModeRequest) -> dict[str, object]:
    """Return the partition modes to write to host.yaml; those there go with another number of VFs, or another mode."""
    vf_count = target_vf_count(gpu, str(request.mode), request.vfs)
    gim_request = _gim_request(request, vf_count)
    if gim_request.names_mode:
        modes = target_modes(gpu, gim_request) or (None, None)
        return {"compute_partition": modes[0], "memory_partition": modes[1]}
    keeps = request.mode == GpuMode.SRIOV and vf_count == gpu.vfs_enabled
    if keeps or (gpu.desired_compute_partition, gpu.desired_memory_partition) == (None, None):
        return {}
    return {"compute_partition": None, "memory_partition": None}


def _gim_request(request: ModeRequest, vf_count: int) -> GimRequest:
    return GimRequest(vf_count, request.compute_partition, request.memory_partition, request.drain, request.after_boot)


def _plan_steps(host: Host, snapshot: Snapshot, gpu: Gpu, request: ModeRequest) -> Eviction:
    """Return the running VMs to stop and the steps that change the GPU; nothing if it already is as requested.

    Raises:
        VgpuctlError: as `set_mode`.
    """
    refuse_mode_conflicts(snapshot, gpu, request.mode or GpuMode.VGPU)
    vf_count = gpu.vfs_enabled if request.mode is None else target_vf_count(gpu, request.mode, request.vfs)
    memory_mib = _requested_vf_memory(gpu, request)
    refuse_vf_memory(gpu, request.mode, vf_count, memory_mib)
    gim_request = _gim_request(request, vf_count)
    if request.mode == GpuMode.SRIOV and (sets_vfs_at_load(gpu) or gim_request.names_mode):
        return plan_gim(
            snapshot,
            gpu,
            gim_request,
            lambda: read_gim_settings(host),
            lambda other: _autoprobe(host, other),
        )
    partition = _requested_partition(host, gpu, request)
    if request.after_boot and unverifiable_off_reason(snapshot, gpu, partition) is not None:
        partition = PartitionRequest()
    scheduler = _requested_scheduler(host, snapshot, gpu, request, partition)
    types = read_vgpu_types(host, gpu) if partition != PartitionRequest() else ()
    if partition.mixed_size and not gpu.mixed_size:
        types = with_nvml_placements(host, gpu, types)
    change = compute_partition_change(snapshot, gpu, vf_count, partition, types)
    if gpu.vfs_enabled and vf_count and not has_vf_memory(gpu, memory_mib):
        change = replace(change, recreates_vfs=True)
    if not change.recreates_vfs and change.mig_mode is None:
        return plan_in_place_change(snapshot, gpu, change, scheduler, drain=request.drain)
    running = vms_to_drain(snapshot, gpu, vf_count, recreates_vfs=change.recreates_vfs)
    if not request.drain:
        refuse_running_vms(gpu, running)
    steps = vf_recreation_steps(
        gpu,
        vf_count,
        change,
        scheduler,
        autoprobe=_autoprobe(host, gpu),
        kernel=_kernel_release(host),
        vf_memory_mib=memory_mib,
    )
    return Eviction(running, steps)


def _requested_vf_memory(gpu: Gpu, request: ModeRequest) -> int | None:
    """Return the GPU memory of each plain VF: the requested one, or that of host.yaml; None: the driver divides it."""
    if request.mode != GpuMode.SRIOV or request.vf_memory_mib is not None:
        return request.vf_memory_mib
    return gpu.desired_vf_memory_mib


def _requested_partition(host: Host, gpu: Gpu, request: ModeRequest) -> PartitionRequest:
    mig = gpu.desired_mig if request.mig is None else request.mig
    mixed_size = gpu.desired_mixed_size if request.mixed_size is None else request.mixed_size
    partition = build_partition_request(gpu, request.mode, mig, mixed_size)
    return replace(partition, mig=resolve_mig_spec(host, gpu, partition.mig))


def _requested_scheduler(
    host: Host, snapshot: Snapshot, gpu: Gpu, request: ModeRequest, partition: PartitionRequest
) -> SchedulerSpec | None:
    """Return the scheduler requested for a GPU with vGPUs, None for the driver's default, or if NVML cannot set one.

    Raises:
        HostCannot: this scheduler cannot be combined with the requested MIG or mixed sizes.
    """
    scheduler = request.scheduler or gpu.desired_scheduler
    if scheduler is None or request.mode is None or not has_scheduler(gpu, request.mode):
        return None
    expected_gpu = replace(apply_request(gpu, partition), types=read_vgpu_types(host, gpu))
    mig = expected_gpu.mig is not None and expected_gpu.mig.enabled
    with_vfs = request.mode == GpuMode.SRIOV
    if with_vfs or ((partition != PartitionRequest() or mig) and uses_nvml(gpu)):
        drop_hint = f"host.yaml configures it; vgpuctl apply --set 'gpus[{gpu.address}].scheduler=null' removes that"
        hint = drop_hint if scheduler == gpu.desired_scheduler else None
        expected_gpu = replace(expected_gpu, desired_mode=None, vfs_enabled=gpu.vfs_total)
        refuse_unsupported_scheduler(expected_gpu, scheduler, driver_version(host, snapshot), hint)
    return scheduler if can_set_scheduler(gpu) else None


def _autoprobe(host: Host, gpu: Gpu) -> bool:
    try:
        return host.sysfs.read(f"{gpu.path}/sriov_drivers_autoprobe").strip() != "0"
    except OSError:
        return True


def _kernel_release(host: Host) -> str:
    try:
        return host.sysfs.read("/proc/sys/kernel/osrelease").strip()
    except OSError:
        return ""


def mode_transaction(host: Host, request: ModeRequest, observe_gpus: Callable[[], Snapshot]) -> GpuTransaction:
    """Return the transaction that sets the mode while the whole GPU is claimed."""

    def check(snapshot: Snapshot) -> None:
        gpu = select_one_gpu(snapshot, request.gpu_address)
        refuse_gpus_in_setup(snapshot, [gpu.address])
        _plan_steps(host, snapshot, gpu, request)

    return GpuTransaction(
        request.gpu_address,
        observe_gpus,
        check,
        lambda snapshot: _plan_transaction(host, snapshot, request),
    )

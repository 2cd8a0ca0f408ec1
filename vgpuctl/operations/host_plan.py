# SPDX-License-Identifier: Apache-2.0
"""The plan that makes a host match host.yaml: each GPU's differences and changes, or the error that prevents them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.config.gpu_spec import MODE_KEYS
from vgpuctl.config.host_spec import GpuSpec, HostSpec, list_models, merge_gpu_entries, vf_memory_mib
from vgpuctl.errors import InvalidInput, NotFound, Refused, VgpuctlError
from vgpuctl.gpu.offered_profiles import find_impossible_profiles
from vgpuctl.gpu_setup.set_scheduler import SCHEDULER_STEPS
from vgpuctl.model.gpu import Gpu, GpuMode
from vgpuctl.model.names import address_sort_key, is_pci_address
from vgpuctl.model.results.host import DifferenceResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vgpu_scheduler import SchedulerSpec
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.desired_state import ALL_FUNCTIONS_SCOPE, DesiredState
from vgpuctl.operations.gpu_mode import ModeRequest, mode_transaction
from vgpuctl.operations.gpu_scheduler import (
    SCHEDULER_SCOPE,
    SchedulerRequest,
    read_driver_options,
    scheduler_transaction,
)
from vgpuctl.operations.gpu_transaction import GpuTransaction, TransactionPlan
from vgpuctl.operations.guards import refuse_gpus_in_setup, require_system_libvirt
from vgpuctl.operations.nvml_types import resolve_mig_spec
from vgpuctl.operations.plans.host_diff import diff_gpu
from vgpuctl.operations.plans.partition_plan import apply_request, build_partition_request, refuse_missing_mode
from vgpuctl.operations.plans.scheduler_load import SchedulerNotLoaded, find_not_loaded
from vgpuctl.operations.plans.schedulers import can_set_scheduler, has_scheduler, needs_scheduler_change
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from vgpuctl.ports.host import Host


GpuRequest = ModeRequest | SchedulerRequest


class GpuPlan(Value):
    """The plan for one GPU: desired settings, differences, and the requests with their plans or the error instead."""

    gpu: Gpu
    spec: GpuSpec
    differences: tuple[DifferenceResult, ...]
    planned_requests: tuple[tuple[GpuRequest, TransactionPlan], ...] = ()
    error: VgpuctlError | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        """One line of text for each change."""
        return tuple(line for _, plan in self.planned_requests for line in plan.lines)


def observe_host(host: Host, desired: DesiredState) -> tuple[Snapshot, tuple[str, ...]]:
    """Return the snapshot, and notes on GPU models and profiles of the desired state that this host does not have.

    Devices other than GPUs are read only if the desired or the current file names one.

    Raises:
        NotFound: an address matches no device.
    """
    gpus = desired.spec.gpus
    models = list_models(gpus)
    snapshot = observe(host, ReadScope(types=_names_profiles(desired.spec)))
    requested_addresses = [key for key in gpus if is_pci_address(key)]
    if any(snapshot.gpu(key) is None for key in (*requested_addresses, *desired.current.gpus) if is_pci_address(key)):
        snapshot = observe(host, ALL_FUNCTIONS_SCOPE)
    missing = [address for address in requested_addresses if snapshot.gpu(address) is None]
    if missing:
        present = ", ".join(f"{g.address} ({g.model})" for g in snapshot.gpus if g.is_display_class) or "none"
        raise NotFound(
            f"{desired.source} names {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not "
            "on this host",
            hint=f"GPUs here: {present}",
            gpus=missing,
        )
    absent_models = [
        model for model in models if not any(g.is_display_class and g.has_model_name(model) for g in snapshot.gpus)
    ]
    notes = [
        f"no GPU of this host is a {model}; its entry in {desired.source} has no effect" for model in absent_models
    ]
    notes += find_impossible_profiles(desired.spec, snapshot.gpus, desired.file.text, desired.file.name)
    return snapshot, tuple(notes)


def _names_profiles(spec: HostSpec) -> bool:
    return bool(spec.vgpus) or any(entry.profiles for entry in spec.gpus.values())


def plan_host(host: Host, snapshot: Snapshot, desired: DesiredState, *, drain: bool) -> tuple[GpuPlan, ...]:
    """Return the plan of every GPU that host.yaml configures, or configured before, in the order of their addresses."""
    gpu_plans = []
    for gpu in sorted(snapshot.gpus, key=lambda g: address_sort_key(g.address)):
        spec = merge_gpu_entries(desired.spec.gpus, gpu)
        mig_error: VgpuctlError | None = None
        try:
            if (
                spec.mode == GpuMode.VGPU
            ):  # an entry for a model or for all GPUs may set MIG: it applies only in this mode
                spec = replace(spec, mig=resolve_mig_spec(host, gpu, spec.mig))
        except VgpuctlError as error:
            mig_error = error  # raised below, after the differences are known
        differences = diff_gpu(gpu, spec)
        if spec == GpuSpec() and not differences:
            continue
        try:
            if mig_error is not None:
                raise mig_error
            gpu_plan = GpuPlan(gpu, spec, differences, _plan_transactions(host, snapshot, gpu, spec, drain=drain))
        except VgpuctlError as refusal:
            gpu_plan = GpuPlan(gpu, spec, differences, error=refusal)
        gpu_plans.append(gpu_plan)
    return tuple(gpu_plans)


def _plan_transactions(
    host: Host, snapshot: Snapshot, gpu: Gpu, spec: GpuSpec, *, drain: bool
) -> tuple[tuple[GpuRequest, TransactionPlan], ...]:
    """Return the changes of a GPU in their order: new VFs reset its scheduler, so the scheduler comes last.

    Raises:
        VgpuctlError: the GPU cannot get these settings.
    """
    planned: list[tuple[GpuRequest, TransactionPlan]] = []
    snapshot = _with_desired_settings(snapshot, gpu.address, spec)
    keys = [key for key in MODE_KEYS if getattr(spec, key) is not None]
    if spec.mode is None and keys:
        raise InvalidInput(
            f"{gpu.address} has {keys[0]}: {getattr(spec, keys[0])} but no mode, which {keys[0]} requires",
            hint="add mode: sriov in the same entry of gpus:, or in a wider one",
            gpu=gpu.address,
        )
    refuse_missing_mode(gpu.address, spec.mode, spec.mig, spec.mixed_size)
    if spec.mode is not None:
        mode_request = _mode_request(gpu.address, spec, drain=drain)
        planned.append((mode_request, build_transaction(host, mode_request, spec).plan(snapshot)))
    is_scheduler_planned = any(isinstance(step, SCHEDULER_STEPS) for _, plan in planned for step in plan.gpu_steps)
    if (
        spec.scheduler is not None
        and has_scheduler(gpu, spec.mode)
        and not is_scheduler_planned
        and _may_need_scheduler(gpu, spec.scheduler)
    ):
        scheduler_request = SchedulerRequest(gpu.address, spec.scheduler, drain=drain, update_host_file=False)
        planned.append(
            (
                scheduler_request,
                build_transaction(host, scheduler_request, spec).plan(_after_mode_change(snapshot, gpu, spec)),
            )
        )
    planned = [(request, plan) for request, plan in planned if plan.lines]
    if planned:
        refuse_gpus_in_setup(snapshot, [gpu.address])
    return tuple(planned)


def find_unloaded_schedulers(
    host: Host, snapshot: Snapshot, gpu_plans: tuple[GpuPlan, ...]
) -> SchedulerNotLoaded | None:
    """Return the error for the GPUs whose scheduler NVML cannot set and whose driver has to be loaded with it.

    Raises:
        VgpuctlError: what the driver was loaded with cannot be read.
    """
    wanted = tuple(
        (plan.gpu, plan.spec.scheduler)
        for plan in gpu_plans
        if plan.error is None and plan.spec.scheduler is not None and plan.spec.mode in (None, GpuMode.VGPU)
    )
    if all(can_set_scheduler(gpu) for gpu, _ in wanted):
        return None
    return find_not_loaded(snapshot, wanted, read_driver_options(host, snapshot))


def _mode_request(address: str, spec: GpuSpec, *, drain: bool) -> ModeRequest:
    return ModeRequest(
        address,
        spec.mode,
        spec.vfs,
        drain=drain,
        update_host_file=False,
        scheduler=spec.scheduler,
        mig=spec.mig,
        mixed_size=spec.mixed_size,
        compute_partition=spec.compute_partition,
        memory_partition=spec.memory_partition,
        vf_memory_mib=vf_memory_mib(spec),
    )


def _may_need_scheduler(gpu: Gpu, desired: SchedulerSpec) -> bool:
    """Say whether a scheduler may have to be set: it is not active, or NVML cannot set it and may not report it."""
    return not can_set_scheduler(gpu) or needs_scheduler_change(gpu, desired)


def _with_desired_settings(snapshot: Snapshot, address: str, spec: GpuSpec) -> Snapshot:
    """Return the snapshot with the desired mode, MIG and mixed size; the current host.yaml does not hold them yet."""
    desired = {
        "desired_mode": GpuMode(spec.mode) if spec.mode is not None else None,
        "desired_mig": spec.mig,
        "desired_mixed_size": spec.mixed_size,
        "desired_compute_partition": spec.compute_partition,
        "desired_memory_partition": spec.memory_partition,
        "desired_vf_memory_mib": vf_memory_mib(spec),
    }
    gpus = tuple(replace(g, **desired) if g.address == address else g for g in snapshot.gpus)
    return replace(snapshot, gpus=gpus)


def _after_mode_change(snapshot: Snapshot, gpu: Gpu, spec: GpuSpec) -> Snapshot:
    """Return the snapshot as it will be after the GPU's mode was changed, which is when its scheduler is set."""
    expected_gpu = apply_request(gpu, build_partition_request(gpu, spec.mode, spec.mig, spec.mixed_size))
    expected_gpu = replace(expected_gpu, desired_mode=None if spec.mode is None else GpuMode(spec.mode))
    return replace(snapshot, gpus=tuple(expected_gpu if g.address == gpu.address else g for g in snapshot.gpus))


def build_transaction(host: Host, request: GpuRequest, spec: GpuSpec) -> GpuTransaction:
    """Return the transaction for a request. `spec`: all desired settings of the GPU."""

    def observe_with(scope: ReadScope) -> Callable[[], Snapshot]:
        def read_gpus() -> Snapshot:
            snapshot = observe(host, scope)
            require_system_libvirt(snapshot)
            return _with_desired_settings(snapshot, request.gpu_address, spec)

        return read_gpus

    if isinstance(request, ModeRequest):
        return mode_transaction(host, request, observe_with(ALL_FUNCTIONS_SCOPE))
    return scheduler_transaction(host, request, observe_with(SCHEDULER_SCOPE))


def raise_refusals(
    gpu_errors: list[VgpuctlError], vgpu_errors: list[VgpuctlError], consequence: str = "nothing was changed"
) -> None:
    """Raise the errors: one as it is; several as one error with all their messages.

    If all have one class, the error has it too; otherwise it is `Refused`. `consequence`: the end of its first line.
    """
    refusals = [*gpu_errors, *vgpu_errors]
    if len(refusals) == 1:
        raise refusals[0]
    if refusals:
        first = refusals[0]
        kind = type(first) if all(type(error) is type(first) for error in refusals) else Refused
        counts = [f"{len(gpu_errors)} GPU{'s' * (len(gpu_errors) > 1)} cannot be set up"] if gpu_errors else []
        counts += [f"{len(vgpu_errors)} vGPU{'s' * (len(vgpu_errors) > 1)} cannot be created"] if vgpu_errors else []
        raise kind(
            "\n".join([f"{' and '.join(counts)}, so {consequence}:", *(error.message for error in refusals)]),
            hint=first.hint,
            refused=[{"code": error.code, "message": error.message, "hint": error.hint} for error in refusals],
        )

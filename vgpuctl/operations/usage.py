# SPDX-License-Identifier: Apache-2.0
"""How much of the GPUs and vGPUs is used: a snapshot of the host, joined with a sample of their use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from vgpuctl.config.arguments import RENDERING_MODE
from vgpuctl.errors import HostCannot
from vgpuctl.makers import usage_source
from vgpuctl.makers.nvidia_releases import rate_guest
from vgpuctl.model.gpu import Gpu, Ownership, Vgpu
from vgpuctl.model.outcome import Context, QueryResult
from vgpuctl.model.results.usage import GpuUsageResult, UsageResult, VgpuUsageResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.usage import GpuUse, ProcessUse, ReaderProgram, UsageSample, UsageTarget, VgpuUse
from vgpuctl.model.vm import Vm
from vgpuctl.observe import ReadScope, observe
from vgpuctl.observe.host_file import read_host_spec
from vgpuctl.observe.nvml_facts import driver_version, loaded_parameters
from vgpuctl.operations.guards import find_vm, refuse_others_vm
from vgpuctl.operations.plans.schedulers import is_running, time_shares
from vgpuctl.scheduler.modprobe_files import find_loaded_dword
from vgpuctl.scheduler.registry_dword import is_weighted
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

SCOPE = ReadScope(types=True)
"""Types tell how many vGPUs of a size a GPU takes, which a fixed share needs."""
_FULL = 0.95
"""From this part on, a framebuffer or a share of time is as good as used up."""


def read_usage(host: Host) -> QueryResult[UsageResult]:
    """Return how much of the host's GPUs and vGPUs is used now.

    Raises:
        HostCannot: the use of this host's GPUs cannot be read (a captured tree).
    """
    if host.usage is None:
        raise HostCannot(f"the use of GPUs cannot be read on {host.name}", hint="run vgpuctl top on the host itself")
    snapshot = observe(host, SCOPE)
    sample = read_sample(host, snapshot, host.usage.read)
    warnings = (*snapshot.warnings, *(f"{name}: {reason}" for name, reason in sample.failed_sources.items()))
    return QueryResult(join(host, snapshot, sample), warnings)


def read_processes(host: Host, context: Context, name: str) -> QueryResult[tuple[ProcessUse, ...]]:
    """Return the processes in a VM that use its vGPUs now.

    Raises:
        NotFound: with similar names.
        NotYours: it is another account's.
        HostCannot: nothing reports them for its GPUs.
    """
    snapshot = observe(host, ReadScope())
    vm = find_vm(snapshot, name)
    refuse_others_vm(context, vm)
    vgpus = [vgpu for vgpu in snapshot.vgpus if vgpu.vm_uuid == vm.uuid]
    carriers = {carrier for vgpu in vgpus for carrier in (vgpu.carrier, vgpu.function)}
    lists = [host.usage and host.usage.read_processes(gpu) for gpu in dict.fromkeys(vgpu.gpu for vgpu in vgpus)]
    if vgpus and all(processes is None for processes in lists):
        raise HostCannot(f"the processes in {vm.name} are unknown: nothing reports them here", hint="look in the guest")
    return QueryResult(
        tuple(p for processes in lists for p in processes or () if p.vm_uuid == vm.uuid or p.carrier in carriers)
    )


def read_sample(
    host: Host,
    snapshot: Snapshot,
    read: Callable[[tuple[UsageTarget, ...], tuple[ReaderProgram, ...]], UsageSample],
) -> UsageSample:
    """Return the use of a snapshot's GPUs, as `read` reads it."""
    spec = None if host.host_file is None or snapshot.host_file_problem is not None else read_host_spec(host)
    return read(targets_of(snapshot), () if spec is None else tuple(spec.agent.readers.values()))


def targets_of(snapshot: Snapshot) -> tuple[UsageTarget, ...]:
    """Return the GPUs whose use can be read, and from where; none that is passed through as a whole."""
    sources = ((gpu, usage_source(gpu)) for gpu in snapshot.gpus if gpu.is_display_class)
    return tuple(UsageTarget(gpu.address, gpu.path, source) for gpu, source in sources if source is not None)


def join(host: Host, snapshot: Snapshot, sample: UsageSample) -> UsageResult:
    """Return a sample as rows of the GPUs and vGPUs of a snapshot; what a sample lacks is unknown there."""
    uses = {gpu.address: gpu for gpu in sample.gpus}
    gpus = tuple(g for g in snapshot.gpus if g.is_display_class)
    driver = sample.driver_version or driver_version(host, snapshot)
    vms = snapshot.vms_by_uuid()
    vgpu_rows = [row for gpu in gpus for row in _vgpu_rows(host, snapshot, vms, gpu, sample, driver)]
    vgpu_rows += [_drawn_row(snapshot, vm, vm.render_node) for vm in snapshot.vms if vm.render_node is not None]
    return UsageResult(
        host=host.name,
        time=sample.time,
        age_seconds=max(0.0, host.clock.now() - sample.time),
        duration_seconds=sample.duration_seconds,
        driver_version=driver,
        gpus=tuple(_gpu_row(snapshot, vms, gpu, uses) for gpu in gpus),
        vgpus=tuple(vgpu_rows),
        failed_sources=sample.failed_sources,
        nvml_paused=sample.nvml_paused,
    )


def _gpu_row(snapshot: Snapshot, vms: Mapping[str, Vm], gpu: Gpu, uses: Mapping[str, GpuUse]) -> GpuUsageResult:
    taken = snapshot.vgpus_on(gpu.address)
    sizes = [gpu.framebuffer_mib if v.carrier == gpu.address else v.framebuffer_mib for v in taken]
    use = uses.get(gpu.address)
    is_lost = gpu.is_lost or (use is not None and use.up is False)
    state = None if gpu.scheduler is None else gpu.scheduler.state
    notes = [*(["lost"] if is_lost else []), *(["cordoned"] if gpu.cordoned else []), *gpu.problems]
    return GpuUsageResult(
        address=gpu.address,
        model=gpu.model,
        backend=gpu.backend,
        mode=gpu.mode,
        numa_node=gpu.numa_node,
        framebuffer_mib=gpu.framebuffer_mib,
        given_mib=None if None in sizes else sum(size for size in sizes if size is not None),
        vgpus=len(taken),
        running_vgpus=sum(is_running(vms, v) for v in taken),
        scheduler=None if state is None else state.policy,
        time_slice_ns=None if state is None else state.time_slice_ns,
        notes=tuple(notes),
        use=GpuUse(gpu.address, "snapshot", up=False) if use is None and is_lost else use,
    )


def _vgpu_rows(
    host: Host, snapshot: Snapshot, vms: Mapping[str, Vm], gpu: Gpu, sample: UsageSample, driver: str | None
) -> list[VgpuUsageResult]:
    uses = _match(snapshot.vgpus_on(gpu.address), [use for use in sample.vgpus if use.gpu == gpu.address])
    weights = is_weighted(driver, find_loaded_dword(loaded_parameters(host) or "", gpu.address))
    peaks = {} if host.usage_history is None else host.usage_history.peaks()
    shares = {vgpu.carrier: share.fraction for vgpu, share in time_shares(snapshot, gpu, weights)}
    rows: list[VgpuUsageResult] = []
    for vgpu in snapshot.vgpus_on(gpu.address):
        use = uses.get(vgpu.carrier)
        share = shares.get(vgpu.carrier)
        row = _vgpu_row(vms.get(vgpu.vm_uuid or ""), vgpu, use, None if share is None else float(share))
        key = None if row.vm_uuid is None or row.index is None else (row.vm_uuid, row.index)
        current = None if use is None else use.memory_used_bytes
        known = [peak for peak in (current, None if key is None else peaks.get(key)) if peak is not None]
        fit = None if use is None or use.guest_driver is None else str(rate_guest(driver or "", use.guest_driver))
        rows.append(replace(row, peak_memory_bytes=max(known, default=None), guest_driver_fit=fit, hint=_hint(row)))
    return rows


def _drawn_row(snapshot: Snapshot, vm: Vm, node: str) -> VgpuUsageResult:
    """Return the row of a VM for which QEMU draws on a GPU: nothing reports the use of each."""
    owner = Ownership.UNMANAGED if vm.record is None else Ownership.MANAGED
    gpu = snapshot.render_gpu(vm) or node
    drawn = Vgpu(node, gpu, node, owner, present=True, profile=RENDERING_MODE, vm=vm.name, vm_uuid=vm.uuid)
    return _vgpu_row(vm, drawn, None, None)


def _hint(row: VgpuUsageResult) -> str | None:
    """Return what somebody should look at; None for nothing."""
    use = row.use
    if use is None:
        return None
    if use.license_state is not None and use.license_state.startswith("unlicensed"):
        return "no license"
    if use.memory_used_bytes is not None and use.memory_used_bytes >= _FULL * (use.memory_size_bytes or float("inf")):
        return "framebuffer full"
    return "needs more time" if row.share_used is not None and row.share_used > _FULL else None


def _match(vgpus: tuple[Vgpu, ...], uses: list[VgpuUse]) -> dict[str, VgpuUse]:
    """Return the use of vGPUs by their carriers.

    NVML names the mdev of a vGPU, and no VF. Then the VM, the type and the GPU instance tell which it is; among several
    alike in one VM the order does, as nothing else is known.
    """
    matched: dict[str, VgpuUse] = {}
    for use in uses:
        left = (vgpu for vgpu in vgpus if vgpu.carrier not in matched)
        vgpu = next((v for v in left if _is_same(v, use)), None)
        if vgpu is not None:
            matched[vgpu.carrier] = use
    return matched


def _is_same(vgpu: Vgpu, use: VgpuUse) -> bool:
    if use.carriers:
        return vgpu.carrier in use.carriers or vgpu.function in use.carriers
    if use.vm_uuid is None or vgpu.vm_uuid != use.vm_uuid:
        return False
    pairs = ((use.type_id, vgpu.type_id), (use.gi_id, vgpu.gi_id))
    return all(None in pair or pair[0] == pair[1] for pair in pairs)


def _vgpu_row(vm: Vm | None, vgpu: Vgpu, use: VgpuUse | None, time_share: float | None) -> VgpuUsageResult:
    record = None if vm is None else vm.record
    sm = None if use is None else use.engines.sm
    return VgpuUsageResult(
        vm=vgpu.vm,
        vm_uuid=vgpu.vm_uuid,
        name=vgpu.name,
        index=None if vm is None else _index_of(vm, vgpu),
        carrier=vgpu.carrier,
        gpu=vgpu.gpu,
        profile=vgpu.profile,
        backend=vgpu.backend,
        framebuffer_mib=vgpu.framebuffer_mib,
        gi_id=vgpu.gi_id,
        vm_state=None if vm is None else vm.state,
        managed=vgpu.owner is Ownership.MANAGED,
        owner=None if record is None else record.owner,
        labels={} if record is None else record.labels,
        present=vgpu.present,
        time_share=time_share,
        share_used=None if sm is None or not time_share else sm / time_share,
        peak_memory_bytes=None,
        guest_driver_fit=None,
        hint=None,
        use=use,
    )


def _index_of(vm: Vm, vgpu: Vgpu) -> int | None:
    """Return a vGPU's number in its VM: by the record, or in the order of an unmanaged VM's definition."""
    if vm.record is not None:
        return next((v.index for v in vm.record.vgpus if v.carrier == vgpu.carrier), None)
    return next((n for n, hostdev in enumerate(vm.hostdevs) if hostdev.carrier == vgpu.carrier), None)

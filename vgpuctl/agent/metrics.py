# SPDX-License-Identifier: Apache-2.0
"""The agent's metrics: one entry in `FAMILIES` for each. docs/reference/metrics.md is made from them.

Names and labels follow Prometheus' guide: base units, `_total` for what only grows, `_info` for facts. Each sample of
a VM has its name (`vm`); what else is known of a VM, a vGPU or a GPU is in `vm_info`, `vgpu_info` and `gpu_info`, which
join on it. No label is one that Prometheus sets: `instance`, `job`, or `host`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from vgpuctl.agent.host_state import GpuState, HostState, ProfileState, VmCounts
from vgpuctl.agent.metrics_text import Family, Values, label_text, render
from vgpuctl.makers.nvidia_releases import release_name, support_end
from vgpuctl.model.gpu import Ownership
from vgpuctl.model.results.usage import VgpuUsageResult
from vgpuctl.model.usage import EngineUse, FrameUse
from vgpuctl.model.vm import NOT_RUNNING_STATES, RecordState
from vgpuctl.scheduler.limits import satisfies
from vgpuctl.value import field_names

MIB = 1 << 20
AGENT, GPU, PROFILE, VM, VGPU = "agent", "gpu", "profile", "vm", "vgpu"
_NOT_ADDITIVE = "Figures of several profiles do not add up."


def render_metrics(state: HostState) -> bytes:
    """Return the metrics as text for Prometheus."""
    snapshot, usage = state.snapshot, state.usage
    gpus = {gpu.address: gpu for gpu in snapshot.gpus}
    used = Counter(row.profile for row in usage.vgpus)
    vgpus_of: dict[str, list[VgpuUsageResult]] = {}
    for row in usage.vgpus:
        vgpus_of.setdefault(row.vm_uuid or "", []).append(row)
    things: Mapping[str, Sequence[tuple[str, object]]] = {
        AGENT: [("", state)],
        GPU: [
            (label_text({"gpu": row.address}), GpuState(row, gpus.get(row.address), state.counts)) for row in usage.gpus
        ],
        PROFILE: [(label_text({"profile": p.profile}), ProfileState(p, used[p.profile])) for p in state.profiles],
        VM: [
            (label_text({"vm": vm.name}), VmCounts(vm, tuple(vgpus_of.get(vm.uuid, ())), state.counts))
            for vm in snapshot.vms
        ],
        VGPU: [(label_text({"vm": row.vm, "vgpu": _vgpu_name(row)}), row) for row in usage.vgpus],
    }
    return render(FAMILIES, things)


def _vgpu_name(row: VgpuUsageResult) -> object:
    """Return what tells a vGPU from others of its VM, or of the host if it has none."""
    return row.name or row.carrier if row.index is None else row.index


# ---------------------------------------------------------------- the agent


def _leaks(state: HostState) -> Values:
    kinds = Counter({"vgpu": 0, "claim": len(state.snapshot.unreadable_claims)})
    kinds["vgpu"] = sum(vgpu.owner is Ownership.LEAKED for vgpu in state.snapshot.vgpus)
    return kinds


def _unfinished(state: HostState) -> int:
    records = [vm.record for vm in state.snapshot.vms if vm.record is not None]
    return sum(record.state is not RecordState.READY for record in records)


# ------------------------------------------------------------------- a GPU


def _gpu_info(thing: GpuState) -> Values:
    row, use = thing.row, thing.row.use
    facts = (None, None, None) if use is None else (use.uuid, use.serial, use.vbios)
    return {(facts[0], row.model, facts[1], facts[2], row.backend, row.mode, row.numa_node): 1}


def _drift(thing: GpuState) -> Values:
    """Return what of a GPU differs from host.yaml; the layout of MIG is `vgpuctl diff`'s alone."""
    gpu = thing.gpu
    if gpu is None:
        return None
    state = None if gpu.scheduler is None else gpu.scheduler.state
    return {
        "mode": None if gpu.desired_mode is None else gpu.desired_mode is not gpu.settable_mode,
        "scheduler": None
        if gpu.desired_scheduler is None or state is None
        else not satisfies(state, gpu.desired_scheduler),
        "mixed-size": None
        if gpu.desired_mixed_size is None or gpu.mixed_size is None
        else gpu.desired_mixed_size is not gpu.mixed_size,
        "mig": None
        if gpu.desired_mig is None or gpu.mig is None
        else gpu.desired_mig.is_requested is not gpu.mig.enabled,
    }


def _instances(thing: GpuState) -> Values:
    mig = None if thing.gpu is None else thing.gpu.mig
    if mig is None:
        return None
    names = {profile.profile_id: profile.name for profile in mig.profiles}
    return {(i.gi_id, names.get(i.profile_id, i.profile_id)): 1 for i in mig.instances}


def _xids(thing: GpuState, field: str) -> Values:
    gpu = thing.row.address
    return {xid: getattr(count, field) for (address, xid), count in thing.counts.xids.items() if address == gpu}


def _clock_events(thing: GpuState) -> Values:
    reasons = () if thing.row.use is None else thing.row.use.clock_event_reasons or ()
    return dict.fromkeys(reasons, 1)


def _recovery(thing: GpuState) -> Values:
    action = None if thing.row.use is None else thing.row.use.recovery_action
    return None if action is None else {action: 1}


def _engines(engines: EngineUse) -> Values:
    return {name: getattr(engines, name) for name in field_names(EngineUse)}


def _use_of_gpu(field: str) -> Callable[[GpuState], Values]:
    """Return what reads one field of a GPU's use."""

    def read(thing: GpuState) -> Values:
        use = thing.row.use
        value: Values = None if use is None else getattr(use, field)
        return value

    return read


# ------------------------------------------------------------------- a VM


def _missing_vgpus(thing: VmCounts) -> int | None:
    if thing.vm.state in NOT_RUNNING_STATES:
        return None
    return sum(not vgpu.present for vgpu in thing.vgpus)


def _crash(thing: VmCounts, field: str) -> Values:
    count = thing.counts.crashes.get(thing.vm.uuid)
    value: Values = None if count is None else getattr(count, field)
    return value


def _vm_info(thing: VmCounts) -> Values:
    vm, record = thing.vm, thing.vm.record
    labels = {} if record is None else record.labels
    requested = None if record is None else record.requested("os", str)
    owner = None if record is None else record.owner
    return {(vm.uuid, requested, labels.get("pool"), owner, str(record is not None).lower()): 1}


# ----------------------------------------------------------------- a vGPU


def _vgpu_info(row: VgpuUsageResult) -> Values:
    vgpu_uuid = None if row.use is None else row.use.vgpu_uuid
    return {(row.gpu, row.profile, row.vm_uuid, vgpu_uuid, row.carrier, row.gi_id, row.backend): 1}


def _use_of_vgpu(field: str) -> Callable[[VgpuUsageResult], Values]:
    """Return what reads one field of a vGPU's use."""

    def read(row: VgpuUsageResult) -> Values:
        value: Values = None if row.use is None else getattr(row.use, field)
        return value

    return read


def _frames(row: VgpuUsageResult, kind: str, field: str) -> Values:
    frames: FrameUse | None = None if row.use is None else getattr(row.use, kind)
    value: Values = None if frames is None else getattr(frames, field)
    return value


def _only(field: str) -> Callable[[VgpuUsageResult], Values]:
    """Return what gives only the state that holds: a series for each possible one would be many."""

    def read(row: VgpuUsageResult) -> Values:
        word = None if row.use is None else getattr(row.use, field)
        return None if word is None else {word: 1}

    return read


def _guest_driver(row: VgpuUsageResult) -> Values:
    driver = None if row.use is None else row.use.guest_driver
    return None if driver is None else {(driver, release_name(driver), row.guest_driver_fit): 1}


Row = tuple[str, str, Callable[[Any], Values]] | tuple[str, str, Callable[[Any], Values], str]
"""A metric of one kind of thing: its name without that kind, its help text, what reads it, and its own labels."""


def _families(of: str, *rows: Row) -> Iterator[Family]:
    """Yield the metrics of one kind of thing."""
    prefix = "" if of == AGENT else f"{of}_"
    for name, text, read, *labels in rows:
        yield Family(prefix + name, text, of, tuple(" ".join(labels).split()), read)


FAMILIES = (
    *_families(
        AGENT,
        (
            "agent_info", "The agent's version and NVIDIA's driver.",
            lambda host: {(host.version, host.usage.driver_version): 1}, "version driver_version",
        ),
        ("agent_last_sample_timestamp_seconds", "When the use of GPUs was read last.", lambda host: host.usage.time),
        ("agent_sample_duration_seconds", "How long that took.", lambda host: host.usage.duration_seconds),
        ("agent_sample_errors_total", "How often a source gave nothing.", lambda host: host.source_errors, "source"),
        (
            "driver_support_end_timestamp_seconds", "When NVIDIA's support of the host driver's vGPU release ends.",
            lambda host: support_end(host.usage.driver_version or ""),
        ),
        (
            "license_token_expiry_timestamp_seconds", "When the token expires with which guests get their licences.",
            lambda host: host.token_expiries, "license",
        ),
        (
            "host_lock_wait_seconds", "How long other vgpuctl let the agent wait for the host lock; at most 1.",
            lambda host: host.lock_wait_seconds,
        ),
        (
            "agent_nvml_paused", "1: NVML is not read while vgpuctl changes a GPU's layout.",
            lambda host: host.usage.nvml_paused,
        ),
        ("agent_event_subscribers", "How many readers follow the events.", lambda host: host.subscribers),
        (
            "agent_events_dropped_total", "Events that readers lost because they were too slow.",
            lambda host: host.counts.dropped_events,
        ),
        ("agent_libvirt_up", "1: libvirt answers.", lambda host: host.snapshot.hypervisor.available),
        (
            "agent_libvirt_reconnects_total", "How often libvirt came back.",
            lambda host: host.counts.libvirt_reconnects,
        ),
        ("leaks", "vGPUs and claims that nobody owns: vgpuctl reconcile-host.", _leaks, "kind"),
        (
            "stuck_writes", "Writes of vgpuctl that the kernel does not end.",
            lambda host: len(host.snapshot.stuck_writes),
        ),
        ("unfinished_operations", "VMs that no operation has finished making or removing.", _unfinished),
        (
            "restore_failed_vgpus", "vGPUs of host.yaml that do not exist: vgpuctl restore-host.",
            lambda host: sum(vgpu.name is not None and not vgpu.present for vgpu in host.snapshot.vgpus),
        ),
        (
            "gpus_expected", "GPUs that host.yaml or a VM's record names, or that the agent has seen.",
            lambda host: len(host.expected_gpus),
        ),
    ),
    *_families(
        GPU,
        ("info", "What the GPU is.", _gpu_info, "gpu_uuid model serial vbios backend mode numa"),
        ("up", "0: the GPU is lost, or gone.", _use_of_gpu("up")),
        ("memory_size_bytes", "Its memory.", _use_of_gpu("memory_size_bytes")),
        ("memory_used_bytes", "The part of its memory that is used.", _use_of_gpu("memory_used_bytes")),
        ("memory_reserved_bytes", "What the driver keeps of its memory.", _use_of_gpu("memory_reserved_bytes")),
        (
            "memory_given_bytes", "The framebuffer of its vGPUs, also of VMs that are off.",
            lambda gpu: None if gpu.row.given_mib is None else gpu.row.given_mib * MIB,
        ),
        ("vgpus", "vGPUs on it, also of VMs that are off.", lambda gpu: gpu.row.vgpus),
        (
            "engine_utilization_ratio", "How busy an engine is; sm: the cores.",
            lambda gpu: None if gpu.row.use is None else _engines(gpu.row.use.engines), "engine",
        ),
        ("power_watts", "The power that it draws.", _use_of_gpu("power_watts")),
        ("power_limit_watts", "The limit of its power.", _use_of_gpu("power_limit_watts")),
        ("energy_joules_total", "Energy since its driver started.", _use_of_gpu("energy_joules")),
        ("temperature_celsius", "Temperature of a sensor.", _use_of_gpu("temperatures"), "sensor"),
        ("clock_hertz", "Frequency of a clock.", _use_of_gpu("clocks"), "clock"),
        ("clock_event_active", "Why its clocks are lowered now.", _clock_events, "reason"),
        ("ecc_errors_total", "Errors of its memory.", _use_of_gpu("ecc_errors"), "type"),
        ("row_remap_pending", "1: the next reset remaps a row of memory.", _use_of_gpu("row_remap_pending")),
        ("row_remap_failed", "1: a row of memory could not be remapped.", _use_of_gpu("row_remap_failed")),
        ("retired_pages", "Pages of memory that are not used any more.", _use_of_gpu("retired_pages"), "cause"),
        ("recovery_action_info", "What the driver asks for, such as none, reset, reboot.", _recovery, "action"),
        ("xid_errors_total", "Xids since the agent started.", partial(_xids, field="number"), "xid"),
        ("xid_last_timestamp_seconds", "When an Xid came last.", partial(_xids, field="last"), "xid"),
        ("pcie_replays_total", "PCIe packets that were sent again.", _use_of_gpu("pcie_replays")),
        ("pcie_link_width_lanes", "PCIe lanes in use.", _use_of_gpu("pcie_link_width_lanes")),
        ("nvlink_errors_total", "Errors of its NVLinks.", _use_of_gpu("nvlink_errors"), "type"),
        (
            "scheduler_info", "The policy of its vGPU scheduler.",
            lambda gpu: None if gpu.row.scheduler is None else {gpu.row.scheduler: 1}, "policy",
        ),
        (
            "timeslice_seconds", "The scheduler's time slice.",
            lambda gpu: gpu.row.time_slice_ns / 1e9 if gpu.row.time_slice_ns else None,
        ),
        ("drift", "1: it differs from host.yaml: vgpuctl diff.", _drift, "what"),
        ("instance_info", "A GPU instance (MIG).", _instances, "gpu_instance profile"),
    ),
    *_families(
        PROFILE,
        ("free", f"How many more fit now. {_NOT_ADDITIVE}", lambda profile: profile.result.free),
        (
            "capacity", f"Used and free together. {_NOT_ADDITIVE}",
            lambda profile: None if profile.result.free is None else profile.result.free + profile.used,
        ),
        ("used", "vGPUs of this profile.", lambda profile: profile.used),
    ),
    *_families(
        VM,
        ("info", "What the VM is; pool: its label of that name.", _vm_info, "vm_uuid os pool owner managed"),
        ("state", "Its state; only the one that holds.", lambda thing: {thing.vm.state: 1}, "state"),
        ("vgpus_missing", "vGPUs that the running VM lacks.", _missing_vgpus),
        (
            "started_timestamp_seconds", "When the agent saw it start.",
            lambda thing: thing.counts.started.get(thing.vm.uuid),
        ),
        ("crashes_total", "Crashes since the agent started.", partial(_crash, field="number")),
        ("last_crash_timestamp_seconds", "When it crashed last.", partial(_crash, field="last")),
    ),
    *_families(
        VGPU,
        (
            "info", "What the vGPU is; vgpu_uuid: as nvidia-smi in the guest shows it.", _vgpu_info,
            "gpu profile vm_uuid vgpu_uuid device gpu_instance backend",
        ),
        (
            "memory_size_bytes", "Its framebuffer.",
            lambda row: None if row.framebuffer_mib is None else row.framebuffer_mib * MIB,
        ),
        (
            "memory_used_bytes", "The part of its framebuffer that is used; Windows keeps some that it does not use.",
            _use_of_vgpu("memory_used_bytes"),
        ),
        ("memory_reserved_bytes", "What the driver keeps of its framebuffer.", _use_of_vgpu("memory_reserved_bytes")),
        (
            "engine_utilization_ratio", "Its part of an engine of the whole GPU.",
            lambda row: None if row.use is None else _engines(row.use.engines), "engine",
        ),
        ("time_share_ratio", "The part of the GPU's time that it is guaranteed.", lambda row: row.time_share),
        ("license_state", "Its licence; only the state that holds.", _only("license_state"), "state"),
        ("license_expiry_timestamp_seconds", "When its licence ends.", _use_of_vgpu("license_expiry")),
        (
            "guest_driver_info", "NVIDIA's driver in the guest, its vGPU release; fit: whether the host's supports it.",
            _guest_driver, "version release fit",
        ),
        *(
            (f"{kind}_{name}", f"{text} of {what}.", partial(_frames, kind=kind, field=name))
            for kind, what in (("encoder", "the encoder"), ("capture", "framebuffer capture"))
            for name, text in (
                ("sessions", "Sessions"),
                ("fps", "Mean frame rate"),
                ("latency_seconds", "Mean latency"),
            )
        ),
        ("frame_rate_limit_fps", "The limit of its frame rate.", _use_of_vgpu("frame_rate_limit_fps")),
    ),
)  # fmt: skip
"""Every metric."""

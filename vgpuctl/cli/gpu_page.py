# SPDX-License-Identifier: Apache-2.0
"""The page of show-gpu, and what other pages about GPUs share with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vgpuctl.cli.shown import (
    NUMERIC_HEADERS,
    Block,
    Page,
    Pairs,
    Table,
    free_count,
    location,
    mib,
    or_dash,
    or_unknown,
    vgpu_count,
    vm_label,
)
from vgpuctl.model.numbers import count_text

if TYPE_CHECKING:
    from vgpuctl.model.results.gpus import (
        GpuDetailsResult,
        GpuResult,
        RunningSchedulerResult,
        ShareResult,
        VgpuResult,
    )
    from vgpuctl.model.vgpu_scheduler import SchedulerSpec


def mode_text(gpu: GpuResult) -> str:
    """Return a GPU's mode and the mode it should have: `vgpu, mixed sizes`, `kept for passthrough`."""
    desired = gpu.desired_mode
    as_desired = desired in (None, gpu.mode) or (desired, gpu.mode) == ("vgpu", "mig-vgpu")
    kept = f"kept for {desired}"
    mode = gpu.mode if as_desired else kept if gpu.mode == "unmanaged" else f"{gpu.mode} ({kept})"
    reserved = f", for {' or '.join(gpu.reserved_for)}" if gpu.reserved_for else ""
    return f"{mode}{', mixed sizes' if gpu.mixed_size else ''}{', cordoned' if gpu.cordoned else ''}{reserved}"


def vf_count(gpu: GpuResult) -> str:
    """Return how many VFs are enabled, of how many, used, and reserved for a missing vGPU: `16/16, 2 used`."""
    vfs, vgpus = gpu.vfs, gpu.vgpus
    existing = {v.function for v in vgpus if v.present}
    reserved = min(vfs.used, len({v.function for v in vgpus if not v.present} - existing))
    reserved_text = f", {reserved} reserved" if reserved else ""
    return f"{vfs.enabled}/{vfs.total}, {vfs.used - reserved} used{reserved_text}" if vfs.total else "-"


def gpu_page(data: GpuDetailsResult) -> Page:
    """Return the page of one GPU, with everything on it."""
    pairs = Pairs(
        (
            ("address", data.address),
            ("model", data.model),
            *((("uuid", data.uuid),) if data.uuid is not None else ()),
            ("backend", or_dash(data.backend)),
            ("mode", mode_text(data)),
            *((("reason", data.reason),) if data.reason is not None else ()),
            ("driver", or_dash(data.driver)),
            ("memory", mib(data.framebuffer_mib)),
            ("numa node", or_dash(data.numa_node)),
            ("iommu group", or_dash(data.iommu_group)),
            *((("pcie switch", data.pcie_switch),) if data.pcie_switch is not None else ()),
            ("vfs", vf_count(data)),
            *_vf_memory_lines(data),
            ("vgpus", vgpu_count(data.vgpus)),
            *((("draws for", ", ".join(data.draws_for)),) if data.draws_for else ()),
            *_partition_lines(data),
            *_scheduler_lines(data),
            *_isolation_lines(data),
            *(("problem", problem) for problem in data.problems),
        )
    )
    blocks: list[Block] = [pairs, *_vgpu_table(data.vgpus), *_share_table(data)]
    return Page([*blocks, *_type_table(data)])


def _vf_memory_lines(gpu: GpuDetailsResult) -> tuple[tuple[str, str], ...]:
    """Return the GPU memory of plain VFs; none where the driver does not report it."""
    sizes = sorted({f.framebuffer_mib for f in gpu.functions if f.framebuffer_mib is not None})
    return (("vf memory", ", ".join(mib(size) for size in sizes)),) if sizes else ()


def _partition_lines(gpu: GpuDetailsResult) -> tuple[tuple[str, str], ...]:
    """Return the lines of show-gpu; none for a GPU without MIG and partition modes."""
    mig = gpu.mig
    modes = (("compute partition", gpu.compute_partition), ("memory partition", gpu.memory_partition))
    lines = [(name, mode) for name, mode in modes if mode is not None]
    if mig is not None and (mig.enabled or mig.pending):
        pending_note = "" if mig.enabled == mig.pending else f", {_on_or_off(mig.pending)} after a reset of the GPU"
        lines.append(("mig", _on_or_off(mig.enabled) + pending_note))
        lines += [
            (
                "gpu instance",
                f"{instance.id}: {instance.profile}, memory slices {instance.start}:{instance.size}",
            )
            for instance in mig.instances
        ]
    return tuple(lines)


def _on_or_off(enabled: bool) -> str:
    return "on" if enabled else "off"


def _scheduler_lines(gpu: GpuDetailsResult) -> tuple[tuple[str, str], ...]:
    """Return the lines of show-gpu; none for a GPU without a scheduler."""
    scheduler = gpu.scheduler
    if scheduler is None:
        return ()
    lines = [("scheduler", f"{running_text(scheduler.running)}; configured: {configured_text(scheduler.configured)}")]
    for spec, title in ((gpu.scheduler_at_load, "driver loaded with"), (gpu.scheduler_next, "next load")):
        if spec is not None:
            lines.append((title, configured_text(spec)))
    return tuple(lines)


def _isolation_lines(gpu: GpuDetailsResult) -> tuple[tuple[str, str], ...]:
    """Return how far the VMs on the GPU are kept apart; none if that is unknown or it is set up for nothing."""
    isolation = gpu.isolation
    drawn = (("isolation", "none for the VMs that it draws for"),) if gpu.draws_for else ()
    if isolation is None:
        return drawn
    parts = (("memory", isolation.memory), ("compute", isolation.compute), ("faults", isolation.faults))
    return (*(("isolation", f"{name}, {part.degree}: {part.text}") for name, part in parts), *drawn)


def running_text(state: RunningSchedulerResult | None) -> str:
    """Return the running scheduler: `fixed_share, slices of 2 ms`."""
    if state is None or state.policy is None:
        return "?" if state is None or state.problem is None else f"? ({state.problem})"
    parts: list[str] = [state.policy]
    if state.time_slice_us is not None:
        average = " on the average" if state.adaptive else ""
        parts.append(f"slices of {_ms(state.time_slice_us)}{average}")
    if state.averaging_factor is not None:
        parts.append(f"averaging factor {state.averaging_factor}")
    if state.preempt_timeout_us is not None:
        parts.append(f"preemption timeout {state.preempt_timeout_us} us")
    log = " (by the kernel log)" if state.source == "kernel log" else f" ({state.source})"
    source = "" if state.source == "NVML" else log
    return f"{', '.join(parts)}{source}"


def configured_text(spec: SchedulerSpec | None) -> str:
    """Return the configured scheduler: `fixed_share, time slice 2 ms`."""
    if spec is None:
        return "nothing"
    texts = (
        (spec.time_slice_ms, "time slice {} ms"),
        (spec.frequency_hz, "{} Hz"),
        (spec.averaging_factor, "averaging factor {}"),
        (spec.preempt_timeout_us, "preemption timeout {} us"),
    )
    return ", ".join([spec.policy, *(text.format(value) for value, text in texts if value is not None)])


def _vgpu_table(vgpus: Sequence[VgpuResult]) -> list[Block]:
    """Return the table of the vGPUs on a GPU; without EXISTS if all exist, and WHERE and REASON if all are empty."""
    if not vgpus:
        return []
    columns: list[tuple[str, list[str]]] = [
        ("CARRIER", [", ".join((v.carrier, *v.companions)) for v in vgpus]),
        ("PROFILE", [or_unknown(v.profile) for v in vgpus]),
        ("EXISTS", ["yes" if v.present else "no" for v in vgpus]),
        ("VM", [vm_label(v) for v in vgpus]),
        ("OWNERSHIP", [v.ownership for v in vgpus]),
        ("WHERE", [or_dash(location(v) or None) for v in vgpus]),
        ("REASON", [or_dash(v.reason) for v in vgpus]),
    ]
    usual = {"EXISTS": {"yes"}, "WHERE": {"-"}, "REASON": {"-"}}
    shown = [(name, cells) for name, cells in columns if {*cells} != usual.get(name)]
    rows = tuple(zip(*(cells for _, cells in shown), strict=True))
    headers = tuple(name for name, _ in shown)
    return ["", Table(headers, rows, free_text=frozenset({"REASON"}), states=frozenset({"OWNER"}))]


def _share_table(gpu: GpuDetailsResult) -> list[Block]:
    """Return the table of shares."""
    rows = tuple(
        (_share_label(share), share.profile or "", _percent(share), _slice(share), share.note) for share in gpu.shares
    )
    headers = ("VM", "PROFILE", "GUARANTEED", "SLICE", "WHY")
    return ["", Table(headers, rows, frozenset({"GUARANTEED", "SLICE"}), frozenset({"WHY"}))] if rows else []


def _share_label(share: ShareResult) -> str:
    return str(share.vm or (f"vGPU {share.name}" if share.name else share.carrier))


def _percent(share: ShareResult) -> str:
    percent = share.guaranteed_percent
    return "-" if percent is None else f"{percent:g} %"


def _slice(share: ShareResult) -> str:
    return "-" if share.time_slice_us is None else _ms(share.time_slice_us)


def _ms(us: float) -> str:
    return f"{us / 1000:.4g} ms"


def _type_table(data: GpuDetailsResult) -> list[Block]:
    """Return the table of the profiles with room, and how many have none."""
    if not data.types:
        return []
    shown = [vgpu_type for vgpu_type in data.types if vgpu_type.free != 0]
    rows = tuple(
        (t.profile, t.type_id, mib(t.framebuffer_mib), or_unknown(t.max_per_gpu), free_count(t)) for t in shown
    )
    blocks: list[Block] = [""]
    if rows:
        blocks.append(Table(("PROFILE", "TYPE", "MEMORY", "MAX/GPU", "FREE"), rows, NUMERIC_HEADERS))
    if any(vgpu_type.free is None and vgpu_type.free_at_least for vgpu_type in shown):
        blocks.append("at least: the driver does not report where its vGPUs are, so more may fit")
    hidden = len(data.types) - len(shown)
    if hidden:
        count = count_text(hidden, "more profile" if rows else "profile")
        have = "has" if hidden == 1 else "have"
        blocks.append(f"{count} {have} no room: vgpuctl explain {next(t.profile for t in data.types if t.free == 0)}")
        blocks.append(f"every profile: vgpuctl list-profiles --gpu {data.address} --all")
    return blocks

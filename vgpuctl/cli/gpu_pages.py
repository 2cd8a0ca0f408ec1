# SPDX-License-Identifier: Apache-2.0
"""The pages of GPUs and vGPUs: lists, one GPU with how it is divided and scheduled, changes, vGPUs without a VM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vgpuctl.cli.cells import free_count, location, mib, or_dash, or_unknown, shorten_names, vgpu_line, vm_label
from vgpuctl.cli.listing_columns import mode_text, vf_count, vgpu_count
from vgpuctl.cli.pages import NUMERIC_HEADERS, Page, dry_run
from vgpuctl.cli.tables import Block, Pairs, Table
from vgpuctl.model.numbers import count_text
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.results.gpus import (
    ChangedGpuResult,
    GpuDetailsResult,
    GpuResult,
    RunningSchedulerResult,
    SetUpGpuResult,
    ShareResult,
)
from vgpuctl.model.results.vgpus import (
    AbsentVgpuResult,
    EnsuredVgpuResult,
    ListedVgpuResult,
    NamedVgpuResult,
    VgpuResult,
)
from vgpuctl.model.vgpu_scheduler import SchedulerSpec


def _gpus(data: tuple[GpuResult, ...]) -> Page:
    if not data:
        return Page(stderr_lines=["no GPUs here; list-gpus --all also lists other devices that a VM can be given"])
    return Page(stderr_lines=[f"{gpu.address}: {problem}" for gpu in data for problem in gpu.problems])


def _gpu(data: GpuDetailsResult) -> Page:
    pairs = Pairs(
        (
            ("address", data.address),
            ("model", data.model),
            ("backend", or_dash(data.backend)),
            ("mode", mode_text(data)),
            ("driver", or_dash(data.driver)),
            ("memory", mib(data.framebuffer_mib)),
            ("numa node", or_dash(data.numa_node)),
            ("iommu group", or_dash(data.iommu_group)),
            *((("pcie switch", data.pcie_switch),) if data.pcie_switch is not None else ()),
            ("vfs", vf_count(data)),
            ("vgpus", vgpu_count(data.vgpus)),
            *_partition_lines(data),
            *_scheduler_lines(data),
            *(("problem", problem) for problem in data.problems),
        )
    )
    blocks: list[Block] = [pairs, *_vgpu_table(data.vgpus), *_share_table(data)]
    return Page([*blocks, *_type_table(data)])


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


def _gpu_change_page(result: Outcome[SetUpGpuResult | ChangedGpuResult]) -> Page:
    """A GPU that was changed: its steps in a dry run, otherwise its state now."""
    if result.dry_run:
        return dry_run(result)
    data, suffix = result.data, "" if result.steps else "; nothing to do"
    vfs = f", VFs {vf_count(data)}" if data.vfs.total else ""
    return Page([f"{data.address}: {mode_text(data)}{_partition_text(data)}{vfs}{suffix}"])


def _partition_text(data: SetUpGpuResult | ChangedGpuResult) -> str:
    """Return the GPU instances of a GPU with MIG; "" without MIG."""
    partition = getattr(data, "partition", None)
    if partition is not None and partition.mig:
        return f", MIG with {shorten_names(partition.instances) or 'no GPU instance'}"
    return ""


def _scheduler_change_page(result: Outcome[ChangedGpuResult]) -> Page:
    """A GPU whose scheduler was set: its steps in a dry run, otherwise what runs now."""
    if result.dry_run:
        return dry_run(result)
    return Page([f"{_scheduler_change(result.data)}{'' if result.steps else '; nothing to do'}"])


def _partition_lines(gpu: GpuDetailsResult) -> tuple[tuple[str, str], ...]:
    """Return the lines of show-gpu; none for a GPU without MIG."""
    mig = gpu.mig
    lines: list[tuple[str, str]] = []
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
    lines = [("scheduler", f"{_running_text(scheduler.running)}; configured: {_configured_text(scheduler.configured)}")]
    for spec, title in ((gpu.scheduler_at_load, "driver loaded with"), (gpu.scheduler_next, "next load")):
        if spec is not None:
            lines.append((title, _configured_text(spec)))
    return tuple(lines)


def _share_table(gpu: GpuDetailsResult) -> list[Block]:
    """Return the table of shares."""
    rows = tuple(
        (_share_label(share), share.profile or "", _percent(share), _slice(share), share.note) for share in gpu.shares
    )
    headers = ("VM", "PROFILE", "GUARANTEED", "SLICE", "WHY")
    return ["", Table(headers, rows, frozenset({"GUARANTEED", "SLICE"}), frozenset({"WHY"}))] if rows else []


def _share_label(share: ShareResult) -> str:
    return str(share.vm or (f"vGPU {share.name}" if share.name else share.carrier))


def _scheduler_change(data: ChangedGpuResult) -> str:
    """Return one line about a GPU whose scheduler was set."""
    scheduler = data.scheduler
    if scheduler is not None and scheduler.running is None:  # without NVML nothing reports it
        return f"{data.address}: {_configured_text(scheduler.configured)}, with which its driver was loaded"
    return f"{data.address}: {_running_text(None if scheduler is None else scheduler.running)}"


def _running_text(state: RunningSchedulerResult | None) -> str:
    """Return the running scheduler: `fixed_share, slices of 2 ms`."""
    if state is None or state.policy is None:
        return "?"
    parts: list[str] = [state.policy]
    if state.time_slice_us is not None:
        average = " on the average" if state.adaptive else ""
        parts.append(f"slices of {_ms(state.time_slice_us)}{average}")
    if state.averaging_factor is not None:
        parts.append(f"averaging factor {state.averaging_factor}")
    source = "" if state.source == "NVML" else f" (by the {state.source})"
    return f"{', '.join(parts)}{source}"


def _configured_text(spec: SchedulerSpec | None) -> str:
    """Return the configured scheduler: `fixed_share, time slice 2 ms`."""
    if spec is None:
        return "nothing"
    texts = (
        (spec.time_slice_ms, "time slice {} ms"),
        (spec.frequency_hz, "{} Hz"),
        (spec.averaging_factor, "averaging factor {}"),
    )
    return ", ".join([spec.policy, *(text.format(value) for value, text in texts if value is not None)])


def _percent(share: ShareResult) -> str:
    percent = share.guaranteed_percent
    return "-" if percent is None else f"{percent:g} %"


def _slice(share: ShareResult) -> str:
    return "-" if share.time_slice_us is None else _ms(share.time_slice_us)


def _ms(us: float) -> str:
    return f"{us / 1000:.4g} ms"


def _create_vgpu_page(result: Outcome[NamedVgpuResult]) -> Page:
    """Only the <hostdev> element goes to stdout, so that it can go to a file; the vGPU's location goes to stderr."""
    if result.dry_run:
        return dry_run(result)
    data = result.data
    usage = "save the printed element as FILE; then a VM gets the vGPU with:"
    stderr_lines = [f"vGPU {data.name}: {vgpu_line(data)}", usage]
    return Page([data.hostdev], [*stderr_lines, *(f"  {line}" for line in data.usage)])


def _delete_vgpu_page(result: Outcome[VgpuResult | AbsentVgpuResult]) -> Page:
    return dry_run(result) if result.dry_run else Page([f"vGPU {result.data.name}: absent"])


def _ensure_vgpu_page(result: Outcome[EnsuredVgpuResult | AbsentVgpuResult]) -> Page:
    data = result.data
    if result.dry_run or isinstance(data, AbsentVgpuResult) or not data.present:
        return _delete_vgpu_page(result)
    return Page([f"vGPU {data.name}: {vgpu_line(data)}"])


def _vgpus(data: tuple[ListedVgpuResult, ...]) -> Page:
    return Page(stderr_lines=[] if data else ["no such vGPU here; create-vgpu makes one without a VM"])


PAGES: dict[str, Callable[[Any], Page]] = {
    "list-gpus": _gpus,
    "show-gpu": _gpu,
    "set-mode": _gpu_change_page,
    "set-mig": _gpu_change_page,
    "set-mixed-size": _gpu_change_page,
    "set-scheduler": _scheduler_change_page,
    "cordon": _gpu_change_page,
    "uncordon": _gpu_change_page,
    "create-vgpu": _create_vgpu_page,
    "ensure-vgpu": _ensure_vgpu_page,
    "delete-vgpu": _delete_vgpu_page,
    "list-vgpus": _vgpus,
}

# SPDX-License-Identifier: Apache-2.0
"""The commands about GPUs: what each is and has, and whether it takes new vGPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from vgpuctl.cli import run, targets
from vgpuctl.cli.command import make_command
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.scheduler_text import configured_text, milliseconds, running_text
from vgpuctl.cli.shown import (
    NUMERIC_HEADERS,
    Block,
    Column,
    Listing,
    Page,
    Pairs,
    Table,
    dry_run,
    free_count,
    location,
    mib,
    or_dash,
    or_unknown,
    shorten_names,
    vm_label,
)
from vgpuctl.cli.targets import Targets, change, query
from vgpuctl.model.numbers import count_text

if TYPE_CHECKING:
    from vgpuctl.model.outcome import Outcome
    from vgpuctl.model.results.gpus import (
        ChangedGpuResult,
        GpuDetailsResult,
        GpuResult,
        SetUpGpuResult,
        ShareResult,
        VgpuResult,
    )


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


def used_mib(gpu: GpuResult) -> int | None:
    """Return how much of its framebuffer the GPU's vGPUs have, also those of VMs that are off; None if unknown."""
    sizes = [gpu.framebuffer_mib if v.carrier == gpu.address else v.framebuffer_mib for v in gpu.vgpus]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def free_mib(gpu: GpuResult) -> int | None:
    """Return how much framebuffer no vGPU has; None if unknown. Whether a profile fits is for `list-profiles`."""
    used = used_mib(gpu)
    return None if used is None or gpu.framebuffer_mib is None else max(gpu.framebuffer_mib - used, 0)


def scheduler_text(gpu: GpuResult) -> str:
    """Return the policy that runs, and what host.yaml configures if that differs: `best_effort (configured: ...)`."""
    if gpu.scheduler is None:
        return "-"
    configured = gpu.scheduler.configured.policy if gpu.scheduler.configured is not None else None
    running = _running_policy(gpu)
    differs = configured is not None and configured != running
    return f"{running or 'unknown'}{f' (configured: {configured})' if differs else ''}"


def _running_policy(gpu: GpuResult) -> str | None:
    running = gpu.scheduler.running if gpu.scheduler is not None else None
    return str(running.policy) if running is not None and running.policy is not None else None


def vgpu_count(vgpus: Sequence[VgpuResult]) -> str:
    """Return how many vGPUs there are, and how many are missing or not vgpuctl's: `2 (1 missing, 1 unmanaged)`."""
    missing = sum(not v.present for v in vgpus)
    notes = [f"{missing} missing"] if missing else []
    notes += [f"{n} {owner}" for owner in ("unmanaged", "leaked") if (n := sum(v.ownership == owner for v in vgpus))]
    return f"{len(vgpus)} ({', '.join(notes)})" if notes else str(len(vgpus))


GPUS = Listing(
    "GPUs",
    (
        Column("address", "ADDRESS", lambda gpu: gpu.address),
        Column("model", "MODEL", lambda gpu: gpu.model, free_text=True),
        Column("mode", "MODE", lambda gpu: str(gpu.mode), mode_text, is_state=True),
        Column(
            "memory", "MEMORY", lambda gpu: gpu.framebuffer_mib, lambda gpu: mib(gpu.framebuffer_mib),
            numeric=True, unit="mib",
        ),
        Column(
            "used", "USED", used_mib, lambda gpu: mib(used_mib(gpu)) if gpu.vgpus else "0", numeric=True, unit="mib"
        ),
        Column("free", "FREE", free_mib, lambda gpu: mib(free_mib(gpu)), numeric=True, unit="mib"),
        Column("vgpus", "VGPUS", lambda gpu: len(gpu.vgpus), lambda gpu: vgpu_count(gpu.vgpus)),
        Column("vfs", "VFS", lambda gpu: gpu.vfs.enabled, vf_count, level="wide"),
        Column("backend", "BACKEND", lambda gpu: gpu.backend and str(gpu.backend), level="wide"),
        Column("driver", "DRIVER", lambda gpu: gpu.driver, level="wide"),
        Column("numa", "NUMA", lambda gpu: gpu.numa_node, lambda gpu: or_dash(gpu.numa_node), "wide", numeric=True),
        Column(
            "iommu", "IOMMU", lambda gpu: gpu.iommu_group, lambda gpu: or_dash(gpu.iommu_group), "wide", numeric=True
        ),
        Column("switch", "SWITCH", lambda gpu: gpu.pcie_switch, lambda gpu: or_dash(gpu.pcie_switch), "wide"),
        Column("scheduler", "SCHEDULER", _running_policy, scheduler_text, level="wide"),
        Column("mixed-size", "MIXED SIZE", lambda gpu: gpu.mixed_size, level="named"),
        Column("cordoned", "CORDONED", lambda gpu: gpu.cordoned, level="named"),
        Column("problems", "PROBLEMS", lambda gpu: gpu.problems, level="named", free_text=True),
    ),
    lambda gpu: str(gpu.address),
)  # fmt: skip


def _gpus(data: tuple[GpuResult, ...]) -> Page:
    if not data:
        return Page(stderr_lines=["no GPUs here; list-gpus --all also lists other devices that a VM can be given"])
    return Page(stderr_lines=[f"{gpu.address}: {problem}" for gpu in data for problem in gpu.problems])


@make_command(
    "list-gpus",
    page=_gpus,
    listing=GPUS,
    examples=(
        ("vgpuctl list-gpus", "GPUs and other devices that carry vGPUs"),
        ("vgpuctl list-gpus --all", "every device that a VM can be given"),
        ("vgpuctl --host sim:a16 list-gpus --json", "the GPUs of a simulated host, for a program"),
    ),
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also list every SR-IOV function, and every device that vfio-pci or no driver is bound to.",
)
@click.pass_obj
def list_gpus(settings: Settings, everything: bool) -> int:
    """List the GPUs with their model, backend, mode, driver, memory, virtual functions and vGPUs.

    Unmanaged vGPUs, which vgpuctl did not create, are counted separately. A GPU without a backend cannot carry a vGPU
    as it is set up now; a warning shows why.
    """
    return run.call(settings, "list-gpus", lambda host: host.list_gpus(everything=everything))


def _gpu(data: GpuDetailsResult) -> Page:
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
    lines = [("scheduler", f"{running_text(scheduler.running)}; configured: {configured_text(scheduler.configured)}")]
    for spec, title in ((gpu.scheduler_at_load, "driver loaded with"), (gpu.scheduler_next, "next load")):
        if spec is not None:
            lines.append((title, configured_text(spec)))
    return tuple(lines)


def _isolation_lines(gpu: GpuDetailsResult) -> tuple[tuple[str, str], ...]:
    """Return how far the VMs on the GPU are kept apart; none if that is unknown or it is set up for nothing."""
    isolation = gpu.isolation
    if isolation is None:
        return ()
    parts = (("memory", isolation.memory), ("compute", isolation.compute), ("faults", isolation.faults))
    return tuple(("isolation", f"{name}, {part.degree}: {part.text}") for name, part in parts)


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
    return "-" if share.time_slice_us is None else milliseconds(share.time_slice_us)


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


@make_command(
    "show-gpu",
    page=_gpu,
    header="GPU",
    examples=(
        ("vgpuctl --host sim:a100-40 show-gpu 0000:3b:00.0", "one GPU with every vGPU on it"),
        ("vgpuctl --host sim:l40s-x4 show-gpu --all", "every GPU"),
    ),
)
@targets.gpus
@click.pass_obj
def show_gpu(settings: Settings, targets: Targets) -> int:
    """Show GPUs with every vGPU on them and the VM that each belongs to.

    GPU is a PCI address, a model, a glob of these, or the kernel name of another mdev parent. 'vgpuctl list-gpus --all'
    shows them.
    """
    return query(settings, "show-gpu", targets, lambda host, gpu: host.show_gpu(gpu))


def gpu_change_page(result: Outcome[SetUpGpuResult | ChangedGpuResult]) -> Page:
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


@make_command(
    "cordon",
    page=gpu_change_page,
    shown_by="show-gpu",
    words=("cordoned", "already cordoned"),
    examples=(
        ("vgpuctl --host sim:a100-40 cordon 0000:3b:00.0", "before maintenance: nothing new goes there"),
        ("vgpuctl --host sim:l40s-x4 cordon L40S --all", "every L40S"),
    ),
)
@targets.gpus
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def cordon(settings: Settings, targets: Targets, dry_run: bool) -> int:
    """Place no new vGPUs and VMs on GPUs: before maintenance, or while a GPU is suspect.

    The vGPUs on it stay, and their VMs can be stopped and started. GPU is an address, a glob, or a model; --all allows
    a model that several GPUs have. vgpuctl writes this to /etc/vgpuctl/host.yaml, so a reboot does not end it.
    """
    return change(settings, "cordon", targets, lambda host, gpu: host.cordon(gpu, dry_run=dry_run), dry_run=dry_run)


@make_command(
    "uncordon",
    page=gpu_change_page,
    shown_by="show-gpu",
    words=("uncordoned", "not cordoned before"),
    examples=(("vgpuctl --host sim:a100-40 uncordon 0000:3b:00.0", "new vGPUs may go there again"),),
)
@targets.gpus
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def uncordon(settings: Settings, targets: Targets, dry_run: bool) -> int:
    """Allow new vGPUs and VMs on GPUs again."""
    return change(settings, "uncordon", targets, lambda host, gpu: host.uncordon(gpu, dry_run=dry_run), dry_run=dry_run)

# SPDX-License-Identifier: Apache-2.0
"""The commands about GPUs: what each is and has, and whether it takes new vGPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vgpuctl.cli import run, targets
from vgpuctl.cli.command import make_command
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.gpu_page import gpu_page, mode_text, vf_count
from vgpuctl.cli.shown import (
    Column,
    Listing,
    Page,
    dry_run,
    mib,
    or_dash,
    shorten_names,
    vgpu_count,
)
from vgpuctl.cli.targets import Targets, change, query

if TYPE_CHECKING:
    from vgpuctl.model.outcome import Outcome
    from vgpuctl.model.results.gpus import (
        ChangedGpuResult,
        GpuResult,
        SetUpGpuResult,
    )


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
        Column("render-node", "RENDER NODE", lambda gpu: gpu.render_node, level="named"),
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


@make_command(
    "show-gpu",
    page=gpu_page,
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

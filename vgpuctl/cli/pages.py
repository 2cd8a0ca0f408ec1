# SPDX-License-Identifier: Apache-2.0
"""The pages for people, made from the same `data` that programs get: a page shows nothing that JSON lacks.

`?` means unknown, `-` means none. Lines that are not part of the result go to stderr.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from vgpuctl.cli.tables import Block, Pairs, Table
from vgpuctl.model.outcome import AnyResult, Outcome
from vgpuctl.model.results.fields import ABSENT
from vgpuctl.model.sizes import format_bytes, format_mib
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.model.results.disks import DiskResult, KeptDiskResult
    from vgpuctl.model.results.gpus import (
        ChangedGpuResult,
        ChangedSchedulerResult,
        ExplainResult,
        GpuDetailsResult,
        GpuResult,
        ProfileResult,
        ReasonResult,
        RoomResult,
        SetUpGpuResult,
        TypeResult,
        VfsResult,
    )
    from vgpuctl.model.results.host import DoctorResult, ReconcileResult
    from vgpuctl.model.results.moves import BarrierResult
    from vgpuctl.model.results.vgpus import VgpuResult
    from vgpuctl.model.results.vms import (
        ChangedVmResult,
        ManyVmsResult,
        VmReport,
        VmResult,
        VmRowResult,
        XmlResult,
    )

MAX_NAMES = 8
NUMERIC_HEADERS = frozenset({"MEMORY", "MAX/GPU", "FREE"})


class Page(Value):
    """Blocks for stdout and lines for stderr."""

    blocks: Sequence[Block] = ()
    stderr_lines: Sequence[str] = ()


def page(kind: str, result: AnyResult) -> Page:
    """Return the page of a command's result: of its data, for a change of the outcome with its steps."""
    return _PAGES.get(kind, _vm_change_page)(result if isinstance(result, Outcome) else result.data)


def _gpus(data: tuple[GpuResult, ...]) -> Page:
    if not data:
        return Page(stderr_lines=["no GPUs here; list-gpus --all also lists other devices that a VM can be given"])
    headers = (
        "ADDRESS", "MODEL", "BACKEND", "MODE", "DRIVER", "MEMORY", "NUMA", "IOMMU", "VFS", "VGPUS",
    )  # fmt: skip
    rows = tuple(
        (
            gpu.address, gpu.model, _or_dash(gpu.backend), _mode_text(gpu), _or_dash(gpu.driver),
            mib(gpu.framebuffer_mib), _or_dash(gpu.numa_node), _or_dash(gpu.iommu_group),
            _vf_count(gpu.vfs), _vgpu_count(gpu.vgpus),
        )
        for gpu in data
    )  # fmt: skip
    problems = [f"{gpu.address}: {problem}" for gpu in data for problem in gpu.problems]
    return Page([Table(headers, rows, frozenset({"MEMORY", "NUMA", "IOMMU"}))], problems)


def _gpu(data: GpuDetailsResult) -> Page:
    from vgpuctl.cli import partition_pages, scheduler_pages

    pairs = Pairs(
        (
            ("address", data.address),
            ("model", data.model),
            ("backend", _or_dash(data.backend)),
            ("mode", _mode_text(data)),
            ("driver", _or_dash(data.driver)),
            ("memory", mib(data.framebuffer_mib)),
            ("numa node", _or_dash(data.numa_node)),
            ("iommu group", _or_dash(data.iommu_group)),
            ("vfs", _vf_count(data.vfs)),
            ("vgpus", _vgpu_count(data.vgpus)),
            *partition_pages.pairs(data),
            *scheduler_pages.pairs(data),
            *(("problem", problem) for problem in data.problems),
        )
    )
    blocks: list[Block] = [pairs, *_vgpu_table(data.vgpus), *scheduler_pages.share_table(data)]
    if data.types:
        rows = tuple(
            (
                vgpu_type.profile,
                vgpu_type.type_id,
                mib(vgpu_type.framebuffer_mib),
                or_unknown(vgpu_type.max_per_gpu),
                free_count(vgpu_type),
            )
            for vgpu_type in data.types
        )
        blocks += ["", Table(("PROFILE", "TYPE", "MEMORY", "MAX/GPU", "FREE"), rows, NUMERIC_HEADERS)]
    return Page(blocks)


def _vgpu_table(vgpus: Sequence[VgpuResult]) -> list[Block]:
    """Return the table of the vGPUs on a GPU; WHERE and REASON are left out if they are empty for all vGPUs."""
    if not vgpus:
        return []
    from vgpuctl.cli.partition_pages import location

    columns: list[tuple[str, list[str]]] = [
        ("CARRIER", [", ".join((v.carrier, *v.companions)) for v in vgpus]),
        ("PROFILE", [or_unknown(v.profile) for v in vgpus]),
        ("VM", [_vm_label(v) for v in vgpus]),
        ("OWNER", [v.owner for v in vgpus]),
        ("WHERE", [_or_dash(location(v) or None) for v in vgpus]),
        ("REASON", [_or_dash(v.reason) for v in vgpus]),
    ]
    shown = [(name, cells) for name, cells in columns if name not in ("WHERE", "REASON") or {*cells} != {"-"}]
    rows = tuple(zip(*(cells for _, cells in shown), strict=True))
    return ["", Table(tuple(name for name, _ in shown), rows)]


def _vms(data: tuple[VmRowResult, ...]) -> Page:
    if not data:
        return Page(stderr_lines=["no VMs here"])
    rows = tuple((vm.name, vm.state, vm.owner, vgpus_text(vm.vgpus), vm.uuid) for vm in data)
    return Page([Table(("NAME", "STATE", "OWNER", "VGPUS", "UUID"), rows)])


def _vm(data: VmResult) -> Page:
    other_fields = ("owner", "record", "vcpus", "firmware", "reserve", "spread_group")
    other_pairs = [(name.replace("_", " "), getattr(data, name)) for name in other_fields]
    items: list[tuple[str, str]] = [("name", data.name), ("uuid", data.uuid), ("state", data.state)]
    items += [("memory", mib(data.memory_mib))]
    items += [(title, _or_dash(value)) for title, value in other_pairs if value is not None]
    items += [("vgpu", vgpu_line(v)) for v in data.vgpus]
    items += [("disk", _disk_line(disk)) for disk in data.disks]
    return Page([Pairs(tuple(items))])


def _vm_change_page(result: Outcome[ChangedVmResult | VmReport | ManyVmsResult] | XmlResult) -> Page:
    """A VM or several that were changed: the steps in a dry run, otherwise the resulting state."""
    from vgpuctl.model.results.vms import ManyVmsResult

    if not isinstance(result, Outcome):
        return Page([result.xml.rstrip()])
    if result.dry_run:
        return dry_run(result)
    data = result.data
    if isinstance(data, ManyVmsResult):
        return _batch_page(data)
    blocks: list[Block] = [f"{data.name}: {data.state}"]
    blocks += [f"  vgpu  {vgpu_line(v)}" for v in data.vgpus]
    blocks += [f"  disk  {_disk_line(disk)}" for disk in data.disks]
    guest = getattr(data, "guest", ABSENT)
    blocks += [f"  guest {entry.address}" for entry in (guest.addresses if guest is not ABSENT else ())]
    return Page([*blocks, *([] if result.steps else ["  nothing to do"])])


def _batch_page(data: ManyVmsResult) -> Page:
    """Several VMs: one per line, and how many of them are new."""
    rows = tuple((vm.name, vm.state, "made" if vm.changed else "was there", vgpus_text(vm.vgpus)) for vm in data.vms)
    new = sum(vm.changed for vm in data.vms)
    return Page([Table(("NAME", "STATE", "THIS TIME", "VGPUS"), rows), "", f"{len(rows)} VMs, {new} of them made now"])


def _steps_page(result: Outcome[object]) -> Page:
    """A change of which people see the steps: those of a dry run, or how many were done."""
    if result.dry_run:
        return dry_run(result)
    return Page([f"{len(result.steps)} steps done" if result.steps else "nothing to do"])


def _gpu_change_page(result: Outcome[SetUpGpuResult | ChangedGpuResult]) -> Page:
    """A GPU that was changed: its steps in a dry run, otherwise its state now."""
    if result.dry_run:
        return dry_run(result)
    data, suffix = result.data, "" if result.steps else "; nothing to do"
    vfs = f", VFs {_vf_count(data.vfs)}" if data.vfs.total else ""
    return Page([f"{data.address}: {_mode_text(data)}{_partition_text(data)}{vfs}{suffix}"])


def _partition_text(data: SetUpGpuResult | ChangedGpuResult) -> str:
    """Return how a GPU is divided; "" without MIG and mixed sizes."""
    partition = getattr(data, "partition", None)
    if partition is None:
        return ""
    if partition.mig:
        return f", MIG with {shorten_names(partition.instances) or 'no GPU instance'}"
    return ", mixed sizes" if partition.mixed_size else ""


def _scheduler_change_page(result: Outcome[ChangedSchedulerResult]) -> Page:
    """A GPU whose scheduler was set: its steps in a dry run, otherwise what runs now or after the next driver load."""
    from vgpuctl.cli import scheduler_pages

    if result.dry_run:
        return dry_run(result)
    return Page([f"{scheduler_pages.change_line(result.data)}{'' if result.steps else '; nothing to do'}"])


def _mode_text(gpu: GpuResult) -> str:
    """Return a GPU's mode and the mode it should have: `vgpu`, `unmanaged (kept for passthrough)`, `vgpu, cordoned`."""
    desired = gpu.desired_mode
    as_desired = desired in (None, gpu.mode) or (desired, gpu.mode) == ("vgpu", "mig-vgpu")
    mode = gpu.mode if as_desired else f"{gpu.mode} (kept for {desired})"
    reserved = f", for {' or '.join(gpu.reserved_for)}" if gpu.reserved_for else ""
    return f"{mode}{', cordoned' if gpu.cordoned else ''}{reserved}"


def _reconcile_page(result: Outcome[ReconcileResult]) -> Page:
    """The findings, each with its action, and in a dry run every step."""
    if not result.data.findings:
        return Page(["nothing to do"])
    blocks: list[Block] = []
    for finding in result.data.findings:
        blocks += [finding.what, f"  {finding.action}"]
    if result.dry_run and result.steps:
        blocks += ["", *dry_run(result).blocks]
    return Page(blocks)


def _doctor_page(result: Outcome[DoctorResult]) -> Page:
    """List every check in one line, then each problem with its evidence and fix."""
    rows = tuple((check.verdict, check.id, check.title) for check in result.data.checks)
    blocks: list[Block] = [Table(("VERDICT", "CHECK", "WHAT SHOULD BE"), rows)]
    for check in result.data.checks:
        if check.verdict in ("fail", "warn", "unknown"):
            blocks += ["", f"{check.id} ({check.verdict}):", *(f"  {line}" for line in check.evidence)]
            blocks += [f"  fix: {check.fix}"] if check.fix else []
    if result.dry_run:
        blocks += ["", *dry_run(result).blocks]
    return Page(blocks)


def dry_run(result: Outcome[object]) -> Page:
    """Return the steps of a dry run, and where each value came from."""
    steps = result.steps
    width = len(str(len(steps)))
    blocks: list[Block] = ["would do:" if steps else "nothing to do"]
    blocks += [f"  {number:>{width}}  {step}" for number, step in enumerate(steps, 1)]
    sources = getattr(result.data, "sources", ABSENT)
    if isinstance(sources, Mapping):
        rows = tuple((name, _value_text(s.value), s.source.replace("-", " ")) for name, s in sources.items())
        blocks += ["", Table(("FIELD", "VALUE", "SOURCE"), rows)]
    return Page(blocks)


def _lazy_page(module: str, name: str) -> Callable[[Any], Page]:
    """Return a page function that imports another module when it renders its page."""

    def render(shown: Any) -> Page:
        rendered: Page = import_module(f"vgpuctl.cli.{module}").PAGES[name](shown)
        return rendered

    return render


_PAGES: dict[str, Callable[[Any], Page]] = {
    "list-gpus": _gpus,
    "show-gpu": _gpu,
    "list-profiles": _lazy_page("profile_pages", "list-profiles"),
    "explain": _lazy_page("profile_pages", "explain"),
    "fits": _lazy_page("profile_pages", "fits"),
    "plan-moves": _lazy_page("profile_pages", "plan-moves"),
    "move-vms": _lazy_page("profile_pages", "move-vms"),
    "list-vms": _vms,
    "console": _lazy_page("guest_pages", "console"),
    "address": _lazy_page("guest_pages", "address"),
    "list-images": _lazy_page("guest_pages", "list-images"),
    "reconcile": _reconcile_page,
    "restore-host": _steps_page,
    "install-host": _steps_page,
    "uninstall-host": _steps_page,
    "doctor": _doctor_page,
    "show-vm": _vm,
    "simulate": _lazy_page("simulation_pages", "simulate"),
    **{name: _lazy_page("vgpu_pages", name) for name in ("create-vgpu", "ensure-vgpu", "delete-vgpu", "list-vgpus")},
    "apply": _lazy_page("apply_pages", "apply"),
    "diff": _lazy_page("apply_pages", "diff"),
    "set-mode": _gpu_change_page,
    "set-mig": _gpu_change_page,
    "set-mixed-size": _gpu_change_page,
    "set-scheduler": _scheduler_change_page,
    "cordon": _gpu_change_page,
    "uncordon": _gpu_change_page,
    "sim-list-scenarios": _lazy_page("simulation_pages", "sim-list-scenarios"),
    "sim-reboot": _lazy_page("simulation_pages", "sim-reboot"),
    "sim-reset": _lazy_page("simulation_pages", "sim-reset"),
}


def mib(value: int | None) -> str:
    """Return a size in MiB for people, "?" if it is unknown."""
    return "?" if value is None else format_mib(value)


def size(value: int | None) -> str:
    """Return a size in bytes for people, "?" if it is unknown."""
    return "?" if value is None else format_bytes(value)


def holder(vgpu: VgpuResult) -> str:
    """Name who has a vGPU: the VM, or the carrier of an unmanaged or leaked one."""
    return _vm_label(vgpu) if vgpu.vm or vgpu.name else f"{vgpu.carrier} ({vgpu.owner})"


def shorten_names(names: Sequence[str]) -> str:
    """Return the names, each once with its count; of many names the first ones and the last."""
    labels = [name if n == 1 else f"{name} ({n})" for name, n in Counter(names).items()]
    if len(labels) <= MAX_NAMES:
        return ", ".join(labels)
    return f"{', '.join(labels[: MAX_NAMES - 2])} \N{HORIZONTAL ELLIPSIS} {labels[-1]}"


def vgpus_text(vgpus: Sequence[VgpuResult]) -> str:
    """Return a VM's vGPUs in one cell."""
    counts = Counter(_vgpu_cell(v) for v in vgpus)
    return ", ".join(label if n == 1 else f"{n} x {label}" for label, n in counts.items()) or "-"


def _vm_label(vgpu: VgpuResult) -> str:
    """Return the VM of a vGPU, and its name if host.yaml lists it: `vGPU spare`, `vdi-001 (vGPU spare)`."""
    name = f"vGPU {vgpu.name}" if vgpu.name else ""
    return f"{vgpu.vm} ({name})" if name and vgpu.vm else name or _or_dash(vgpu.vm)


def _vgpu_cell(vgpu: VgpuResult) -> str:
    if not vgpu.present and vgpu.reason:
        return f"{vgpu.profile or vgpu.carrier} ({vgpu.reason})"
    return f"{vgpu.profile} on {vgpu.gpu}" if vgpu.profile else str(vgpu.carrier)


def vgpu_line(vgpu: VgpuResult) -> str:
    """Return what a vGPU is, where it is, and if it is missing: `A100-4C on GPU 0000:3b:00.0 (CARRIER, missing)`."""
    from vgpuctl.cli.partition_pages import location

    line = f"{vgpu.profile} on GPU {vgpu.gpu}" if vgpu.profile else f"GPU {vgpu.gpu}"
    line += f", {location(vgpu)}" if location(vgpu) else ""
    line += f" with {', '.join(vgpu.companions)}" if vgpu.companions else ""
    missing = "" if vgpu.present else f", {vgpu.reason or 'missing'}"
    return f"{line} ({vgpu.carrier}{missing})" if vgpu.carrier != vgpu.gpu else f"{line}{missing}"


def _disk_line(disk: DiskResult | KeptDiskResult) -> str:
    if getattr(disk, "device", "disk") == "cdrom" and disk.size_bytes is None:
        return f"{disk.path} (cdrom)"
    base = f", clone of {disk.base}" if disk.base else ""
    return f"{disk.path} ({size(disk.size_bytes)}{base})"


def _vgpu_count(vgpus: Sequence[VgpuResult]) -> str:
    if not vgpus:
        return "0"
    others = [f"{n} {owner}" for owner in ("unmanaged", "leaked") if (n := sum(v.owner == owner for v in vgpus))]
    return f"{len(vgpus)} ({', '.join(others)})" if others else str(len(vgpus))


def _vf_count(vfs: VfsResult) -> str:
    if not vfs.total:
        return "-"
    return f"{vfs.enabled}/{vfs.total}, {vfs.used} used"


def _value_text(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(str(item) for item in value) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _or_dash(value)


def or_unknown(value: object) -> str:
    """Return a value as text, `?` if it is unknown."""
    return "?" if value is None else str(value)


def free_count(profile: ProfileResult | TypeResult | RoomResult | ReasonResult | ExplainResult | BarrierResult) -> str:
    """Return how many more fit: a number, `at least N` if only a minimum is known, or `?`."""
    minimum = profile.free_at_least
    return f"at least {minimum}" if profile.free is None and minimum else or_unknown(profile.free)


def _or_dash(value: object) -> str:
    return "-" if value is None or value == "" else str(value)

# SPDX-License-Identifier: Apache-2.0
"""The columns of each list, in the order of `-o wide`. Default tables fit into 80 columns for ordinary names.

One line makes a column: its key is what --columns, --sort-by and --filter take, and its name in csv.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from vgpuctl.cli.cells import (
    free_count,
    local_time,
    location,
    log_command,
    log_result,
    mib,
    or_dash,
    or_unknown,
    shorten_names,
    size,
    vgpu_users,
    vgpus_text,
)
from vgpuctl.value import EMPTY_MAPPING, Value

if TYPE_CHECKING:
    from vgpuctl.model.results.gpus import GpuResult, ProfileResult, RoomResult
    from vgpuctl.model.results.vgpus import ListedVgpuResult, VgpuResult
    from vgpuctl.model.results.vms import CloneResult, ImageResult, VmRowResult

Cell = str | int | float | bool | tuple[str, ...] | None
"""The value of a column in a row: what filters compare, rows are sorted by, and csv prints. None: unknown, or none."""
Level = Literal["default", "wide", "named"]
"""Where a column is shown: in every table, in that of `-o wide`, or only where --columns names it (and in csv)."""


class Column(Value):
    """One column. `text`: how tables show a cell, where `str` does not do. `unit`: that of the number, for csv.

    `optional`: the default table omits it if no row has a value.
    """

    key: str
    header: str
    cell: Callable[[Any], Cell]
    text: Callable[[Any], str] | None = None
    level: Level = "default"
    numeric: bool = False
    free_text: bool = False
    is_state: bool = False
    unit: str = ""
    optional: bool = False

    @property
    def csv_key(self) -> str:
        """The column's name in csv: with the unit, `memory_mib`."""
        return f"{self.key}_{self.unit}" if self.unit else self.key


class Listing(Value):
    """A list. `identity`: what a command calls a row: `-o name` prints it.

    `families`: by prefix, columns that exist for any key: `{"label": lambda vm, key: vm.labels.get(key)}` makes
    `label.site` a column.
    """

    noun: str
    columns: tuple[Column, ...]
    identity: Callable[[Any], str]
    families: Mapping[str, Callable[[Any, str], Cell]] = EMPTY_MAPPING


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


def _name_or_count(names: Sequence[str], noun: str) -> str:
    """Return one name, the number of several, `-` for none."""
    return names[0] if len(names) == 1 else f"{len(names)} {noun}" if names else "-"


def _with_room(profile: ProfileResult) -> tuple[RoomResult, ...]:
    return tuple(gpu for gpu in profile.gpus if gpu.free != 0)


def _room_text(profile: ProfileResult) -> tuple[str, ...]:
    return tuple(f"{gpu.address}: {free_count(gpu)}" for gpu in _with_room(profile))


def _known(values: Sequence[str | None]) -> tuple[str, ...]:
    """Return the values that are known, each once."""
    return tuple(dict.fromkeys(value for value in values if value))


def _clone_names(children: Sequence[CloneResult]) -> tuple[str, ...]:
    return tuple(name for child in children for name in (child.vms or (child.path,)))


def _vgpu_owner(vgpu: ListedVgpuResult) -> str:
    return "host.yaml" if vgpu.name else str(vgpu.ownership)


def _vm_vgpus(vm: VmRowResult) -> str | None:
    """Return a VM's vGPUs, whether some of those that it has a place for do not exist, and what it lacks or shares."""
    if not vm.vgpus:
        return None
    own = [v for v in vm.vgpus if v.vm == vm.name and v.attached is not False]
    lacking = [v.profile or v.carrier for v in vm.vgpus if v.vm == vm.name and v.attached is False]
    shared = [f"{vgpus_text([v])} of {v.vm or v.name}" for v in vm.vgpus if v.vm != vm.name]
    is_missing = any(not vgpu.present and not vgpu.reason for vgpu in own)
    texts = [f"{vgpus_text(own)}{' (missing)' if is_missing else ''}"] if own else []
    texts += [f"lacks {', '.join(lacking)}"] if lacking else []
    return ", ".join((*texts, *shared))


def _label_texts(labels: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{key}={value}" for key, value in labels.items())


def _image_name(image: ImageResult) -> str:
    return image.volume or image.path


VMS = Listing(
    "VMs",
    (
        Column("name", "NAME", lambda vm: vm.name),
        Column("state", "STATE", lambda vm: str(vm.state), is_state=True),
        Column("owner", "OWNER", lambda vm: vm.owner),
        Column("ownership", "OWNERSHIP", lambda vm: str(vm.ownership)),
        Column(
            "memory",
            "MEMORY",
            lambda vm: vm.memory_mib,
            lambda vm: mib(vm.memory_mib),
            "wide",
            numeric=True,
            unit="mib",
        ),
        Column("vcpus", "VCPUS", lambda vm: vm.vcpus, level="wide", numeric=True),
        Column("vgpus", "VGPUS", _vm_vgpus),
        Column("reserve", "RESERVE", lambda vm: vm.reserve, level="wide"),
        Column("image", "IMAGE", lambda vm: vm.image, level="wide"),
        Column("labels", "LABELS", lambda vm: _label_texts(vm.labels), level="wide"),
        Column("uuid", "UUID", lambda vm: vm.uuid, level="wide"),
        Column("profile", "PROFILE", lambda vm: _known([v.profile for v in vm.vgpus]), level="named"),
        Column("gpu", "GPU", lambda vm: _known([v.gpu for v in vm.vgpus]), level="named"),
    ),
    lambda vm: str(vm.name),
    families={"label": lambda vm, key: vm.labels.get(key)},
)  # fmt: skip
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
VGPUS = Listing(
    "vGPUs",
    (
        Column("name", "NAME", lambda vgpu: vgpu.name, optional=True),
        Column("profile", "PROFILE", lambda vgpu: vgpu.profile, lambda vgpu: or_unknown(vgpu.profile)),
        Column("gpu", "GPU", lambda vgpu: vgpu.gpu),
        Column("exists", "EXISTS", lambda vgpu: vgpu.present),
        Column("vm", "VM", lambda vgpu: vgpu.vm, lambda vgpu: vgpu_users(vgpu) or "-"),
        Column("ownership", "OWNERSHIP", _vgpu_owner, is_state=True),
        Column(
            "memory", "MEMORY", lambda vgpu: vgpu.framebuffer_mib, lambda vgpu: mib(vgpu.framebuffer_mib), "wide",
            numeric=True, unit="mib",
        ),
        Column("location", "WHERE", lambda vgpu: location(vgpu) or None, level="wide"),
        Column(
            "carrier", "CARRIER", lambda vgpu: vgpu.carrier, lambda vgpu: ", ".join((vgpu.carrier, *vgpu.companions)),
            "wide",
        ),
        Column("reason", "REASON", lambda vgpu: vgpu.reason, level="named", free_text=True),
        Column("backend", "BACKEND", lambda vgpu: vgpu.backend and str(vgpu.backend), level="named"),
    ),
    lambda vgpu: str(vgpu.name or vgpu.carrier),
)  # fmt: skip
PROFILES = Listing(
    "profiles",
    (
        Column("profile", "PROFILE", lambda row: row.profile),
        Column("type", "TYPE", lambda row: row.type_id, lambda row: or_unknown(row.type_id)),
        Column(
            "memory", "MEMORY", lambda row: row.framebuffer_mib, lambda row: mib(row.framebuffer_mib),
            numeric=True, unit="mib",
        ),
        Column("max", "MAX/GPU", lambda row: row.max_per_gpu, numeric=True),
        Column("free", "FREE", lambda row: row.free, free_count, numeric=True),
        Column(
            "gpu", "GPU", lambda row: tuple(gpu.address for gpu in _with_room(row)),
            lambda row: _name_or_count([gpu.address for gpu in _with_room(row)], "GPUs"),
        ),
        Column("room", "WHERE", _room_text, level="wide"),
    ),
    lambda row: str(row.profile),
)  # fmt: skip
IMAGES = Listing(
    "images",
    (
        Column("image", "IMAGE", _image_name),
        Column("role", "ROLE", lambda image: image.role, is_state=True),
        Column(
            "size", "SIZE", lambda image: image.size_bytes, lambda image: size(image.size_bytes),
            numeric=True, unit="bytes",
        ),
        Column("clones", "CLONES", lambda image: len(image.children), numeric=True),
        Column("vms", "VMS", lambda image: image.vms, lambda image: _name_or_count(image.vms, "VMs")),
        Column("format", "FORMAT", lambda image: image.format, lambda image: or_unknown(image.format), "wide"),
        Column("pool", "POOL", lambda image: image.pool, level="wide"),
        Column("base", "BASE", lambda image: image.base, level="wide"),
        Column("path", "PATH", lambda image: image.path, level="wide"),
        Column(
            "cloned-by", "CLONED BY", lambda image: _clone_names(image.children),
            lambda image: shorten_names(_clone_names(image.children)) or "-", "wide",
        ),
    ),
    lambda image: str(image.path),
)  # fmt: skip
LOG = Listing(
    "entries of the log",
    (
        Column("time", "TIME", lambda entry: entry.time, local_time),
        Column("user", "USER", lambda entry: entry.user, lambda entry: or_unknown(entry.user)),
        Column("uid", "UID", lambda entry: entry.uid, level="wide", numeric=True),
        Column("result", "RESULT", lambda entry: entry.result, log_result),
        Column(
            "seconds", "SECONDS", lambda entry: entry.duration_seconds, lambda entry: f"{entry.duration_seconds:.1f}",
            numeric=True,
        ),
        Column("vms", "VMS", lambda entry: entry.vms, lambda entry: shorten_names(entry.vms) or "-", "wide"),
        Column("gpus", "GPUS", lambda entry: entry.gpus, lambda entry: shorten_names(entry.gpus) or "-", "wide"),
        Column("command", "COMMAND", log_command, free_text=True),
        Column("error", "ERROR", lambda entry: entry.error, level="wide", free_text=True),
        Column("left", "LEFT", lambda entry: entry.left, level="named", free_text=True),
        Column("spec", "SPEC", lambda entry: entry.spec, level="named", free_text=True),
        Column("changed", "CHANGED", lambda entry: entry.changed, level="named"),
        Column("status", "STATUS", lambda entry: entry.exit_status, level="named", numeric=True),
    ),
    lambda entry: f"{entry.time} {entry.command}",
)  # fmt: skip
SCENARIOS = Listing(
    "simulated hosts",
    (
        Column("host", "HOST", lambda row: row.host),
        Column("description", "DESCRIPTION", lambda row: row.description, free_text=True),
    ),
    lambda row: str(row.host),
)
LISTINGS = {
    "list-gpus": GPUS,
    "list-vms": VMS,
    "list-vgpus": VGPUS,
    "list-profiles": PROFILES,
    "list-images": IMAGES,
    "log": LOG,
    "sim-list-scenarios": SCENARIOS,
}

# SPDX-License-Identifier: Apache-2.0
"""The commands that show, start, stop and delete VMs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from vgpuctl.cli import run, targets
from vgpuctl.cli.command import make_command
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.shown import (
    Column,
    Listing,
    Page,
    Pairs,
    device_item,
    disk_line,
    drawn_line,
    known_texts,
    mib,
    network_line,
    value_text,
    vgpus_text,
)
from vgpuctl.cli.targets import Targets, change, count_rows, query, running_text
from vgpuctl.config.arguments import NONE, RENDERING_MODE
from vgpuctl.model.autostart import ANY_STORAGE, AUTOSTART_NEVER
from vgpuctl.model.numbers import count_text
from vgpuctl.value import field_names

if TYPE_CHECKING:
    from vgpuctl.model.results.vms import GuestHelperResult, GuestSoftwareResult, GuestUserResult, VmResult, VmRowResult


def _vm_vgpus(vm: VmRowResult) -> str | None:
    """Return a VM's vGPUs, whether some of those that it has a place for do not exist, and what it lacks or shares."""
    if not vm.vgpus:
        return vm.render_gpu and f"{RENDERING_MODE} on {vm.render_gpu}"
    own = [v for v in vm.vgpus if v.vm == vm.name and v.attached is not False]
    lacking = [v.profile or v.carrier for v in vm.vgpus if v.vm == vm.name and v.attached is False]
    shared = [f"{vgpus_text([v])} of {v.vm or v.name}" for v in vm.vgpus if v.vm != vm.name]
    is_missing = any(not vgpu.present and not vgpu.reason for vgpu in own)
    texts = [f"{vgpus_text(own)}{' (missing)' if is_missing else ''}"] if own else []
    texts += [f"lacks {', '.join(lacking)}"] if lacking else []
    return ", ".join((*texts, *shared))


def _desktop_text(vm: VmRowResult | VmResult) -> str | None:
    """Return of which pool a VM is a desktop, and whose it is."""
    if vm.desktop is None:
        return None
    state = ", a refresh is due" if vm.desktop.dirty and vm.desktop.user is None else ""
    return f"{vm.desktop.pool}: {vm.desktop.user or 'nobody'}{state}"


def _label_texts(labels: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{key}={value}" for key, value in labels.items())


_MOVABLE = {True: "yes", False: "no", None: "?"}
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
        Column("license", "LICENSE", lambda vm: vm.license, level="wide"),
        Column("sharing", "SHARING", lambda vm: vm.guest_sharing, level="wide"),
        Column("driver", "DRIVER", lambda vm: vm.driver, level="wide"),
        Column("user", "USER", lambda vm: vm.guest_users, level="wide"),
        Column("movable", "MOVABLE", lambda vm: _MOVABLE[vm.can_move], level="wide"),
        Column("labels", "LABELS", lambda vm: _label_texts(vm.labels), level="wide"),
        Column("uuid", "UUID", lambda vm: vm.uuid, level="wide"),
        Column("profile", "PROFILE", lambda vm: known_texts([v.profile for v in vm.vgpus]), level="named"),
        Column("gpu", "GPU", lambda vm: known_texts([v.gpu for v in vm.vgpus]) or vm.render_gpu, level="named"),
        Column("desktop", "DESKTOP", _desktop_text, level="named"),
        Column("account", "ACCOUNT", lambda vm: vm.account, level="named"),
    ),
    lambda vm: str(vm.name),
    families={"label": lambda vm, key: vm.labels.get(key)},
)  # fmt: skip


MAX_NAMED = 3
"""So many VMs are named in a line; of more, the command that shows them."""


def _vms(data: tuple[VmRowResult, ...]) -> Page:
    if not data:
        return Page(stderr_lines=["no VMs here"])
    names = [vm.name for vm in data if vm.adoptable]
    adopt = shlex.join(["vgpuctl", "adopt", *names]) if len(names) <= MAX_NAMED else "vgpuctl adopt --all --dry-run"
    lines = [f"{count_text(len(names), 'VM')} could be adopted: {adopt}"] if names else []
    lines += [
        f"the move of {vm.name} {_way(vm)} {vm.moves_with} has not ended; {_end_move(vm.name, vm.moves_with)}"
        for vm in data
        if vm.moves_with is not None
    ]
    return Page(stderr_lines=lines)


def _way(vm: VmRowResult | VmResult) -> str:
    return "to" if vm.moves_away else "from"


def _end_move(name: str, peer: str) -> str:
    from vgpuctl.model.hint_commands import end_migration_command

    return f"if no migrate-vm works on it any more: {end_migration_command(name, peer)}"


@make_command(
    "list-vms",
    page=_vms,
    listing=VMS,
    examples=(
        ("vgpuctl --host sim:a100-40 list-vms", "every VM with its vGPUs"),
        ("vgpuctl list-vms --filter 'state=running,name=vdi-*' -o name", "the names of the running desktops"),
        (
            "vgpuctl list-vms --filter 'image=/srv/images/ubuntu*' --columns name,image",
            "the VMs made from these images",
        ),
    ),
)
@click.pass_obj
def list_vms(settings: Settings) -> int:
    """List the VMs with their state, owner and vGPUs.

    OWNER is the person or team that uses the VM. OWNERSHIP shows whether vgpuctl manages it. MOVABLE shows whether its
    devices let it move to another host while it runs; show-vm says why not. Unmanaged VMs with a vGPU, VF or whole GPU
    that vgpuctl could manage are named on stderr.
    """
    return run.call(settings, "list-vms", lambda host: host.list_vms())


_FIRST_FIELDS = ("ownership", "owner", "account", "record", "vcpus", "firmware", "reserve", "spread_group")
_IN_OWN_WORDS = frozenset({
    "name", "uuid", "state", "memory_mib", "pinned_cpus", "memory_nodes", "display", "networks", "image", "cloud_init",
    "network_config", "labels", "vgpus", "disks", "generation", "autostart", "autostart_storage", "start_order",
    "should_run", "planned", "libvirt_autostart", "guest_software", "guest_helper", "helper_report", "desktop",
    "prepared", "stop_reason", "off_after_setup", "render_gpu", "can_move", "why_not_movable", "moves_with",
    "moves_away",
})  # fmt: skip
"""The fields that a VM's page has in words of its own, and `generation`, which only programs use. Fields that are in
neither list come after the first."""


_USUAL_REASONS = (None, "shutdown", "destroyed")
_PREPARED = "yes: refresh-vm without --image brings back the disk that prepare-vm kept"
_TO_PREPARE = "no: its guest shuts down once it is set up; then prepare-vm keeps its disk"


def _vm(data: VmResult) -> Page:
    others = [n for n in field_names(data) if n not in _IN_OWN_WORDS.union(_FIRST_FIELDS) and getattr(data, n) != NONE]
    by_name = [(name.replace("_", " "), getattr(data, name)) for name in (*_FIRST_FIELDS, *others)]
    why = f" ({data.stop_reason})" if data.stop_reason not in _USUAL_REASONS else ""
    items: list[tuple[str, str]] = [("name", data.name), ("uuid", data.uuid), ("state", f"{data.state}{why}")]
    items += [("memory", mib(data.memory_mib))]
    items += [(title, value_text(value)) for title, value in by_name if value is not None]
    items += [("cpus", _pins_line(data))] if data.pinned_cpus or data.memory_nodes else []
    items += [("display", "the first vGPU's screen is in the console")] if data.display else []
    items += [("network", network_line(network)) for network in data.networks]
    files = (("user-data", data.cloud_init), ("network-config", data.network_config))
    items += [("cloud-init", f"{what} {path}") for what, path in files if path]
    items += [("autostart", line)] if (line := _autostart_line(data)) else []
    items += [("when off", f"{name.replace('_', ' ')} {value}") for name, value in data.planned.items()]
    items += [("desktop", text)] if (text := _desktop_text(data)) else []
    items += (
        [("prepared", _PREPARED if data.prepared else _TO_PREPARE)] if data.prepared or data.off_after_setup else []
    )
    items += [("labels", value_text(data.labels))] if data.labels else []
    items += _software_lines(data.guest_software)
    items += (
        [("helper", "cloud-init brings it; it has not reported")]
        if data.guest_helper and data.helper_report is None
        else []
    )
    items += _helper_lines(data.helper_report)
    items += [device_item(v, data.name) for v in data.vgpus]
    items += [("gpu", drawn_line(data.render_gpu))] if data.render_gpu else []
    items += [("movable", f"{_MOVABLE[data.can_move]}: {data.why_not_movable}")] if data.why_not_movable else []
    other = data.moves_with
    items += [("move", f"{_way(data)} {other}, not ended; {_end_move(data.name, other)}")] if other else []
    items += [("disk", disk_line(disk)) for disk in data.disks]
    return Page([Pairs(tuple(items))])


_FITS = {
    "supported": "the host's driver supports it",
    "old": "older than the host's driver supports",
    "too-new": "newer than the host's: the vGPU does not start",
    "unknown": "whether the host's driver supports it is not known",
}


def _software_lines(software: GuestSoftwareResult | None) -> list[tuple[str, str]]:
    """Return the driver and the license of a running guest."""
    if software is None:
        return []
    release = f" (vGPU {software.release})" if software.release else ""
    lines = [("guest driver", f"{software.driver}{release}; {_FITS.get(software.fit, software.fit)}")]
    if software.license is not None:
        until = f" until {software.license_expiry}" if software.license_expiry else ""
        lines.append(("license", f"{software.license}{until}"))
    return lines


def _helper_lines(helper: GuestHelperResult | None) -> list[tuple[str, str]]:
    """Return what the helper in a guest reports."""
    if helper is None:
        return []
    lines = [("helper", f"version {helper.version}, reported at {helper.seen}")]
    if helper.users is not None:
        lines.append(("logged on", ", ".join(map(_user_text, helper.users)) or "nobody"))
    drivers = [f"driver {helper.driver}"] if helper.driver else []
    drivers += [f"the host's driver {helper.host_driver}"] if helper.host_driver else []
    drivers += ["MPS runs"] if helper.mps else []
    return [*lines, *([("guest says", ", ".join(drivers))] if drivers else [])]


def _user_text(user: GuestUserResult) -> str:
    notes = ["disconnected"] if user.state == "disconnected" else []
    notes += [f"idle for {user.idle_seconds // 60} minutes"] if user.idle_seconds and user.idle_seconds >= 60 else []
    return f"{user.user} ({', '.join(notes)})" if notes else user.user


def _autostart_line(data: VmResult) -> str:
    """Return who starts the VM after a boot; empty if nobody does."""
    parts = []
    if data.autostart not in (None, AUTOSTART_NEVER):
        state = "" if data.should_run is None else ", to run" if data.should_run else ", to be off"
        storage = ", also with shared disks" if data.autostart_storage == ANY_STORAGE else ""
        parts = [f"{data.autostart}{state} (start order {data.start_order}{storage})"]
    return "; ".join([*parts, "libvirt starts it (virsh autostart)"] if data.libvirt_autostart else parts)


def _pins_line(data: VmResult) -> str:
    memory = f", memory on NUMA node {data.memory_nodes}" if data.memory_nodes else ""
    return f"{data.pinned_cpus or 'any'}{memory}"


@make_command(
    "show-vm",
    page=_vm,
    examples=(
        ("vgpuctl --host sim:a100-40 show-vm vdi-001", "its state, vGPUs and disks"),
        ("vgpuctl show-vm --label team=cad", "every VM with this label"),
    ),
)
@targets.vms(parallel=False)
@click.pass_obj
def show_vm(settings: Settings, targets: Targets) -> int:
    """Show VMs by name, uuid, range or glob: their state, owner, labels, vGPUs with their devices, and disks."""
    return query(settings, "show-vm", targets, lambda host, name: host.show_vm(name))


@make_command(
    "start-vm",
    shown_by="show-vm",
    words=("started", "already running"),
    examples=(
        ("vgpuctl --host sim:a100-40 start-vm vdi-001", "also after a reboot of the host removed its vGPU"),
        ("vgpuctl start-vm 'vdi-{001..100}' --parallel 8", "a hundred VMs, eight at a time"),
    ),
)
@targets.vms()
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def start_vm(settings: Settings, targets: Targets, dry_run: bool) -> int:
    """Start VMs. vGPUs that are missing, as after a reboot of the host, are created first.

    A VM that was created with '--reserve running' gets its last place if that is free, and any other place if not.
    """
    return change(
        settings, "start-vm", targets, lambda host, name: host.start_vm(name, dry_run=dry_run), dry_run=dry_run
    )


@make_command(
    "stop-vm",
    shown_by="show-vm",
    words=("stopped", "already off"),
    examples=(
        ("vgpuctl --host sim:a100-40 stop-vm vdi-001", "asks the guest to power off"),
        ("vgpuctl --host sim:a100-40 stop-vm vdi-001 --force", "forces the VM off"),
        ("vgpuctl stop-vm 'vdi-*' --label team=cad", "the CAD team's desktops"),
    ),
)
@targets.vms()
@click.option("--force", is_flag=True, help="Force the VM off at once, without asking the guest.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def stop_vm(settings: Settings, targets: Targets, force: bool, dry_run: bool) -> int:
    """Stop VMs and wait until they are off, at most --wait seconds each. A VM that still runs then has failed.

    A VM keeps its disks, and its vGPUs unless it was created with '--reserve running'.
    """
    return change(
        settings,
        "stop-vm",
        targets,
        lambda host, name: host.stop_vm(name, force=force, dry_run=dry_run),
        dry_run=dry_run,
    )


@make_command(
    "save-vm",
    shown_by="show-vm",
    words=("saved", "already saved"),
    examples=(
        ("vgpuctl --host sim:a100-40 save-vm vdi-001", "its user's programs go on after start-vm"),
        ("vgpuctl save-vm 'vdi-*' --parallel 4", "before maintenance, four at a time"),
        ("vgpuctl save-vm vdi-001 --dry-run", "whether it can be saved, and if not, why"),
    ),
)
@targets.vms()
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def save_vm(settings: Settings, targets: Targets, dry_run: bool) -> int:
    """Save the memory and devices of running VMs; they are off then, and start-vm goes on where they stopped.

    A saved VM keeps its vGPUs, also with '--reserve running'. Its memory takes as much disk space below
    /var/lib/libvirt/qemu/save. Whole GPUs cannot be saved, and plain VFs only with a VFIO driver of their maker.
    """
    return change(settings, "save-vm", targets, lambda host, name: host.save_vm(name, dry_run=dry_run), dry_run=dry_run)


@make_command(
    "delete-vm",
    words=("deleted", "unchanged"),
    examples=(
        ("vgpuctl delete-vm vdi-001", "shows what will be deleted, and asks"),
        ("vgpuctl --host sim:a100-40 delete-vm vdi-001 --keep-disks --yes", "does not ask, and keeps the disks"),
        ("vgpuctl delete-vm 'vdi-{090..099}' --dry-run", "what deleting ten VMs would do"),
    ),
)
@targets.vms()
@click.option("--keep-disks", is_flag=True, help="Keep the disks that vgpuctl created; only the cloud-init seed goes.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def delete_vm(settings: Settings, targets: Targets, keep_disks: bool, dry_run: bool) -> int:
    """Delete VMs: their vGPUs, their definitions, and the disks that vgpuctl created for them.

    NVRAM, TPM state, a saved state and snapshots are deleted too, and shown before. vgpuctl never deletes a base image,
    a disk that it did not create, or a VM that it did not create.
    """
    return change(
        settings,
        "delete-vm",
        targets,
        lambda host, name: host.delete_vm(name, keep_disks=keep_disks, dry_run=dry_run),
        question=lambda rows, _: f"Delete {count_rows(rows, 'VM')}?{running_text(rows)}",
        dry_run=dry_run,
    )

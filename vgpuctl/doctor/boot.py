# SPDX-License-Identifier: Apache-2.0
"""What comes back after a reboot: the libvirt hook, the restore unit, and what libvirt-guests does at shutdown.

Source: libvirt's hooks.html (the hook must be executable; `qemu.d` since 6.5) and libvirt-guests(8).
"""

from __future__ import annotations

from vgpuctl.backends import backend_for
from vgpuctl.doctor.check import (
    Check,
    CheckContext,
    Finding,
    PathsToRead,
    fail,
    not_applicable,
    ok,
    require_snapshot,
    unknown,
    warn,
)
from vgpuctl.model.snapshot import Snapshot

LIBVIRT_HOOK = "/etc/libvirt/hooks/qemu"
HOOK_DIRECTORY = "/etc/libvirt/hooks/qemu.d"
VGPUCTL_HOOK = f"{HOOK_DIRECTORY}/vgpuctl"
RESTORE_UNIT = "vgpuctl-restore.service"
UNIT_DIRECTORIES = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
WANTS_DIRECTORY = "/etc/systemd/system/multi-user.target.wants"
LIBVIRT_GUESTS_UNIT = "libvirt-guests.service"
LIBVIRT_GUESTS_CONFIGS = ("/etc/default/libvirt-guests", "/etc/sysconfig/libvirt-guests")
INSTALL_COMMAND = "vgpuctl install-host"


def _check_start_hook(context: CheckContext, snapshot: Snapshot) -> Finding:
    if not _loses_vgpus_at_reboot(snapshot):
        return not_applicable("no GPU here has vGPUs that a reboot removes")
    main, folder = context.file(LIBVIRT_HOOK), context.folder(HOOK_DIRECTORY)
    in_folder = "vgpuctl" in (folder.names or ())
    if not in_folder and "vgpuctl" not in (main.text or ""):
        problems = [problem for problem in (main.problem, folder.problem) if problem]
        if problems:
            return unknown(*problems)
        return warn(
            f"{VGPUCTL_HOOK} does not exist, and {LIBVIRT_HOOK} does not call vgpuctl: after a reboot VMs do "
            "not start with virsh or"
            " autostart, because nothing creates their vGPUs",
            fix=f"{INSTALL_COMMAND}, or start VMs with vgpuctl start-vm",
        )
    path = VGPUCTL_HOOK if in_folder else LIBVIRT_HOOK
    permissions = context.permissions.get(path)
    if permissions is None:
        return unknown(f"{path} exists; its permissions cannot be read")
    if not permissions.mode & 0o100:
        return fail(f"{path} has mode {permissions.mode:04o}: libvirt ignores it", fix=f"chmod 755 {path}")
    return ok(f"{path} exists, mode {permissions.mode:04o}")


def _check_restore_unit(context: CheckContext, snapshot: Snapshot) -> Finding:
    if not _loses_vgpus_at_reboot(snapshot):
        return not_applicable("no GPU here has vGPUs that a reboot removes")
    for folder in UNIT_DIRECTORIES:
        if RESTORE_UNIT in (context.folder(folder).names or ()):
            return _check_unit_enabled(context, f"{folder}/{RESTORE_UNIT}")
    problems = [problem for directory in UNIT_DIRECTORIES if (problem := context.folder(directory).problem)]
    if problems:
        return unknown(*problems)
    return warn(
        f"no {RESTORE_UNIT} in {', '.join(UNIT_DIRECTORIES[:2])}: a reboot removes VFs and vGPUs",
        fix=INSTALL_COMMAND,
    )


def _check_unit_enabled(context: CheckContext, unit: str) -> Finding:
    wants = context.folder(WANTS_DIRECTORY)
    if wants.problem is not None:
        return unknown(f"{unit} exists", wants.problem)
    if RESTORE_UNIT not in (wants.names or ()):
        return warn(f"{unit} exists, but {WANTS_DIRECTORY} has no link to it", fix=f"systemctl enable {RESTORE_UNIT}")
    return ok(f"{unit} exists and is enabled")


def _check_libvirt_guests(context: CheckContext) -> Finding:
    if context.snapshot is not None and not context.gpus:
        return not_applicable("there is no GPU here")
    wants = context.folder(WANTS_DIRECTORY)
    if wants.problem is not None:
        return unknown(wants.problem)
    if LIBVIRT_GUESTS_UNIT not in (wants.names or ()):
        return ok(f"{LIBVIRT_GUESTS_UNIT} is not enabled ({WANTS_DIRECTORY})")
    if context.snapshot is not None and context.snapshot.hypervisor.available and not _has_hostdevs(context.snapshot):
        return not_applicable("no VM here has a GPU or a vGPU")
    for path in LIBVIRT_GUESTS_CONFIGS:
        read = context.file(path)
        if read.problem is not None:
            return unknown(read.problem)
        if read.text is not None:
            return _check_shutdown_action(path, read.text)
    return unknown(f"{LIBVIRT_GUESTS_UNIT} is enabled, but neither {' nor '.join(LIBVIRT_GUESTS_CONFIGS)} exists")


def _check_shutdown_action(path: str, text: str) -> Finding:
    action = "not set"
    for line in text.splitlines():
        name, _, value = line.strip().partition("=")
        if name == "ON_SHUTDOWN":
            action = value.strip().strip("\"'").lower()
    if action == "shutdown":
        return ok(f"{path}: ON_SHUTDOWN={action}")
    return warn(
        f"{path}: ON_SHUTDOWN is {action}; VMs with devices cannot be suspended to disk, so a shutdown of the host "
        "would"
        " not stop them properly",
        fix=f"write ON_SHUTDOWN=shutdown into {path}",
    )


def _loses_vgpus_at_reboot(snapshot: Snapshot) -> bool:
    return any(backend_for(g.backend).creates_devices for g in snapshot.gpus)


def _has_hostdevs(snapshot: Snapshot) -> bool:
    return any(vm.hostdevs for vm in snapshot.vms)


CHECKS = (
    Check(
        id="start-hook",
        title="libvirt's hook creates a VM's vGPUs when it starts",
        looks_at=f"`{VGPUCTL_HOOK}`, `{LIBVIRT_HOOK}`",
        run=require_snapshot(_check_start_hook),
        paths=PathsToRead(files=(LIBVIRT_HOOK,), folders=(HOOK_DIRECTORY,), permissions=(LIBVIRT_HOOK, VGPUCTL_HOOK)),
    ),
    Check(
        id="restore-unit",
        title="VFs and vGPUs are restored after a reboot",
        looks_at=f"`{RESTORE_UNIT}` in `{'`, `'.join(UNIT_DIRECTORIES)}`, `{WANTS_DIRECTORY}`",
        run=require_snapshot(_check_restore_unit),
        paths=PathsToRead(folders=(*UNIT_DIRECTORIES, WANTS_DIRECTORY)),
    ),
    Check(
        id="libvirt-guests",
        title="VMs are shut down with the host, not suspended",
        looks_at=f"`ON_SHUTDOWN` in `{'` or `'.join(LIBVIRT_GUESTS_CONFIGS)}`, `{WANTS_DIRECTORY}`",
        run=_check_libvirt_guests,
        paths=PathsToRead(files=LIBVIRT_GUESTS_CONFIGS, folders=(WANTS_DIRECTORY,)),
        needs_vms=True,
    ),
)

# SPDX-License-Identifier: Apache-2.0
"""What comes back after a reboot: the libvirt hook, the unit that restores, and what libvirt-guests does at shutdown.

Source: libvirt's hooks.html (the hook must be executable; `qemu.d` since 6.5) and libvirt-guests(8).
"""

from __future__ import annotations

from vgpuctl.doctor.check import (
    Check,
    Finding,
    Look,
    Needs,
    fail,
    judged_by_host,
    not_applicable,
    ok,
    unknown,
    warn,
)
from vgpuctl.model.gpu import Backend
from vgpuctl.model.snapshot import Snapshot

HOOK = "/etc/libvirt/hooks/qemu"
HOOKS = "/etc/libvirt/hooks/qemu.d"
OWN_HOOK = f"{HOOKS}/vgpuctl"
UNIT = "vgpuctl-restore.service"
UNIT_FOLDERS = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
WANTS = "/etc/systemd/system/multi-user.target.wants"
GUESTS_UNIT = "libvirt-guests.service"
GUESTS = ("/etc/default/libvirt-guests", "/etc/sysconfig/libvirt-guests")
INSTALL = "vgpuctl install-host"
_VANISH = (Backend.MDEV_PF, Backend.MDEV_VF, Backend.VENDOR_VF)


def _hook(look: Look, snapshot: Snapshot) -> Finding:
    if not _vanishing(snapshot):
        return not_applicable("no GPU here has vGPUs that a reboot takes away")
    main, folder = look.file(HOOK), look.folder(HOOKS)
    in_folder = "vgpuctl" in (folder.names or ())
    if not in_folder and "vgpuctl" not in (main.text or ""):
        problems = [p for p in (main.problem, folder.problem) if p]
        if problems:
            return unknown(*problems)
        return warn(
            f"there is no {OWN_HOOK}, and {HOOK} does not name vgpuctl: after a reboot VMs do not start with virsh or"
            " autostart, because nothing makes their vGPUs",
            fix=f"{INSTALL}, or start VMs with vgpuctl start-vm",
        )
    path = OWN_HOOK if in_folder else HOOK
    seen = look.permissions.get(path)
    if seen is None:
        return unknown(f"{path} is there; its permissions cannot be read")
    if not seen.mode & 0o100:
        return fail(f"{path} has mode {seen.mode:04o}: libvirt leaves it out", fix=f"chmod 755 {path}")
    return ok(f"{path} is there, mode {seen.mode:04o}")


def _restore(look: Look, snapshot: Snapshot) -> Finding:
    if not _vanishing(snapshot):
        return not_applicable("no GPU here has vGPUs that a reboot takes away")
    for folder in UNIT_FOLDERS:
        if UNIT in (look.folder(folder).names or ()):
            return _enabled(look, f"{folder}/{UNIT}")
    problems = [p for f in UNIT_FOLDERS if (p := look.folder(f).problem)]
    if problems:
        return unknown(*problems)
    return warn(f"no {UNIT} in {', '.join(UNIT_FOLDERS[:2])}: a reboot takes VFs and vGPUs away", fix=INSTALL)


def _enabled(look: Look, unit: str) -> Finding:
    wants = look.folder(WANTS)
    if wants.problem is not None:
        return unknown(f"{unit} is there", wants.problem)
    if UNIT not in (wants.names or ()):
        return warn(f"{unit} is there, and {WANTS} has no link to it", fix=f"systemctl enable {UNIT}")
    return ok(f"{unit} is there and enabled")


def _guests(look: Look) -> Finding:
    if look.snapshot is not None and not look.gpus:
        return not_applicable("there is no GPU here")
    wants = look.folder(WANTS)
    if wants.problem is not None:
        return unknown(wants.problem)
    if GUESTS_UNIT not in (wants.names or ()):
        return ok(f"{GUESTS_UNIT} is not enabled ({WANTS})")
    if look.snapshot is not None and look.snapshot.hypervisor.available and not _with_devices(look.snapshot):
        return not_applicable("no VM here has a GPU or a vGPU")
    for path in GUESTS:
        read = look.file(path)
        if read.problem is not None:
            return unknown(read.problem)
        if read.text is not None:
            return _on_shutdown(path, read.text)
    return unknown(f"{GUESTS_UNIT} is enabled, and neither {' nor '.join(GUESTS)} is there")


def _on_shutdown(path: str, text: str) -> Finding:
    action = "not set"
    for line in text.splitlines():
        name, _, value = line.strip().partition("=")
        if name == "ON_SHUTDOWN":
            action = value.strip().strip("\"'").lower()
    if action == "shutdown":
        return ok(f"{path}: ON_SHUTDOWN={action}")
    return warn(
        f"{path}: ON_SHUTDOWN is {action}; VMs with devices cannot be suspended to disk, so the host's shutdown would"
        " not stop them properly",
        fix=f"write ON_SHUTDOWN=shutdown into {path}",
    )


def _vanishing(snapshot: Snapshot) -> bool:
    return any(g.backend in _VANISH for g in snapshot.gpus)


def _with_devices(snapshot: Snapshot) -> bool:
    return any(vm.hostdevs for vm in snapshot.vms)


CHECKS = (
    Check(
        id="start-hook",
        title="libvirt makes vGPUs when it starts a VM",
        looks_at=f"`{OWN_HOOK}`, `{HOOK}`",
        judge=judged_by_host(_hook),
        needs=Needs(files=(HOOK,), folders=(HOOKS,), permissions=(HOOK, OWN_HOOK)),
    ),
    Check(
        id="restore-unit",
        title="VFs and vGPUs come back after a reboot",
        looks_at=f"`{UNIT}` in `{'`, `'.join(UNIT_FOLDERS)}`, `{WANTS}`",
        judge=judged_by_host(_restore),
        needs=Needs(folders=(*UNIT_FOLDERS, WANTS)),
    ),
    Check(
        id="libvirt-guests",
        title="VMs are shut down with the host, not suspended",
        looks_at=f"`ON_SHUTDOWN` in `{'` or `'.join(GUESTS)}`, `{WANTS}`",
        judge=_guests,
        needs=Needs(files=GUESTS, folders=(WANTS,)),
        vms=True,
    ),
)

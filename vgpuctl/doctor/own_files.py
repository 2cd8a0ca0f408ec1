# SPDX-License-Identifier: Apache-2.0
"""vgpuctl's own files on the host: its run directory, host.yaml, the machine id, and what comes back after a reboot.

The machine id marks vgpuctl's VMs. After a reboot the libvirt hook and the restore unit create vGPUs again; what
libvirt-guests does at shutdown decides whether VMs stop properly.

Source: libvirt's hooks.html (the hook must be executable; `qemu.d` since 6.5) and libvirt-guests(8), a shell script
that reads its file with `.`.
"""

from __future__ import annotations

import re

from vgpuctl.backends import backend_for
from vgpuctl.config.host_spec import parse_host_spec
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
from vgpuctl.errors import InvalidInput
from vgpuctl.gpu.offered_profiles import find_impossible_profiles
from vgpuctl.makers import sets_vfs_at_load
from vgpuctl.model.gpu import GpuMode
from vgpuctl.model.port_values import FilePermissions
from vgpuctl.model.snapshot import Snapshot

RUN_DIRECTORY = "/run/vgpuctl"
HOST_FILE = "/etc/vgpuctl/host.yaml"
MACHINE_ID = "/etc/machine-id"
_OTHERS_WRITE = 0o022
_MACHINE_ID_DIGITS = 32


def _check_run_directory(context: CheckContext) -> Finding:
    permissions = context.permissions.get(RUN_DIRECTORY)
    if permissions is None:
        return ok(f"{RUN_DIRECTORY} does not exist or is not accessible; it is created when needed")
    if _is_writable_by_others(permissions):
        return fail(
            _describe_permissions(RUN_DIRECTORY, permissions),
            "others could forge or remove claims",
            fix=f"chown root:root {RUN_DIRECTORY}; chmod 700 {RUN_DIRECTORY}",
        )
    if context.claims_problem is not None:
        return unknown(_describe_permissions(RUN_DIRECTORY, permissions), context.claims_problem, fix="run it as root")
    return ok(_describe_permissions(RUN_DIRECTORY, permissions))


def _check_host_file(context: CheckContext) -> Finding:
    content = context.file(HOST_FILE)
    if content.problem is not None and "Permission denied" in content.problem:
        return unknown(content.problem, fix="run it as root")
    if content.problem is not None:
        return fail(content.problem, "vgpuctl refuses new vGPUs and changes of GPUs", fix=context.host_file_hint)
    if content.text is None:
        return ok(f"{HOST_FILE} does not exist: the defaults apply")
    try:
        spec = parse_host_spec(content.text, HOST_FILE)
    except InvalidInput as error:
        return fail(*error.message.splitlines(), fix=context.host_file_hint)
    permissions = context.permissions.get(HOST_FILE)
    if permissions is not None and _is_writable_by_others(permissions):
        return warn(
            _describe_permissions(HOST_FILE, permissions),
            "users other than root could change this host's setup",
            fix=f"chown root:root {HOST_FILE}; chmod 644 {HOST_FILE}",
        )
    if context.absent_gpus:
        return warn(
            *(
                f"{HOST_FILE} names {address}, and no such GPU is on this host"
                for address in sorted(context.absent_gpus)
            ),
            fix=f"correct or remove the address in {HOST_FILE}; the GPUs of this host: vgpuctl list-gpus",
        )
    impossible = find_impossible_profiles(spec, context.gpus, content.text, HOST_FILE)
    if impossible:
        return warn(*impossible, fix=f"correct {HOST_FILE}; what the GPUs offer: vgpuctl list-profiles")
    if permissions is None:
        return ok(f"{HOST_FILE} is valid")
    return ok(f"{HOST_FILE} is valid", _describe_permissions(HOST_FILE, permissions))


def _check_machine_id(context: CheckContext) -> Finding:
    content = context.file(MACHINE_ID)
    if content.problem is not None:
        return unknown(content.problem)
    text = (content.text or "").strip()
    if len(text) != _MACHINE_ID_DIGITS or not all(c in "0123456789abcdef" for c in text):
        shown = f"{MACHINE_ID}: '{text[:40]}'" if content.text is not None else f"{MACHINE_ID} does not exist"
        return fail(shown, "vgpuctl cannot tell this host's VMs from copies", fix="systemd-machine-id-setup")
    return ok(f"{MACHINE_ID}: {text}")


def _is_writable_by_others(permissions: FilePermissions) -> bool:
    return bool(permissions.owner or permissions.mode & _OTHERS_WRITE)


def _describe_permissions(path: str, permissions: FilePermissions) -> str:
    return f"{path}: mode {permissions.mode:04o}, owner {permissions.owner}, group {permissions.group}"


LIBVIRT_HOOK = "/etc/libvirt/hooks/qemu"
HOOK_DIRECTORY = "/etc/libvirt/hooks/qemu.d"
VGPUCTL_HOOK = f"{HOOK_DIRECTORY}/vgpuctl"
RESTORE_UNIT = "vgpuctl-restore.service"
UNIT_DIRECTORIES = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
WANTS_DIRECTORY = "/etc/systemd/system/multi-user.target.wants"
LIBVIRT_GUESTS_UNIT = "libvirt-guests.service"
LIBVIRT_GUESTS_FOLDERS = ("/etc/sysconfig", "/etc/conf.d", "/etc/default")
"""Where distributions have its file: Red Hat and SUSE; Arch and Gentoo; Debian, which has neither of the others."""
LIBVIRT_GUESTS_CONFIGS = tuple(f"{folder}/libvirt-guests" for folder in LIBVIRT_GUESTS_FOLDERS)
DEFAULT_SHUTDOWN_ACTION = "suspend"
"""ON_SHUTDOWN without a file, or without a line in it (libvirt-guests(8)); only the exact word shutdown differs."""
INSTALL_COMMAND = "vgpuctl install-host"
_ASSIGNMENT = re.compile(r"""\s*(?:export\s+)?ON_SHUTDOWN=((?:"[^"]*"|'[^']*'|[^\s;&|"'])*)""")
_QUOTED = re.compile(r""""[^"]*"|'[^']*'|[^"']+""")


def _check_start_hook(context: CheckContext, snapshot: Snapshot) -> Finding:
    if not _loses_vgpus_at_reboot(snapshot):
        return not_applicable("no GPU here has vGPUs or VFs that a reboot removes")
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
            fix=INSTALL_COMMAND,
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
    problems = [problem for path in LIBVIRT_GUESTS_CONFIGS if (problem := context.file(path).problem) is not None]
    if problems:
        return unknown(*problems)
    texts = {path: text for path in LIBVIRT_GUESTS_CONFIGS if (text := context.file(path).text) is not None}
    return _check_shutdown_actions({path: _shutdown_action(text) for path, text in texts.items()}, context)


def _check_shutdown_actions(actions: dict[str, str | None], context: CheckContext) -> Finding:
    """Return the finding for what each file says, None for what a shell would have to compute."""
    lines = [
        f"{path}: ON_SHUTDOWN is {action or 'computed, which vgpuctl cannot do'}" for path, action in actions.items()
    ]
    path = next(iter(actions), None) or next(
        (f"{folder}/libvirt-guests" for folder in LIBVIRT_GUESTS_FOLDERS if context.folder(folder).names is not None),
        LIBVIRT_GUESTS_CONFIGS[-1],
    )
    if not actions:
        names = f"{', '.join(LIBVIRT_GUESTS_CONFIGS[:-1])} nor {LIBVIRT_GUESTS_CONFIGS[-1]}"
        lines = [
            f"{LIBVIRT_GUESTS_UNIT} is enabled, and neither {names} exists: ON_SHUTDOWN is {DEFAULT_SHUTDOWN_ACTION}"
        ]
    elif None in actions.values():
        return unknown(*lines)
    elif set(actions.values()) == {"shutdown"}:
        return ok(*lines)
    return warn(
        *lines,
        "VMs with devices cannot be suspended to disk, so a shutdown of the host would not stop them properly",
        fix=f"echo ON_SHUTDOWN=shutdown >> {path}",
    )


def _shutdown_action(text: str) -> str | None:
    """Return the value of ON_SHUTDOWN as the shell reads it, None if it depends on something else."""
    action: str | None = DEFAULT_SHUTDOWN_ACTION
    for line in text.splitlines():
        assignment = _ASSIGNMENT.match(line)
        if assignment is not None:
            words = "".join(part[1:-1] if part[0] in "\"'" else part for part in _QUOTED.findall(assignment[1]))
            action = None if "$" in words or "`" in words else words or "empty"
    return action


def _loses_vgpus_at_reboot(snapshot: Snapshot) -> bool:
    """Return whether a GPU has vGPUs, or plain VFs that host.yaml asks for and its driver does not set by itself."""
    return any(
        backend_for(g.backend).creates_devices or (g.desired_mode is GpuMode.SRIOV and not sets_vfs_at_load(g))
        for g in snapshot.gpus
    )


def _has_hostdevs(snapshot: Snapshot) -> bool:
    return any(vm.hostdevs for vm in snapshot.vms)


CHECKS = (
    Check(
        id="run-directory",
        title="who can write vgpuctl's claims",
        looks_at=f"owner and mode of `{RUN_DIRECTORY}`",
        run=_check_run_directory,
        paths=PathsToRead(permissions=(RUN_DIRECTORY,)),
        explains=("run-directory",),
    ),
    Check(
        id="host-file",
        title="host.yaml, and who can write it",
        looks_at=f"`{HOST_FILE}`, its owner and mode, and whether GPUs here can offer its profiles",
        run=_check_host_file,
        paths=PathsToRead(files=(HOST_FILE,), permissions=(HOST_FILE,)),
        needs_types=True,
    ),
    Check(
        id="machine-id",
        title="the host's machine id",
        looks_at=f"`{MACHINE_ID}`",
        run=_check_machine_id,
        paths=PathsToRead(files=(MACHINE_ID,)),
        explains=("machine-id",),
    ),
    Check(
        id="start-hook",
        title="libvirt's hook, for VMs that virsh or autostart starts",
        looks_at=f"`{VGPUCTL_HOOK}`, `{LIBVIRT_HOOK}`",
        run=require_snapshot(_check_start_hook),
        paths=PathsToRead(files=(LIBVIRT_HOOK,), folders=(HOOK_DIRECTORY,), permissions=(LIBVIRT_HOOK, VGPUCTL_HOOK)),
    ),
    Check(
        id="restore-unit",
        title="the boot unit that restores VFs and vGPUs",
        looks_at=f"`{RESTORE_UNIT}` in `{'`, `'.join(UNIT_DIRECTORIES)}`, `{WANTS_DIRECTORY}`",
        run=require_snapshot(_check_restore_unit),
        paths=PathsToRead(folders=(*UNIT_DIRECTORIES, WANTS_DIRECTORY)),
    ),
    Check(
        id="libvirt-guests",
        title="what happens to VMs when the host shuts down",
        looks_at=f"`ON_SHUTDOWN` in `{'` or `'.join(LIBVIRT_GUESTS_CONFIGS)}`, `{WANTS_DIRECTORY}`",
        run=_check_libvirt_guests,
        paths=PathsToRead(files=LIBVIRT_GUESTS_CONFIGS, folders=(WANTS_DIRECTORY, *LIBVIRT_GUESTS_FOLDERS)),
        needs_vms=True,
    ),
)

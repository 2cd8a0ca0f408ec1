# SPDX-License-Identifier: Apache-2.0
"""vgpuctl's own files on the host: its run directory, host.yaml, and the machine id that marks its VMs."""

from __future__ import annotations

from vgpuctl.config.host_spec import parse_host_spec
from vgpuctl.doctor.check import (
    Check,
    CheckContext,
    Finding,
    PathsToRead,
    fail,
    ok,
    unknown,
    warn,
)
from vgpuctl.errors import InvalidInput
from vgpuctl.gpu.offered_profiles import find_impossible_profiles
from vgpuctl.model.port_values import FilePermissions

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
)

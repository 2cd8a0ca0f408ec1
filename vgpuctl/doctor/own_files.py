# SPDX-License-Identifier: Apache-2.0
"""What vgpuctl itself keeps on the host: its run directory, host.yaml, and the machine id that marks its VMs."""

from __future__ import annotations

from vgpuctl.capacity.demand import not_offered
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
from vgpuctl.errors import InvalidInput
from vgpuctl.model.records import FilePermissions
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.spec.host import parse_host_spec

RUN = "/run/vgpuctl"
HOST_FILE = "/etc/vgpuctl/host.yaml"
MACHINE_ID = "/etc/machine-id"
_OTHERS_WRITE = 0o022
_MACHINE_ID_DIGITS = 32


def _run_directory(look: Look) -> Finding:
    seen = look.permissions.get(RUN)
    if seen is None:
        return ok(f"{RUN} is not there or not to be seen; it is made when it is needed")
    if _loose(seen):
        return fail(
            _said(RUN, seen), "others could forge or remove claims", fix=f"chown root:root {RUN}; chmod 700 {RUN}"
        )
    if look.closed is not None:
        return unknown(_said(RUN, seen), look.closed, fix="run it as root")
    return ok(_said(RUN, seen))


def _host_file(look: Look) -> Finding:
    read = look.file(HOST_FILE)
    if read.problem is not None and "Permission denied" in read.problem:
        return unknown(read.problem, fix="run it as root")
    if read.problem is not None:
        return fail(read.problem, "new vGPUs and changes of GPUs are refused", fix=look.host_file_hint)
    if read.text is None:
        return ok(f"there is no {HOST_FILE}: what is built in applies")
    try:
        parse_host_spec(read.text, HOST_FILE)
    except InvalidInput as error:
        return fail(*error.message.splitlines(), fix=look.host_file_hint)
    seen = look.permissions.get(HOST_FILE)
    if seen is None:
        return ok(f"{HOST_FILE} can be understood")
    if _loose(seen):
        return warn(
            _said(HOST_FILE, seen),
            "others than root could change what this host is set up for",
            fix=f"chown root:root {HOST_FILE}; chmod 644 {HOST_FILE}",
        )
    return ok(f"{HOST_FILE} can be understood", _said(HOST_FILE, seen))


def _demand(look: Look, snapshot: Snapshot) -> Finding:
    demand, text = snapshot.placement.demand, look.file(HOST_FILE).text
    if not demand or text is None:
        return not_applicable(f"{HOST_FILE} says nothing of what is asked for")
    found = not_offered(snapshot, demand, text, HOST_FILE)
    if any(one.mistaken for one in found):
        return warn(*(one.text for one in found), fix=f"correct placement.demand in {HOST_FILE}; vgpuctl list-profiles")
    return ok(*(one.text for one in found))


def _machine_id(look: Look) -> Finding:
    read = look.file(MACHINE_ID)
    if read.problem is not None:
        return unknown(read.problem)
    text = (read.text or "").strip()
    if len(text) != _MACHINE_ID_DIGITS or not all(c in "0123456789abcdef" for c in text):
        shown = f"{MACHINE_ID}: '{text[:40]}'" if read.text is not None else f"there is no {MACHINE_ID}"
        return fail(shown, "VMs of this host cannot be told from copies", fix="systemd-machine-id-setup")
    return ok(f"{MACHINE_ID}: {text}")


def _loose(seen: FilePermissions) -> bool:
    return bool(seen.owner or seen.mode & _OTHERS_WRITE)


def _said(path: str, seen: FilePermissions) -> str:
    return f"{path}: mode {seen.mode:04o}, owner {seen.owner}, group {seen.group}"


CHECKS = (
    Check(
        id="run-directory",
        title="only root writes vgpuctl's claims",
        looks_at=f"owner and mode of `{RUN}`",
        judge=_run_directory,
        needs=Needs(permissions=(RUN,)),
        explains=("run-directory",),
    ),
    Check(
        id="host-file",
        title="host.yaml is understood, and only root writes it",
        looks_at=f"`{HOST_FILE}`, its owner and mode",
        judge=_host_file,
        needs=Needs(files=(HOST_FILE,), permissions=(HOST_FILE,)),
    ),
    Check(
        id="demand",
        title="host.yaml asks for profiles that GPUs here offer",
        looks_at=f"`placement: demand:` of `{HOST_FILE}`, the GPUs' vGPU types",
        judge=judged_by_host(_demand),
        needs=Needs(files=(HOST_FILE,)),
        types=True,
    ),
    Check(
        id="machine-id",
        title="the host has a machine id",
        looks_at=f"`{MACHINE_ID}`",
        judge=_machine_id,
        needs=Needs(files=(MACHINE_ID,)),
        explains=("machine-id",),
    ),
)

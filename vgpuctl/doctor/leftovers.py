# SPDX-License-Identifier: Apache-2.0
"""What earlier commands left behind: writes stuck in the kernel, leaked or incomplete objects, unreadable claims.

mdevctl's definitions are here too: an mdev that it creates at boot takes the place of a VM's vGPU, and is unmanaged for
vgpuctl.
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
from vgpuctl.doctor.gpus import shorten
from vgpuctl.model.hint_commands import recreate_vgpu_command
from vgpuctl.model.numbers import count_text
from vgpuctl.model.snapshot import Snapshot

MDEVCTL_DIRECTORY = "/etc/mdevctl.d"


def _check_stuck_writes(context: CheckContext, snapshot: Snapshot) -> Finding:
    if context.claims_problem is not None:
        return unknown(context.claims_problem, fix="run it as root")
    if snapshot.stuck_writes:
        lines = [
            f"process {w.process.pid} waits in the kernel writing {w.path} (GPU {w.gpu})" for w in snapshot.stuck_writes
        ]
        return fail(*shorten(lines), fix="stop the VM or the process that holds the device: fuser -v /dev/vfio/*")
    return ok("no write waits in the kernel")


def _check_leftovers(context: CheckContext) -> Finding:
    if context.claims_problem is not None:
        return unknown(context.claims_problem, fix="run it as root")
    if context.leftovers is None:
        return unknown(context.leftovers_problem)
    reported_elsewhere = ("stuck-write", "copied-record", "vgpu-missing", "vgpu-changed", "vgpu-conflict")
    reported = [leftover for leftover in context.leftovers if leftover.kind not in reported_elsewhere]
    if reported:
        by_hand = [
            leftover.action.removeprefix("nothing: ") for leftover in reported if leftover.action.startswith("nothing")
        ]
        commands = ["vgpuctl reconcile-host"] if len(by_hand) < len(reported) else []
        lines = [f"{leftover.kind}: {leftover.description}" for leftover in reported]
        return warn(*shorten(lines), fix="; ".join(dict.fromkeys([*commands, *by_hand])))
    return ok("nothing is leaked, half created or half removed")


def _check_claims(context: CheckContext, snapshot: Snapshot) -> Finding:
    if context.claims_problem is not None:
        return unknown(context.claims_problem, fix="run it as root")
    if snapshot.unreadable_claims:
        names = [f"/run/vgpuctl/claims/{c}" for c in snapshot.unreadable_claims]
        return fail(
            *shorten(names),
            "the carriers that they claim count as taken",
            fix="check the file and its carrier; remove the file when no VM uses the carrier",
        )
    return ok(f"{count_text(len(snapshot.claims), 'claim')}, all readable")


def _check_host_vgpus(context: CheckContext, snapshot: Snapshot) -> Finding:
    if snapshot.host_file_problem is not None:
        return unknown(snapshot.host_file_problem)
    if not snapshot.host_vgpus:
        return not_applicable("host.yaml has no vGPU")
    vgpu_by_carrier = {v.carrier: v for v in snapshot.vgpus}
    lines = []
    fix = "vgpuctl restore-host"
    for entry in snapshot.host_vgpus:
        vgpu = vgpu_by_carrier.get(entry.carrier)
        if vgpu is None or vgpu.name != entry.name:
            lines.append(f"{entry.name}: {entry.carrier} is the vGPU of {vgpu.holder_text if vgpu else 'none'}")
            fix = (
                "remove entries whose place another vGPU has from /etc/vgpuctl/host.yaml; then run vgpuctl restore-host"
            )
        elif entry.gpu in context.absent_gpus:
            lines.append(f"{entry.name}: the GPU {entry.gpu} is no longer on this host")
            fix = recreate_vgpu_command(entry)
        elif vgpu.reason is not None or not vgpu.present:
            lines.append(f"{entry.name}: {vgpu.reason or f'{entry.profile} on {entry.gpu} is missing'}")
    if lines:
        return warn(*shorten(lines), fix=fix)
    return ok(f"all {len(snapshot.host_vgpus)} exist")


def _check_mdevctl(context: CheckContext, snapshot: Snapshot) -> Finding:
    folder = context.folder(MDEVCTL_DIRECTORY)
    if folder.problem is not None:
        return unknown(folder.problem)
    parents = {
        f.address: g.address for g in snapshot.gpus if backend_for(g.backend).carrier_has_uuid for f in g.functions
    }
    defined = [f"{MDEVCTL_DIRECTORY}/{name} (GPU {parents[name]})" for name in folder.names or () if name in parents]
    if defined:
        return warn(
            *shorten(defined),
            "mdevctl creates these at boot, and they take room; vgpuctl treats them as unmanaged",
            fix="mdevctl list --defined; mdevctl undefine -u UUID",
        )
    return ok(f"{MDEVCTL_DIRECTORY} has no definition on a GPU of this host")


CHECKS = (
    Check(
        id="stuck-writes",
        title="writes that wait in the kernel",
        looks_at="`/run/vgpuctl/stuck`",
        run=require_snapshot(_check_stuck_writes),
        explains=("stuck", "device-failed"),
    ),
    Check(
        id="leftovers",
        title="what is leaked, half created or half removed",
        looks_at="what reconcile-host would do",
        run=_check_leftovers,
        explains=("no-capacity",),
        needs_vms=True,
        needs_leftovers=True,
    ),
    Check(
        id="claims",
        title="vgpuctl's claims",
        looks_at="`/run/vgpuctl/claims`",
        run=require_snapshot(_check_claims),
        explains=("no-capacity",),
    ),
    Check(
        id="kept-vgpus",
        title="the vGPUs of host.yaml",
        looks_at="`vgpus:` of `/etc/vgpuctl/host.yaml`",
        run=require_snapshot(_check_host_vgpus),
        explains=("no-capacity",),
        needs_vms=True,
    ),
    Check(
        id="mdevctl",
        title="mdevctl's devices on vgpuctl's GPUs",
        looks_at=f"`{MDEVCTL_DIRECTORY}/PARENT`",
        run=require_snapshot(_check_mdevctl),
        paths=PathsToRead(folders=(MDEVCTL_DIRECTORY,)),
        explains=("no-capacity",),
    ),
)

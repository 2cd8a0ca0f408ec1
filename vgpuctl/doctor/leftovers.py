# SPDX-License-Identifier: Apache-2.0
"""What was left behind: writes that wait in the kernel, leaked and half-made things, claims nobody can read.

mdevctl's definitions are here too: what it makes at boot takes the place of a VM's vGPU, and is foreign to vgpuctl.
"""

from __future__ import annotations

from vgpuctl.doctor.check import Check, Finding, Look, Needs, fail, judged_by_host, not_applicable, ok, unknown, warn
from vgpuctl.doctor.gpus import shortened
from vgpuctl.model.gpu import MDEV
from vgpuctl.model.snapshot import Snapshot

MDEVCTL = "/etc/mdevctl.d"


def _stuck(look: Look, snapshot: Snapshot) -> Finding:
    if look.closed is not None:
        return unknown(look.closed, fix="run it as root")
    if snapshot.stuck:
        lines = [f"process {w.process.pid} waits in the kernel writing {w.path} (GPU {w.gpu})" for w in snapshot.stuck]
        return fail(*shortened(lines), fix="stop the VM or the process that holds the device: fuser -v /dev/vfio/*")
    return ok("no write waits in the kernel")


def _leftovers(look: Look) -> Finding:
    if look.closed is not None:
        return unknown(look.closed, fix="run it as root")
    if look.leftovers is None:
        return unknown(look.leftovers_problem)
    told = ("stuck-write", "copied-record", "vgpu-missing", "vgpu-changed", "vgpu-conflict")
    found = [left for left in look.leftovers if left.kind not in told]
    if found:
        by_hand = [left.action.removeprefix("nothing: ") for left in found if left.action.startswith("nothing")]
        mended = ["vgpuctl reconcile"] if len(by_hand) < len(found) else []
        lines = [f"{left.kind}: {left.what}" for left in found]
        return warn(*shortened(lines), fix="; ".join(dict.fromkeys([*mended, *by_hand])))
    return ok("nothing is leaked, half made or half removed")


def _claims(look: Look, snapshot: Snapshot) -> Finding:
    if look.closed is not None:
        return unknown(look.closed, fix="run it as root")
    if snapshot.unreadable_claims:
        names = [f"/run/vgpuctl/claims/{c}" for c in snapshot.unreadable_claims]
        return fail(
            *shortened(names),
            "what these claim counts as taken",
            fix="look at the file and its carrier; remove the file when no VM uses the carrier",
        )
    return ok(f"{len(snapshot.claims)} claims, all of them readable")


def _named(look: Look, snapshot: Snapshot) -> Finding:
    if snapshot.host_file_problem is not None:
        return unknown(snapshot.host_file_problem)
    if not snapshot.named:
        return not_applicable("host.yaml keeps no vGPU")
    seen = {v.carrier: v for v in snapshot.vgpus}
    lines = []
    fix = "vgpuctl restore-host"
    for entry in snapshot.named:
        vgpu = seen.get(entry.carrier)
        if vgpu is None or vgpu.name != entry.name:
            lines.append(f"{entry.name}: {entry.carrier} is the vGPU of {vgpu.holder if vgpu else 'nobody'}")
            fix = "take an entry whose place is another's out of /etc/vgpuctl/host.yaml; then: vgpuctl restore-host"
        elif vgpu.reason is not None or not vgpu.present:
            lines.append(f"{entry.name}: {vgpu.reason or f'{entry.profile} on {entry.gpu} is missing'}")
    if lines:
        return warn(*shortened(lines), fix=fix)
    return ok(f"all {len(snapshot.named)} are made")


def _mdevctl(look: Look, snapshot: Snapshot) -> Finding:
    folder = look.folder(MDEVCTL)
    if folder.problem is not None:
        return unknown(folder.problem)
    parents = {f.address: g.address for g in snapshot.gpus if g.backend in MDEV for f in g.functions}
    defined = [f"{MDEVCTL}/{name} (GPU {parents[name]})" for name in folder.names or () if name in parents]
    if defined:
        return warn(
            *shortened(defined),
            "mdevs defined there are made at boot and take room; vgpuctl counts them as foreign",
            fix="mdevctl list --defined; mdevctl undefine -u UUID",
        )
    return ok(f"{MDEVCTL} has no definition on a GPU of this host")


CHECKS = (
    Check(
        id="stuck-writes",
        title="no write waits in the kernel",
        looks_at="`/run/vgpuctl/stuck`",
        judge=judged_by_host(_stuck),
        explains=("stuck", "device-failed"),
    ),
    Check(
        id="leftovers",
        title="nothing is leaked, half made or half removed",
        looks_at="what reconcile would do",
        judge=_leftovers,
        explains=("no-capacity",),
        vms=True,
        leftovers=True,
    ),
    Check(
        id="claims",
        title="every claim can be read",
        looks_at="`/run/vgpuctl/claims`",
        judge=judged_by_host(_claims),
        explains=("no-capacity",),
    ),
    Check(
        id="kept-vgpus",
        title="each vGPU that host.yaml keeps is made",
        looks_at="`vgpus:` of `/etc/vgpuctl/host.yaml`",
        judge=judged_by_host(_named),
        explains=("no-capacity",),
        vms=True,
    ),
    Check(
        id="mdevctl",
        title="mdevctl does not make devices on vgpuctl's GPUs",
        looks_at=f"`{MDEVCTL}/PARENT`",
        judge=judged_by_host(_mdevctl),
        needs=Needs(folders=(MDEVCTL,)),
        explains=("no-capacity",),
    ),
)

# SPDX-License-Identifier: Apache-2.0
"""The drivers in guests with vGPUs, against that of the host: one that the host's does not serve leaves its vGPU dead.

A guest may have the host's major release of NVIDIA's vGPU software, the one before, or, where the host's is a long-term
support branch, the long-term one before. With a newer one its vGPU never starts. Source: NVIDIA's vGPU release notes,
"Compatible NVIDIA vGPU Manager and Guest VM Driver Releases". Drivers for Windows have numbers after the branch's, 551
to 553 for branch 550, so a release is known by where its branch begins.
"""

from __future__ import annotations

from bisect import bisect

from vgpuctl.doctor.check import Check, Finding, Look, Verdict, judged_by_host, not_applicable, ok, unknown
from vgpuctl.doctor.gpus import VGPU, shortened
from vgpuctl.model.digits import whole
from vgpuctl.model.records import NvmlGuest
from vgpuctl.model.snapshot import Snapshot

RELEASES = (
    (450, 11), (460, 12), (470, 13), (510, 14), (525, 15), (535, 16), (550, 17), (570, 18), (580, 19), (595, 20),
)  # fmt: skip
"""Where the driver branch of each major release of the vGPU software begins."""
BEYOND = 600
"""From here on no release is known."""
LONG_TERM = (11, 13, 16, 19)
_WORST = (Verdict.FAIL, Verdict.WARN, Verdict.UNKNOWN)


def release_of(version: str) -> int | None:
    """Return the major release of the vGPU software that a driver belongs to; None for one that is not known."""
    number = whole(version.partition(".")[0]) or 0
    if not RELEASES[0][0] <= number < BEYOND:
        return None
    return RELEASES[bisect([begin for begin, _ in RELEASES], number) - 1][1]


def served(host: str, guest: str) -> Verdict:
    """Say how a guest's driver goes with the host's: `warn` for one older than NVIDIA lists, `fail` for a newer one."""
    if host.partition(".")[0] == guest.partition(".")[0]:
        return Verdict.OK
    ours, theirs = release_of(host), release_of(guest)
    if ours is None or theirs is None:
        return Verdict.UNKNOWN
    if theirs > ours:
        return Verdict.FAIL
    long_term = [release for release in LONG_TERM if release < ours] if ours in LONG_TERM else []
    return Verdict.OK if theirs in (ours, ours - 1, *long_term[-1:]) else Verdict.WARN


def _guests(look: Look, snapshot: Snapshot) -> Finding:
    gpus = [g.address for g in snapshot.gpus if g.nvidia_driver and g.backend in VGPU]
    if not gpus:
        return not_applicable("no GPU here has vGPUs by NVIDIA's driver")
    dark = [address for address in gpus if address not in look.guests]
    if dark:
        return unknown(f"NVML does not tell of the running vGPUs of {', '.join(dark)}")
    host = snapshot.nvml.driver_version
    if host is None:
        return unknown("NVML does not tell the host's driver")
    known = [(gpu, guest) for gpu, guests in look.guests.items() for guest in guests]
    if not known:
        return ok(f"host: {host}", "no VM runs with a vGPU")
    judged = [(served(host, g.driver_version), gpu, g) for gpu, g in known if g.driver_version is not None]
    without = len(known) - len(judged)
    silent = [f"{without} of {len(known)} running vGPUs: no driver of NVIDIA runs in the guest yet"] if without else []
    worst = next((one for one in _WORST if any(verdict is one for verdict, _, _ in judged)), Verdict.OK)
    shown = [_line(snapshot, gpu, guest, verdict) for verdict, gpu, guest in judged if verdict is worst]
    return Finding(worst, (f"host: {_named(host)}", *shortened(shown), *silent), _FIX.get(worst))


def _line(snapshot: Snapshot, gpu: str, guest: NvmlGuest, verdict: Verdict) -> str:
    vm = snapshot.vm(guest.vm_uuid or "")
    who = vm.name if vm is not None else guest.vm_uuid or "a VM"
    return f"{who} on {gpu}: {_named(guest.driver_version or '')}{_MEANS.get(verdict, '')}"


def _named(version: str) -> str:
    release = release_of(version)
    return version if release is None else f"{version} (vGPU {release})"


_MEANS = {
    Verdict.FAIL: ", newer than the host's: its vGPU does not start",
    Verdict.WARN: ", older than NVIDIA lists for the host's",
    Verdict.UNKNOWN: ", and whether the host's serves that is not known here",
}
_FIX = {
    Verdict.FAIL: "give the guest the driver that came with the host's, or of the release before; or update the host",
    Verdict.WARN: "update the driver in the guest to that of the host's release",
    Verdict.UNKNOWN: "NVIDIA's release notes of the host's vGPU software list the guest drivers that it serves",
}

CHECKS = (
    Check(
        id="guest-drivers",
        title="the drivers in guests go with the host's",
        looks_at="NVML: the driver in the guest of each running vGPU",
        judge=judged_by_host(_guests),
        vms=True,
        guests=True,
    ),
)

# SPDX-License-Identifier: Apache-2.0
"""The drivers in guests with vGPUs, compared with the host's driver: with an unsupported one the vGPU does not work.

A guest may have the host's major release of NVIDIA's vGPU software, the one before, or, where the host's is a long-term
support branch, the long-term one before. With a newer one its vGPU never starts. Source: NVIDIA's vGPU release notes,
"Compatible NVIDIA vGPU Manager and Guest VM Driver Releases". Drivers for Windows have numbers above the branch's, 551
to 553 for branch 550, so the start of each branch identifies a release.
"""

from __future__ import annotations

from bisect import bisect

from vgpuctl.backends import backend_for
from vgpuctl.doctor.check import Check, CheckContext, Finding, Verdict, not_applicable, ok, require_snapshot, unknown
from vgpuctl.doctor.gpus import shorten
from vgpuctl.makers import uses_nvml
from vgpuctl.model.numbers import parse_integer
from vgpuctl.model.port_values import NvmlGuest
from vgpuctl.model.snapshot import Snapshot

VGPU_RELEASES = (
    (450, 11), (460, 12), (470, 13), (510, 14), (525, 15), (535, 16), (550, 17), (570, 18), (580, 19), (595, 20),
)  # fmt: skip
"""The first driver number of each major release of the vGPU software."""
FIRST_UNKNOWN_BRANCH = 600
"""From this branch on the release is unknown."""
LONG_TERM_RELEASES = (11, 13, 16, 19)
_WORST_FIRST = (Verdict.FAIL, Verdict.WARN, Verdict.UNKNOWN)


def vgpu_release(driver_version: str) -> int | None:
    """Return the major release of the vGPU software that a driver belongs to; None for an unknown one."""
    branch = parse_integer(driver_version.partition(".")[0]) or 0
    if not VGPU_RELEASES[0][0] <= branch < FIRST_UNKNOWN_BRANCH:
        return None
    return VGPU_RELEASES[bisect([first for first, _ in VGPU_RELEASES], branch) - 1][1]


def rate_guest_driver(host_version: str, guest_version: str) -> Verdict:
    """Rate a guest's driver against the host's: `warn` for one older than NVIDIA lists, `fail` for a newer one."""
    if host_version.partition(".")[0] == guest_version.partition(".")[0]:
        return Verdict.OK
    host_release, guest_release = vgpu_release(host_version), vgpu_release(guest_version)
    if host_release is None or guest_release is None:
        return Verdict.UNKNOWN
    if guest_release > host_release:
        return Verdict.FAIL
    long_term = (
        [release for release in LONG_TERM_RELEASES if release < host_release]
        if host_release in LONG_TERM_RELEASES
        else []
    )
    return Verdict.OK if guest_release in (host_release, host_release - 1, *long_term[-1:]) else Verdict.WARN


def _check_guest_drivers(context: CheckContext, snapshot: Snapshot) -> Finding:
    gpus = [g.address for g in snapshot.gpus if uses_nvml(g) and backend_for(g.backend).creates_devices]
    if not gpus:
        return not_applicable("no GPU here has vGPUs of NVIDIA's driver")
    unreported = [address for address in gpus if address not in context.guests]
    if unreported:
        return unknown(f"NVML does not report the running vGPUs of {', '.join(unreported)}")
    host = snapshot.nvml.driver_version
    if host is None:
        return unknown("NVML does not report the host's driver")
    running = [(gpu, guest) for gpu, guests in context.guests.items() for guest in guests]
    if not running:
        return ok(f"host: {host}", "no VM runs with a vGPU")
    rated = [(rate_guest_driver(host, g.driver_version), gpu, g) for gpu, g in running if g.driver_version is not None]
    without_driver = len(running) - len(rated)
    no_driver_lines = (
        [f"{without_driver} of {len(running)} running vGPUs: no NVIDIA driver runs in the guest yet"]
        if without_driver
        else []
    )
    worst = next(
        (candidate for candidate in _WORST_FIRST if any(verdict is candidate for verdict, _, _ in rated)), Verdict.OK
    )
    shown = [_describe_guest(snapshot, gpu, guest, verdict) for verdict, gpu, guest in rated if verdict is worst]
    return Finding(worst, (f"host: {_describe_driver(host)}", *shorten(shown), *no_driver_lines), _FIXES.get(worst))


def _describe_guest(snapshot: Snapshot, gpu: str, guest: NvmlGuest, verdict: Verdict) -> str:
    vm = snapshot.vm(guest.vm_uuid or "")
    vm_name = vm.name if vm is not None else guest.vm_uuid or "a VM"
    return f"{vm_name} on {gpu}: {_describe_driver(guest.driver_version or '')}{_MEANINGS.get(verdict, '')}"


def _describe_driver(version: str) -> str:
    release = vgpu_release(version)
    return version if release is None else f"{version} (vGPU {release})"


_MEANINGS = {
    Verdict.FAIL: ", newer than the host's: its vGPU does not start",
    Verdict.WARN: ", older than the host's release supports",
    Verdict.UNKNOWN: ", and it is not known whether the host's release supports it",
}
_FIXES = {
    Verdict.FAIL: "install in the guest the driver of the host's release or of the release before; or update the host",
    Verdict.WARN: "update the guest's driver to the host's release",
    Verdict.UNKNOWN: "NVIDIA's release notes of the host's vGPU software list the guest drivers that it supports",
}

CHECKS = (
    Check(
        id="guest-drivers",
        title="the driver versions in guests",
        looks_at="NVML: the driver in the guest of each running vGPU",
        run=require_snapshot(_check_guest_drivers),
        needs_vms=True,
        needs_guests=True,
    ),
)

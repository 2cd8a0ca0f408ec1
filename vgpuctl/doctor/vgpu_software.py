# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's vGPU software: the host's release and its end, the drivers in guests, and licenses.

What a release is, which guests it allows and which cards it drops: `makers.nvidia_releases`.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from shlex import quote

from vgpuctl.backends import backend_for
from vgpuctl.config.license_token import EXPIRY_WARNING
from vgpuctl.config.licenses import CA_FILE, FEATURE_FILE, LICENSE_DIRECTORY, LicenseFiles, parse_license
from vgpuctl.doctor.check import (
    Check,
    CheckContext,
    Finding,
    Verdict,
    fail,
    not_applicable,
    ok,
    require_snapshot,
    shorten,
    unknown,
    warn,
    worst_verdict,
)
from vgpuctl.makers import uses_nvml
from vgpuctl.makers.nvidia_releases import (
    LAST_RELEASES,
    RELEASES,
    TABLE_DATE,
    GuestFit,
    Release,
    Support,
    find_architecture,
    find_release,
    rate_guest,
    release_name,
    support_of,
)
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.numbers import count_text
from vgpuctl.model.port_values import NvmlGuest
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.usage import LICENSED, NVML_SOURCE

NO_VGPUS = "no GPU here has vGPUs of NVIDIA's driver"
_WORST_FIRST = (Verdict.FAIL, Verdict.WARN, Verdict.UNKNOWN)
_VERDICTS = {
    GuestFit.SUPPORTED: Verdict.OK,
    GuestFit.OLD: Verdict.WARN,
    GuestFit.TOO_NEW: Verdict.FAIL,
    GuestFit.UNKNOWN: Verdict.UNKNOWN,
}


def _vgpu_gpus(snapshot: Snapshot) -> tuple[Gpu, ...]:
    return tuple(g for g in snapshot.gpus if uses_nvml(g) and backend_for(g.backend).creates_devices)


def _check_release(context: CheckContext, snapshot: Snapshot) -> Finding:
    gpus = _vgpu_gpus(snapshot)
    if not gpus:
        return not_applicable(NO_VGPUS)
    driver = snapshot.nvml.driver_version
    if driver is None:
        return unknown("NVML does not report the host's driver")
    release = find_release(driver)
    if release is None:
        return unknown(
            f"host: {driver}: not in vgpuctl's table of vGPU releases of {TABLE_DATE}",
            fix="NVIDIA's release notes of the host's vGPU software say when its support ends",
        )
    today = datetime.fromtimestamp(context.now, UTC).date()
    support = support_of(release, today)
    about = f"host: {driver}: {_describe_end(release, today, release_name(driver))}"
    dropped = [line for gpu in gpus if (line := _dropped_line(gpu, release)) is not None]
    fixes = ["keep the host at the last release for these cards, or replace them"] if dropped else []
    if support is not Support.SUPPORTED:
        later = [
            _describe_end(other, today)
            for other in RELEASES
            if other.number > release.number and support_of(other, today) is not Support.OVER
        ]
        newer = " or ".join(later) or f"a release newer than vgpuctl's table of {TABLE_DATE}"
        fixes.append(f"plan the update of the host's driver: to {newer}")
    return warn(about, *shorten(dropped), fix="; ".join(fixes)) if fixes else ok(about)


def _describe_end(release: Release, today: date, name: str | None = None) -> str:
    """Return a release and its end: `vGPU 19.5 (long-term support; it ends in June or July 2028)`."""
    long_term = "long-term support; " if release.long_term else ""
    verb = "ended" if support_of(release, today) is Support.OVER else "ends"
    return f"vGPU {name or release.number} ({long_term}it {verb} {release.end_text})"


def _dropped_line(gpu: Gpu, release: Release) -> str | None:
    """Return which release is the last for a GPU, if that is the host's or an older one."""
    architecture = find_architecture(gpu)
    if architecture is None or release.number < LAST_RELEASES[architecture][0]:
        return None
    return f"{gpu.address} ({gpu.model}): vGPU {LAST_RELEASES[architecture][0]} is the last release for {architecture}"


def _check_guest_drivers(context: CheckContext, snapshot: Snapshot) -> Finding:
    gpus = [gpu.address for gpu in _vgpu_gpus(snapshot)]
    if not gpus:
        return not_applicable(NO_VGPUS)
    unreported = [address for address in gpus if address not in context.guests]
    if unreported:
        return unknown(f"NVML does not report the running vGPUs of {', '.join(unreported)}")
    host = snapshot.nvml.driver_version
    if host is None:
        return unknown("NVML does not report the host's driver")
    running = [(gpu, guest) for gpu, guests in context.guests.items() for guest in guests]
    if not running:
        return ok(f"host: {host}", "no VM runs with a vGPU")
    rated = [
        (_VERDICTS[rate_guest(host, guest.driver_version)], gpu, guest)
        for gpu, guest in running
        if guest.driver_version is not None
    ]
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
    return Finding(
        worst, (f"host: {_describe_driver(host)}", *shorten(shown), *no_driver_lines), _DRIVER_FIXES.get(worst)
    )


def _describe_guest(snapshot: Snapshot, gpu: str, guest: NvmlGuest, verdict: Verdict) -> str:
    vm_name = _vm_name(snapshot, guest.vm_uuid)
    return f"{vm_name} on {gpu}: {_describe_driver(guest.driver_version or '')}{_DRIVER_MEANINGS.get(verdict, '')}"


def _vm_name(snapshot: Snapshot, uuid: str | None) -> str:
    vm = snapshot.vm(uuid or "")
    return vm.name if vm is not None else uuid or "a VM"


def _describe_driver(version: str) -> str:
    name = release_name(version)
    return version if name is None else f"{version} (vGPU {name})"


_DRIVER_MEANINGS = {
    Verdict.FAIL: ", newer than the host's: its vGPU does not start",
    Verdict.WARN: ", older than the host's release supports",
    Verdict.UNKNOWN: ", and it is not known whether the host's release supports it",
}
_DRIVER_FIXES = {
    Verdict.FAIL: "install in the guest the driver of the host's release or of the release before; or update the host",
    Verdict.WARN: "update the guest's driver to the host's release",
    Verdict.UNKNOWN: "NVIDIA's release notes of the host's vGPU software list the guest drivers that it supports",
}


def _check_licenses(context: CheckContext, snapshot: Snapshot) -> Finding:
    if not _vgpu_gpus(snapshot):
        return not_applicable(NO_VGPUS)
    usage = context.usage
    problem = None if usage is None else usage.failed_sources.get(NVML_SOURCE)
    if usage is None or usage.nvml_paused or problem is not None:
        return unknown(f"the licenses of running vGPUs cannot be read{'' if problem is None else f': {problem}'}")
    ready = [vgpu for vgpu in usage.vgpus if vgpu.guest_driver is not None]
    unlicensed = [
        f"{_vm_name(snapshot, vgpu.vm_uuid)} on {vgpu.gpu}: {vgpu.license_state}"
        for vgpu in ready
        if vgpu.license_state not in (None, LICENSED)
    ]
    if unlicensed:
        return warn(
            *shorten(unlicensed),
            fix="in the guest: check its clock, its route to the license server and its token; then systemctl restart "
            "nvidia-gridd",
        )
    unknown_count = sum(vgpu.license_state is None for vgpu in ready)
    if unknown_count:
        return unknown(f"NVML does not report the license of {count_text(unknown_count, 'running vGPU')}")
    return ok(f"{count_text(len(ready), 'vGPU')} with a running guest driver, all licensed")


def _check_tokens(context: CheckContext) -> Finding:
    """Check the folder of each license; the worst verdict counts, and the fix is that of the first with it."""
    findings = [_check_license(files, context.now) for files in context.licenses]
    if not findings:
        return not_applicable(f"there is no license in {LICENSE_DIRECTORY}")
    worst = worst_verdict(findings)
    return Finding(
        worst,
        tuple(line for finding in findings for line in finding.evidence),
        next(finding.fix for finding in findings if finding.verdict is worst),
    )


def _check_license(files: LicenseFiles, now: float) -> Finding:
    if files.problem is not None:
        return unknown(files.problem)
    renew = f"download a new one from NVIDIA's licensing portal or the license server, and put it into {files.path}"
    try:
        parsed = parse_license(files)
    except ValueError as error:
        return fail(
            str(error), fix=f"keep tokens there, and {CA_FILE} and {FEATURE_FILE} if guests need them; or {renew}"
        )
    if parsed.expiry is None:
        return _warn_of_readers(files, f"the token in {files.path} has no expiry")
    ends = datetime.fromtimestamp(parsed.expiry, UTC)
    text = f"{ends:%Y-%m-%d %H:%M} UTC"
    left = ends - datetime.fromtimestamp(now, UTC)
    if left < timedelta():
        return fail(f"the token in {files.path} expired on {text}: guests that start get no license with it", fix=renew)
    if left < EXPIRY_WARNING:
        return warn(f"the token in {files.path} expires on {text}, in {count_text(left.days, 'day')}", fix=renew)
    return _warn_of_readers(files, f"the token in {files.path} expires on {text}")


def _warn_of_readers(files: LicenseFiles, line: str) -> Finding:
    """Return a warning if others than root can read a valid license."""
    if not files.open_paths:
        return ok(line)
    paths = " ".join(map(quote, files.open_paths))
    return warn(line, f"not root's alone: {paths}", fix=f"chown root: {paths} && chmod go= {paths}")


CHECKS = (
    Check(
        id="vgpu-release",
        title="the release of NVIDIA's vGPU software and its end",
        looks_at=f"NVML: the host's driver; vgpuctl's table of releases of {TABLE_DATE}",
        run=require_snapshot(_check_release),
    ),
    Check(
        id="guest-drivers",
        title="the driver versions in guests",
        looks_at="NVML: the driver in the guest of each running vGPU",
        run=require_snapshot(_check_guest_drivers),
        needs_vms=True,
        needs_guests=True,
    ),
    Check(
        id="licenses",
        title="the licenses of running vGPUs",
        looks_at="NVML: the license of each running vGPU whose guest has a driver",
        run=require_snapshot(_check_licenses),
        needs_vms=True,
        needs_usage=True,
    ),
    Check(
        id="license-token",
        title="the tokens for licenses, and when they expire",
        looks_at=f"{LICENSE_DIRECTORY}/*",
        run=_check_tokens,
        needs_licenses=True,
    ),
)

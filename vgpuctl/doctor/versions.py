# SPDX-License-Identifier: Apache-2.0
"""Kernel, libvirt and QEMU, against what the backends of this host's GPUs need.

Sources: libvirt NEWS (10.0: VFIO variant drivers; 12.4: QEMU older than 7.2 is dropped); the kernel has `vfio-dev`
below a PCI function since 6.1.
"""

from __future__ import annotations

from vgpuctl.backends.vendor_vf import LIBVIRT_WITH_VARIANTS
from vgpuctl.doctor.check import Check, Finding, Look, Needs, fail, judged_by_host, number_of, ok, unknown, warn
from vgpuctl.model.gpu import Backend
from vgpuctl.model.snapshot import Snapshot

RELEASE = "/proc/sys/kernel/osrelease"
KERNEL_WITH_VFIO_DEV = (6, 1)
LEAST_LIBVIRT = 8_000_000
LIBVIRT_WITHOUT_OLD_QEMU = 12_004_000
LEAST_QEMU_THEN = 7_002_000


def _kernel(look: Look, snapshot: Snapshot) -> Finding:
    read = look.file(RELEASE)
    if read.text is None:
        return unknown(read.problem or f"there is no {RELEASE}")
    seen = f"{RELEASE}: {read.text.strip()}"
    using = _vendor_vf(snapshot)
    if using and number_of(read.text) < KERNEL_WITH_VFIO_DEV:
        return fail(
            seen,
            f"{', '.join(using)} (vendor-vf) needs 6.1 or newer: older ones have no vfio-dev",
            fix="boot a kernel 6.1 or newer that NVIDIA lists for this vGPU release",
        )
    return ok(seen)


def _libvirt(look: Look, snapshot: Snapshot) -> Finding:
    status = snapshot.hypervisor
    if not status.available:
        reason = status.reason or "no reason given"
        if not status.uri:
            return unknown(reason)
        return fail(
            reason if status.uri in reason else f"libvirt does not answer at {status.uri}: {reason}",
            fix=status.hint or "systemctl start libvirtd (or virtqemud.socket virtnetworkd.socket virtstoraged.socket)",
        )
    if "/session" in status.uri or status.uri.startswith("test:"):
        return fail(
            f"{status.uri} does not show this host's VMs and cannot give them devices",
            fix="use --connect qemu:///system",
        )
    if status.libvirt_version is None:
        return unknown(f"{status.uri} does not say its version")
    seen = f"{status.uri}: libvirt {shown(status.libvirt_version)}"
    using = _vendor_vf(snapshot)
    if using and status.libvirt_version < LIBVIRT_WITH_VARIANTS:
        return fail(
            seen,
            f"{', '.join(using)} (vendor-vf) needs 10.0 or newer",
            fix="use libvirt 10.0 or newer (Debian 13, Ubuntu 24.04, RHEL 10)",
        )
    if status.libvirt_version < LEAST_LIBVIRT:
        return warn(seen, "vgpuctl is tested with 8.0 and newer", fix="use libvirt 8.0 or newer")
    return ok(seen)


def _qemu(look: Look, snapshot: Snapshot) -> Finding:
    status = snapshot.hypervisor
    if not status.available or status.qemu_version is None:
        return unknown("libvirt does not say QEMU's version")
    seen = f"QEMU {shown(status.qemu_version)}"
    if (status.libvirt_version or 0) >= LIBVIRT_WITHOUT_OLD_QEMU and status.qemu_version < LEAST_QEMU_THEN:
        return fail(
            seen,
            f"libvirt {shown(status.libvirt_version or 0)} starts 7.2 and newer only",
            fix="install QEMU 7.2 or newer",
        )
    return ok(seen)


def _vendor_vf(snapshot: Snapshot) -> list[str]:
    return [g.address for g in snapshot.gpus if g.backend is Backend.VENDOR_VF]


def shown(version: int) -> str:
    """Return libvirt's number for a version as people write it: 10000000 is 10.0.0."""
    return f"{version // 1_000_000}.{version // 1000 % 1000}.{version % 1000}"


CHECKS = (
    Check(
        id="kernel",
        title="the kernel is new enough for the GPUs' backends",
        looks_at=f"`{RELEASE}`",
        judge=judged_by_host(_kernel),
        needs=Needs(files=(RELEASE,)),
        explains=("vfio-dev",),
    ),
    Check(
        id="libvirt",
        title="libvirt answers, and is new enough for the GPUs' backends",
        looks_at="libvirt's connection and version",
        judge=judged_by_host(_libvirt),
        explains=("libvirt", "libvirt-variant", "session"),
    ),
    Check(
        id="qemu",
        title="QEMU is new enough for libvirt",
        looks_at="the version that libvirt tells",
        judge=judged_by_host(_qemu),
        explains=("libvirt-failed",),
    ),
)

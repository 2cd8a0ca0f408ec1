# SPDX-License-Identifier: Apache-2.0
"""Kernel, libvirt and QEMU: whether they are new enough for the backends of this host's GPUs.

Sources: libvirt NEWS (12.4: QEMU older than 7.2 is dropped). What a backend needs is in `backends`.
"""

from __future__ import annotations

from vgpuctl.backends import backend_for
from vgpuctl.doctor.check import (
    Check,
    CheckContext,
    Finding,
    PathsToRead,
    fail,
    ok,
    parse_version,
    require_snapshot,
    unknown,
    warn,
)
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.snapshot import Snapshot

KERNEL_RELEASE = "/proc/sys/kernel/osrelease"
MIN_LIBVIRT = 8_000_000
QEMU_DROPPED_SINCE = 12_004_000
MIN_QEMU = 7_002_000


def _check_kernel(context: CheckContext, snapshot: Snapshot) -> Finding:
    content = context.file(KERNEL_RELEASE)
    if content.text is None:
        return unknown(content.problem or f"{KERNEL_RELEASE} does not exist")
    evidence = f"{KERNEL_RELEASE}: {content.text.strip()}"
    version = parse_version(content.text)
    gpus = [g for g in snapshot.gpus if version < backend_for(g.backend).min_kernel]
    if gpus:
        least = ".".join(str(number) for number in max(backend_for(g.backend).min_kernel for g in gpus))
        return fail(
            evidence,
            f"{_describe(gpus)} needs {least} or newer: older kernels have no vfio-dev",
            fix=f"boot a kernel {least} or newer that the GPU vendor supports for its vGPU driver",
        )
    return ok(evidence)


def _check_libvirt(context: CheckContext, snapshot: Snapshot) -> Finding:
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
        return unknown(f"{status.uri} does not report its version")
    evidence = f"{status.uri}: libvirt {format_version(status.libvirt_version)}"
    gpus = [g for g in snapshot.gpus if status.libvirt_version < backend_for(g.backend).min_libvirt]
    if gpus:
        return fail(
            evidence,
            f"{_describe(gpus)} needs 10.0 or newer",
            fix="use libvirt 10.0 or newer (Debian 13, Ubuntu 24.04, RHEL 10)",
        )
    if status.libvirt_version < MIN_LIBVIRT:
        return warn(evidence, "vgpuctl is tested with 8.0 and newer", fix="use libvirt 8.0 or newer")
    return ok(evidence)


def _check_qemu(context: CheckContext, snapshot: Snapshot) -> Finding:
    status = snapshot.hypervisor
    if not status.available or status.qemu_version is None:
        return unknown("libvirt does not report QEMU's version")
    evidence = f"QEMU {format_version(status.qemu_version)}"
    if (status.libvirt_version or 0) >= QEMU_DROPPED_SINCE and status.qemu_version < MIN_QEMU:
        return fail(
            evidence,
            f"libvirt {format_version(status.libvirt_version or 0)} supports only 7.2 and newer",
            fix="install QEMU 7.2 or newer",
        )
    return ok(evidence)


def _describe(gpus: list[Gpu]) -> str:
    return f"{', '.join(g.address for g in gpus)} ({', '.join(sorted({str(g.backend) for g in gpus}))})"


def format_version(version: int) -> str:
    """Return libvirt's version number in readable form: 10000000 is 10.0.0."""
    return f"{version // 1_000_000}.{version // 1000 % 1000}.{version % 1000}"


CHECKS = (
    Check(
        id="kernel",
        title="the kernel's version",
        looks_at=f"`{KERNEL_RELEASE}`",
        run=require_snapshot(_check_kernel),
        paths=PathsToRead(files=(KERNEL_RELEASE,)),
        explains=("vfio-dev",),
    ),
    Check(
        id="libvirt",
        title="libvirt and its version",
        looks_at="libvirt's connection and version",
        run=require_snapshot(_check_libvirt),
        explains=("libvirt", "libvirt-variant", "session"),
    ),
    Check(
        id="qemu",
        title="QEMU's version",
        looks_at="the version that libvirt reports",
        run=require_snapshot(_check_qemu),
        explains=("libvirt-failed",),
    ),
)

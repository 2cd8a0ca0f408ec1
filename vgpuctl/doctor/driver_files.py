# SPDX-License-Identifier: Apache-2.0
"""What the drivers of Intel and Moore Threads say in files: memory of VFs, and overcommitted memory.

Source: Documentation/ABI/testing/sysfs-driver-intel-xe-sriov; docs.mthreads.com, MT
vGPU 2.9.2.
"""

from __future__ import annotations

from vgpuctl.doctor.check import (
    Check,
    CheckContext,
    Finding,
    PathsToRead,
    not_applicable,
    ok,
    require_snapshot,
    shorten,
    unknown,
    warn,
)
from vgpuctl.gpu_setup.vf_memory import has_vf_memory
from vgpuctl.model.gpu import GpuMode
from vgpuctl.model.numbers import count_text, format_size, parse_integer
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.scheduler import mtgpu

_OVERCOMMIT = f"{mtgpu.PARAMETERS_PATH}/{mtgpu.OVERCOMMIT}"
_OVERCOMMIT_NUMBER = f"{mtgpu.PARAMETERS_PATH}/{mtgpu.OVERCOMMIT_NUMBER}"
_MOST_OVERCOMMITTED = 6


def _check_vf_memory(_: CheckContext, snapshot: Snapshot) -> Finding:
    configured = [
        (gpu, gpu.desired_vf_memory_mib)
        for gpu in snapshot.gpus
        if gpu.desired_vf_memory_mib is not None and gpu.desired_mode is GpuMode.SRIOV
    ]
    if not configured:
        return not_applicable("host.yaml sets no memory of VFs")
    without = [
        f"{gpu.address}: its driver does not let the memory of VFs be set"
        for gpu, _ in configured
        if not gpu.has_vf_memory
    ]
    if without:
        return warn(*shorten(without), fix="use Linux 7.0 or newer with the driver xe, or remove vf_memory")
    differing = [
        f"{gpu.address}: {format_size(size)} are configured, its VFs have "
        + (
            ", ".join(sorted({format_size(f.framebuffer_mib or 0) for f in gpu.functions}))
            if gpu.vfs_enabled
            else "none"
        )
        for gpu, size in configured
        if not gpu.vfs_enabled or not has_vf_memory(gpu, size)
    ]
    if differing:
        return warn(*shorten(differing), fix="vgpuctl restore-host; if VMs run on it: vgpuctl apply --drain")
    return ok(*shorten([f"{gpu.address}: each VF has {format_size(size)}" for gpu, size in configured]))


def _check_overcommit(context: CheckContext, snapshot: Snapshot) -> Finding:
    gpus = [g for g in snapshot.gpus if g.driver == mtgpu.MODULE]
    if not gpus:
        return not_applicable("no GPU here has Moore Threads' driver")
    flag, number = context.file(_OVERCOMMIT), context.file(_OVERCOMMIT_NUMBER)
    if flag.problem is not None or number.problem is not None:
        return unknown(*[p for p in (flag.problem, number.problem) if p is not None])
    if (flag.text or "").strip() not in ("Y", "1"):
        return ok("memory is not overcommitted")
    extra = parse_integer(number.text or "")
    lines = [
        f"{count_text(extra or 0, 'more vGPU')} on each card, with 1 GiB of the host's memory each",
        "only mtgpu-1101 with Windows, one type on a card; such VMs cannot be saved",
    ]
    if extra is None or not 1 <= extra <= _MOST_OVERCOMMITTED:
        text = (number.text or "").strip()[:20]
        lines.insert(0, f"{mtgpu.OVERCOMMIT_NUMBER} is {text!r}, and 1 to {_MOST_OVERCOMMITTED} are valid")
        return warn(*lines, fix=f"set {mtgpu.OVERCOMMIT_NUMBER} in /etc/modprobe.d, and load mtgpu again")
    mixed = [
        f"{g.address}: vGPUs of {', '.join(sorted(kinds))}"
        for g in gpus
        if len(kinds := {v.type_id or "?" for v in snapshot.vgpus_on(g.address) if v.present} | {"mtgpu-1101"}) > 1
    ]
    if mixed:
        return warn(*shorten(mixed), *lines, fix="use mtgpu-1101 alone, or turn overcommitment off")
    return ok(*lines)


def _overcommit_paths(snapshot: Snapshot) -> PathsToRead:
    if any(g.driver == mtgpu.MODULE for g in snapshot.gpus):
        return PathsToRead(files=(_OVERCOMMIT, _OVERCOMMIT_NUMBER))
    return PathsToRead()


CHECKS = (
    Check(
        id="vf-memory",
        title="the memory of plain VFs, compared with host.yaml",
        looks_at="xe's `sriov_admin/vfN/profile/vram_quota`, `vf_memory:` of `/etc/vgpuctl/host.yaml`",
        run=require_snapshot(_check_vf_memory),
        explains=("vf-memory", "no-capacity"),
    ),
    Check(
        id="overcommit",
        title="overcommitted memory of Moore Threads' cards",
        looks_at=f"`{_OVERCOMMIT}`, `{mtgpu.OVERCOMMIT_NUMBER}`",
        run=require_snapshot(_check_overcommit),
        find_paths=_overcommit_paths,
    ),
)

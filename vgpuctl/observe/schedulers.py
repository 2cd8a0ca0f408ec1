# SPDX-License-Identifier: Apache-2.0
"""Schedulers that a driver reports in files: Intel's xe and i915, and Moore Threads' mtgpu. Others cost no read.

i915 of the data-centre and DKMS trees has `drm/cardN/iov` or `prelim_iov`, with `pf` and `vfN`, which have a directory
`gt` or `gt0`, `gt1` for each part of the card. The policy is `sched_if_idle` of `pf/gt/policies`. vgpuctl only reads
it: a write turns automatic provisioning off, and i915 refuses to turn that on again until all quotas are zero.
Source: intel/xpumanager v1.3, vgpu_manager.cpp; strongtz/i915-sriov-dkms, gt/iov/intel_iov_sysfs.c.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.model.gpu import Gpu
from vgpuctl.model.numbers import parse_integer
from vgpuctl.model.vgpu_scheduler import GpuScheduler, SchedulerInterface, SchedulerState
from vgpuctl.observe import xe_profiles
from vgpuctl.scheduler import mtgpu, xe
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.devices import Sysfs

_I915 = "i915"
_IOV_DIRECTORIES = ("iov", "prelim_iov")
_QUOTA = "lmem_quota"
_MIB = 1 << 20


def add_scheduler(sysfs: Sysfs, gpu: Gpu, entries: frozenset[str]) -> Gpu:
    """Return a GPU with what its driver's files say of its scheduler. `entries`: the names in its directory."""
    if xe.ADMIN_DIRECTORY in entries:
        return xe_profiles.add_profiles(sysfs, gpu)
    if gpu.driver == mtgpu.MODULE:
        scheduler = GpuScheduler(mtgpu.LIMITS, _read_parameters(sysfs), interface=SchedulerInterface.MODULE)
        return replace(gpu, scheduler=scheduler)
    if gpu.driver == _I915 and gpu.vfs_enabled == len(gpu.functions) and "drm" in entries:
        return _add_iov(sysfs, gpu)
    return gpu


def _read_parameters(sysfs: Sysfs) -> SchedulerState:
    values = {}
    for name in (mtgpu.POLICY, mtgpu.TIME_SLICE):
        path = f"{mtgpu.PARAMETERS_PATH}/{name}"
        try:
            values[name] = sysfs.read(path)
        except OSError as error:
            return mtgpu.unreadable_state(f"{path} cannot be read: {error.strerror or error}")
    return mtgpu.parse_state(values)


def _add_iov(sysfs: Sysfs, gpu: Gpu) -> Gpu:
    """Return a card of i915 with its VFs' scheduler and memory; unchanged if it has none of the directories."""
    try:
        cards = [name for name in sysfs.listdir(f"{gpu.path}/drm") if name.startswith("card")]
        names = sysfs.listdir(f"{gpu.path}/drm/{cards[0]}") if cards else ()
    except OSError:
        return gpu
    folder = next((f"{gpu.path}/drm/{cards[0]}/{name}" for name in _IOV_DIRECTORIES if name in names), None)
    if folder is None:
        return gpu
    state = _read_iov(sysfs, folder, gpu.vfs_enabled)
    functions = tuple(
        replace(f, framebuffer_mib=_read_quota(sysfs, f"{folder}/vf{vf + 1}")) for vf, f in enumerate(gpu.functions)
    )
    return replace(gpu, functions=functions, scheduler=GpuScheduler(None, state, interface=SchedulerInterface.IOV))


def _read_iov(sysfs: Sysfs, folder: str, vfs: int) -> SchedulerState:
    """Return the scheduler of the VFs. The host's own quantum mostly differs, so it does not count."""
    parts: list[dict[str, str]] = []
    try:
        gts = _list_gts(sysfs, f"{folder}/pf")
        idle = {sysfs.read(f"{folder}/pf/{gt}/policies/sched_if_idle").strip() for gt in gts}
        for vf in range(vfs):
            for gt in gts:
                path = f"{folder}/vf{vf + 1}/{gt}"
                parts.append({name: sysfs.read(f"{path}/{name}") for name in (xe.QUANTUM, xe.TIMEOUT)})
    except OSError as error:
        reason = f"{error.filename or folder} cannot be read: {error.strerror or error}"
        return replace(xe.unreadable_state(reason), source=SchedulerInterface.IOV)
    words = {"0": "[low]", "1": "[normal]"}
    texts = [{**part, xe.PRIORITY: words.get(next(iter(idle)), "") if len(idle) == 1 else ""} for part in parts]
    return replace(xe.parse_state(texts, 1), source=SchedulerInterface.IOV)


def _list_gts(sysfs: Sysfs, folder: str) -> list[str]:
    return [name for name in sysfs.listdir(folder) if name.startswith("gt")]


def _read_quota(sysfs: Sysfs, folder: str) -> int | None:
    """Return a VF's memory in MiB, None if it is not known."""
    try:
        sizes = [parse_integer(sysfs.read(f"{folder}/{gt}/{_QUOTA}")) for gt in _list_gts(sysfs, folder)]
    except OSError:
        return None
    return None if None in sizes or not sizes else sum(size or 0 for size in sizes) // _MIB

# SPDX-License-Identifier: Apache-2.0
"""Each GPU: driver, VFs, vGPU types and NVML; IOMMU groups and BARs, which the firmware and the kernel assigned.

Sources: kernel vfio.rst (a group goes to one VM as a whole); Documentation/ABI/testing/sysfs-bus-pci and
include/linux/ioport.h for `resource`: start, end and flags of each BAR, IORESOURCE_MEM 0x200, IORESOURCE_UNSET
0x20000000.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

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
    shorten,
    unknown,
    warn,
)
from vgpuctl.gpu.division import name_holders
from vgpuctl.makers import enable_vfs_hint, maker_of, support_warnings, uses_nvml, vgpu_driver_hint
from vgpuctl.model.gpu import MODES_WITHOUT_VFS, Gpu
from vgpuctl.model.numbers import count_text, format_bytes
from vgpuctl.model.snapshot import Snapshot


def _check_driver(context: CheckContext, snapshot: Snapshot) -> Finding:
    if snapshot.unreadable_devices:
        return warn(
            *shorten(list(snapshot.unreadable_devices)),
            fix="journalctl -k shows the kernel log; look at the named file too. vgpuctl uses no device with a problem",
        )
    gpus = [g for g in snapshot.gpus if g.is_display_class]
    if not gpus:
        return not_applicable("there is no GPU here")
    lines = [f"{g.address} ({g.model}): driver {g.driver or 'none'}" for g in gpus]
    nouveau = [line for g, line in zip(gpus, lines, strict=True) if g.driver == "nouveau"]
    if nouveau:
        return fail(
            *shorten(nouveau),
            fix="echo 'blacklist nouveau' > /etc/modprobe.d/nouveau.conf, rebuild the initramfs, reboot, and install"
            " NVIDIA's vGPU host driver",
        )
    without_driver = {
        line: maker_of(g).offers_nothing_fix(g) or "load the vendor's vGPU host driver; journalctl -k -g 'nvidia|NVRM'"
        for g, line in zip(gpus, lines, strict=True)
        if g.driver is None and g.desired_mode not in MODES_WITHOUT_VFS and maker_of(g).slicing is None
    }
    if without_driver:
        return warn(
            *shorten(list(without_driver)),
            "without a driver it can only be passed through",
            fix=f"for vGPUs {'; '.join(dict.fromkeys(without_driver.values()))}",
        )
    on_vfio = [g for g in gpus if g.driver == "vfio-pci" and g.desired_mode not in (None, *MODES_WITHOUT_VFS)]
    if on_vfio:
        return warn(
            *shorten([f"{g.address} ({g.model}): vfio-pci has it, host.yaml: mode {g.desired_mode}" for g in on_vfio]),
            fix=vgpu_driver_hint(on_vfio[0]),
        )
    return ok(*shorten(lines))


def _check_vgpu_driver(context: CheckContext, snapshot: Snapshot) -> Finding:
    bound = [
        g for g in snapshot.gpus if uses_nvml(g) and g.backend is not None and g.desired_mode not in MODES_WITHOUT_VFS
    ]
    if not bound:
        return not_applicable("no GPU with NVIDIA's driver is set up to offer vGPUs")
    unable = [
        f"{g.address} ({g.model}): driver nvidia, {g.vfs_enabled} of {g.vfs_total} VFs, no vGPU interface"
        for g in bound
        if not backend_for(g.backend).creates_devices
    ]
    if unable:
        return warn(
            *shorten(unable),
            fix="the bare-metal driver does not support vGPUs: install NVIDIA's vGPU host driver (vGPU for KVM); some"
            " boards need displaymodeselector first",
        )
    return ok(f"vGPUs are offered by {count_text(len(bound), 'GPU')} with NVIDIA's driver")


def _check_vfs(context: CheckContext, snapshot: Snapshot) -> Finding:
    capable = [g for g in snapshot.gpus if g.vfs_total and g.is_display_class and g.driver not in (None, "vfio-pci")]
    if not capable:
        return not_applicable("no GPU here has SR-IOV under its vendor's driver")
    lines = [f"{g.address}: {g.vfs_enabled} of {g.vfs_total} VFs are on{_describe_mode(g)}" for g in capable]
    unused = [g for g in capable if not g.vfs_enabled and g.backend is None and not snapshot.vms_drawn_by(g)]
    off = [g for g in unused if g.desired_mode not in MODES_WITHOUT_VFS]
    if off:
        return fail(
            *shorten(
                [f"{g.address} ({g.model}): 0 of {g.vfs_total} VFs are on: it offers nothing to VMs" for g in off]
            ),
            fix=f"{'; '.join(dict.fromkeys(map(_vfs_fix, off)))}; if this is intended: "
            f"vgpuctl set-mode {off[0].address} passthrough",
        )
    return ok(*shorten(lines))


def _vfs_fix(gpu: Gpu) -> str:
    return "vgpuctl restore-host" if gpu.desired_mode is not None else enable_vfs_hint(gpu)


def _describe_mode(gpu: Gpu) -> str:
    return f" (host.yaml: mode {gpu.desired_mode})" if gpu.desired_mode is not None else ""


def _check_functions(context: CheckContext, snapshot: Snapshot) -> Finding:
    if not snapshot.gpus:
        return not_applicable("there is no GPU here")
    problems = [f"{g.address}: {problem}" for g in snapshot.gpus for problem in g.problems]
    problems += [f"{f.address}: {f.problem}" for g in snapshot.gpus for f in g.functions if f.problem]
    problems += [
        f"{f.address}: {problem}"
        for g in snapshot.gpus
        for f in g.functions
        if (problem := backend_for(g.backend).function_problem(f)) is not None
    ]
    if problems:
        fix = "journalctl -k -n 50; with NVIDIA's driver: systemctl status nvidia-vgpud nvidia-vgpu-mgr"
        faulty = next((g for g in snapshot.gpus if g.vfs_enabled and _has_problem(g)), None)
        if faulty is not None:
            off, on = (f"vgpuctl set-mode {faulty.address} {mode}" for mode in ("passthrough", faulty.settable_mode))
            fix += f"; turn the VFs off and on again: {off}, then {on}"
        return fail(*shorten(problems), fix=fix)
    count = sum(len(g.functions) for g in snapshot.gpus)
    return ok(f"{count_text(count, 'function')} of {count_text(len(snapshot.gpus), 'GPU')} without a problem")


def _has_problem(gpu: Gpu) -> bool:
    backend = backend_for(gpu.backend)
    return bool(gpu.problems) or any(f.problem or backend.function_problem(f) for f in gpu.functions)


def _check_types(context: CheckContext, snapshot: Snapshot) -> Finding:
    in_use = {v.gpu for v in snapshot.vgpus}
    without_room = list(_offering_nothing(snapshot, in_use))
    if without_room:
        return warn(
            *shorten([f"{g.address} ({g.model}): its driver {g.driver} offers no vGPU now" for g, _ in without_room]),
            fix="; ".join(dict.fromkeys(fix for _, fix in without_room)),
        )
    capable = [g for g in snapshot.gpus if backend_for(g.backend).creates_devices]
    if not capable:
        return not_applicable("no GPU here offers vGPUs")
    lines = [f"{g.address}: {len(g.types)} vGPU types" for g in capable]
    empty = [g.address for g in capable if not g.types and g.address not in in_use]
    if empty:
        return fail(
            *shorten(lines),
            fix="systemctl restart nvidia-vgpud, then nvidia-vgpu-mgr; a GPU in MIG mode offers types only for GPU"
            " instances that exist: vgpuctl doctor mig-instances",
        )
    warnings = support_warnings(capable)
    if warnings:
        return warn(*shorten(list(warnings)), fix="for production use a GPU from NVIDIA's list of GPUs for vGPU")
    return ok(*shorten(lines))


def _offering_nothing(snapshot: Snapshot, in_use: Set[str]) -> Iterator[tuple[Gpu, str]]:
    """Yield the GPUs with their maker's driver that offer and have no vGPU, with what their maker says helps."""
    for gpu in snapshot.gpus:
        available = [n for f in gpu.functions for n in (f.available_instances or {}).values()]
        if gpu.driver in (None, "vfio-pci") or any(available) or gpu.address in in_use:
            continue
        fix = maker_of(gpu).offers_nothing_fix(gpu)
        if fix is not None and gpu.desired_mode not in MODES_WITHOUT_VFS:
            yield gpu, fix


def _check_nvml(context: CheckContext, snapshot: Snapshot) -> Finding:
    addresses = [g.address for g in snapshot.gpus if uses_nvml(g)]
    if not addresses:
        return not_applicable("no GPU here has NVIDIA's driver")
    lost = [g for g in snapshot.gpus if g.is_lost]
    if lost:
        on = [f"{g.address} ({g.model}): NVML answers, but not for this GPU{_users(snapshot, g)}" for g in lost]
        return fail(
            *shorten(on),
            "the driver lost it, as when it has fallen off the bus; vgpuctl places and starts nothing there",
            fix="journalctl -k -g 'NVRM: Xid' shows why; shut down the VMs on it, then reboot the host, or power it off"
            " and on",
        )
    if snapshot.nvml.available:
        return ok(f"NVML answers, driver {snapshot.nvml.driver_version or 'of unknown version'}")
    reason = snapshot.nvml.reason or "no reason given"
    if "--root" in reason:
        return unknown("NVML is not queried for a captured tree")
    return warn(
        f"NVML does not answer ({reason}): sizes and maxima of profiles on {', '.join(addresses)} are not known",
        fix="nvidia-smi shows why; library and driver must have the same version: cat /proc/driver/nvidia/version",
    )


def _users(snapshot: Snapshot, gpu: Gpu) -> str:
    """Return who has something on a GPU, as the end of a sentence."""
    vgpus = snapshot.vgpus_on(gpu.address)
    return f"; on it: {name_holders(vgpus)}" if vgpus else ""


_RESOURCE_MEM, _RESOURCE_UNSET = 0x200, 0x20000000
_FIRMWARE_FIX = "turn on 'Above 4G decoding' and SR-IOV (with ACS and ARI) in the firmware, and raise its MMIO size"


def _check_iommu_groups(context: CheckContext, snapshot: Snapshot) -> Finding:
    gpus = [
        g
        for g in snapshot.gpus
        if g.iommu_group is not None or any(function.iommu_group is not None for function in g.functions)
    ]
    if not gpus:
        return not_applicable("no GPU here has an IOMMU group")
    shared = [line for g in gpus if backend_for(g.backend).on_vfs for line in _shared_groups(g)]
    if shared:
        return fail(
            *shorten(shared),
            "all VFs of one group must go to the same VM",
            fix="turn on ACS in the firmware, or use a slot behind a root port that has it",
        )
    other_devices = [
        f"{g.address} shares group {g.iommu_group} with {member.address} (driver {member.driver or 'none'})"
        for g in gpus
        for member in g.group_members
        if not member.same_slot and member.driver not in (None, "vfio-pci", "pci-stub", "pcieport")
    ]
    if other_devices:
        return warn(
            *shorten(other_devices),
            fix="they cannot be passed through alone: turn on ACS in the firmware, or use another slot",
        )
    return ok(f"each function of {count_text(len(gpus), 'GPU')} can be assigned to a VM by itself")


def _shared_groups(gpu: Gpu) -> Iterator[str]:
    by_group: dict[int, list[str]] = {}
    for function in gpu.functions:
        if function.iommu_group is not None:
            by_group.setdefault(function.iommu_group, []).append(function.address)
    for group, members in sorted(by_group.items()):
        if len(members) > 1:
            yield f"group {group}: {', '.join(members[:3])}{' and more' if len(members) > 3 else ''}"


def _check_bars(context: CheckContext, snapshot: Snapshot) -> Finding:
    gpus = [g for g in snapshot.gpus if _is_pci(g)]
    if not gpus:
        return not_applicable("there is no PCI GPU here")
    unassigned, unreadable, checked_count = [], [], 0
    for gpu in gpus:
        content = context.file(f"{gpu.path}/resource")
        if content.text is None:
            unreadable.append(content.problem or f"{gpu.path}/resource does not exist")
            continue
        checked_count += 1
        unassigned += [f"{gpu.path}/resource: {line}" for line in _unassigned_bars(content.text, gpu)]
    if unassigned:
        return fail(
            *shorten(unassigned), fix=f"{_FIRMWARE_FIX}; otherwise boot with pci=realloc, and see journalctl -k -g BAR"
        )
    if unreadable:
        return unknown(*shorten(unreadable))
    return ok(f"every memory BAR of {count_text(checked_count, 'GPU')} has an address")


def _unassigned_bars(text: str, gpu: Gpu) -> Iterator[str]:
    """Yield the BARs that have a size but no address: 0-5, then the VFs' (relevant only with SR-IOV). Skip the ROM."""
    for number, line in enumerate(text.splitlines()):
        try:
            start, end, flags = (int(field, 16) for field in line.split())
        except ValueError:
            continue
        if not flags & _RESOURCE_MEM or end <= start or number == _ROM_BAR:
            continue
        if flags & _RESOURCE_UNSET or start == 0:
            bar_name = f"BAR {number}" if number < _ROM_BAR else f"VF BAR {number - _ROM_BAR - 1}"
            yield f"{bar_name} of {gpu.address} has no address (size {format_bytes(end - start + 1)})"


_ROM_BAR = 6


def _is_pci(gpu: Gpu) -> bool:
    return gpu.vendor_id is not None


def _resource_paths(snapshot: Snapshot) -> PathsToRead:
    return PathsToRead(files=tuple(f"{g.path}/resource" for g in snapshot.gpus if _is_pci(g)))


CHECKS = (
    Check(
        id="gpu-driver",
        title="the driver of each GPU",
        looks_at="`driver` of each GPU",
        run=require_snapshot(_check_driver),
        explains=("mode", "gpu-missing", "driver"),
    ),
    Check(
        id="vgpu-driver",
        title="the kind of NVIDIA's driver",
        looks_at="`nvidia/` and `mdev_supported_types/` of GPUs and VFs",
        run=require_snapshot(_check_vgpu_driver),
        explains=("mode", "sriov-manage"),
    ),
    Check(
        id="vfs",
        title="the VFs of each GPU",
        looks_at="`sriov_totalvfs` and `virtfnN` of each GPU",
        run=require_snapshot(_check_vfs),
        explains=("vfs-off", "no-capacity"),
    ),
    Check(
        id="functions",
        title="the drivers of each GPU's functions",
        looks_at="the VFs' drivers, `nvidia/`, `mdev_supported_types/`, `vfio-dev/`",
        run=require_snapshot(_check_functions),
        explains=("no-capacity", "device-failed", "vfio-dev"),
        needs_types=True,
    ),
    Check(
        id="vgpu-types",
        title="the vGPU types that GPUs offer",
        looks_at="`mdev_supported_types/`, `creatable_vgpu_types`, NVML",
        run=require_snapshot(_check_types),
        explains=("no-capacity",),
        needs_types=True,
    ),
    Check(
        id="nvml",
        title="NVML, for each GPU",
        looks_at="NVIDIA's management library",
        run=require_snapshot(_check_nvml),
        explains=("device-failed", "nvml", "driver", "gpu-lost"),
        needs_types=True,
    ),
    Check(
        id="iommu-groups",
        title="the IOMMU groups of GPUs and VFs",
        looks_at="`iommu_group` of each function, and its other members",
        run=require_snapshot(_check_iommu_groups),
        explains=("libvirt-failed", "in-use"),
    ),
    Check(
        id="bars",
        title="the addresses of each GPU's BARs",
        looks_at="`resource` of each GPU",
        run=require_snapshot(_check_bars),
        find_paths=_resource_paths,
        explains=("device-failed", "vfs-off", "gpu-missing"),
    ),
)

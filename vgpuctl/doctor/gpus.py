# SPDX-License-Identifier: Apache-2.0
"""The GPUs' drivers: which is bound, whether VFs are on and served, and whether NVML answers."""

from __future__ import annotations

from vgpuctl.doctor.check import Check, Finding, Look, fail, judged_by_host, not_applicable, ok, unknown, warn
from vgpuctl.model.commands import vfs_on_hint
from vgpuctl.model.gpu import NOT_FOR_VGPUS, Backend, Gpu
from vgpuctl.model.snapshot import Snapshot

_MOST = 4
VGPU = (Backend.MDEV_PF, Backend.MDEV_VF, Backend.VENDOR_VF)
"""What carries vGPUs that a driver makes."""


def _driver(look: Look, snapshot: Snapshot) -> Finding:
    if snapshot.left_out:
        return warn(
            *shortened(list(snapshot.left_out)),
            fix="vgpuctl uses no such device; look at the file that is named, and at the kernel's log: journalctl -k",
        )
    gpus = [g for g in snapshot.gpus if g.display_class]
    if not gpus:
        return not_applicable("there is no GPU here")
    seen = [f"{g.address} ({g.model}): driver {g.driver or 'none'}" for g in gpus]
    nouveau = [line for g, line in zip(gpus, seen, strict=True) if g.driver == "nouveau"]
    if nouveau:
        return fail(
            *shortened(nouveau),
            fix="echo 'blacklist nouveau' > /etc/modprobe.d/nouveau.conf, rebuild the initramfs, reboot, and install"
            " NVIDIA's vGPU host driver",
        )
    bare = [line for g, line in zip(gpus, seen, strict=True) if g.driver is None and g.desired not in NOT_FOR_VGPUS]
    if bare:
        return warn(
            *shortened(bare),
            "without a driver it can only be passed through",
            fix="for vGPUs load the vendor's vGPU host driver: journalctl -k -g 'nvidia|NVRM'",
        )
    return ok(*shortened(seen))


def _vgpu_driver(look: Look, snapshot: Snapshot) -> Finding:
    bound = [g for g in snapshot.gpus if g.nvidia_driver and g.backend is not None and g.desired not in NOT_FOR_VGPUS]
    if not bound:
        return not_applicable("no GPU that could show vGPUs now has NVIDIA's driver")
    without = [
        f"{g.address} ({g.model}): driver nvidia, {g.vfs_enabled} of {g.vfs_total} VFs, no vGPU interface"
        for g in bound
        if g.backend not in VGPU
    ]
    if without:
        return warn(
            *shortened(without),
            fix="the driver for bare machines carries no vGPUs: install NVIDIA's vGPU host driver (vGPU for KVM); some"
            " boards need displaymodeselector first",
        )
    return ok(f"{len(bound)} GPU(s) with NVIDIA's driver show vGPUs")


def _vfs(look: Look, snapshot: Snapshot) -> Finding:
    able = [g for g in snapshot.gpus if g.vfs_total and g.display_class and g.driver not in (None, "vfio-pci")]
    if not able:
        return not_applicable("no GPU here has SR-IOV under its vendor's driver")
    seen = [f"{g.address}: {g.vfs_enabled} of {g.vfs_total} VFs are on{_kept(g)}" for g in able]
    off = [g for g in able if not g.vfs_enabled and g.backend is None and g.desired not in NOT_FOR_VGPUS]
    if off:
        return fail(
            *shortened(
                [f"{g.address} ({g.model}): 0 of {g.vfs_total} VFs are on: it has nothing for VMs" for g in off]
            ),
            fix=f"{'; '.join(vfs_on_hint(g) for g in off)}; one that is meant to be so: vgpuctl set-mode ADDRESS"
            " passthrough, or unmanaged",
        )
    return ok(*shortened(seen))


def _kept(gpu: Gpu) -> str:
    return f" (host.yaml: mode {gpu.desired})" if gpu.desired is not None else ""


def _functions(look: Look, snapshot: Snapshot) -> Finding:
    if not snapshot.gpus:
        return not_applicable("there is no GPU here")
    wrong = [f"{g.address}: {p}" for g in snapshot.gpus for p in g.problems]
    wrong += [f"{f.address}: {f.problem}" for g in snapshot.gpus for f in g.functions if f.problem]
    bare = [f.address for g in snapshot.gpus if g.backend is Backend.VENDOR_VF for f in g.functions if not f.vfio_dev]
    wrong += [f"{address}: no vfio-dev directory" for address in bare]
    if wrong:
        return fail(
            *shortened(wrong),
            fix="journalctl -k -n 50; with NVIDIA's driver systemctl status nvidia-vgpud nvidia-vgpu-mgr, then turn"
            " the VFs off and on again: vgpuctl set-mode ADDRESS passthrough, then vgpu",
        )
    count = sum(len(g.functions) for g in snapshot.gpus)
    return ok(f"{count} function{'' if count == 1 else 's'} of {len(snapshot.gpus)} GPU(s) without a problem")


def _types(look: Look, snapshot: Snapshot) -> Finding:
    able = [g for g in snapshot.gpus if g.backend in VGPU]
    if not able:
        return not_applicable("no GPU here offers vGPUs")
    seen = [f"{g.address}: {len(g.types)} vGPU types" for g in able]
    full = {v.gpu for v in snapshot.vgpus}
    empty = [g.address for g in able if not g.types and g.address not in full]
    if empty:
        return fail(
            *shortened(seen),
            fix="systemctl restart nvidia-vgpud, then nvidia-vgpu-mgr; a GPU in MIG mode offers types only for GPU"
            " instances that exist: vgpuctl set-mig GPU PROFILE[:N]...",
        )
    return ok(*shortened(seen))


def _nvml(look: Look, snapshot: Snapshot) -> Finding:
    using = [g.address for g in snapshot.gpus if g.nvidia_driver]
    if not using:
        return not_applicable("no GPU here has NVIDIA's driver")
    if snapshot.nvml.available:
        return ok(f"NVML answers, driver {snapshot.nvml.driver_version or 'of unknown version'}")
    reason = snapshot.nvml.reason or "no reason given"
    if "--root" in reason:
        return unknown("NVML is not asked for a captured tree")
    return warn(
        f"NVML does not answer ({reason}): sizes and maxima of profiles on {', '.join(using)} are not known",
        fix="nvidia-smi says why; library and driver must be of one version: cat /proc/driver/nvidia/version",
    )


def shortened(lines: list[str]) -> tuple[str, ...]:
    """Return the first few lines, and how many more there are."""
    if len(lines) <= _MOST:
        return tuple(lines)
    return (*lines[: _MOST - 1], f"and {len(lines) - _MOST + 1} more")


CHECKS = (
    Check(
        id="gpu-driver",
        title="each GPU has its vendor's driver",
        looks_at="`driver` of each GPU",
        judge=judged_by_host(_driver),
        explains=("mode", "gpu-missing", "driver"),
    ),
    Check(
        id="vgpu-driver",
        title="NVIDIA's driver is the one that carries vGPUs",
        looks_at="`nvidia/` and `mdev_supported_types/` of GPUs and VFs",
        judge=judged_by_host(_vgpu_driver),
        explains=("mode", "sriov-manage"),
    ),
    Check(
        id="vfs",
        title="VFs are on where a GPU needs them",
        looks_at="`sriov_totalvfs` and `virtfnN` of each GPU",
        judge=judged_by_host(_vfs),
        explains=("vfs-off", "no-capacity"),
    ),
    Check(
        id="functions",
        title="each function of a GPU is served by its driver",
        looks_at="the VFs' drivers, `nvidia/`, `mdev_supported_types/`, `vfio-dev/`",
        judge=judged_by_host(_functions),
        explains=("no-capacity", "device-failed", "vfio-dev"),
        types=True,
    ),
    Check(
        id="vgpu-types",
        title="GPUs that carry vGPUs offer types",
        looks_at="`mdev_supported_types/`, `creatable_vgpu_types`, NVML",
        judge=judged_by_host(_types),
        explains=("no-capacity",),
        types=True,
    ),
    Check(
        id="nvml",
        title="NVML answers",
        looks_at="NVIDIA's management library",
        judge=judged_by_host(_nvml),
        explains=("device-failed", "nvml", "driver"),
        types=True,
    ),
)

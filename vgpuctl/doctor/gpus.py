# SPDX-License-Identifier: Apache-2.0
"""The GPUs' drivers: which is bound, whether VFs are on and have a working driver, and whether NVML answers."""

from __future__ import annotations

from vgpuctl.backends import backend_for
from vgpuctl.doctor.check import Check, CheckContext, Finding, fail, not_applicable, ok, require_snapshot, unknown, warn
from vgpuctl.gpu.division import name_holders
from vgpuctl.makers import enable_vfs_hint, uses_nvml, vgpu_driver_hint
from vgpuctl.model.gpu import MODES_WITHOUT_VFS, Gpu
from vgpuctl.model.numbers import count_text
from vgpuctl.model.snapshot import Snapshot

_MAX_LINES = 4


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
    without_driver = [
        line
        for g, line in zip(gpus, lines, strict=True)
        if g.driver is None and g.desired_mode not in MODES_WITHOUT_VFS
    ]
    if without_driver:
        return warn(
            *shorten(without_driver),
            "without a driver it can only be passed through",
            fix="for vGPUs load the vendor's vGPU host driver; journalctl -k -g 'nvidia|NVRM'",
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
    off = [g for g in capable if not g.vfs_enabled and g.backend is None and g.desired_mode not in MODES_WITHOUT_VFS]
    if off:
        return fail(
            *shorten(
                [f"{g.address} ({g.model}): 0 of {g.vfs_total} VFs are on: it offers nothing to VMs" for g in off]
            ),
            fix=f"{'; '.join(enable_vfs_hint(g) for g in off)}; if this is intended: "
            f"vgpuctl set-mode {off[0].address} passthrough",
        )
    return ok(*shorten(lines))


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
    capable = [g for g in snapshot.gpus if backend_for(g.backend).creates_devices]
    if not capable:
        return not_applicable("no GPU here offers vGPUs")
    lines = [f"{g.address}: {len(g.types)} vGPU types" for g in capable]
    in_use = {v.gpu for v in snapshot.vgpus}
    empty = [g.address for g in capable if not g.types and g.address not in in_use]
    if empty:
        return fail(
            *shorten(lines),
            fix="systemctl restart nvidia-vgpud, then nvidia-vgpu-mgr; a GPU in MIG mode offers types only for GPU"
            " instances that exist: vgpuctl doctor mig-instances",
        )
    return ok(*shorten(lines))


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


def shorten(lines: list[str]) -> tuple[str, ...]:
    """Return the first few lines, and how many more there are."""
    if len(lines) <= _MAX_LINES:
        return tuple(lines)
    return (*lines[: _MAX_LINES - 1], f"and {len(lines) - _MAX_LINES + 1} more")


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
)

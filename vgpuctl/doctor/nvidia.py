# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's driver as a whole: its services, versions, users and firmware, and error correction of the GPUs' memory."""

from __future__ import annotations

import re

from vgpuctl.backends import backend_for
from vgpuctl.doctor.boot import UNIT_DIRECTORIES
from vgpuctl.doctor.check import (
    NVIDIA_SERVICES,
    Check,
    CheckContext,
    Finding,
    PathsToRead,
    fail,
    not_applicable,
    ok,
    require_snapshot,
    unknown,
    warn,
)
from vgpuctl.doctor.gpus import shorten
from vgpuctl.doctor.scheduler_checks import read_modprobe_files
from vgpuctl.makers import uses_nvml
from vgpuctl.model.gpu import MODES_WITHOUT_VFS, Gpu, GpuMode
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.scheduler.driver_texts import MODULE_VERSION, PROC_VERSION, parse_driver_version
from vgpuctl.scheduler.modprobe_files import DIRECTORIES, DRIVER_PARAMS_PATH

VGPUD, VGPU_MGR = NVIDIA_SERVICES
SLICE_DIRECTORIES = ("/sys/fs/cgroup/system.slice", "/sys/fs/cgroup/systemd/system.slice")
"""The cgroups of services: with cgroup v2, and in systemd's own hierarchy with v1."""
LIBRARY_DIRECTORIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
FIRMWARE_OPTION = "NVreg_EnableGpuFirmware"
_NO_GPU = "no GPU here has NVIDIA's driver"
_NVIDIA_COMMANDS = ("nvidia-vgpu-mgr", "nvidia-vgpud")
_END_MARKERS = ("Failed with result", "Deactivated successfully", "Succeeded.", "Started ", "Finished ")
_LIBRARY_NAME = re.compile(r"libnvidia-ml\.so\.(\d+\.\d+(?:\.\d+)?)")
_MODPROBE_OPTION = re.compile(rf"^\s*options\s+nvidia\s.*\b{FIRMWARE_OPTION}=(\w+)", re.MULTILINE)
_LOADED_OPTION = re.compile(r"^EnableGpuFirmware:\s*([0-9]{1,18})", re.MULTILINE)
_MODE_MASK, _MODE_DEFAULT = 0xF, 2
"""nv-reg.h: NV_REG_ENABLE_GPU_FIRMWARE_MODE_MASK and _MODE_DEFAULT; the driver's default is 0x12."""


def _check_services(context: CheckContext, snapshot: Snapshot) -> Finding:
    if not any(uses_nvml(g) and backend_for(g.backend).creates_devices for g in snapshot.gpus):
        return not_applicable("no GPU here has vGPUs of NVIDIA's driver")
    fix = f"systemctl restart {VGPUD}, then {VGPU_MGR}; journalctl -b -u {VGPUD} -u {VGPU_MGR} shows why"
    service_events = [
        line for line in context.service_logs.get(VGPUD) or () if any(word in line for word in _END_MARKERS)
    ]
    if service_events and _END_MARKERS[0] in service_events[-1]:
        return fail(service_events[-1].strip(), f"without {VGPUD} the GPUs have no vGPU types", fix=fix)
    files = [f"{directory}/{VGPU_MGR}.service/cgroup.procs" for directory in SLICE_DIRECTORIES]
    pids = [pid for path in files for pid in (context.file(path).text or "").split()]
    if pids:
        return ok(
            f"{VGPU_MGR} runs (pid {pids[0]})",
            service_events[-1].strip() if service_events else f"no line of {VGPUD} in the journal",
        )
    problems = [problem for path in files if (problem := context.file(path).problem)]
    if problems or not any(context.folder(directory).names for directory in SLICE_DIRECTORIES):
        return unknown(*(problems or [f"systemd's services are not visible in {SLICE_DIRECTORIES[0]}"]))
    unit = next(
        (f"{directory}/{VGPU_MGR}.service" for directory in UNIT_DIRECTORIES if _has_unit(context, directory)), None
    )
    if unit is None:
        return unknown(
            f"no {VGPU_MGR}.service in {', '.join(UNIT_DIRECTORIES)}: it is not known what starts vGPUs here"
        )
    return fail(f"{unit} exists but does not run: no VM with a vGPU can start", fix=fix)


def _has_unit(context: CheckContext, folder: str) -> bool:
    return f"{VGPU_MGR}.service" in (context.folder(folder).names or ())


def _check_version(context: CheckContext, snapshot: Snapshot) -> Finding:
    if not any(uses_nvml(g) for g in snapshot.gpus):
        return not_applicable(_NO_GPU)
    version_by_source = {
        PROC_VERSION: parse_driver_version(None, context.file(PROC_VERSION).text),
        MODULE_VERSION: parse_driver_version(context.file(MODULE_VERSION).text, None),
        "NVML": snapshot.nvml.driver_version,
    }
    known_versions = {source: version for source, version in version_by_source.items() if version is not None}
    if not known_versions:
        return unknown(
            context.file(PROC_VERSION).problem
            or f"neither {PROC_VERSION} nor {MODULE_VERSION} nor NVML reports a version"
        )
    libraries = {
        f"{directory}/{name}": match[1]
        for directory in LIBRARY_DIRECTORIES
        for name in context.folder(directory).names or ()
        if (match := _LIBRARY_NAME.fullmatch(name)) is not None
    }
    lines = [f"{source}: {version}" for source, version in {**known_versions, **libraries}.items()]
    loaded = set(known_versions.values())
    if len(loaded) > 1 or (libraries and loaded.isdisjoint(libraries.values())):
        return fail(
            *lines,
            fix="the loaded driver and its libraries must have the same version: reboot after an update, or install the"
            " loaded version",
        )
    return ok(*lines)


def _check_holders(context: CheckContext, snapshot: Snapshot) -> Finding:
    gpus = [g for g in snapshot.gpus if uses_nvml(g)]
    if not gpus:
        return not_applicable(_NO_GPU)
    if context.holders is None:
        return unknown(context.holders_problem, fix="run it as root")
    users = [
        f"{holder.command} (pid {holder.pid})"
        for holder in context.holders
        if not any(command in holder.command for command in _NVIDIA_COMMANDS)
    ]
    if not users:
        return ok("only NVIDIA's own services have the driver open")
    pending = [f"{g.address}: {why}" for g in gpus if (why := _pending_change(g)) is not None]
    if not pending:
        return ok(*shorten([f"{user} has the driver open" for user in users]), "no GPU waits for its release")
    return warn(
        *shorten(pending),
        *shorten([f"{user} has the driver open" for user in users]),
        fix="systemctl stop nvidia-persistenced nvidia-dcgm dcgm-exporter (those that run); then the command that"
        " failed, or vgpuctl restore-host",
    )


def _pending_change(gpu: Gpu) -> str | None:
    """Return the change that has to wait while a program has a GPU open, None when nothing is pending."""
    if gpu.mig is not None and gpu.mig.enabled is not gpu.mig.pending_enabled:
        return f"MIG waits for a reset to turn {'on' if gpu.mig.pending_enabled else 'off'}"
    if gpu.mig is not None and gpu.desired_mig is not None and gpu.desired_mig.is_requested is not gpu.mig.enabled:
        return f"host.yaml sets MIG {'on' if gpu.desired_mig.is_requested else 'off'}, which needs its VFs off first"
    if gpu.vfs_total and not gpu.vfs_enabled and gpu.backend is None and gpu.desired_mode not in MODES_WITHOUT_VFS:
        return f"its {gpu.vfs_total} VFs are off"
    if gpu.vfs_enabled and gpu.desired_mode is GpuMode.PASSTHROUGH:
        return f"host.yaml sets passthrough, but {gpu.vfs_enabled} VFs are on"
    return None


def _check_firmware(context: CheckContext, snapshot: Snapshot) -> Finding:
    if not any(uses_nvml(g) for g in snapshot.gpus):
        return not_applicable(_NO_GPU)
    files, problems = read_modprobe_files(context)
    forced = [
        f"{file.path}: {FIRMWARE_OPTION}={match[1]}" for file in files for match in _MODPROBE_OPTION.finditer(file.text)
    ]
    loaded = _LOADED_OPTION.search(context.file(DRIVER_PARAMS_PATH).text or "")
    if loaded is not None and int(loaded[1]) & _MODE_MASK != _MODE_DEFAULT:
        forced.append(f"{DRIVER_PARAMS_PATH}: the driver was loaded with EnableGpuFirmware {loaded[1]}")
    if forced:
        return warn(
            *shorten(forced),
            fix=f"remove {FIRMWARE_OPTION} from modprobe's files, rebuild the initramfs and reboot: the driver "
            "knows which"
            " GPUs need their firmware (GSP)",
        )
    return unknown(*problems) if problems else ok(f"{FIRMWARE_OPTION} is not set: the driver decides")


def _check_ecc(context: CheckContext, snapshot: Snapshot) -> Finding:
    gpus = [gpu for gpu in snapshot.gpus if uses_nvml(gpu)]
    if not gpus:
        return not_applicable(_NO_GPU)
    ecc_states = [(gpu, context.ecc[gpu.address]) for gpu in gpus if gpu.address in context.ecc]
    if not ecc_states:
        return unknown("NVML does not report error correction (ECC)")
    waiting = [
        f"{gpu.address} ({gpu.model}): ECC is {_on_or_off(ecc.enabled)}, and "
        f"{_on_or_off(ecc.pending_enabled)} after its next reset"
        for gpu, ecc in ecc_states
        if ecc.enabled is not ecc.pending_enabled
    ]
    if waiting:
        return warn(
            *shorten(waiting),
            "this changes the memory available to vGPUs",
            fix="reboot the host, or undo the change: nvidia-smi -i ADDRESS -e 0 (off) or 1 (on)",
        )
    return ok(*shorten([f"{gpu.address}: ECC is {_on_or_off(ecc.enabled)}" for gpu, ecc in ecc_states]))


def _on_or_off(value: bool) -> str:
    return "on" if value else "off"


CHECKS = (
    Check(
        id="driver-version",
        title="the versions of NVIDIA's driver and libraries",
        looks_at=f"`{PROC_VERSION}`, `{MODULE_VERSION}`, NVML, `libnvidia-ml.so.VERSION` in "
        f"`{'`, `'.join(LIBRARY_DIRECTORIES)}`",
        run=require_snapshot(_check_version),
        paths=PathsToRead(files=(PROC_VERSION, MODULE_VERSION), folders=LIBRARY_DIRECTORIES),
        explains=("nvml", "nvml-failed", "driver", "partition", "scheduler"),
    ),
    Check(
        id="vgpu-services",
        title="NVIDIA's services for vGPUs",
        looks_at=f"`{VGPU_MGR}.service/cgroup.procs` in `{'`, `'.join(SLICE_DIRECTORIES)}`, the log of `{VGPUD}`",
        run=require_snapshot(_check_services),
        paths=PathsToRead(
            files=tuple(f"{at}/{VGPU_MGR}.service/cgroup.procs" for at in SLICE_DIRECTORIES),
            folders=(*SLICE_DIRECTORIES, *UNIT_DIRECTORIES),
        ),
        explains=("libvirt-failed", "device-failed", "no-capacity"),
        needs_logs=True,
    ),
    Check(
        id="driver-holders",
        title="programs that block a pending change of NVIDIA's driver",
        looks_at="who has `/dev/nvidia*` open, MIG and VFs of each GPU",
        run=require_snapshot(_check_holders),
        explains=("busy",),
        needs_holders=True,
    ),
    Check(
        id="gpu-firmware",
        title="the option for the GPUs' firmware (GSP)",
        looks_at=f"`{DRIVER_PARAMS_PATH}`, `{FIRMWARE_OPTION}` in `{'/*.conf`, `'.join(DIRECTORIES)}/*.conf`",
        run=require_snapshot(_check_firmware),
        paths=PathsToRead(files=(DRIVER_PARAMS_PATH,), configs=DIRECTORIES),
        explains=("device-failed",),
    ),
    Check(
        id="ecc",
        title="changes of ECC that wait for a reset",
        looks_at="NVML",
        run=require_snapshot(_check_ecc),
        needs_ecc=True,
    ),
)

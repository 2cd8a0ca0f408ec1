# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's driver as a whole: its services, its versions, who has it open, its firmware, its GPUs' error correction."""

from __future__ import annotations

import re

from vgpuctl.doctor.boot import UNIT_FOLDERS
from vgpuctl.doctor.check import (
    NVIDIA_SERVICES,
    Check,
    Finding,
    Look,
    Needs,
    fail,
    judged_by_host,
    not_applicable,
    ok,
    unknown,
    warn,
)
from vgpuctl.doctor.gpus import VGPU, shortened
from vgpuctl.doctor.scheduler import modprobe_files
from vgpuctl.model.gpu import NOT_FOR_VGPUS, Gpu, Mode
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.scheduler.driver import MODULE_VERSION, PROC_VERSION, loaded_version
from vgpuctl.scheduler.modprobe import FOLDERS, PARAMS

TYPES, MANAGER = NVIDIA_SERVICES
SLICES = ("/sys/fs/cgroup/system.slice", "/sys/fs/cgroup/systemd/system.slice")
"""Where cgroups of services are: with cgroup v2, and systemd's own hierarchy with v1."""
LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib")
FIRMWARE = "NVreg_EnableGpuFirmware"
_NO_GPU = "no GPU here has NVIDIA's driver"
_OWN = ("nvidia-vgpu-mgr", "nvidia-vgpud")
_ENDED = ("Failed with result", "Deactivated successfully", "Succeeded.", "Started ", "Finished ")
_LIBRARY = re.compile(r"libnvidia-ml\.so\.(\d+\.\d+(?:\.\d+)?)")
_FORCED = re.compile(rf"^\s*options\s+nvidia\s.*\b{FIRMWARE}=(\w+)", re.MULTILINE)
_GIVEN = re.compile(r"^EnableGpuFirmware:\s*([0-9]{1,18})", re.MULTILINE)
_MODE, _BY_DEFAULT = 0xF, 2
"""nv-reg.h: NV_REG_ENABLE_GPU_FIRMWARE_MODE_MASK and _MODE_DEFAULT; the driver's default is 0x12."""


def _services(look: Look, snapshot: Snapshot) -> Finding:
    if not any(g.nvidia_driver and g.backend in VGPU for g in snapshot.gpus):
        return not_applicable("no GPU here has vGPUs by NVIDIA's driver")
    fix = f"systemctl restart {TYPES}, then {MANAGER}; journalctl -b -u {TYPES} -u {MANAGER} says why"
    ended = [line for line in look.services.get(TYPES) or () if any(word in line for word in _ENDED)]
    if ended and _ENDED[0] in ended[-1]:
        return fail(ended[-1].strip(), f"without {TYPES} the GPUs have no vGPU types", fix=fix)
    files = [f"{at}/{MANAGER}.service/cgroup.procs" for at in SLICES]
    pids = [pid for path in files for pid in (look.file(path).text or "").split()]
    if pids:
        return ok(
            f"{MANAGER} runs (pid {pids[0]})", ended[-1].strip() if ended else f"no line of {TYPES} in the journal"
        )
    problems = [p for path in files if (p := look.file(path).problem)]
    if problems or not any(look.folder(at).names for at in SLICES):
        return unknown(*(problems or [f"systemd's services cannot be seen in {SLICES[0]}"]))
    unit = next((f"{at}/{MANAGER}.service" for at in UNIT_FOLDERS if _has_unit(look, at)), None)
    if unit is None:
        return unknown(f"no {MANAGER}.service in {', '.join(UNIT_FOLDERS)}: who starts vGPUs here is not known")
    return fail(f"{unit} is there, and does not run: no VM with a vGPU can start", fix=fix)


def _has_unit(look: Look, folder: str) -> bool:
    return f"{MANAGER}.service" in (look.folder(folder).names or ())


def _version(look: Look, snapshot: Snapshot) -> Finding:
    if not any(g.nvidia_driver for g in snapshot.gpus):
        return not_applicable(_NO_GPU)
    seen = {
        PROC_VERSION: loaded_version(None, look.file(PROC_VERSION).text),
        MODULE_VERSION: loaded_version(look.file(MODULE_VERSION).text, None),
        "NVML": snapshot.nvml.driver_version,
    }
    known = {where: version for where, version in seen.items() if version is not None}
    if not known:
        return unknown(
            look.file(PROC_VERSION).problem or f"neither {PROC_VERSION} nor {MODULE_VERSION} nor NVML tells a version"
        )
    libraries = {
        f"{at}/{name}": match[1]
        for at in LIBRARIES
        for name in look.folder(at).names or ()
        if (match := _LIBRARY.fullmatch(name)) is not None
    }
    lines = [f"{where}: {version}" for where, version in {**known, **libraries}.items()]
    loaded = set(known.values())
    if len(loaded) > 1 or (libraries and loaded.isdisjoint(libraries.values())):
        return fail(
            *lines,
            fix="the loaded driver and its libraries must be of one version: reboot after an update, or install the"
            " version that is loaded",
        )
    return ok(*lines)


def _holders(look: Look, snapshot: Snapshot) -> Finding:
    gpus = [g for g in snapshot.gpus if g.nvidia_driver]
    if not gpus:
        return not_applicable(_NO_GPU)
    if look.holders is None:
        return unknown(look.holders_problem, fix="run it as root")
    who = [f"{h.command} (pid {h.pid})" for h in look.holders if not any(own in h.command for own in _OWN)]
    if not who:
        return ok("nobody but NVIDIA's own services has the driver open")
    waits = [f"{g.address}: {why}" for g in gpus if (why := _waits(g)) is not None]
    if not waits:
        return ok(*shortened([f"{one} has the driver open" for one in who]), "no GPU waits for it to be let go")
    return warn(
        *shortened(waits),
        *shortened([f"{one} has the driver open" for one in who]),
        fix="stop them (systemctl stop nvidia-persistenced nvidia-dcgm dcgm-exporter, as it is), then vgpuctl apply or"
        " the command that failed",
    )


def _waits(gpu: Gpu) -> str | None:
    """Return what cannot be done with a GPU while a program has it open, None when nothing is to be done."""
    if gpu.mig is not None and gpu.mig.enabled is not gpu.mig.pending:
        return f"MIG waits for a reset to go {'on' if gpu.mig.pending else 'off'}"
    if gpu.mig is not None and gpu.desired_mig is not None and gpu.desired_mig.on is not gpu.mig.enabled:
        return f"host.yaml asks for MIG {'on' if gpu.desired_mig.on else 'off'}, for which its VFs go off first"
    if gpu.vfs_total and not gpu.vfs_enabled and gpu.backend is None and gpu.desired not in NOT_FOR_VGPUS:
        return f"its {gpu.vfs_total} VFs are off"
    if gpu.vfs_enabled and gpu.desired is Mode.PASSTHROUGH:
        return f"host.yaml asks for passthrough, and {gpu.vfs_enabled} VFs are on"
    return None


def _firmware(look: Look, snapshot: Snapshot) -> Finding:
    if not any(g.nvidia_driver for g in snapshot.gpus):
        return not_applicable(_NO_GPU)
    files, problems = modprobe_files(look)
    forced = [f"{f.path}: {FIRMWARE}={m[1]}" for f in files for m in _FORCED.finditer(f.text)]
    given = _GIVEN.search(look.file(PARAMS).text or "")
    if given is not None and int(given[1]) & _MODE != _BY_DEFAULT:
        forced.append(f"{PARAMS}: the driver was loaded with EnableGpuFirmware {given[1]}")
    if forced:
        return warn(
            *shortened(forced),
            fix=f"take {FIRMWARE} out of modprobe's files, rebuild the initramfs and reboot: the driver knows which"
            " GPUs need their firmware (GSP)",
        )
    return unknown(*problems) if problems else ok(f"{FIRMWARE} is not set: the driver decides")


def _ecc(look: Look, snapshot: Snapshot) -> Finding:
    gpus = [g for g in snapshot.gpus if g.nvidia_driver]
    if not gpus:
        return not_applicable(_NO_GPU)
    seen = [(g, look.ecc[g.address]) for g in gpus if g.address in look.ecc]
    if not seen:
        return unknown("NVML does not tell of error correction (ECC)")
    waiting = [
        f"{g.address} ({g.model}): ECC is {_on(ecc.enabled)}, and {_on(ecc.pending)} after its next reset"
        for g, ecc in seen
        if ecc.enabled is not ecc.pending
    ]
    if waiting:
        return warn(
            *shortened(waiting),
            "the memory that vGPUs have changes with it",
            fix="reboot the host, or set it back: nvidia-smi -i ADDRESS -e 0 (off) or 1 (on)",
        )
    return ok(*shortened([f"{g.address}: ECC is {_on(ecc.enabled)}" for g, ecc in seen]))


def _on(value: bool) -> str:
    return "on" if value else "off"


CHECKS = (
    Check(
        id="driver-version",
        title="NVIDIA's driver and its libraries are of one version",
        looks_at=f"`{PROC_VERSION}`, `{MODULE_VERSION}`, NVML, `libnvidia-ml.so.VERSION` in `{'`, `'.join(LIBRARIES)}`",
        judge=judged_by_host(_version),
        needs=Needs(files=(PROC_VERSION, MODULE_VERSION), folders=LIBRARIES),
        explains=("nvml", "nvml-failed", "driver", "partition", "scheduler"),
    ),
    Check(
        id="vgpu-services",
        title="NVIDIA's services for vGPUs run",
        looks_at=f"`{MANAGER}.service/cgroup.procs` in `{'`, `'.join(SLICES)}`, the log of `{TYPES}`",
        judge=judged_by_host(_services),
        needs=Needs(
            files=tuple(f"{at}/{MANAGER}.service/cgroup.procs" for at in SLICES), folders=(*SLICES, *UNIT_FOLDERS)
        ),
        explains=("libvirt-failed", "device-failed", "no-capacity"),
        logs=True,
    ),
    Check(
        id="driver-holders",
        title="no program keeps NVIDIA's driver from a change that waits",
        looks_at="who has `/dev/nvidia*` open, MIG and VFs of each GPU",
        judge=judged_by_host(_holders),
        explains=("busy",),
        holders=True,
    ),
    Check(
        id="gpu-firmware",
        title="the driver decides which GPUs use their firmware (GSP)",
        looks_at=f"`{PARAMS}`, `{FIRMWARE}` in `{'/*.conf`, `'.join(FOLDERS)}/*.conf`",
        judge=judged_by_host(_firmware),
        needs=Needs(files=(PARAMS,), configs=FOLDERS),
        explains=("device-failed",),
    ),
    Check(
        id="ecc",
        title="error correction of the GPUs' memory waits for no reset",
        looks_at="NVML",
        judge=judged_by_host(_ecc),
        ecc=True,
    ),
)
